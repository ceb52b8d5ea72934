# SPDX-License-Identifier: Apache-2.0
"""Tuning profiles of the catalogue: settings per platform; the plan hands one to each host, with the site's values."""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.cpulist import parse_cpulist
from ansible.module_utils.vllm_ansible.plan.canonical import gib
from ansible.module_utils.vllm_ansible.plan.reader import Reader

PROFILES = ("vllm-ascend", "vllm-nvidia", "vllm-cpu", "vllm-kunpeng")
IRQBALANCE = ("keep", "stop", "banned")
PAGES = ("always", "madvise", "never")
WISHES = ("banned_cpus", "enabled", "governor", "hugepages", "irqbalance", "sysctls", "transparent_hugepages")
# What systemd-detect-virt calls a system that shares the kernel of another: nothing of a kernel is set there.
CONTAINERS = ("docker", "lxc", "lxc-libvirt", "openvz", "podman", "proot", "rkt", "systemd-nspawn", "wsl")
# Page size of the kernel -> its ordinary huge page, in KiB (one entry of the middle page table).
HUGE_KIB = {4096: 2048, 16384: 32768, 65536: 524288}
# What the engine does about interrupts -> what is done with irqbalance.
_IRQBALANCE_OF = {"enabled": "keep", "disabled": "stop", "engine": "stop"}


class Tuning(NamedTuple):
    """Settings of one kind of host.

    It is meant for hosts with one of `families` (device families, ``cpu`` for none) and `architectures`; of several
    that fit, the one with the highest `priority` counts. `profile` is what it is called on the host. Of
    `optional_sysctl` only kernels before `optional_before` know anything. `advice` is what only a person can set,
    firmware options say.
    """

    name: str
    profile: str
    families: Tuple[str, ...]
    architectures: Tuple[str, ...]
    priority: int
    sysctl: Dict[str, str]
    optional_sysctl: Dict[str, str]
    optional_before: str
    kernel_parameters: Tuple[str, ...]
    governor: str
    tuned: str
    irqbalance: str
    transparent_hugepages: str
    limits: Dict[str, str]
    environment: Dict[str, str]
    advice: Tuple[str, ...]
    unverified: Dict[str, str]


TUNING_KEYS = frozenset(Tuning._fields) - {"name"} | {"sources"}


def read_tuning(name: str, entry: Reader) -> Tuning:
    """Read one profile; what is unusable is complained about through `entry`."""
    entry.only(TUNING_KEYS)
    entry.sources()
    return Tuning(
        name=name,
        profile=entry.choice("profile", PROFILES),
        families=tuple(entry.texts("families", required=True)),
        architectures=tuple(entry.texts("architectures", required=True)),
        priority=entry.integer("priority"),
        sysctl=entry.text_map("sysctl"),
        optional_sysctl=entry.text_map("optional_sysctl"),
        optional_before=entry.text("optional_before"),
        kernel_parameters=tuple(entry.texts("kernel_parameters")),
        governor=entry.text("governor"),
        tuned=entry.text("tuned"),
        irqbalance=entry.choice("irqbalance", ("enabled", "disabled", "engine"), default="enabled"),
        transparent_hugepages=entry.text("transparent_hugepages"),
        limits=entry.text_map("limits"),
        environment=entry.text_map("environment"),
        advice=tuple(entry.texts("advice")),
        unverified=entry.text_map("unverified"),
    )


def choose(profiles: Any, families: Tuple[str, ...], architecture: str) -> Optional[Tuning]:
    """Return the profile for a host with these device families (none: a CPU host), or None."""
    wanted = set(families or ("cpu",))
    fitting = [p for p in profiles if architecture in p.architectures and wanted.intersection(p.families)]
    return max(fitting, key=lambda p: (p.priority, p.name)) if fitting else None


def read_wishes(raw: Any, complain: Any) -> Dict[str, Any]:
    """Read ``engine_tuning`` of a host; what is unusable is complained about."""
    entry = Reader(raw, "engine_tuning", complain)
    entry.only(WISHES)
    sysctls = entry.mapping("sysctls").raw
    for name in sorted(n for n in sysctls if not isinstance(n, str) or not isinstance(sysctls[n], (str, int))):
        complain("engine_tuning.sysctls." + str(name), sysctls[name], "a text or a number")
    wishes: Dict[str, Any] = {
        "enabled": entry.flag("enabled", default=True),
        "sysctls": {str(name): str(sysctls[name]) for name in sysctls},
        "hugepages": [_read_pages(item) for item in entry.readers("hugepages")],
    }
    for key, choices in (("transparent_hugepages", PAGES + ("keep",)), ("irqbalance", IRQBALANCE)):
        if entry.raw.get(key) is not None:
            wishes[key] = entry.choice(key, choices)
    for key in ("governor", "banned_cpus"):
        if entry.raw.get(key) is not None:
            wishes[key] = entry.text(key)
    try:
        parse_cpulist(wishes.get("banned_cpus", ""))
    except ValueError:
        complain("engine_tuning.banned_cpus", wishes["banned_cpus"], "a CPU list such as 0-3,8")
    if bool(wishes.get("banned_cpus")) != (wishes.get("irqbalance") == "banned"):
        complain("engine_tuning.banned_cpus", wishes.get("banned_cpus"), "there, together with irqbalance: banned")
    return wishes


def _read_pages(item: Reader) -> Dict[str, int]:
    item.only(("count", "gib", "node", "size_kib"))
    counted = item.raw.get("count") is not None
    found = {
        key: item.integer(key, required=True, minimum=1) for key in (("count", "size_kib") if counted else ("gib",))
    }
    if item.raw.get("node") is not None:
        found["node"] = item.integer("node")
    return found


def decide(host: Any, families: Tuple[str, ...], kernel: str, context: Any) -> Dict[str, Any]:
    """Return the slice tuned_profile of `host` as {"tuned_profile": …}; {} where nothing is to be set.

    `families`: the device families its engines run on. `kernel`: the release the host will have.
    """
    hardware, wishes, findings = host.hardware, host.tuning, context.findings
    profile = choose(context.catalogue.tuning, families, hardware.architecture)
    os_facts = hardware.raw.get("os") if isinstance(hardware.raw, dict) else None
    virtual = os_facts.get("virtualization") if isinstance(os_facts, dict) else None
    if profile is None or not wishes.get("enabled", True) or virtual in CONTAINERS:
        return {}
    sysctls = dict(profile.sysctl)
    if profile.optional_before and _release(kernel) < _release(profile.optional_before):
        sysctls.update(profile.optional_sysctl)
    sysctls.update(wishes.get("sysctls", {}))
    pinned = sorted(key for key in wishes if key != "enabled" and wishes[key])
    pages = wishes.get("transparent_hugepages", profile.transparent_hugepages)
    findings.decide(
        "R_TUNING_PINNED" if pinned else "R_TUNING",
        "tuned_profile.profile",
        profile.profile,
        "{} of the catalogue is for hosts with {} on {}{}".format(
            profile.name,
            " and ".join(families) or "no accelerators",
            hardware.architecture,
            "; engine_tuning sets {}".format(", ".join(pinned)) if pinned else "",
        ),
        host.name,
    )
    return {
        "tuned_profile": {
            "profile": profile.profile,
            "sysctls": {name: sysctls[name] for name in sorted(sysctls)},
            "transparent_hugepages": pages if pages in PAGES else None,
            "governor": wishes.get("governor", profile.governor) or None,
            "irqbalance": wishes.get("irqbalance", _IRQBALANCE_OF[profile.irqbalance]),
            "banned_cpus": wishes.get("banned_cpus", ""),
            "hugepages": _pages(host, wishes.get("hugepages", []), findings),
            # role host_baseline reserves the ports of the engines
            "reserved_ports": "",
        }
    }


def _release(text: str) -> Tuple[int, int]:
    """The first two numbers of a kernel release; one nobody knows is newer than all."""
    found = re.match(r"([0-9]+)\.([0-9]+)", text)
    return (int(found.group(1)), int(found.group(2))) if found else (1 << 30, 0)


def _pages(host: Any, wishes: List[Dict[str, int]], findings: Any) -> List[Dict[str, Any]]:
    """Huge pages in sizes that the host's kernel has; on kernels with large pages those are others."""
    hardware = host.hardware
    memory = hardware.raw.get("memory") if isinstance(hardware.raw, dict) else None
    listed = memory.get("hugepages") if isinstance(memory, dict) else None
    sizes = sorted(
        entry["size_bytes"] // 1024
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("size_bytes"), int)
    )
    ordinary = HUGE_KIB.get(hardware.page_size_bytes, 0)
    nodes = [node.number for node in hardware.nodes]

    def refuse(message: str, set_to: str, seen: Any) -> None:
        findings.problem("E_HUGEPAGES", message, set_to, host=host.name, field="engine_tuning.hugepages", seen=seen)

    found: List[Dict[str, Any]] = []
    for wish in wishes:
        if not (wish.get("gib") or (wish.get("count") and wish.get("size_kib"))):
            continue  # it was complained about
        size = wish.get("size_kib", ordinary)
        if size not in (sizes or [ordinary]):
            refuse(
                "{} has no huge pages of {} KiB: its kernel has pages of {} bytes".format(
                    host.name, size, hardware.page_size_bytes
                ),
                "size_kib: {}, or gib, which takes the ordinary size".format(
                    " or ".join(str(s) for s in sizes) or "one that the kernel has"
                ),
                size,
            )
            continue
        if wish.get("node", nodes[0]) not in nodes:
            refuse(
                "{} has no NUMA node {} with CPUs".format(host.name, wish["node"]),
                "node: one of {}".format(", ".join(str(n) for n in nodes)),
                wish["node"],
            )
            continue
        count = wish["count"] if "count" in wish else -(-wish["gib"] * 1024 * 1024 // size)
        found.append({"size_kib": size, "count": count, "node": wish.get("node")})
    total = sum(entry["size_kib"] * entry["count"] * 1024 for entry in found)
    if total > hardware.memory_bytes // 2:
        refuse(
            "Huge pages of {} would take more than half of the memory of {} ({})".format(
                gib(total), host.name, gib(hardware.memory_bytes)
            ),
            "fewer of them: engines need ordinary memory too",
            total,
        )
    return found
