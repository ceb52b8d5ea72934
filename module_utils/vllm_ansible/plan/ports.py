# SPDX-License-Identifier: Apache-2.0
"""Ports of the instances on one host. Who listens now may object, but never chooses."""

from typing import Dict, List, Optional

from ansible.module_utils.vllm_ansible.plan.facts import Listener
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host

FIRST = 8000
_EVERYWHERE = ("", "*", "0.0.0.0", "::", "[::]")


def assign_ports(host: Host, groups: List[Group], findings: Findings) -> None:
    """Give every instance on `host` its port: the pinned one, else the next free one from 8000."""
    owner: Dict[int, Group] = {}
    for group in [g for g in groups if g.request.port]:
        port = int(group.request.port or 0)
        if group.request.replicas_per_host > 1:
            # replicas of one request take consecutive ports from the pinned one
            port += int(group.instance.rpartition("-")[2]) - 1
        if port in owner or port > 65535:
            group.failed = True
            findings.problem(
                "E_PORT_COLLISION",
                "{} and {} on {} both ask for port {}".format(
                    owner[port].instance if port in owner else "replicas", group.instance, host.name, port
                ),
                "a different port for one of them, or no port: the plan finds one",
                host=host.name,
                field="engine_request.port",
                seen=port,
            )
            continue
        owner[port] = group
        group.port = port
        findings.decide(
            "R_PORT_PINNED", "endpoint.port", port, "engine_request.port asks for it", host.name, group.name
        )
    for group in [g for g in groups if not g.request.port]:
        port = next(p for p in range(FIRST, 65536) if p not in owner)
        owner[port] = group
        group.port = port
        findings.decide(
            "R_PORT_NEXT",
            "endpoint.port",
            port,
            "the first port from {} that no other engine of this host takes".format(FIRST),
            host.name,
            group.name,
        )
    for port in sorted(owner):
        _check_listener(host, owner[port], port, findings)


def check_reserved(host: Host, groups: List[Group], findings: Findings) -> None:
    """Refuse a port for clients that an engine of `host` uses for its own ranks."""
    reserved = {port: group for group in groups for port in group.reserved_ports.get(host.name, [])}
    for group in groups:
        if group.head is host and group.port in reserved:
            findings.problem(
                "E_PORT_COLLISION",
                "{} on {} asks for port {}, at which the ranks of {} meet".format(
                    group.instance, host.name, group.port, reserved[group.port].instance
                ),
                "a different port, or no port: the plan finds one",
                host=host.name,
                field="engine_request.port",
                seen=group.port,
            )


def _check_listener(host: Host, group: Group, port: int, findings: Findings) -> None:
    assert host.hardware is not None
    taken = [e for e in host.hardware.listeners if e.port == port and _meets(e, host.address)]
    for listener in taken:
        if not _ours(listener, host, group, port):
            findings.problem(
                "E_PORT_TAKEN",
                "Port {} of {} is taken by {}".format(port, host.name, _who(listener)),
                "port: another one, or stop {}".format(_who(listener)),
                host=host.name,
                field="engine_request.port",
                seen=port,
            )
            return


def _meets(listener: Listener, address: str) -> bool:
    return listener.address in _EVERYWHERE or listener.address == address


def _ours(listener: Listener, host: Host, group: Group, port: int) -> bool:
    """Whether the listener is this very instance, already running."""
    if listener.unit is not None:
        return listener.unit == "vllm-{}.service".format(group.instance)
    # Without root the probe cannot see who listens: believe the plan that was applied here.
    return port == applied_port(host, group.instance)


def applied_port(host: Host, instance: str) -> Optional[int]:
    """Return the port of `instance` in the plan recorded on the host, if there is one."""
    slices = host.applied.get("slices")
    service = slices.get("engine_service") if isinstance(slices, dict) else None
    instances = service.get("instances") if isinstance(service, dict) else None
    for entry in instances if isinstance(instances, list) else []:
        if isinstance(entry, dict) and entry.get("name") == instance and isinstance(entry.get("port"), int):
            return int(entry["port"])
    return None


def _who(listener: Listener) -> str:
    return listener.unit or listener.process or "a process the probe cannot see"
