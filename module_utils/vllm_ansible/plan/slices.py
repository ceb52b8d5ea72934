# SPDX-License-Identifier: Apache-2.0
"""Hands each role its part of the plan; the shapes are those of the roles' argument specifications."""

import ipaddress
from typing import Any, Dict, List, Optional

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist
from ansible.module_utils.vllm_ansible.plan.backends.base import Binding, Interrupts
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host

KEEP_RELEASES = 2
# Defaults of roles ascend_cann and ascend_driver: CANN's variables, and the group that owns the device files.
ASCEND_ENVIRONMENT = "/etc/vllm/ascend.env"
ASCEND_GROUP = "HwHiAiUser"
# LoadCredential= came with systemd 247.
CREDENTIALS_SINCE = 247


def engine_slices(host: Host, groups: List[Group], bindings: Dict[str, Binding], networks: List[str]) -> Dict[str, Any]:
    """Return the slices of an engine host, keyed by role."""
    assert host.hardware is not None
    models: Dict[str, Any] = {}
    for group in groups:
        assert group.model is not None
        models[group.model.name] = group.model.slice()
    return {
        "host_baseline": {
            "reserved_ports": sorted(
                {port for g in groups for port in [g.port] + g.reserved_ports.get(host.name, []) if port}
            )
        },
        "engine_release": {"build": groups[0].build, "keep": KEEP_RELEASES},
        "model_store": {"models": [models[name] for name in sorted(models)]},
        "numa_policy": numa_policy(host, groups, bindings),
        "engine_service": {"instances": [_service(host, group, networks) for group in groups]},
        "service_verify": {
            "instances": [
                {
                    "name": group.instance,
                    "address": host.address,
                    "port": group.port,
                    "served_model_name": group.served_model_name,
                }
                for group in groups
                if group.head is host
            ]
        },
    }


def numa_policy(host: Host, groups: List[Group], bindings: Dict[str, Binding]) -> Dict[str, Any]:
    """Where each instance and each of its ranks runs, and who answers the interrupts of their devices and the NICs."""
    assert host.hardware is not None
    interrupts = [entry for group in groups for entry in bindings[group.instance].interrupts]
    # the threads of a CPU engine compute on every CPU they have, those of a device's worker mostly wait
    busy = {cpu for g in groups if g.backend == "cpu" for cpu in bindings[g.instance].cpus}
    for pci, number in host.hardware.nics:
        near = next((list(node.cpus) for node in host.hardware.nodes if node.number == number), [])
        idle = [cpu for cpu in near if cpu not in busy]
        if near:
            interrupts.append(Interrupts(pci, idle or near, None))
    return {
        "instances": [
            {
                "name": group.instance,
                "cpus": format_cpulist(bindings[group.instance].cpus),
                "memory_nodes": memory_nodes(host, group, bindings[group.instance]),
                "ranks": [
                    {
                        "device": worker.device,
                        "cpus": format_cpulist(worker.cpus),
                        "memory_node": worker.memory_node,
                    }
                    for worker in bindings[group.instance].workers
                ],
            }
            for group in groups
        ],
        "interrupts": [
            {"pci": entry.pci, "cpus": format_cpulist(entry.cpus), "action": entry.action} for entry in interrupts
        ],
        "packages": ["numactl"]
        if any(group.member_flags.get(host.name, {}).get("numa-bind") for group in groups)
        else [],
    }


def memory_nodes(host: Host, group: Group, binding: Binding) -> Optional[str]:
    """Nodes the instance's memory is bound to; None on one node, or when those nodes cannot hold it."""
    assert host.hardware is not None
    nodes = [node for node in host.hardware.nodes if node.memory_bytes]
    own = {worker.memory_node for worker in binding.workers}
    wanted = [node for node in nodes if node.number in binding.nodes or node.number in own]
    if len(nodes) < 2 or not wanted or sum(node.memory_bytes for node in wanted) < group.host_bytes:
        return None
    return format_cpulist([node.number for node in wanted])


def device_files(group: Group, host: Host) -> List[str]:
    """Device files one instance opens on `host`: its own devices and the managers they share."""
    numbers = group.devices.get(host.name, [])
    if group.backend == "ascend":
        shared = ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
        return ["/dev/davinci{}".format(number) for number in numbers] + shared
    if group.backend == "cuda":
        shared = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
        return ["/dev/nvidia{}".format(number) for number in numbers] + shared
    return []


def _handed_over(host: Host, group: Group) -> Dict[str, Any]:
    """What not every instance needs: CANN's environment, the group of the devices, another way to get the key."""
    assert host.hardware is not None
    more: Dict[str, Any] = {}
    if group.backend == "ascend":
        more["environment_file"] = ASCEND_ENVIRONMENT
        more["supplementary_groups"] = [host.hardware.ascend_group or ASCEND_GROUP]
    if 0 < host.hardware.systemd < CREDENTIALS_SINCE:
        more["key_handover"] = "runtime_directory"
    return more


def covers(networks: List[str], address: str) -> bool:
    """Whether one of `networks` holds the address; what is no network, vllm_service_unit will refuse by name."""
    for network in networks:
        try:
            if ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False):
                return True
        except ValueError:
            continue
    return False


def _service(host: Host, group: Group, networks: List[str]) -> Dict[str, Any]:
    assert host.hardware is not None and group.row is not None and group.model is not None
    allowed = networks or [n for n in [host.hardware.network] if n]
    # the other hosts of the replica, which the networks of the clients may leave out
    members = [other.address for other in group.hosts if other is not host]
    return {
        **_handed_over(host, group),
        "name": group.instance,
        "group": group.name,
        "build": group.build,
        "model": group.model.name,
        "served_model_name": group.served_model_name,
        "listen_address": host.address,
        "port": group.port,
        "flags": {**group.flags, **group.member_flags.get(host.name, {})},
        "environment": {**group.environment, **group.member_environment.get(host.name, {})},
        "devices": device_files(group, host),
        "memory_max_bytes": group.memory["limit_bytes"],
        "model_size_bytes": group.model.size_bytes,
        "shared_memory_bytes": group.row.shared_memory_bytes * group.ranks or None,
        "stall_after_seconds": group.row.service["stall_after_seconds"],
        "max_step_seconds": group.row.service["max_step_seconds"],
        "allowed_networks": allowed + [member for member in members if not covers(allowed, member)],
    }
