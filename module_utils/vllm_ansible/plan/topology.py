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
