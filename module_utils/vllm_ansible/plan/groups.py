# SPDX-License-Identifier: Apache-2.0
"""Engine groups: which hosts together run one replica of a model."""

from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional

from ansible.module_utils.vllm_ansible.plan.catalogue import Row
from ansible.module_utils.vllm_ansible.plan.facts import Hardware
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.models import Model
from ansible.module_utils.vllm_ansible.plan.requests import Claim, Request


class Host:
    """One host of the inventory as the planner got it. `left_out`: outside --limit, so nothing is done to it."""

    def __init__(self, name: str, groups: List[str], requests: Any, left_out: bool, applied: Dict[str, Any]) -> None:
        self.name = name
        self.pools = [g for g in groups if g.startswith("pool_")]
        self.engine_group = "engines" in groups
        self.engine = self.engine_group or bool(self.pools)
        self.build = "build" in groups
        self.requests = requests
        self.left_out = left_out
        self.applied = applied
        self.hardware: Optional[Hardware] = None
        self.address = ""
        # Pins of the site: the exact release of the kernel, the version of the accelerators' driver.
        self.kernel = ""
        self.driver = ""
        # What the site wants below the engine: engine_cuda, engine_tuning, and engine_fabric (None: nothing is said).
        self.cuda: Dict[str, Any] = {}
        self.tuning: Dict[str, Any] = {}
        self.fabric: Any = None
        # Whether the firmware accepts modules that are compiled on the host (nvidia_driver_modules_signed).
        self.signed = False


class Group:
    """One replica on its way through the stages; a stage that finds a problem marks it `failed`."""

    def __init__(self, claim: Claim, hosts: List[Host], replica: int) -> None:
        self.claim = claim
        self.pool = claim.pool
        self.request: Request = claim.request
        self.hosts = hosts
        self.instance = str(claim.request.name) + ("-{}".format(replica) if replica else "")
        self.name = "{}-{}".format(self.instance, hosts[0].name)
        self.failed = False
        self.model: Optional[Model] = None
        self.row: Optional[Row] = None
        self.backend = ""
        self.dtype = ""
        self.layout = {
            "tensor_parallel": 1,
            "pipeline_parallel": 1,
            "data_parallel": 1,
            "expert_parallel": 1,
        }
        self.max_model_len = 0
        self.max_num_seqs = 0
        self.max_num_batched_tokens = 0
        self.kv_cache_gib = 0
        self.memory: Dict[str, int] = {}
        # Memory of each host (not of its devices) that the replica needs there, in bytes.
        self.host_bytes = 0
        # Accelerators per host that this replica may use; None is all of them.
        self.allotted: Optional[int] = None
        self.devices: Dict[str, List[int]] = {}
        self.device = ""
        # Of the device: its family, and on Ascend the target its engine is built for.
        self.family = ""
        self.soc_version = ""
        self.quantisation = ""
        # Hosts of the pool that a problem of this group holds for as well, besides its own.
        self.also = 0
        self.port = 0
        self.served_model_name = ""
        self.flags: Dict[str, Any] = {}
        self.environment: Dict[str, str] = {}
        # What differs from host to host of one replica.
        self.member_flags: Dict[str, Dict[str, Any]] = {}
        self.member_environment: Dict[str, Dict[str, str]] = {}
        self.reserved_ports: Dict[str, List[int]] = {}
        # Which of the engines on its head this is; internal ports follow from it.
        self.position = 0

    @property
    def head(self) -> Host:
        return self.hosts[0]

    @property
    def world(self) -> int:
        """Workers of this group on all of its hosts."""
        return self.layout["tensor_parallel"] * self.layout["pipeline_parallel"] * self.layout["data_parallel"]

    @property
    def ranks(self) -> int:
        """Workers of this group on each of its hosts."""
        return max(1, self.world // len(self.hosts))

    @property
    def build(self) -> str:
        """Name of the build this group runs, e.g. ``vllm-0.32.0-cpu-x86_64``, ``vllm-0.23.0-ascend-a2-aarch64``."""
        assert self.row is not None and self.head.hardware is not None
        kind = "-".join([self.backend] + [self.family] * (self.backend == "ascend"))
        return "{}-{}-{}-{}".format(self.row.engine, self.row.version, kind, self.head.hardware.architecture)


NEVER = -1


class Sizing(NamedTuple):
    """How a backend divides a pool into replicas. `kind`: hosts that differ in it cannot work together."""

    kind: Callable[[Claim, Host], Hashable]
    # (claim, hosts of one kind) -> hosts per replica; 0: more of them would do, NEVER: no number of them does
    size: Callable[[Claim, List[Host]], int]


def form_groups(claims: List[Claim], hosts: Dict[str, Host], sizing: Sizing, findings: Findings) -> List[Group]:
    """Form the groups whose hosts are all there; say which are not and why."""
    groups: List[Group] = []
    for claim in claims:
        members = [hosts[name] for name in claim.hosts]
        if claim.request.nodes is None and claim.request.replicas_per_host == 1:
            groups += _sized(claim, members, sizing, findings)
        elif (claim.request.nodes or 1) == 1:
            groups += _singles(claim, members, findings)
        else:
            groups += _several_hosts(claim, members, claim.request.nodes or 1, findings)
    return groups


def _singles(claim: Claim, members: List[Host], findings: Findings) -> List[Group]:
    left_out = [host for host in members if host.left_out]
    if left_out:
        findings.warning(
            "W_LEFT_OUT",
            "{} of {} hosts of {} are outside --limit and not planned".format(len(left_out), len(members), claim.pool),
        )
    replicas = range(1, claim.request.replicas_per_host + 1) if claim.request.replicas_per_host > 1 else [0]
    return [
        Group(claim, [host], replica)
        for host in members
        if not host.left_out and host.hardware is not None
        for replica in replicas
    ]


def _sized(claim: Claim, members: List[Host], sizing: Sizing, findings: Findings) -> List[Group]:
    """Divide the hosts of each kind into as few per replica as carry the model, in inventory order.

    Hosts without facts count as their neighbours' kind, so that --limit does not regroup a pool.
    """
    kinds: Dict[Hashable, List[Host]] = {}
    known: Hashable = next((sizing.kind(claim, host) for host in members if host.hardware is not None), None)
    for host in members:
        known = sizing.kind(claim, host) if host.hardware is not None else known
        kinds.setdefault(known, []).append(host)
    groups: List[Group] = []
    spare: List[Host] = []
    alone: List[Host] = []
    replicas = False  # whether there are some, even outside --limit
    for own in kinds.values():
        present = [host for host in own if host.hardware is not None]
        absent = [host for host in own if host.hardware is None]
        size = sizing.size(claim, present + absent) if present else 1
        if size == 1:
            alone += own
        elif size == 0:
            spare += present
        elif size == NEVER:
            groups.append(_speaker(claim, present))
        else:
            whole = len(own) - len(own) % size
            replicas |= whole > 0
            groups += _several_hosts(claim, own[:whole], size, findings)
            spare += [host for host in own[whole:] if not host.left_out and host.hardware is not None]
    groups += _singles(claim, alone, findings)
    if spare and (groups or replicas):
        findings.warning(
            "W_HOST_SPARE",
            "{} of {} {} in no replica: {}".format(
                ", ".join(host.name for host in spare),
                claim.pool,
                "is" if len(spare) == 1 else "are",
                "a replica takes several hosts of one kind and driver, and these are left over",
            ),
            spare[0].name,
        )
    elif spare:
        groups.append(_unfit(claim, spare, sizing))
    return groups


def _unfit(claim: Claim, spare: List[Host], sizing: Sizing) -> Group:
    """The group whose planning says why nothing fits: hosts of several kinds that would do if they were alike, else
    the first host, speaking for the others."""
    if len({sizing.kind(claim, host) for host in spare}) > 1:
        size = sizing.size(claim, [spare[0]] * len(spare))
        if size > 1:
            return Group(claim, spare[:size], 0)
    return _speaker(claim, spare)


def _speaker(claim: Claim, hosts: List[Host]) -> Group:
    """The first of hosts that have the same problem; its findings name the number of the others."""
    group = Group(claim, hosts[:1], 0)
    group.also = len(hosts) - 1
    return group


def _several_hosts(claim: Claim, members: List[Host], size: int, findings: Findings) -> List[Group]:
    if len(members) % size:
        findings.problem(
            "E_POOL_SIZE",
            "{} has {} host{} for this request, and a replica takes {}".format(
                claim.pool, len(members), "" if len(members) == 1 else "s", size
            ),
            "nodes: a divisor of {}, or {} more host(s) in {}".format(
                len(members), size - len(members) % size, claim.pool
            ),
            host=claim.hosts[0],
            field="engine_request.nodes",
            seen=size,
        )
        return []
    groups = []
    for start in range(0, len(members), size):
        chunk = members[start : start + size]
        if all(host.left_out for host in chunk):
            findings.warning(
                "W_LEFT_OUT", "{} is outside --limit and not planned".format(", ".join(h.name for h in chunk))
            )
            continue
        missing = [host.name for host in chunk if host.left_out or host.hardware is None]
        if missing:
            findings.problem(
                "E_GROUP_INCOMPLETE",
                "The group of {} cannot be planned without {}".format(
                    ", ".join(h.name for h in chunk), ", ".join(missing)
                ),
                "a --limit that names the whole group, or bring {} back".format(", ".join(missing)),
                host=chunk[0].name,
                field="engine_request.nodes",
                seen=", ".join(missing),
            )
            continue
        groups.append(Group(claim, chunk, 0))
    return groups
