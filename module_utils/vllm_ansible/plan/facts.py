# SPDX-License-Identifier: Apache-2.0
"""Hardware facts (schema 1 of ``vllm_hardware_facts``) as the planner uses them.

Only what is stable may decide. Free disk space and listening ports are volatile: they raise problems, never choose.
"""

import ipaddress
from typing import Any, Dict, FrozenSet, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.cpulist import parse_cpulist
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.reader import Reader

SCHEMA = 1


class Node(NamedTuple):
    """One NUMA node: its number, the usable CPUs on it and its memory in bytes."""

    number: int
    cpus: Tuple[int, ...]
    memory_bytes: int


class Listener(NamedTuple):
    """A taken TCP port and who holds it, as far as the probe could see."""

    address: str
    port: int
    unit: Optional[str]
    process: Optional[str]


class Accelerator(NamedTuple):
    """One NPU or GPU; memory in bytes, 0 when the probe could not see it."""

    kind: str
    model: str
    memory_bytes: int
    numa_node: Optional[int]
    healthy: bool


class Hardware(NamedTuple):
    """One machine. `cpus` are those online and allowed to the probe; sizes in bytes."""

    architecture: str
    os_name: str
    os_id: str
    os_version: str
    os_label: str
    glibc: str
    cpu_model: str
    cpus: Tuple[int, ...]
    isa: FrozenSet[str]
    nodes: Tuple[Node, ...]
    memory_bytes: int
    page_size_bytes: int
    free_bytes: Dict[str, int]
    mounts: Dict[str, str]
    listeners: Tuple[Listener, ...]
    accelerators: Tuple[Accelerator, ...]
    address: str
    network: str
    warnings: Tuple[Tuple[str, str], ...]


def read_hardware(raw: Any, host: str, findings: Findings) -> Optional[Hardware]:
    """Return the machine, or None after an E_FACTS_INVALID for each field that cannot be used."""
    bad = []

    def complain(field: str, seen: Any, wanted: str) -> None:
        bad.append(field)
        findings.problem(
            "E_FACTS_INVALID",
            "The hardware facts of {} are unusable: {} has to be {}".format(host, field, wanted),
            "gather them again with this version of vllm_hardware_facts, or correct the recording",
            host=host,
            field=field,
            seen=seen,
        )

    facts = Reader(raw, "vllm_hardware", complain)
    if facts.integer("schema", required=True) != SCHEMA and not bad:
        complain("vllm_hardware.schema", facts.raw.get("schema"), str(SCHEMA))
    if bad:
        return None
    cpu = facts.mapping("cpu", required=True)
    cpus = _usable_cpus(cpu)
    memory = facts.mapping("memory", required=True)
    total = memory.integer("total_bytes", required=True, minimum=1)
    limit = memory.integer("cgroup_limit_bytes")
    os_facts = facts.mapping("os", required=True)
    address = facts.text("default_address")
    free, mounts = _disks(facts)
    hardware = Hardware(
        architecture=facts.text("architecture", required=True),
        os_name="{} {}".format(os_facts.text("name") or os_facts.text("id"), os_facts.text("version_id")).strip(),
        os_id=os_facts.text("id"),
        os_version=os_facts.text("version_id"),
        os_label=os_facts.text("version"),
        glibc=os_facts.text("glibc"),
        cpu_model=cpu.text("model"),
        cpus=cpus,
        isa=frozenset(cpu.texts("isa")),
        nodes=_nodes(facts.mapping("numa"), cpus, total),
        memory_bytes=min(total, limit) if limit else total,
        page_size_bytes=memory.integer("page_size_bytes"),
        free_bytes=free,
        mounts=mounts,
        listeners=_listeners(facts),
        accelerators=_accelerators(facts),
        address=address,
        network=_network(facts, address),
        warnings=tuple((w.text("code"), w.text("message")) for w in facts.readers("warnings")),
    )
    if not cpus and not bad:
        complain("vllm_hardware.cpu.allowed", cpu.raw.get("allowed"), "a list with at least one online CPU")
    return None if bad else hardware


def _cpulist(reader: Reader, key: str, required: bool = False) -> Tuple[int, ...]:
    text = reader.text(key, required=required)
    if not text:
        return ()
    try:
        return tuple(parse_cpulist(text))
    except ValueError:
        reader.complain(reader.field(key), text, "a CPU list such as 0-3,8")
        return ()


def _usable_cpus(cpu: Reader) -> Tuple[int, ...]:
    online = _cpulist(cpu, "online", required=True)
    allowed = set(_cpulist(cpu, "allowed"))
    return tuple(c for c in online if c in allowed) if allowed else online


def _nodes(numa: Reader, cpus: Tuple[int, ...], memory_bytes: int) -> Tuple[Node, ...]:
    """NUMA nodes that hold usable CPUs; a machine that reports none is one node."""
    usable = set(cpus)
    nodes = []
    for node in numa.readers("nodes"):
        own = tuple(c for c in _cpulist(node, "cpus") if c in usable)
        if own:
            nodes.append(Node(node.integer("id"), own, node.integer("memory_bytes")))
            usable -= set(own)
    return tuple(sorted(nodes)) or (Node(0, cpus, memory_bytes),)


def _disks(facts: Reader) -> Tuple[Dict[str, int], Dict[str, str]]:
    """Free bytes per mount point, and the mount point of each path the facts name."""
    free = {disk.text("mount"): disk.integer("available_bytes") for disk in facts.readers("disks")}
    mounts = {}
    paths = facts.mapping("paths")
    for path in paths.raw:
        entry = paths.mapping(path) if isinstance(path, str) else None
        if entry is not None:
            mount = entry.text("mount", default=path)
            mounts[path] = mount
            free.setdefault(mount, entry.integer("available_bytes"))
    return free, mounts


def mount_of(hardware: Hardware, path: str) -> Optional[str]:
    """Return the mount point that holds `path`, or None when the facts do not say."""
    for known in sorted(hardware.mounts, key=len, reverse=True):
        if (path + "/").startswith(known.rstrip("/") + "/"):
            return hardware.mounts[known]
    holding = [m for m in hardware.free_bytes if m and (path + "/").startswith(m.rstrip("/") + "/")]
    return max(holding, key=len) if holding else None


def _listeners(facts: Reader) -> Tuple[Listener, ...]:
    return tuple(
        Listener(e.text("address"), e.integer("port"), e.optional_text("unit"), e.optional_text("process"))
        for e in facts.readers("listeners")
    )


def _accelerators(facts: Reader) -> Tuple[Accelerator, ...]:
    found = []
    for entry in facts.readers("accelerators"):
        node = entry.integer("numa_node", default=-1)
        health = entry.text("health", default="OK")
        found.append(
            Accelerator(
                entry.text("kind"),
                entry.text("model"),
                entry.integer("memory_bytes"),
                node if node >= 0 else None,
                health.upper() == "OK",
            )
        )
    return tuple(found)


def _network(facts: Reader, address: str) -> str:
    """Return the network of the interface that carries the host's own address, e.g. ``198.18.77.0/24``."""
    for nic in facts.readers("nics"):
        for text in nic.texts("addresses"):
            if address and text.partition("/")[0] == address:
                try:
                    return str(ipaddress.ip_interface(text).network)
                except ValueError:
                    nic.complain(nic.field("addresses"), text, "addresses such as 10.0.0.1/24")
    return ""
