# SPDX-License-Identifier: Apache-2.0
"""Puts the plan together: with problems a report, without them builds, models, groups and every host's slices."""

from typing import Any, Dict, List, Optional

from ansible.module_utils.vllm_ansible.plan.canonical import digest, natural_key
from ansible.module_utils.vllm_ansible.plan.catalogue import Row
from ansible.module_utils.vllm_ansible.plan.facts import unread
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host
from ansible.module_utils.vllm_ansible.plan.preflight import KINDS
from ansible.module_utils.vllm_ansible.plan.slices import engine_slices

SCHEMA = 1


def assemble(
    on_host: Dict[str, List[Group]],
    hosts: Dict[str, Host],
    placed: Any,
    builds: Dict[str, Any],
    stacks: Dict[str, Dict[str, Any]],
    fabrics: Dict[str, Dict[str, Any]],
    networks: List[str],
    findings: Findings,
) -> Dict[str, Any]:
    """Return the plan (schema 1) from the groups on each host, their bindings, the builds they need and the slices
    of what lies below their engines: stacks, and fabrics (host -> roce_fabric)."""
    unique = {group.name: group for groups in on_host.values() for group in groups}
    groups = [unique[name] for name in sorted(unique, key=natural_key)]
    ok = not findings.problems
    plan: Dict[str, Any] = {
        "schema": SCHEMA,
        "ok": ok,
        "digest": None,
        "builds": [],
        "models": [],
        "groups": [_describe(group) for group in groups],
        "installable": True,
        "not_installable": [],
        "unread": [],
        "hosts": {},
        "decisions": findings.sorted_decisions(),
        "problems": findings.problems,
        "warnings": findings.warnings,
    }
    for group in groups:
        because = _not_installable(group)
        if because:
            plan["not_installable"].append({"group": group.name, "because": because})
    plan["installable"] = not plan["not_installable"]
    if not ok:
        return plan
    plan["unread"] = sorted((name for name in on_host if _unread(hosts[name], on_host[name])), key=natural_key)
    models = {g.model.name: g.model.slice() for g in groups if g.model is not None}
    plan["builds"] = [builds[name] for name in sorted(builds)]
    plan["models"] = [models[name] for name in sorted(models)]
    for host in hosts.values():
        own = on_host.get(host.name, [])
        slices: Dict[str, Any] = {}
        if own:
            slices.update(engine_slices(host, own, placed[host.name], networks))
            slices.update(stacks[host.name])
            if host.name in fabrics:
                slices["roce_fabric"] = fabrics[host.name]
        if host.build and not host.left_out:
            made = [b for b in plan["builds"] if b["host"] == host.name]
            names = {b["build"] for b in made}
            needed = {g.model.name for g in groups if g.model is not None and g.build in names} if names else set()
            slices["engine_build"] = {"builds": [{k: b[k] for k in b if k != "host"} for b in made]}
            # an engine host that also builds already holds its own models in this slice
            held = {m["name"] for m in slices.get("model_store", {}).get("models", [])}
            slices["model_store"] = {"models": [models[n] for n in sorted(needed | held)]}
        if slices:
            build = builds[own[0].build] if own else None
            plan["hosts"][host.name] = {
                "digest": digest({"slices": slices, "build": build}),
                "build": build,
                "slices": slices,
            }
    plan["digest"] = digest({key: plan[key] for key in ("schema", "builds", "models", "groups", "hosts")})
    return plan


def _unread(host: Host, groups: List[Group]) -> bool:
    """Whether the devices of a host can be read only when their driver is there: it is planned again then."""
    return host.hardware is not None and any(
        unread(host.hardware, KINDS[g.backend]) for g in groups if g.backend in KINDS
    )


def _not_installable(group: Group) -> str:
    """Why this version of the project plans the group and cannot install it; empty when it can."""
    reasons = []
    if group.row is not None and group.row.status != "installable":
        reasons.append(
            "row {} is known and planned, and no role of this version installs {} {} on {}".format(
                group.row.name, group.row.engine, group.row.version, group.backend
            )
        )
    if group.model is not None and not group.model.fetchable:
        reasons.append(
            "the catalogue knows {} by its configuration only: a path or url in engine_models says where its weights "
            "are".format(group.model.name)
        )
    return "; ".join(reasons)


def _versions(row: Optional[Row]) -> Dict[str, str]:
    """Everything a row brings, by component; the ranges of drivers it takes."""
    if row is None:
        return {}
    plugin = {row.plugin: row.plugin_version} if row.plugin else {}
    drivers = {"driver": " or ".join(row.drivers)} if row.drivers else {}
    return {row.engine: row.version, **plugin, **row.versions, **drivers}


def _describe(group: Group) -> Dict[str, Any]:
    return {
        "name": group.name,
        "instance": group.instance,
        "pool": group.pool,
        "model": group.request.model,
        "backend": group.backend or None,
        "build": group.build if group.row is not None else None,
        "row": group.row.name if group.row is not None else None,
        "versions": _versions(group.row),
        "members": [{"host": host.name, "node_rank": rank} for rank, host in enumerate(group.hosts)],
        "layout": dict(group.layout),
        "max_model_len": group.max_model_len,
        "dtype": group.dtype or None,
        "quantisation": group.quantisation or None,
        "device": group.device or None,
        "devices": {name: group.devices[name] for name in sorted(group.devices)},
        "max_num_seqs": group.max_num_seqs,
        "memory": dict(group.memory),
        "endpoint": {"address": group.head.address, "port": group.port},
    }
