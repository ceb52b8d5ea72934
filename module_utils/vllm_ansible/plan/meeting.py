# SPDX-License-Identifier: Apache-2.0
"""How the hosts of one replica find each other: the engine's own multi-node launch, the same on every backend."""

from typing import Any, Dict, List

from ansible.module_utils.vllm_ansible.plan.backends.base import Context
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host

# One pair of ports per replica for what its hosts tell each other; the tutorials of vllm-ascend start at this one.
FIRST_INTERNAL = 13389


def meet(group: Group, host: Host, context: Context) -> List[int]:
    """Decide the flags by which `host` joins its replica; returns the ports it has to keep free for that."""
    group.member_flags[host.name] = {}
    if len(group.hosts) == 1:
        return []
    internal = FIRST_INTERNAL + 10 * group.position
    group.member_flags[host.name] = _join(group, group.hosts.index(host), internal)
    if group.head is not host:
        return []
    context.findings.decide(
        "R_PORT_INTERNAL", "group.internal_port", internal,
        "the hosts of the replica meet at {} on this port; each engine of that host has its own".format(host.address),
        group=group.name,
    )  # fmt: skip
    return [internal]


def own_addresses(group: Group, host: Host) -> Dict[str, str]:
    """Environment by which the workers on `host` use the address and the interface of the plan."""
    assert host.hardware is not None
    environment: Dict[str, str] = {}
    if group.world > 1 and host.hardware.interface:
        environment["GLOO_SOCKET_IFNAME"] = environment["TP_SOCKET_IFNAME"] = host.hardware.interface
    if len(group.hosts) > 1:
        environment["VLLM_HOST_IP"] = host.address
    return environment


def _join(group: Group, rank: int, port: int) -> Dict[str, Any]:
    """Flags by which host number `rank` joins the replica at `port` of its head."""
    head, copies = group.head.address, group.layout["data_parallel"]
    flags: Dict[str, Any] = {"headless": True} if rank else {}
    if copies > 1:
        local = copies // len(group.hosts)
        flags.update({"data-parallel-size-local": local, "data-parallel-address": head, "data-parallel-rpc-port": port})
        if rank:
            flags["data-parallel-start-rank"] = rank * local
    else:
        flags.update({"nnodes": len(group.hosts), "node-rank": rank, "master-addr": head, "master-port": port})
    return flags
