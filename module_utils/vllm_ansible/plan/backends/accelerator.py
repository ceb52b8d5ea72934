# SPDX-License-Identifier: Apache-2.0
"""NPUs and GPUs: rows, devices, layouts over them, and the CPUs near each."""

from typing import Dict, List, Optional, Sequence, Set, Tuple

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist
from ansible.module_utils.vllm_ansible.plan.backends import accelerator_checks as checks
from ansible.module_utils.vllm_ansible.plan.backends import accelerator_fit as fit
from ansible.module_utils.vllm_ansible.plan.backends.accelerator_checks import Found
from ansible.module_utils.vllm_ansible.plan.backends.accelerator_settings import (
    SLICED,
    answer_interrupts,
    bind_workers,
    decide_member,
    decide_settings,
    place_workers,
)
from ansible.module_utils.vllm_ansible.plan.backends.base import Backend, Binding, Context, fail
from ansible.module_utils.vllm_ansible.plan.backends.cpu_sizes import machine_budget, machine_for
from ansible.module_utils.vllm_ansible.plan.canonical import gib
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.fit.advice import MOST_HOSTS, more_hosts
from ansible.module_utils.vllm_ansible.plan.fit.layouts import Question, choose
from ansible.module_utils.vllm_ansible.plan.groups import NEVER, Group, Host
from ansible.module_utils.vllm_ansible.plan.requests import Claim
from ansible.module_utils.vllm_ansible.plan.topology import (
    distances_hold,
    near_devices,
    nodes_of,
    reserved_cpus,
    reserved_for_slices,
)

# The engine pins interrupts, main thread, compute, release and communication of each NPU to a CPU of its own
# (vllm-ascend, cpu_binding.md); with fewer it leaves binding off.
CPUS_PER_NPU = 5


class AcceleratorBackend(Backend):
    """Devices of one kind; `kind` is the facts' word for it."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind

    def size(self, claim: Claim, hosts: List[Host], context: Context) -> int:
        silent = context._replace(findings=Findings())
        probe = Group(claim, hosts[:1], 0)
        prepared = self._prepare(probe, silent, range(1, min(len(hosts), MOST_HOSTS) + 1))
        if prepared is None:
            return 1  # planning the host alone says what is wrong with it
        asked, _found = prepared
        answer = choose(asked)
        if answer is not None:
            return answer.layout.hosts
        return 0 if more_hosts(asked) else NEVER

    def apportion(self, host: Host, groups: List[Group], context: Context) -> None:
        """Divide the devices of a host among its engines: equal shares for replicas of one request, else to each the
        fewest that carry it, and what is left to the largest that generates."""
        silent = context._replace(findings=Findings())
        asked: Dict[str, Question] = {}
        for group in groups:
            prepared = self._prepare(Group(group.claim, [host], 0), silent, (1,))
            if prepared is None:
                return  # planning it says what is wrong
            asked[group.instance] = prepared[0]
        available = min(question.per_host for question in asked.values())
        counts = {name: _counts(question) for name, question in asked.items()}
        alike = len({id(group.claim) for group in groups}) == 1
        if not all(counts.values()):
            return  # one of them fits no share, and planning it with all devices says why
        least = {name: own[0] for name, own in counts.items()}
        given = {name: available // len(groups) for name in counts} if alike else dict(least)
        if not all(given.values()) or sum(given.values()) > available:
            fail(groups[0], context, "E_DEVICES_TOO_FEW",
                 "The engines on {} need {} devices at least ({}), and it has {} healthy ones".format(
                     host.name, sum(least.values()),
                     ", ".join("{} {}".format(name, least[name]) for name in sorted(least)), available),
                 "fewer engines on this host, or another host for one of them", "engine_request", available,
                 host)  # fmt: skip
            for group in groups:
                group.failed = True
            return
        left = available - sum(given.values())
        for group in sorted(groups, key=lambda g: (-given[g.instance], g.instance)):
            model = context.catalogue.models[group.request.model]
            for count in [] if alike or model.task == "embed" else counts[group.instance]:
                more = count - given[group.instance]
                if 0 < more <= left:
                    given[group.instance] = count
                    left -= more
        for group in groups:
            group.allotted = given[group.instance]
            context.findings.decide(
                "R_DEVICES_SHARED", "devices.allotted", group.allotted,
                "{} engines share the {} devices of {}, whole devices only: {}".format(
                    len(groups), available, host.name,
                    "equal shares for replicas of one request" if alike
                    else "each the fewest that carry it, what is left to the largest that generates"),
                host.name, group.name,
            )  # fmt: skip

    def plan(self, group: Group, context: Context) -> None:
        prepared = self._prepare(group, context, (len(group.hosts),))
        if prepared is None:
            return
        asked, found = prepared
        for host, own in zip(group.hosts, found):
            checks.warn_of_state(group, host, own, context)
        answer = choose(asked)
        if answer is None:
            fit.refuse(group, asked, found, context)
            return
        fit.decide(group, asked, answer, context)
        self._host_memory(group)
        decide_settings(group, self.kind, context)

    def _prepare(self, group: Group, context: Context, hosts: Sequence[int]) -> Optional[Tuple[Question, List[Found]]]:
        """Everything before the layout; None after a problem. `hosts`: how many hosts the layout may take."""
        group.backend = self.name
        group.model = context.catalogue.models.get(group.request.model)
        if group.model is None:
            return None
        found = [checks.find_devices(group, host, self.kind, context) for host in group.hosts]
        usable = [own for own in found if own is not None]
        if len(usable) < len(found):
            return None
        device = usable[0].device
        group.device, group.family, group.soc_version = device.name, device.family, device.soc_version
        if not checks.check_alike(group, usable, self.kind, context):
            return None
        checks.choose_row(group, usable, self.kind, context)
        if group.row is None:
            return None
        sound = checks.check_model(group, device, context)
        asked = fit.question(group, usable, tuple(hosts))
        return (asked, usable) if fit.check_request(group, asked, context) and sound else None

    def _host_memory(self, group: Group) -> None:
        """Memory of the host that the processes of one member take, as far as the row knows it."""
        row = group.row
        assert row is not None
        group.host_bytes = row.process_bytes + group.ranks * (row.worker_bytes + row.shared_memory_bytes)

    def bind(self, host: Host, groups: List[Group], context: Context) -> Dict[str, Binding]:
        """Give each instance its devices, in order of the nodes they lie on, and the CPUs near them."""
        assert host.hardware is not None
        nodes = host.hardware.nodes
        own = [d for d in host.hardware.accelerators if d.kind == self.kind]
        sliced = any(group.family in SLICED for group in groups)
        reserved = reserved_for_slices(nodes, len(own)) if sliced else reserved_cpus(nodes)
        near = near_devices(nodes, own, set(reserved), host.hardware.threads_per_core, CPUS_PER_NPU)
        if groups and len(nodes) > 1 and not distances_hold(nodes):
            context.findings.warning(
                "W_NUMA_DISTANCES",
                "The NUMA distances of {} cannot be true, so neighbours are taken by number".format(host.name),
                host.name,
            )  # fmt: skip
        if groups:
            healthy = [d for d in own if d.healthy]
            context.findings.decide(
                "R_DEVICES", "devices.count", len(healthy),
                "{} healthy {} of {} on NUMA nodes {}".format(
                    len(healthy), groups[0].device, gib(max(d.memory_bytes for d in healthy)),
                    ", ".join("?" if d.numa_node is None else str(d.numa_node) for d in healthy)),
                host.name,
            )  # fmt: skip
        free = sorted(
            (i for i, device in enumerate(own) if device.healthy),
            key=lambda i: (own[i].numa_node if own[i].numa_node is not None else -1, _number(own, i)),
        )
        bindings: Dict[str, Binding] = {}
        for group in groups:
            count = group.ranks
            if len(free) < count:
                fail(group, context, "E_DEVICES_TOO_FEW",
                     "{} needs {} devices on {}, and {} are left".format(
                         group.instance, count, host.name, len(free)),
                     "fewer engines on this host, or smaller parallel sizes", "engine_request", len(free),
                     host)  # fmt: skip
                continue
            taken, free = free[:count], free[count:]
            taken.sort(key=lambda i: _number(own, i))
            group.devices[host.name] = [_number(own, i) for i in taken]
            if count < len(own) and any(own[i].number is None for i in taken):
                context.findings.warning(
                    "W_DEVICE_ORDER",
                    "No driver has numbered the devices of {} yet: {} gets {} of {} in the order of the bus. Plan "
                    "again when it is installed".format(host.name, group.instance, count, len(own)),
                    host.name,
                )  # fmt: skip
            ranks = [near[i] for i in taken]
            cpus: Set[int] = {cpu for rank in ranks for cpu in rank}
            if not cpus:
                fail(group, context, "E_CPUS_TOO_FEW",
                     "{} has {} usable CPUs, and none is left near the devices of {}".format(
                         host.name, len(host.hardware.cpus), group.instance),
                     "a machine with a few CPUs for each device", "vllm_hardware.cpu.allowed",
                     len(host.hardware.cpus), host)  # fmt: skip
                continue
            binding = Binding(ranks, nodes_of(nodes, sorted(cpus)))
            devices = [own[i] for i in taken]
            workers = place_workers(group, host, devices, own, binding)
            smallest = min(len(worker.cpus) for worker in workers)
            few = self.kind == "npu" and smallest < CPUS_PER_NPU
            if few:
                workers = [worker._replace(cpus=binding.cpus) for worker in workers]
            interrupts = [] if few else answer_interrupts(group, devices, workers, binding)
            binding = binding._replace(workers=workers, interrupts=interrupts)
            bindings[group.instance] = binding
            context.findings.decide(
                "R_CPUS_NEAR_DEVICES", "numa.cpus", format_cpulist(binding.cpus),
                "CPUs of the nodes that devices {} lie on ({}), those beside them on the same socket joined; the "
                "engine binds inside them".format(
                    ", ".join(str(n) for n in group.devices[host.name]), ", ".join(str(n) for n in binding.nodes)),
                host.name, group.name,
            )  # fmt: skip
            if few:
                context.findings.warning(
                    "W_CPUS_FEW",
                    "{} has {} CPUs for an NPU of {}; the engine binds its threads with {} or more, and stays inside "
                    "CPU {} without".format(
                        host.name, smallest, group.instance, CPUS_PER_NPU, format_cpulist(binding.cpus)),
                    host.name,
                )  # fmt: skip
        return bindings

    def settle(self, host: Host, groups: List[Group], bindings: Dict[str, Binding], context: Context) -> None:
        assert host.hardware is not None
        budget = machine_budget(host.hardware.memory_bytes)
        total = sum(group.host_bytes for group in groups)
        if total > budget or not budget:
            for group in groups:
                fail(group, context, "E_MEMORY",
                     "{} gives engines {} of its memory, and their processes take {}".format(
                         host.name, gib(budget), gib(total)),
                     "a host with {} of memory".format(gib(machine_for(total))), "vllm_hardware.memory.total_bytes",
                     host.hardware.memory_bytes, host)  # fmt: skip
            return
        for position, group in enumerate(groups):
            group.memory["limit_bytes"] = group.host_bytes + (budget - total) // len(groups)
            if group.head is host:
                group.position = position
            decide_member(group, host, context)
            bindings[group.instance] = bind_workers(group, host, bindings[group.instance], context)


def _number(devices: List[checks.Accelerator], index: int) -> int:
    number = devices[index].number
    return index if number is None else number


def _counts(asked: Question) -> List[int]:
    """Numbers of devices of one host that carry it and are all used, ascending; the first may be a tight fit."""
    counts = []
    for count in range(1, asked.per_host + 1):
        answer = choose(asked._replace(per_host=count))
        if answer is not None and answer.layout.world == count:
            counts.append(count)
    return counts
