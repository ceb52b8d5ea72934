# SPDX-License-Identifier: Apache-2.0
"""Hardware facts (schema 1 of ``vllm_hardware_facts``) as the planner uses them.

Only what is stable may decide. Free disk space and listening ports are volatile: they raise problems, never choose.
"""

import functools
import ipaddress
from typing import Any, Dict, FrozenSet, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.cpulist import parse_cpulist
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.reader import Reader

SCHEMA = 1


class Node(NamedTuple):
    """One NUMA node: its number, the usable CPUs on it, its memory in bytes and (node, distance) to the others."""

    number: int
    cpus: Tuple[int, ...]
    memory_bytes: int
    distances: Tuple[Tuple[int, int], ...] = ()


class Listener(NamedTuple):
    """A taken TCP port and who holds it, as far as the probe could see."""

    address: str
    port: int
    unit: Optional[str]
    process: Optional[str]


class Accelerator(NamedTuple):
    """One NPU or GPU (a die, where a board has several); memory in bytes, 0 when the probe could not see it.

    `number` is what the runtime's visible-devices variable counts in, None when no tool said it. `cpus`: those the
    topology tool calls near. `ill`: why it cannot be used, empty when healthy.
    """

    kind: str
    model: str
    memory_bytes: int
    numa_node: Optional[int]
    number: Optional[int] = None
    cpus: Tuple[int, ...] = ()
    driver: str = ""
    firmware: str = ""
    ill: str = ""
    raw: Any = None

    @property
    def healthy(self) -> bool:
        return not self.ill


class Port(NamedTuple):
    """The RoCE port of one NPU as hccn_tool sees it; texts are empty where it did not say."""

    device: int
    address: str
    link: str
    health: str
    tls: Optional[bool]


class Hardware(NamedTuple):
    """One machine. `cpus` are those online, allowed to the probe and not isolated; sizes in bytes.

    `nics`: (PCI address, NUMA node) of the interfaces that are up. `cgroup2`: whether a cpuset holds a process that
    binds itself.
    """

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
    interface: str = ""
    drivers: Tuple[Tuple[str, str], ...] = ()
    ports: Tuple[Port, ...] = ()
    fabric_manager: Optional[Tuple[str, bool]] = None
    raw: Any = None
    kernel: str = ""
    systemd: int = 0
    ascend_group: str = ""
    threads_per_core: int = 1
    nics: Tuple[Tuple[str, int], ...] = ()
    cgroup2: bool = False


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
    interface, network = _network(facts, address)
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
        network=network,
        warnings=tuple((w.text("code"), w.text("message")) for w in facts.readers("warnings")),
        interface=interface,
        drivers=_drivers(facts),
        ports=tuple(
            Port(p.integer("index"), p.text("address"), p.text("link"), p.text("health"), p.raw.get("tls"))
            for p in facts.readers("hccn")
        ),
        fabric_manager=_fabric_manager(facts),
        raw=facts.raw,
        kernel=facts.mapping("kernel").text("release") or os_facts.text("kernel"),
        systemd=os_facts.integer("systemd"),
        ascend_group=facts.mapping("davinci").text("ascend_group"),
        threads_per_core=max(1, cpu.integer("threads") // max(1, cpu.integer("cores", default=1))),
        nics=_nics(facts),
        cgroup2=cpu.integer("cpuset_version") == 2,
    )
    if not cpus and not bad:
        complain("vllm_hardware.cpu.allowed", cpu.raw.get("allowed"), "a list with at least one online CPU")
    return None if bad else hardware


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Tuple[int, ...]:
    """A CPU list; the hosts of a fleet repeat the same few."""
    return tuple(parse_cpulist(text))


def _cpulist(reader: Reader, key: str, required: bool = False) -> Tuple[int, ...]:
    text = reader.text(key, required=required)
    if not text:
        return ()
    try:
        return _parsed(text)
    except ValueError:
        reader.complain(reader.field(key), text, "a CPU list such as 0-3,8")
        return ()


def _usable_cpus(cpu: Reader) -> Tuple[int, ...]:
    online = _cpulist(cpu, "online", required=True)
    allowed = set(_cpulist(cpu, "allowed")) or set(online)
    # The scheduler spreads no threads over isolated CPUs: all of a worker would stay on the first.
    allowed -= set(_cpulist(cpu, "isolated"))
    return tuple(c for c in online if c in allowed)


def _nodes(numa: Reader, cpus: Tuple[int, ...], memory_bytes: int) -> Tuple[Node, ...]:
    """NUMA nodes that hold usable CPUs; a machine that reports none is one node."""
    usable = set(cpus)
    nodes = []
    for node in numa.readers("nodes"):
        own = tuple(c for c in _cpulist(node, "cpus") if c in usable)
        if own:
            nodes.append(Node(node.integer("id"), own, node.integer("memory_bytes"), _distances(node)))
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


def _distances(node: Reader) -> Tuple[Tuple[int, int], ...]:
    raw = node.mapping("distances").raw
    return tuple(sorted((int(k), v) for k, v in raw.items() if str(k).isdigit() and isinstance(v, int)))


def _nics(facts: Reader) -> Tuple[Tuple[str, int], ...]:
    found = {
        (nic.text("pci"), nic.integer("numa_node", default=-1))
        for nic in facts.readers("nics")
        if nic.text("state") == "up"
    }
    return tuple(sorted((pci, node) for pci, node in found if pci and node >= 0))


def _drivers(facts: Reader) -> Tuple[Tuple[str, str], ...]:
    """Driver version per kind of accelerator, from the vendor's own files."""
    software = facts.mapping("software")
    found = []
    for vendor, kind in (("ascend", "npu"), ("nvidia", "gpu")):
        own = software.mapping(vendor)
        for part in ("driver", "firmware"):
            # NVIDIA's libraries say what is installed; the module may be another until the next reboot
            version = (own.text("library") if (vendor, part) == ("nvidia", "driver") else "") or own.text(part)
            if version:
                found.append((kind + "." + part, version))
    return tuple(found)


def _fabric_manager(facts: Reader) -> Optional[Tuple[str, bool]]:
    """Version of the fabric manager and whether it runs, None where there is none."""
    nvidia = facts.mapping("software").mapping("nvidia")
    if nvidia.raw.get("fabric_manager") is None:
        return None
    manager = nvidia.mapping("fabric_manager")
    return manager.text("version"), manager.flag("active")


def _accelerators(facts: Reader) -> Tuple[Accelerator, ...]:
    found = []
    for entry in facts.readers("accelerators"):
        node = entry.integer("numa_node", default=-1)
        number = entry.integer("index", default=-1)
        health = entry.text("health", default="OK")
        problems = entry.texts("problems")
        ill = "; ".join(problems) if problems else ("" if health.upper() == "OK" else "health is " + health)
        if not ill and entry.flag("mig"):
            ill = "MIG is on: it is divided into instances, which the engine is not given"
        found.append(
            Accelerator(
                kind=entry.text("kind"),
                model=entry.text("model"),
                memory_bytes=entry.integer("memory_bytes"),
                numa_node=node if node >= 0 else None,
                number=number if number >= 0 else None,
                cpus=_cpulist(entry, "cpus"),
                driver=entry.text("driver"),
                firmware=entry.text("firmware"),
                ill=ill,
                raw=entry.raw,
            )
        )
    numbers = [(device.kind, device.number) for device in found if device.number is not None]
    for kind, number in sorted({n for n in numbers if numbers.count(n) > 1}):
        facts.complain("vllm_hardware.accelerators.index", number, "another number for each {}".format(kind))
    # where others have a number, one without cannot be told to an engine
    numbered = {kind for kind, _number in numbers}
    return tuple(
        device._replace(ill=device.ill or "no tool gave it a number")
        if device.number is None and device.kind in numbered
        else device
        for device in found
    )


def unread(hardware: Hardware, kind: str) -> bool:
    """Whether no tool can read the accelerators of `kind` yet: no driver, or one that waits for a reboot."""
    own = [device for device in hardware.accelerators if device.kind == kind]
    return bool(own) and all(device.number is None and not device.memory_bytes for device in own)


def driver_of(hardware: Hardware, kind: str, part: str = "driver") -> str:
    """Return the version of the driver (or firmware) of one kind of accelerator, empty when none is installed."""
    for key, version in hardware.drivers:
        if key == "{}.{}".format(kind, part):
            return version
    versions = [getattr(device, part) for device in hardware.accelerators if device.kind == kind]
    return next((version for version in versions if version), "")


def _network(facts: Reader, address: str) -> Tuple[str, str]:
    """Return the interface that carries the host's own address and its network, e.g. ``198.18.77.0/24``."""
    for nic in facts.readers("nics"):
        for text in nic.texts("addresses"):
            if address and text.partition("/")[0] == address:
                try:
                    return nic.text("name"), str(ipaddress.ip_interface(text).network)
                except ValueError:
                    nic.complain(nic.field("addresses"), text, "addresses such as 10.0.0.1/24")
    return "", ""
