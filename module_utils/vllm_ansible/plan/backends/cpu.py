# SPDX-License-Identifier: Apache-2.0
"""The CPU backend: workers on NUMA nodes, KV cache in host memory."""

from typing import Dict, List, Sequence, Set

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist, parse_cpulist
from ansible.module_utils.vllm_ansible.plan.backends.base import Backend, Binding, Context, Worker, fail
from ansible.module_utils.vllm_ansible.plan.backends.cpu_engine import (
    check_alike,
    check_machine,
    check_model,
    decide_dtype,
    decide_layout,
    decide_row,
)
from ansible.module_utils.vllm_ansible.plan.backends.cpu_sizes import (
    decide_lengths,
    decide_memory,
    decide_settings,
    machine_budget,
    machine_for,
)
from ansible.module_utils.vllm_ansible.plan.canonical import GIB, gib
from ansible.module_utils.vllm_ansible.plan.catalogue import choose_row
from ansible.module_utils.vllm_ansible.plan.facts import Node
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host
from ansible.module_utils.vllm_ansible.plan.meeting import meet, own_addresses
from ansible.module_utils.vllm_ansible.plan.topology import divide, memory_node, nodes_of, reserved_cpus


class CpuBackend(Backend):
    """vLLM's CPU platform."""

    name = "cpu"

    def plan(self, group: Group, context: Context) -> None:
        assert group.head.hardware is not None
        row = choose_row(context.catalogue, self.name, group.request.version, group.head.hardware.architecture)
        if row is None:
            versions = sorted({r.version for r in context.catalogue.rows if r.backend == self.name})
            fail(
                group,
                context,
                "E_VERSION",
                "No row of the catalogue has a CPU engine of version {}".format(group.request.version),
                "version: " + (" or ".join('"={}"'.format(v) for v in versions) or "none is in the catalogue"),
                "engine_request.version",
                group.request.version,
            )
            return
        group.row = row
        decide_row(group, row, context)
        for host in group.hosts:
            check_machine(group, row, host, context)
        check_alike(group, context)
        check_model(group, row, context)
        decide_dtype(group, row, context)
        decide_layout(group, context)
        if not group.failed:
            decide_lengths(group, row, context)
            decide_memory(group, row, context)
            decide_settings(group, row, context)

    def bind(self, host: Host, groups: List[Group], context: Context) -> Dict[str, Binding]:
        assert host.hardware is not None
        nodes = host.hardware.nodes
        bindings: Dict[str, Binding] = {}
        taken: Set[int] = set()
        for group in [g for g in groups if g.request.cpus]:
            ranks = _pinned(group, host, taken, context)
            if ranks:
                bindings[group.instance] = _binding(nodes, ranks)
        open_groups = [g for g in groups if not g.request.cpus]
        wanted = sum(g.ranks for g in open_groups)
        reserve = set() if taken else set(reserved_cpus(nodes))
        shares = divide(nodes, taken | reserve, wanted) if wanted else []
        for group in open_groups:
            ranks, shares = shares[: group.ranks], shares[group.ranks :]
            if not all(ranks):
                fail(
                    group,
                    context,
                    "E_CPUS_TOO_FEW",
                    "{} has {} usable CPUs, {} of them pinned: {} workers cannot have one each".format(
                        host.name, len(host.hardware.cpus), len(taken), wanted
                    ),
                    "fewer replicas_per_host, a smaller tensor_parallel_size, or fewer pinned cpus",
                    "engine_request.replicas_per_host",
                    len(host.hardware.cpus),
                    host,
                )
                continue
            binding = _binding(nodes, ranks)
            bindings[group.instance] = binding
            context.findings.decide(
                "R_CPUS_FROM_TOPOLOGY",
                "numa.cpus",
                _bind_text(binding),
                "{} has {} usable CPUs on {} NUMA node(s) for {} worker(s); a worker never spans nodes, and {}".format(
                    host.name,
                    len(host.hardware.cpus),
                    len(nodes),
                    wanted,
                    "CPU {} is left to the system".format(format_cpulist(reserve))
                    if reserve
                    else "none is left to the system on so small a machine",
                ),
                host.name,
                group.name,
            )
        return bindings

    def settle(self, host: Host, groups: List[Group], bindings: Dict[str, Binding], context: Context) -> None:
        assert host.hardware is not None
        budget = machine_budget(host.hardware.memory_bytes)
        total = sum(g.memory["total_bytes"] for g in groups)
        if total > budget:
            _refuse_memory(host, groups, total - budget, budget, context)
            return
        for position, group in enumerate(groups):
            limit = group.memory["total_bytes"] + (budget - total) // len(groups)
            # one number for all hosts of a replica, so the smallest
            group.memory["limit_bytes"] = min(limit, group.memory.get("limit_bytes", limit))
            if group.head is host:
                group.position = position
            group.reserved_ports[host.name] = meet(group, host, context)
            environment = {"VLLM_CPU_OMP_THREADS_BIND": _bind_text(bindings[group.instance])}
            environment.update(own_addresses(group, host) if len(group.hosts) > 1 else {})
            group.member_environment[host.name] = environment


def _binding(nodes: Sequence[Node], ranks: List[List[int]]) -> Binding:
    workers = [Worker(None, rank, memory_node(nodes, rank)) for rank in ranks]
    return Binding(ranks, nodes_of(nodes, [cpu for rank in ranks for cpu in rank]), workers)


def _bind_text(binding: Binding) -> str:
    return "|".join(format_cpulist(rank) for rank in binding.ranks)


def _pinned(group: Group, host: Host, taken: Set[int], context: Context) -> List[List[int]]:
    """The CPUs the request pins, checked against the machine; they are added to `taken`."""
    assert host.hardware is not None and group.request.cpus is not None
    field, text = "engine_request.cpus", group.request.cpus
    ranks = [parse_cpulist(part) for part in text.split("|")]
    cpus = [cpu for rank in ranks for cpu in rank]
    unknown = sorted(set(cpus) - set(host.hardware.cpus))
    usable = format_cpulist(host.hardware.cpus)
    if len(ranks) != group.ranks:
        fail(group, context, "E_CPUS_RANKS",
             "cpus names {} list(s) and the replica has {} worker(s)".format(len(ranks), group.ranks),
             "{} list(s) separated by |".format(group.ranks), field, text, host)  # fmt: skip
    elif unknown:
        fail(group, context, "E_CPUS_UNKNOWN",
             "{} has no usable CPU {}".format(host.name, format_cpulist(unknown)),
             "cpus within " + usable, field, text, host)  # fmt: skip
    elif taken.intersection(cpus) or len(set(cpus)) != len(cpus):
        fail(group, context, "E_CPUS_OVERLAP",
             "CPU {} of {} is pinned twice".format(
                 format_cpulist(taken.intersection(cpus) or [c for c in cpus if cpus.count(c) > 1]), host.name),
             "disjoint lists within " + usable, field, text, host)  # fmt: skip
    else:
        taken.update(cpus)
        context.findings.decide("R_CPUS_PINNED", "numa.cpus", text, "engine_request.cpus asks for it",
                                host.name, group.name)  # fmt: skip
        return ranks
    return []


def _refuse_memory(host: Host, groups: List[Group], excess: int, budget: int, context: Context) -> None:
    """Say that the instances on `host` do not fit, and the smallest change that would make them."""
    largest = max(groups, key=lambda g: (g.kv_cache_gib, g.instance))
    smaller = largest.kv_cache_gib - -(-excess // (largest.ranks * GIB))
    assert host.hardware is not None
    if smaller >= 1:
        set_to = "kv_cache_gib: {} for {}".format(smaller, largest.instance)
    elif len(groups) > 1:
        set_to = "fewer engines on this host, or one with {} of memory".format(gib(machine_for(budget + excess)))
    else:
        set_to = "a smaller model, or a host with {} of memory".format(gib(machine_for(budget + excess)))
    for group in groups:
        group.failed = True
    context.findings.problem(
        "E_MEMORY",
        "{} needs {} for {} and has {} for engines ({} in all): {} too little".format(
            host.name,
            gib(budget + excess),
            " and ".join(g.instance for g in groups),
            gib(budget),
            gib(host.hardware.memory_bytes),
            gib(excess),
        ),
        set_to,
        host=host.name,
        field="engine_request.kv_cache_gib",
        seen=largest.kv_cache_gib,
    )
