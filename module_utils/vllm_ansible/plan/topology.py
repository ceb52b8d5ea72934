# SPDX-License-Identifier: Apache-2.0
"""Divides the CPUs of one host among the workers on it: whole NUMA nodes first, never shared."""

from typing import Dict, List, Sequence, Set, Tuple

from ansible.module_utils.vllm_ansible.plan.facts import Node

# A node this large can spare one CPU for the operating system, interrupts and the API process.
RESERVE_FROM = 8


def reserved_cpus(nodes: Sequence[Node]) -> Tuple[int, ...]:
    """Return the first CPU of every node with at least RESERVE_FROM usable CPUs."""
    return tuple(node.cpus[0] for node in nodes if len(node.cpus) >= RESERVE_FROM)


def divide(nodes: Sequence[Node], taken: Set[int], ranks: int) -> List[List[int]]:
    """Return `ranks` disjoint lists of the CPUs not in `taken`; a list is empty when there are too few CPUs.

    Up to as many ranks as nodes: a whole node each, the nodes with most free CPUs first. More: every node gets its
    even share of the ranks and is cut into equal runs.
    """
    free = [[cpu for cpu in node.cpus if cpu not in taken] for node in nodes]
    free = [cpus for cpus in free if cpus]
    if not free:
        return [[] for _ in range(ranks)]
    if ranks <= len(free):
        largest = sorted(range(len(free)), key=lambda i: (-len(free[i]), i))[:ranks]
        return [free[i] for i in sorted(largest)]
    shares: List[List[int]] = []
    for index, cpus in enumerate(free):
        here = ranks // len(free) + (1 if index < ranks % len(free) else 0)
        shares += [cpus[len(cpus) * r // here : len(cpus) * (r + 1) // here] for r in range(here)]
    return shares


def nodes_of(nodes: Sequence[Node], cpus: Sequence[int]) -> List[int]:
    """Return the numbers of the NUMA nodes that `cpus` lie on."""
    home: Dict[int, int] = {cpu: node.number for node in nodes for cpu in node.cpus}
    return sorted({home[cpu] for cpu in cpus if cpu in home})
