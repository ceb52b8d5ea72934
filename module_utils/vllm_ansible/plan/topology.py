# SPDX-License-Identifier: Apache-2.0
"""Divides the CPUs of one host among the workers on it: whole NUMA nodes first, never shared."""

from typing import Dict, List, Optional, Sequence, Set, Tuple

from ansible.module_utils.vllm_ansible.plan.facts import Accelerator, Node

# A node this large can spare one CPU for the operating system, interrupts and the API process.
RESERVE_FROM = 8
# Distances as ACPI counts them. Other nodes of one socket are 11 to 19 away, those of another 20 and more (Kunpeng 920:
# 12, then 20 to 24; Xeon: 21; EPYC: 12, then 32).
LOCAL, OTHER_SOCKET = 10, 20


def reserved_cpus(nodes: Sequence[Node]) -> Tuple[int, ...]:
    """Return the first CPU of every node with at least RESERVE_FROM usable CPUs."""
    return tuple(node.cpus[0] for node in nodes if len(node.cpus) >= RESERVE_FROM)


def reserved_for_slices(nodes: Sequence[Node], devices: int) -> Tuple[int, ...]:
    """Return the first CPUs of every node, so many that what is left divides among `devices` without crossing a node.

    Falls back to :func:`reserved_cpus` where nodes differ in size or their number does not divide the devices.
    """
    sizes = {len(node.cpus) for node in nodes}
    per_node, rest = divmod(devices, len(nodes))
    if len(sizes) != 1 or rest or not per_node or min(sizes) < max(RESERVE_FROM, per_node + 1):
        return reserved_cpus(nodes)
    left = (min(sizes) - 1) // per_node * per_node
    return tuple(cpu for node in nodes for cpu in node.cpus[: len(node.cpus) - left])


def divide(nodes: Sequence[Node], taken: Set[int], ranks: int) -> List[List[int]]:
    """Return `ranks` disjoint lists of the CPUs not in `taken`, each on one node; empty lists when there are too few.

    Every rank in turn goes to the node where it gets the most CPUs, the lower number first: a whole node each while
    there are nodes of equal size, then equal runs of a node.
    """
    free = [[cpu for cpu in node.cpus if cpu not in taken] for node in nodes]
    here = [0] * len(free)
    for _rank in range(ranks):
        best = max(range(len(free)), key=lambda i: (len(free[i]) / (here[i] + 1), -i))
        here[best] += 1
    return [
        cpus[len(cpus) * rank // count : len(cpus) * (rank + 1) // count]
        for cpus, count in zip(free, here)
        for rank in range(count)
    ]


def nodes_of(nodes: Sequence[Node], cpus: Sequence[int]) -> List[int]:
    """Return the numbers of the NUMA nodes that `cpus` lie on."""
    home: Dict[int, int] = {cpu: node.number for node in nodes for cpu in node.cpus}
    return sorted({home[cpu] for cpu in cpus if cpu in home})


def homes(nodes: Sequence[Node], devices: Sequence[Accelerator]) -> List[Optional[int]]:
    """Return the NUMA node each device belongs to: the one that all CPUs near it lie on, else what its bus says.

    None when neither names one node, as where the topology tool calls all CPUs near.
    """
    found: List[Optional[int]] = []
    known = [node.number for node in nodes]
    for device in devices:
        near = [node.number for node in nodes if set(node.cpus).intersection(device.cpus)]
        bus = device.numa_node if device.numa_node in known else None
        found.append(near[0] if len(near) == 1 else bus)
    return found


def distances_hold(nodes: Sequence[Node]) -> bool:
    """Whether firmware gave distances that can be true: 10 on the node itself, more to others, the same both ways."""
    known = {node.number: dict(node.distances) for node in nodes}
    for one in known:
        for other in known:
            there, back = known[one].get(other), known[other].get(one)
            if there is None or there != back or (there == LOCAL) != (one == other) or there < LOCAL:
                return False
    return True


def near_devices(
    nodes: Sequence[Node], devices: Sequence[Accelerator], taken: Set[int], threads: int = 1, least: int = 0
) -> List[List[int]]:
    """Return disjoint CPU lists, one per device of a host, none in `taken`.

    Each node is divided among its devices, so that each has CPUs of its own node; a node without devices joins the
    nearest of its socket that has some, and one on another socket only where there were fewer than `least` CPUs a
    device. `threads` of one core stay together. Where the node of any device is unknown, all CPUs are divided in order.
    """
    home = homes(nodes, devices)
    free = {node.number: [cpu for cpu in _by_core(node.cpus, threads) if cpu not in taken] for node in nodes}
    if not devices or None in home:
        return [sorted(run) for run in _runs([cpu for node in nodes for cpu in free[node.number]], len(devices))]
    with_devices = sorted({number for number in home if number is not None})
    served = {number: [number] for number in with_devices}
    far: List[Tuple[int, int]] = []
    believable = distances_hold(nodes)
    for node in nodes:
        distance = dict(node.distances) if believable else {}
        nearest = min(with_devices, key=lambda n: (distance.get(n, 255), abs(n - node.number), n))
        if distance.get(nearest, 0) >= OTHER_SOCKET:
            far.append((nearest, node.number))
        elif node.number not in served:
            served[nearest].append(node.number)
    for nearest, number in far:
        if sum(len(free[n]) for n in served[nearest]) < least * home.count(nearest):
            served[nearest].append(number)
    shares: List[List[int]] = [[] for _device in devices]
    for number, pool in served.items():
        places = [place for place, own in enumerate(home) if own == number]
        for part in pool:
            for place, run in zip(places, _runs(free[part], len(places))):
                shares[place] += run
    return [sorted(share) for share in shares]


def engine_pools(
    nodes: Sequence[Node], devices: Sequence[Accelerator], running: Sequence[int], allowed: Sequence[int], sliced: bool
) -> Dict[int, List[int]]:
    """Return {number of a running NPU: the CPUs the engine gives its worker} inside a cpuset; {} when it binds nothing.

    The rules of vllm-ascend 0.23.0.post1 (vllm_ascend/cpu_binding.py of its source archive): an A3, and a host whose
    tool names no CPUs, is `sliced` by device number over all devices of the host. Otherwise the CPUs near a device
    are joined by the next node's, and devices with the same CPUs divide them.
    """
    usable = sorted(allowed)
    known = {device.number: device for device in devices if device.number is not None}
    if sliced or not any(device.cpus for device in known.values()):
        if not known or max(running) >= len(known):
            return {}
        base, extra = divmod(len(usable), len(known))
        first = {n: n * base + min(n, extra) for n in running}
        return {n: usable[first[n] : first[n] + base + (n < extra)] for n in running}
    order, inside = [node.number for node in nodes], set(usable)
    own = {node.number: node.cpus for node in nodes}
    joined: Dict[Tuple[int, ...], List[int]] = {}
    for number in sorted(known):
        near = [cpu for cpu in known[number].cpus if cpu in inside]
        if not near:
            if number in running:
                return {}
            continue
        on = nodes_of(nodes, near)
        if len(on) == 1:
            near += [cpu for cpu in own[order[(order.index(on[0]) + 1) % len(order)]] if cpu in inside]
        joined.setdefault(tuple(sorted(set(near))), []).append(number)
    pools: Dict[int, List[int]] = {}
    for cpus, numbers in joined.items():
        size = len(cpus) // len(numbers)
        for place, number in enumerate(numbers):
            end = (place + 1) * size if place < len(numbers) - 1 else len(cpus)
            pools[number] = list(cpus[place * size : end])
    return {number: pools[number] for number in running}


def memory_node(nodes: Sequence[Node], cpus: Sequence[int], home: Optional[int] = None) -> Optional[int]:
    """Return the node whose memory a worker on `cpus` is to use: the one most of them lie on, where it has memory,
    else the nearest that has. None when no node has."""
    on = [node.number for node in nodes for cpu in cpus if cpu in node.cpus]
    where = home if home in on else max(sorted(set(on)), key=on.count, default=None)
    own = next((node for node in nodes if node.number == where), None)
    distance = dict(own.distances) if own is not None and distances_hold(nodes) else {}
    holding = [node.number for node in nodes if node.memory_bytes]
    return min(holding, key=lambda n: (n != where, distance.get(n, 255), abs(n - (where or 0)), n), default=None)


def _by_core(cpus: Sequence[int], threads: int) -> List[int]:
    """CPUs of a node with the threads of one core side by side, where they are numbered as x86 kernels do: one run of
    all first threads, then one of all second ones. Anything else stays in order."""
    cores, rest = divmod(len(cpus), max(1, threads))
    starts = [cpus[cores * thread] for thread in range(threads)] if cores and not rest else []
    if threads < 2 or list(cpus) != [start + core for start in starts for core in range(cores)]:
        return list(cpus)
    return [start + core for core in range(cores) for start in starts]


def _runs(cpus: List[int], count: int) -> List[List[int]]:
    return [cpus[len(cpus) * i // count : len(cpus) * (i + 1) // count] for i in range(count)]
