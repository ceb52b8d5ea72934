# SPDX-License-Identifier: Apache-2.0
"""What a host is, as plain data. Facts describe and never decide; schema 1 is documented in vllm_hardware_facts.

One file per source. Each has pure ``parse…(text)`` functions, and a ``gather…(host, warn)`` that reads through a
:class:`~ansible.module_utils.vllm_ansible.host.Host` and reports what it could not learn by ``warn(code, message)``.
"""

from ansible.module_utils.vllm_ansible.hardware import (
    accelerators,
    bounded,
    clock,
    cpu,
    davinci,
    kernel,
    listeners,
    memory,
    network,
    operating_system,
    rdma,
    software,
    storage,
)

SCHEMA = 1


def gather_hardware(host, paths=(), measure_disks=False):
    """Return the hardware facts of a host.

    Args:
        host: the machine to describe.
        paths: paths whose file system matters; each need not exist yet.
        measure_disks: read from each disk for a moment to learn its speed.
    Returns:
        The facts (schema 1), JSON-ready and in a fixed order. Never raises for a file or tool that is missing.
    """
    warnings = []

    def warn(code, message):
        entry = {"code": code, "message": message}
        if entry not in warnings:
            warnings.append(entry)

    host = bounded.BoundedHost(host, warn)
    system = host.system()
    nodes = memory.gather_nodes(host, warn)
    nics, default_address = network.gather_network(host, warn)
    devices = accelerators.gather_accelerators(host, nodes, warn)
    facts = {
        "schema": SCHEMA,
        "architecture": system["machine"],
        "os": operating_system.gather_os(host, warn),
        "kernel": kernel.gather_kernel(host),
        "clock": clock.gather_clock(host),
        "cpu": cpu.gather_cpu(host, warn),
        "numa": {"nodes": nodes},
        "memory": memory.gather_memory(host, warn),
        "disks": storage.gather_disks(host, measure_disks, warn),
        "paths": storage.gather_paths(host, paths, warn),
        "nics": nics,
        "default_address": default_address,
        "listeners": listeners.gather_listeners(host, warn),
        "rdma": rdma.gather_rdma(host),
        **devices,
        "davinci": davinci.gather_davinci(host, devices["accelerators"]),
        "software": software.gather_software(host),
    }
    facts["warnings"] = sorted(warnings, key=lambda entry: (entry["code"], entry["message"]))
    return facts
