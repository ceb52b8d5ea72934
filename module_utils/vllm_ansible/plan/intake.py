# SPDX-License-Identifier: Apache-2.0
"""Reads what the caller gave: hosts, their pools and requests, hardware facts, catalogue, networks."""

import ipaddress
import re
from typing import Any, Callable, Dict, List, Tuple

from ansible.module_utils.vllm_ansible.plan import fabric, nvidia, tuning
from ansible.module_utils.vllm_ansible.plan.canonical import natural_key, plain
from ansible.module_utils.vllm_ansible.plan.catalogue import Catalogue, read_catalogue
from ansible.module_utils.vllm_ansible.plan.facts import read_hardware
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import Host
from ansible.module_utils.vllm_ansible.plan.preflight import SAID_HERE
from ansible.module_utils.vllm_ansible.plan.requests import Claim, nearest, read_claims

# Host variables engine_<key> that pin what is below the engine: key, pattern, what it has to be.
PINS = (
    ("kernel", r"[0-9]+\.[0-9]+[A-Za-z0-9._+~-]*",
     "a release as uname -r prints it, such as 4.19.90-52.22.v2207.ky10.aarch64"),
    ("driver", r"[0-9]+(\.[0-9A-Za-z]+)+", 'a version of the driver in quotes, such as "25.5.0"'),
)  # fmt: skip


def _pin(host: str, entry: Dict[str, Any], key: str, pattern: str, wanted: str, findings: Findings) -> str:
    value = entry.get(key)
    if value is None or value == "":
        return ""
    if isinstance(value, str) and re.match(pattern + r"\Z", value):
        return value
    findings.problem(
        "E_REQUEST_VALUE",
        "engine_{} cannot be {!r}".format(key, value),
        "engine_{}: {}".format(key, wanted),
        host=host,
        field="engine_" + key,
        seen=value,
    )
    return ""


# Host variables engine_<key> that are mappings, and who reads them.
WISHES: Tuple[Tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("cuda", nvidia.read_wishes), ("fabric", fabric.read_fabric), ("tuning", tuning.read_wishes),
)  # fmt: skip


def _wishes(host: str, raw: Any, read: Callable[[Any, Any], Any], findings: Findings) -> Any:
    def complain(field: str, seen: Any, wanted: str) -> None:
        findings.problem(
            "E_REQUEST_VALUE", "{} cannot be {!r}".format(field, seen), "{}: {}".format(field, wanted),
            host=host, field=field, seen=seen,
        )  # fmt: skip

    return read(plain(raw), complain)


def read_hosts(raw: Dict[str, Any], findings: Findings) -> Dict[str, Host]:
    """Return the hosts in natural order, without their facts."""
    hosts = {}
    for name in sorted((n for n in raw if isinstance(n, str)), key=natural_key):
        entry = raw[name] if isinstance(raw[name], dict) else {}
        listed = entry.get("groups")
        groups = sorted(g for g in listed if isinstance(g, str)) if isinstance(listed, list) else []
        applied = entry.get("applied")
        hosts[name] = Host(
            name,
            groups,
            entry.get("request"),
            entry.get("left_out") is True,
            applied if isinstance(applied, dict) else {},
        )
        for key, pattern, wanted in PINS:
            setattr(hosts[name], key, _pin(name, entry, key, pattern, wanted, findings))
        hosts[name].signed = entry.get("signed") in (True, "true", "yes")
        for key, read in WISHES:
            if entry.get(key) is not None:
                setattr(hosts[name], key, _wishes(name, entry[key], read, findings))
    if not any(host.engine for host in hosts.values()):
        findings.problem(
            "E_NO_HOSTS",
            "No host is in a pool: nothing would be served",
            "a group named pool_<name> under engines, with hosts and an engine_request",
            field="groups",
        )
    return hosts


def read_pools(hosts: Dict[str, Host], raw: Dict[str, Any], findings: Findings) -> List[Claim]:
    """Collect each pool's requests from its hosts; a host belongs to exactly one pool."""
    pools: Dict[str, Dict[str, Any]] = {}
    missing: Dict[str, List[str]] = {}
    outside: Dict[str, List[str]] = {}
    for host in hosts.values():
        if not host.engine:
            continue
        if not host.pools:
            findings.problem(
                "E_NO_POOL",
                "{} is an engine host and in no pool".format(host.name),
                "put it in a group named pool_<name>",
                host=host.name,
                field="groups",
            )
        elif len(host.pools) > 1:
            findings.problem(
                "E_TWO_POOLS",
                "{} is claimed by {}".format(host.name, " and ".join(host.pools)),
                "one pool per host; several engines on one host: a list as engine_request",
                host=host.name,
                field="groups",
                seen=", ".join(host.pools),
            )
        elif not host.engine_group:
            outside.setdefault(host.pools[0], []).append(host.name)
        elif host.requests is None:
            missing.setdefault(host.pools[0], []).append(host.name)
        else:
            pools.setdefault(host.pools[0], {})[host.name] = host.requests
    for pool in sorted(outside):
        findings.problem(
            "E_POOL_OUTSIDE",
            "{} is no child of the group engines, so no playbook would reach it".format(pool),
            "{} under engines.children".format(pool),
            host=outside[pool][0],
            field="groups",
            also=len(outside[pool]) - 1,
        )
    for pool in sorted(missing):
        names = missing[pool]
        entry = raw.get(names[0])
        variables = entry.get("variables") if isinstance(entry, dict) else None
        close = [v for v in variables if isinstance(v, str)] if isinstance(variables, list) else []
        found = nearest("engine_request", close) if close else ""
        findings.problem(
            "E_REQUEST_MISSING",
            "{} of {} has no engine_request".format(names[0], pool)
            + (" (it has a variable {})".format(found) if found in close else ""),
            "engine_request: {model: <name>} in the variables of " + pool,
            host=names[0],
            field="engine_request",
            also=len(names) - 1,
        )
    return read_claims(pools, findings)


def read_facts(hosts: Dict[str, Host], raw: Dict[str, Any], claims: List[Claim], findings: Findings) -> None:
    alone = {name for claim in claims for name in claim.hosts if claim.request.nodes in (None, 1)}
    for host in hosts.values():
        entry = raw[host.name] if isinstance(raw[host.name], dict) else {}
        facts, address = entry.get("hardware"), entry.get("address")
        if facts is not None:
            host.hardware = read_hardware(facts, host.name, findings)
        elif not host.left_out and (host.name in alone or entry.get("unreachable") is True):
            findings.problem(
                "E_FACTS_MISSING",
                "Nothing is known about {}: it could not be read".format(host.name),
                "make it reachable, or leave it out with --limit '!{}'".format(host.name),
                host=host.name,
                field="vllm_hardware",
            )
        if host.hardware is None:
            continue
        host.address = address if isinstance(address, str) and address else host.hardware.address
        if host.engine and not _is_address(host.address):
            findings.problem(
                "E_ADDRESS",
                "{} has no address the engine could listen on".format(host.name),
                "engine_address: <IP address> for this host, or give it a default route",
                host=host.name,
                field="engine_address",
                seen=host.address or None,
            )
        for code, message in host.hardware.warnings:
            if not host.engine or code not in SAID_HERE:
                findings.warning("W_HARDWARE", "{} ({})".format(message, code), host.name, "vllm_hardware.warnings")
    _find_twins(hosts, raw, findings)


def _is_address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _find_twins(hosts: Dict[str, Host], raw: Dict[str, Any], findings: Findings) -> None:
    """Engine hosts with one address are one machine under two names, unless one recording stands for both."""
    first: Dict[str, Host] = {}
    for host in hosts.values():
        if not host.engine or not host.address:
            continue
        other = first.setdefault(host.address, host)
        if other is host:
            continue
        message = "{} and {} have the address {}".format(other.name, host.name, host.address)
        if raw[host.name].get("address") and raw[other.name].get("address"):
            findings.problem(
                "E_HOST_TWICE",
                message + ": the same machine would be deployed twice",
                "one name per machine, or different values of engine_address",
                host=host.name,
                field="engine_address",
                seen=host.address,
            )
        else:
            findings.warning(
                "W_HOST_TWICE",
                message
                + ": one machine under two names, or one recording used for both; engine_address tells them apart",
                host.name,
                "vllm_hardware.default_address",
            )


def load_catalogue(raw: Any, own_models: Any, findings: Findings) -> Catalogue:
    """Read the catalogue; everything unusable in it is a problem."""

    def report(code: str, field: str, seen: Any, wanted: str) -> None:
        findings.problem(
            code,
            "{} has to be {}".format(field, wanted),
            "correct {}".format("engine_models in the inventory" if code == "E_MODEL_INVALID" else "the catalogue"),
            field=field,
            seen=seen,
        )

    return read_catalogue(raw, plain(own_models), report)


def read_networks(raw: Any, findings: Findings) -> List[str]:
    if raw is None:
        return []
    if isinstance(raw, list) and all(isinstance(n, str) for n in raw):
        return sorted(raw)
    findings.problem(
        "E_NETWORKS",
        "The networks that may connect have to be a list of texts",
        'deployment_plan_allowed_networks: ["10.0.0.0/8"]',
        field="networks",
        seen=raw,
    )
    return []
