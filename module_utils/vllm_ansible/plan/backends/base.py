# SPDX-License-Identifier: Apache-2.0
"""What every backend has to answer, and what it may look at."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ansible.module_utils.vllm_ansible.plan.catalogue import Catalogue
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host
from ansible.module_utils.vllm_ansible.plan.requests import Claim


class Worker(NamedTuple):
    """One rank on one host: number of its device (None on CPUs), its CPUs, and the node its memory comes from."""

    device: Optional[int]
    cpus: List[int]
    memory_node: Optional[int]


class Interrupts(NamedTuple):
    """CPUs for the interrupts of one PCI function; with `action` only for the one called so and the next number."""

    pci: str
    cpus: List[int]
    action: Optional[str]


class Binding(NamedTuple):
    """CPUs of one instance on one host: one list per worker, and the NUMA nodes they lie on.

    `workers`: where inside these CPUs the engine puts each rank, empty where it does not say.
    """

    ranks: List[List[int]]
    nodes: List[int]
    workers: Sequence[Worker] = ()
    interrupts: Sequence[Interrupts] = ()

    @property
    def cpus(self) -> List[int]:
        """All CPUs of the instance."""
        return [cpu for rank in self.ranks for cpu in rank]


class Context(NamedTuple):
    """The inputs all groups share. `neighbours`: number of engine instances per host."""

    findings: Findings
    catalogue: Catalogue
    flags: Dict[str, Any]
    neighbours: Dict[str, int]


class Backend:
    """Strategy of one kind of machine. Methods record findings and mark a group failed; they never raise."""

    name = ""

    def size(self, claim: Claim, hosts: List[Host], context: Context) -> int:
        """Return how many of `hosts`, which are alike, one replica takes; 0 or NEVER as in `groups.Sizing`."""
        return 1

    def apportion(self, host: Host, groups: List[Group], context: Context) -> None:
        """Divide what the instances on `host` must not share, before each of them is planned."""

    def plan(self, group: Group, context: Context) -> None:
        """Choose row, data type, layout, lengths and memory of `group`."""
        raise NotImplementedError

    def bind(self, host: Host, groups: List[Group], context: Context) -> Dict[str, Binding]:
        """Give each instance on `host` its own CPUs; the result is keyed by instance name."""
        raise NotImplementedError

    def settle(self, host: Host, groups: List[Group], bindings: Dict[str, Binding], context: Context) -> None:
        """Check what the instances on `host` need together, once each of them is planned."""
        raise NotImplementedError


def fail(
    group: Group, context: Context, code: str, message: str, set_to: str, field: str, seen: Any = None, host: Any = None
) -> None:
    """Record a problem of `group` and take it out of the later stages."""
    group.failed = True
    context.findings.problem(
        code, message, set_to, host=(host or group.head).name, field=field, seen=seen, also=group.also
    )
