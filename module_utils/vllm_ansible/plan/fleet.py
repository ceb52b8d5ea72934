# SPDX-License-Identifier: Apache-2.0
"""The planner's entry: one call plans the whole fleet, stage by stage."""

from typing import Any, Dict, List, NamedTuple, Optional

from ansible.module_utils.vllm_ansible.plan.backends.accelerator import AcceleratorBackend
from ansible.module_utils.vllm_ansible.plan.backends.base import Backend, Binding, Context
from ansible.module_utils.vllm_ansible.plan.backends.cpu import CpuBackend
from ansible.module_utils.vllm_ansible.plan.canonical import digest, natural_key
from ansible.module_utils.vllm_ansible.plan.catalogue import Catalogue, read_catalogue
from ansible.module_utils.vllm_ansible.plan.facts import read_hardware
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host, form_groups
from ansible.module_utils.vllm_ansible.plan.ports import assign_ports
from ansible.module_utils.vllm_ansible.plan.requests import Claim, nearest, read_claims
from ansible.module_utils.vllm_ansible.plan.settings import apply_extras
from ansible.module_utils.vllm_ansible.plan.slices import engine_slices
from ansible.module_utils.vllm_ansible.plan.storage import check_space

SCHEMA = 1
BACKENDS: Dict[str, Backend] = {
    backend.name: backend
    for backend in (CpuBackend(), AcceleratorBackend("ascend", "npu"), AcceleratorBackend("cuda", "gpu"))
}
BACKEND_OF = {"npu": "ascend", "gpu": "cuda"}


class Inputs(NamedTuple):
    """Everything a plan is made from.

    hosts: name -> {groups, request, hardware, address, left_out, applied, variables}; all but `groups` may be absent.
    catalogue: {rows, models}. models: the site's own ``engine_models``.
    overrides and flags: engine -> version -> manifest.yml and flags.yml of ``engine_overrides``.
    networks: who may connect; empty means each host's own network.
    """

    hosts: Dict[str, Any]
    catalogue: Any
    models: Any = None
    overrides: Any = None
    flags: Any = None
    networks: Any = None


def check_requests(hosts: Dict[str, Any], removed: Dict[str, Any]) -> Findings:
    """Check what needs no facts: pools, requests, their words, and variables in `removed` (name -> what to use)."""
    findings = Findings()
    _read_claims(_read_hosts(hosts, findings), hosts, findings)
    using: Dict[str, List[str]] = {}
    for name in sorted(hosts, key=natural_key):
        variables = hosts[name].get("variables") if isinstance(hosts[name], dict) else None
        for variable in variables if isinstance(variables, list) else []:
            if variable in removed:
                using.setdefault(variable, []).append(name)
    for variable in sorted(using):
        findings.problem(
            "E_VARIABLE_REMOVED",
            "The variable {} no longer exists".format(variable),
            str(removed[variable]),
            host=using[variable][0],
            field=variable,
            also=len(using[variable]) - 1,
        )
    return findings


def plan_fleet(inputs: Inputs) -> Dict[str, Any]:
    """Return the plan (schema 1). With problems: ``ok`` is false and there are no slices, builds or digest."""
    findings = Findings()
    hosts = _read_hosts(inputs.hosts, findings)
    claims = _read_claims(hosts, inputs.hosts, findings)
    _read_facts(hosts, inputs.hosts, claims, findings)
    catalogue = _read_catalogue(inputs, findings)
    groups = form_groups(claims, hosts, findings)
    neighbours: Dict[str, int] = {}
    for group in groups:
        for host in group.hosts:
            neighbours[host.name] = neighbours.get(host.name, 0) + 1
    context = Context(findings, catalogue, inputs.flags if isinstance(inputs.flags, dict) else {}, neighbours)
    for group in groups:
        _plan_group(group, context)
    placed = _place(groups, hosts, context)
    builds = _plan_builds([g for g in groups if not g.failed], hosts, inputs.overrides, findings)
    return _assemble(groups, hosts, placed, builds, _networks(inputs.networks, findings), findings)


def _read_hosts(raw: Dict[str, Any], findings: Findings) -> Dict[str, Host]:
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
    if not any(host.engine for host in hosts.values()):
        findings.problem(
            "E_NO_HOSTS",
            "No host is in a pool: nothing would be served",
            "a group named pool_<name> under engines, with hosts and an engine_request",
            field="groups",
        )
    return hosts


def _read_claims(hosts: Dict[str, Host], raw: Dict[str, Any], findings: Findings) -> List[Claim]:
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


def _read_facts(hosts: Dict[str, Host], raw: Dict[str, Any], claims: List[Claim], findings: Findings) -> None:
    alone = {name for claim in claims for name in claim.hosts if claim.request.nodes == 1}
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
        if host.engine and not host.address:
            findings.problem(
                "E_ADDRESS",
                "{} has no address the engine could listen on".format(host.name),
                "engine_address: <address> for this host, or give it a default route",
                host=host.name,
                field="engine_address",
            )
        for code, message in host.hardware.warnings:
            findings.warning("W_HARDWARE", "{} ({})".format(message, code), host.name, "vllm_hardware.warnings")


def _read_catalogue(inputs: Inputs, findings: Findings) -> Catalogue:
    def report(code: str, field: str, seen: Any, wanted: str) -> None:
        findings.problem(
            code,
            "{} has to be {}".format(field, wanted),
            "correct {}".format("engine_models in the inventory" if code == "E_MODEL_INVALID" else "the catalogue"),
            field=field,
            seen=seen,
        )

    return read_catalogue(inputs.catalogue, inputs.models, report)


def _plan_group(group: Group, context: Context) -> None:
    findings, request = context.findings, group.request
    group.model = context.catalogue.models.get(request.model)
    if group.model is None:
        findings.problem(
            "E_MODEL_UNKNOWN",
            "No model {} in the catalogue or in engine_models".format(request.model),
            "model: {}".format(nearest(request.model, context.catalogue.models) or "describe it in engine_models"),
            host=group.head.name,
            field="engine_request.model",
            seen=request.model,
        )
        group.failed = True
        return
    if group.model.weights == "random":
        findings.warning(
            "W_RANDOM_WEIGHTS",
            "{} has random weights: it proves the architecture serves, its answers mean nothing".format(
                group.model.name
            ),
            field="engine_request.model",
        )
    group.served_model_name = request.served_model_name or group.model.name
    group.backend = request.backend or _backend_of(group.head, context, group)
    BACKENDS[group.backend].plan(group, context)
    if not group.failed:
        apply_extras(group, context)


def _backend_of(host: Host, context: Context, group: Group) -> str:
    assert host.hardware is not None
    kinds = sorted({BACKEND_OF[d.kind] for d in host.hardware.accelerators if d.kind in BACKEND_OF})
    name = kinds[0] if kinds else "cpu"
    context.findings.decide(
        "R_BACKEND_FROM_DEVICES",
        "engine.backend",
        name,
        "{} accelerator(s) were found on {}".format(len(host.hardware.accelerators), host.name)
        if kinds
        else "no accelerator was found on {}".format(host.name),
        group=group.name,
    )
    return name


def _place(groups: List[Group], hosts: Dict[str, Host], context: Context) -> Dict[str, Dict[str, Binding]]:
    """Settle what instances share on each host: names, ports, CPUs, memory, disks, one release."""
    on_host: Dict[str, List[Group]] = {}
    for group in groups:
        for host in group.hosts:
            on_host.setdefault(host.name, []).append(group)
    placed = {}
    for name, planned in on_host.items():
        host, present = hosts[name], [g for g in planned if not g.failed]
        _check_together(host, present, context.findings)
        assign_ports(host, present, context.findings)
        bindings: Dict[str, Binding] = {}
        for backend in sorted({g.backend for g in present}):
            own = [g for g in present if g.backend == backend]
            bindings.update(BACKENDS[backend].bind(host, own, context))
            own = [g for g in own if g.instance in bindings]
            if own:
                BACKENDS[backend].settle(host, own, bindings, context)
        check_space(host, [g for g in present if not g.failed], context.findings)
        placed[name] = bindings
    return placed


def _check_together(host: Host, groups: List[Group], findings: Findings) -> None:
    names = [g.instance for g in groups]
    for name in sorted({n for n in names if names.count(n) > 1}):
        findings.problem(
            "E_INSTANCE_NAME",
            "Two engines on {} are called {}".format(host.name, name),
            "a different name for each request of the list",
            host=host.name,
            field="engine_request.name",
            seen=name,
        )
    builds = sorted({g.build for g in groups})
    if len(builds) > 1:
        findings.problem(
            "E_MIXED_VERSIONS",
            "{} would run {}; a host runs one release".format(host.name, " and ".join(builds)),
            "the same version and backend for all engines of a host",
            host=host.name,
            field="engine_request.version",
            seen=", ".join(builds),
        )


def _plan_builds(
    groups: List[Group], hosts: Dict[str, Host], overrides: Any, findings: Findings
) -> Dict[str, Dict[str, Any]]:
    """Return every build the groups need, with the patch series it carries and the host that makes it."""
    builders = [h for h in hosts.values() if h.build and not h.left_out]
    builds = {}
    for group in groups:
        row, hardware = group.row, group.head.hardware
        if row is None or hardware is None or group.build in builds:
            continue
        series = _series(overrides, row.engine, row.version, group.backend)
        if series is None and row.requires_series:
            findings.problem(
                "E_SERIES_MISSING",
                "{} {} does not serve on {} without our patches, and none are recorded".format(
                    row.engine, row.version, group.backend
                ),
                "engine_overrides/{}/{}/manifest.yml with a series for {}".format(
                    row.engine, row.version, group.backend
                ),
                field="overrides",
            )
        builder = _builder(builders, hardware.architecture)
        if builder is None:
            left_out = sorted(h.name for h in hosts.values() if h.build and h.left_out)
            findings.problem(
                "E_NO_BUILD_HOST",
                "No host can build {}: {}".format(
                    group.build,
                    "{} is outside --limit".format(", ".join(left_out))
                    if left_out
                    else "the group build has no reachable {} host".format(hardware.architecture),
                ),
                "--limit that includes {}".format(left_out[0])
                if left_out
                else "a host of architecture {} in the group build".format(hardware.architecture),
                field="groups.build",
                seen=", ".join(h.name for h in builders) or None,
            )
        series = series or {}
        builds[group.build] = {
            "build": group.build,
            "engine": row.engine,
            "version": row.version,
            "backend": group.backend,
            "architecture": hardware.architecture,
            "row": row.name,
            "series_sha256": series.get("series_sha256"),
            "local_version": series.get("local_version"),
            "host": builder.name if builder else None,
        }
        if builder is not None:
            findings.decide(
                "R_BUILD_HOST",
                "builds." + group.build,
                builder.name,
                "the first host of group build with architecture {}".format(hardware.architecture),
            )
    return builds


def _builder(builders: List[Host], architecture: str) -> Optional[Host]:
    """The first build host of that architecture; one whose facts were not asked for (planning ahead) counts too."""
    for host in builders:
        if host.hardware is None or host.hardware.architecture == architecture:
            return host
    return None


def _series(overrides: Any, engine: str, version: str, backend: str) -> Optional[Dict[str, Any]]:
    """Return digest and local version of a series from a manifest, or None when there is none."""
    node = overrides
    for key in (engine, version):
        node = node.get(key) if isinstance(node, dict) else None
    if not isinstance(node, dict):
        return None
    backends = node.get("backends")
    series = backends.get(backend) if isinstance(backends, dict) else None
    if not isinstance(series, dict) or not isinstance(series.get("series_sha256"), str):
        return None
    local = series.get("local_version") or node.get("local_version")
    return {"series_sha256": series["series_sha256"], "local_version": local if isinstance(local, str) else None}


def _networks(raw: Any, findings: Findings) -> List[str]:
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


def _assemble(
    groups: List[Group],
    hosts: Dict[str, Host],
    placed: Any,
    builds: Dict[str, Any],
    networks: List[str],
    findings: Findings,
) -> Dict[str, Any]:
    ok = not findings.problems
    plan: Dict[str, Any] = {
        "schema": SCHEMA,
        "ok": ok,
        "digest": None,
        "builds": [],
        "models": [],
        "groups": [_describe(g) for g in sorted(groups, key=lambda g: natural_key(g.name))],
        "hosts": {},
        "decisions": findings.sorted_decisions(),
        "problems": findings.problems,
        "warnings": findings.warnings,
    }
    if not ok:
        return plan
    models = {g.model.name: g.model.slice() for g in groups if g.model is not None}
    plan["builds"] = [builds[name] for name in sorted(builds)]
    plan["models"] = [models[name] for name in sorted(models)]
    for host in hosts.values():
        own = [g for g in groups if host in g.hosts]
        slices: Dict[str, Any] = {}
        if own:
            slices.update(engine_slices(host, own, placed[host.name], networks))
        if host.build and not host.left_out:
            made = [b for b in plan["builds"] if b["host"] == host.name]
            names = {b["build"] for b in made}
            needed = {g.model.name for g in groups if g.model is not None and g.build in names}
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


def _describe(group: Group) -> Dict[str, Any]:
    return {
        "name": group.name,
        "instance": group.instance,
        "pool": group.pool,
        "model": group.request.model,
        "backend": group.backend or None,
        "build": group.build if group.row is not None else None,
        "members": [{"host": host.name, "node_rank": rank} for rank, host in enumerate(group.hosts)],
        "layout": dict(group.layout),
        "max_model_len": group.max_model_len,
        "dtype": group.dtype or None,
        "memory": dict(group.memory),
        "endpoint": {"address": group.head.address, "port": group.port},
    }
