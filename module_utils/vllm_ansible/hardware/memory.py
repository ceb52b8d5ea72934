# SPDX-License-Identifier: Apache-2.0
"""Memory, huge pages and NUMA nodes."""

import re

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist, read_cpulist
from ansible.module_utils.vllm_ansible.hardware.cgroup import service_values
from ansible.module_utils.vllm_ansible.hardware.cpu import online_cpus
from ansible.module_utils.vllm_ansible.hardware.values import integer, named_values

SYSFS_NODES = "/sys/devices/system/node"
SYSFS_HUGEPAGES = "/sys/kernel/mm/hugepages"

# cgroup v1 writes "no limit" as the largest number of whole pages; no host has a PiB.
_NO_LIMIT = 1 << 50

# The channel in a slot's Bank Locator: "SOCKET 0 CHANNEL 1 DIMM 0", "_Node0_Channel1_Dimm0", "P0 CHANNEL A".
_CHANNEL = re.compile(r"(.*?)CHANNEL[ _]?([0-9A-Z])", re.IGNORECASE)


def parse_meminfo(text):
    """Return {field: bytes} of a /proc/meminfo or of a node's meminfo; fields without a unit stay counts."""
    values = {}
    for line in (text or "").splitlines():
        match = re.match(r"(?:Node\s+\d+\s+)?([^\s:]+):\s+(\d+)(\s+kB)?\s*$", line)
        if match:
            values[match.group(1)] = int(match.group(2)) * (1024 if match.group(3) else 1)
    return values


def gather_memory(host, warn):
    """Return the ``memory`` facts."""
    values = parse_meminfo(host.read("/proc/meminfo"))
    if "MemTotal" not in values:
        warn("W_MEMORY", "/proc/meminfo has no MemTotal: the memory size is unknown")
    hugepages = []
    for name in host.list_directory(SYSFS_HUGEPAGES):
        match = re.match(r"hugepages-(\d+)kB\Z", name)
        if match:
            hugepages.append(
                {
                    "size_bytes": int(match.group(1)) * 1024,
                    "total": integer(host.read(f"{SYSFS_HUGEPAGES}/{name}/nr_hugepages")),
                    "free": integer(host.read(f"{SYSFS_HUGEPAGES}/{name}/free_hugepages")),
                }
            )
    limits = [integer(text) for text in service_values(host, "memory", ("memory.max", "memory.limit_in_bytes"))]
    limits = [limit for limit in limits if limit is not None and limit < _NO_LIMIT]
    return {
        "total_bytes": values.get("MemTotal"),
        "available_bytes": values.get("MemAvailable"),
        "swap_total_bytes": values.get("SwapTotal"),
        "page_size_bytes": host.system()["page_size"],
        "hugepages": sorted(hugepages, key=lambda entry: entry["size_bytes"]),
        "cgroup_limit_bytes": min(limits) if limits else None,
        "modules": _modules(host),
    }


def _modules(host):
    """Return the ``memory.modules`` facts; None without root, without the tool and on most virtual hosts."""
    answer = host.run(["dmidecode", "-t", "17"]) if host.system()["euid"] == 0 else None
    return parse_modules(answer[1]) if answer is not None and answer[0] == 0 else None


def parse_modules(text):
    """Parse ``dmidecode -t 17``.

    Returns:
        {"slots", "populated", "channels", "populated_channels", "speed_mtps"}, or None without any slot. Channels are
        None where the slots' locators do not name them (``SOCKET 0 CHANNEL 1 DIMM 0``); the speed, in mega-transfers
        per second, is that of the slowest module.
    """
    slots = populated = 0
    channels, filled, speeds = set(), set(), []
    for block in re.split(r"^Memory Device[ \t]*$", text or "", flags=re.MULTILINE)[1:]:
        values = named_values(block)
        if "Size" not in values:
            continue
        slots += 1
        match = _CHANNEL.search(values.get("Bank Locator", "")[:100])
        channel = (match.group(1).strip(" _").upper(), match.group(2).upper()) if match else None
        channels.add(channel)
        if re.match(r"[1-9]", values["Size"]):
            populated += 1
            filled.add(channel)
            speed = re.match(
                r"([0-9]{2,6}) MT/s", values.get("Configured Memory Speed", values.get("Configured Clock Speed", ""))
            )
            speeds += [int(speed.group(1))] if speed else []
    if not slots:
        return None
    named = None not in channels
    return {
        "slots": slots,
        "populated": populated,
        "channels": len(channels) if named else None,
        "populated_channels": len(filled) if named else None,
        "speed_mtps": min(speeds) if speeds else None,
    }


def gather_nodes(host, warn):
    """Return the NUMA nodes in the order of their numbers, which may have gaps.

    A node without memory has ``memory_bytes`` 0, one without CPUs has ``cpus`` "". A kernel without NUMA is
    described as one node that has everything.
    """
    online = set(online_cpus(host))
    total = parse_meminfo(host.read("/proc/meminfo")).get("MemTotal")
    numbers = read_cpulist(host.read(SYSFS_NODES + "/online"))
    if not numbers:
        warn("W_NUMA", f"{SYSFS_NODES} is missing (kernel without NUMA): described as one node")
        return [{"id": 0, "cpus": format_cpulist(online), "memory_bytes": total, "distances": {"0": 10}}]
    nodes = []
    for number in numbers:
        directory = f"{SYSFS_NODES}/node{number}"
        cpus = read_cpulist(host.read(directory + "/cpulist"))
        # A lone node has all memory there is; its own figure leaves out what a virtual machine was given later.
        memory = total if len(numbers) == 1 else parse_meminfo(host.read(directory + "/meminfo")).get("MemTotal")
        if cpus is None or memory is None:
            warn("W_NUMA", f"{directory} is incomplete: its CPUs or its memory are unknown")
        # The columns of "distance" are the online nodes, not the numbers 0, 1, 2 …
        distances = [integer(field) for field in (host.read(directory + "/distance") or "").split()]
        nodes.append(
            {
                "id": number,
                "cpus": format_cpulist(online.intersection(cpus or ())),
                "memory_bytes": memory,
                "distances": {str(other): distance for other, distance in zip(numbers, distances)},
            }
        )
    return nodes
