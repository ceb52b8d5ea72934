# SPDX-License-Identifier: Apache-2.0
"""Engine groups: which hosts together run one replica of a model."""

from typing import Any, Dict, List, Optional

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


class Group:
    """One replica on its way through the stages; a stage that finds a problem marks it `failed`."""

    def __init__(self, claim: Claim, hosts: List[Host], replica: int) -> None:
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
        self.port = 0
        self.served_model_name = ""
        self.flags: Dict[str, Any] = {}
        self.environment: Dict[str, str] = {}

    @property
    def head(self) -> Host:
        return self.hosts[0]

    @property
    def ranks(self) -> int:
        """Workers of this group on each of its hosts."""
        world = self.layout["tensor_parallel"] * self.layout["pipeline_parallel"] * self.layout["data_parallel"]
        return max(1, world // len(self.hosts))

    @property
    def build(self) -> str:
        """Name of the build this group runs, e.g. ``vllm-0.32.0-cpu-x86_64``."""
        assert self.row is not None and self.head.hardware is not None
        return "{}-{}-{}-{}".format(self.row.engine, self.row.version, self.backend, self.head.hardware.architecture)


def form_groups(claims: List[Claim], hosts: Dict[str, Host], findings: Findings) -> List[Group]:
    """Form the groups whose hosts are all there; say which are not and why."""
    groups = []
    for claim in claims:
        members = [hosts[name] for name in claim.hosts]
        size = claim.request.nodes
        if size == 1:
            left_out = [host for host in members if host.left_out]
            if left_out:
                findings.warning(
                    "W_LEFT_OUT",
                    "{} of {} hosts of {} are outside --limit and not planned".format(
                        len(left_out), len(members), claim.pool
                    ),
                )
            replicas = range(1, claim.request.replicas_per_host + 1) if claim.request.replicas_per_host > 1 else [0]
            groups += [
                Group(claim, [host], replica)
                for host in members
                if not host.left_out and host.hardware is not None
                for replica in replicas
            ]
        else:
            groups += _several_hosts(claim, members, size, findings)
    return groups


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
