# SPDX-License-Identifier: Apache-2.0
"""Divides the CPUs of one host among the workers on it: whole NUMA nodes first, never shared."""

from typing import Dict, List, Optional, Sequence, Set, Tuple

from ansible.module_utils.vllm_ansible.plan.facts import Accelerator, Node

# A node this large can spare one CPU for the operating system, interrupts and the API process.
RESERVE_FROM = 8


def reserved_cpus(nodes: Sequence[Node]) -> Tuple[int, ...]:
    """Return the first CPU of every node with at least RESERVE_FROM usable CPUs."""
    return tuple(node.cpus[0] for node in nodes if len(node.cpus) >= RESERVE_FROM)


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


def near_devices(nodes: Sequence[Node], devices: Sequence[Accelerator], taken: Set[int]) -> List[List[int]]:
    """Return disjoint CPU lists, one per device of a host, none in `taken`.

    The CPUs of a node are divided among its devices; a node without devices joins the nearest that has some. Where the
    node of any device is unknown, all CPUs are divided in order.
    """
    home = homes(nodes, devices)
    if not devices or None in home:
        cpus = [cpu for node in nodes for cpu in node.cpus if cpu not in taken]
        return _runs(cpus, len(devices))
    with_devices = sorted({number for number in home if number is not None})
    pools: Dict[int, List[int]] = {number: [] for number in with_devices}
    for node in nodes:
        distance = dict(node.distances)
        nearest = min(with_devices, key=lambda n: (n != node.number, distance.get(n, 255), abs(n - node.number), n))
        pools[nearest] += [cpu for cpu in node.cpus if cpu not in taken]
    shares = {number: _runs(sorted(pools[number]), home.count(number)) for number in with_devices}
    return [shares[number].pop(0) for number in home if number is not None]


def _runs(cpus: List[int], count: int) -> List[List[int]]:
    return [cpus[len(cpus) * i // count : len(cpus) * (i + 1) // count] for i in range(count)]
