# SPDX-License-Identifier: Apache-2.0
"""CPU topology and instruction sets from /proc/cpuinfo and /sys/devices/system/cpu, on x86-64 and aarch64."""

from typing import Dict, Optional, Set

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist, read_cpulist
from ansible.module_utils.vllm_ansible.hardware.cgroup import service_values
from ansible.module_utils.vllm_ansible.hardware.values import integer

SYSFS = "/sys/devices/system/cpu"

# The extensions an engine, a kernel library or a catalogue row can depend on, by the kernel's own names.
_ISA = {
    "x86_64": (
        "amx_bf16 amx_fp16 amx_int8 amx_tile avx avx2 avx512_bf16 avx512_fp16 avx512_vnni avx512bw avx512cd avx512dq"
        " avx512f avx512vl avx_vnni f16c fma sse4_2"
    ),
    "aarch64": (
        "aes asimd asimddp asimdfhm asimdhp asimdrdm atomics bf16 crc32 fp fphp i8mm pmull sha2 sve sve2 svebf16"
        " svei8mm"
    ),
}

# aarch64 names its CPUs by number only (Arm's MIDR register).
_ARM_VENDORS = {0x41: "ARM", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x70: "Phytium", 0xC0: "Ampere"}
_ARM_MODELS = {
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x48, 0xD01): "Kunpeng-920",
    (0x70, 0x662): "FTC662",
    (0x70, 0x663): "FTC663",
}


def parse_cpuinfo(text):
    """Return {"vendor", "model", "isa": set of flags, "processors": count} of a /proc/cpuinfo.

    ``isa`` holds only what *every* processor has: an engine thread may run on any of them.
    """
    first: Dict[str, str] = {}
    isa: Optional[Set[str]] = None
    processors = 0
    for block in (text or "").split("\n\n"):
        fields = {}
        for line in block.splitlines():
            name, colon, value = line.partition(":")
            if colon:
                fields[name.strip()] = value.strip()
        if "processor" not in fields:
            continue
        processors += 1
        first = first or fields
        flags = set((fields.get("flags") or fields.get("Features") or "").split())
        isa = flags if isa is None else isa & flags
    vendor, model = first.get("vendor_id"), first.get("model name")
    implementer, part = integer(first.get("CPU implementer"), 16), integer(first.get("CPU part"), 16)
    if implementer is not None:
        vendor = vendor or _ARM_VENDORS.get(implementer, f"0x{implementer:02x}")
        if part is not None:
            model = model or _ARM_MODELS.get((implementer, part), f"0x{implementer:02x}:0x{part:03x}")
    return {"vendor": vendor, "model": model, "isa": isa or set(), "processors": processors}


def online_cpus(host):
    """Return the numbers of the CPUs that run; [] when the host does not say."""
    numbers = read_cpulist(host.read(SYSFS + "/online"))
    if numbers is None:
        numbers = list(range(parse_cpuinfo(host.read("/proc/cpuinfo"))["processors"]))
    return numbers


def isolated_cpus(host):
    """Return the CPUs that the kernel keeps out of its scheduling (``isolcpus=``)."""
    return read_cpulist(host.read(SYSFS + "/isolated")) or []


def cpuset_version(host):
    """Return the version of the control groups that hold the cpuset controller: 2, 1, or None without any."""
    if "cpuset" in (host.read("/sys/fs/cgroup/cgroup.controllers") or "").split():
        return 2
    return 1 if host.read("/sys/fs/cgroup/cpuset/cpuset.cpus") is not None else None


def allowed_cpus(host):
    """Return the online CPUs that a system service may be bound to: those its cpuset allows.

    An affinity mask (``isolcpus=``, systemd's ``CPUAffinity=``) is no limit: a unit's own CPUAffinity= replaces it.
    Where no cpuset is visible, the affinity of the asking process is the best answer there is.
    """
    online = set(online_cpus(host))
    limits = [
        read_cpulist(text)
        for text in service_values(host, "cpuset", ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"))
    ]
    limits = [limit for limit in limits if limit]
    if not limits:
        limits = [read_cpulist(status_field(host.read("/proc/self/status"), "Cpus_allowed_list")) or online]
    for limit in limits:
        online &= set(limit)
    return sorted(online)


def status_field(text, name):
    """Return one value of a /proc/<pid>/status, or None."""
    for line in (text or "").splitlines():
        key, colon, value = line.partition(":")
        if colon and key == name:
            return value.strip()
    return None


def gather_cpu(host, warn):
    """Return the ``cpu`` facts."""
    info = parse_cpuinfo(host.read("/proc/cpuinfo"))
    online = online_cpus(host)
    sockets = _count_groups(host, online, ("package_cpus_list", "core_siblings_list"))
    cores = _count_groups(host, online, ("core_cpus_list", "thread_siblings_list"))
    if sockets is None or cores is None:
        warn("W_CPU_TOPOLOGY", f"{SYSFS}/cpu*/topology is incomplete: sockets and cores are unknown")
    if not info["isa"]:
        warn("W_CPU_ISA", "/proc/cpuinfo names no instruction set extension: the CPU's abilities are unknown")
    known = _ISA.get(host.system()["machine"])
    return {
        "vendor": info["vendor"],
        "model": info["model"],
        "sockets": sockets,
        "cores": cores,
        "threads": len(online),
        "online": format_cpulist(online),
        "allowed": format_cpulist(allowed_cpus(host)),
        "isolated": format_cpulist(isolated_cpus(host)),
        "cpuset_version": cpuset_version(host),
        "isa": sorted(info["isa"].intersection(known.split()) if known else info["isa"]),
    }


def _count_groups(host, online, names):
    """Return how many sibling groups the online CPUs form, reading one CPU of each; None when one cannot be read."""
    remaining, groups = set(online), 0
    while remaining:
        first = min(remaining)
        siblings = None
        for name in names:
            siblings = siblings or read_cpulist(host.read(f"{SYSFS}/cpu{first}/topology/{name}"))
        if not siblings:
            return None
        remaining -= set(siblings) | {first}
        groups += 1
    return groups or None
