# SPDX-License-Identifier: Apache-2.0
"""The planner's entry: one call plans the whole fleet, stage by stage."""

from typing import Any, Dict, List, NamedTuple

from ansible.module_utils.vllm_ansible.plan.assemble import assemble
from ansible.module_utils.vllm_ansible.plan.backends.accelerator import AcceleratorBackend
from ansible.module_utils.vllm_ansible.plan.backends.accelerator_checks import kind_of
from ansible.module_utils.vllm_ansible.plan.backends.base import Backend, Binding, Context
from ansible.module_utils.vllm_ansible.plan.backends.cpu import CpuBackend
from ansible.module_utils.vllm_ansible.plan.builds import plan_builds
from ansible.module_utils.vllm_ansible.plan.canonical import natural_key
from ansible.module_utils.vllm_ansible.plan.fabric import plan_fabric
from ansible.module_utils.vllm_ansible.plan.facts import unread
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host, Sizing, form_groups
from ansible.module_utils.vllm_ansible.plan.intake import (
    load_catalogue,
    read_facts,
    read_hosts,
    read_networks,
    read_pools,
)
from ansible.module_utils.vllm_ansible.plan.ports import assign_ports, check_reserved
from ansible.module_utils.vllm_ansible.plan.preflight import check_hosts
from ansible.module_utils.vllm_ansible.plan.requests import Claim, nearest
from ansible.module_utils.vllm_ansible.plan.settings import apply_extras
from ansible.module_utils.vllm_ansible.plan.stack import driver_to_be, plan_stack
from ansible.module_utils.vllm_ansible.plan.storage import check_space

BACKENDS: Dict[str, Backend] = {
    backend.name: backend
    for backend in (CpuBackend(), AcceleratorBackend("ascend", "npu"), AcceleratorBackend("cuda", "gpu"))
}
BACKEND_OF = {"npu": "ascend", "gpu": "cuda"}


class Inputs(NamedTuple):
    """Everything a plan is made from.

    hosts: name -> {groups, request, hardware, address, left_out, applied, variables, and the pins and wishes of
    intake.PINS and intake.WISHES}, in the order of the inventory; all but `groups` may be absent.
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
    read_pools(read_hosts(hosts, findings), hosts, findings)
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
    hosts = read_hosts(inputs.hosts, findings)
    claims = read_pools(hosts, inputs.hosts, findings)
    read_facts(hosts, inputs.hosts, claims, findings)
    catalogue = load_catalogue(inputs.catalogue, inputs.models, findings)
    flags = inputs.flags if isinstance(inputs.flags, dict) else {}
    context = Context(findings, catalogue, flags, {})
    groups = form_groups(claims, hosts, _sizing(context, hosts), findings)
    _check_names(groups, findings)
    on_host: Dict[str, List[Group]] = {}
    for group in groups:
        for host in group.hosts:
            on_host.setdefault(host.name, []).append(group)
    context = context._replace(neighbours={name: len(planned) for name, planned in on_host.items()})
    for name, planned in on_host.items():
        _apportion(hosts[name], planned, context)
    for group in groups:
        if not group.failed:
            _plan_group(group, context)
    networks = read_networks(inputs.networks, findings)
    placed = _place(on_host, hosts, context)
    fabrics = plan_fabric(sorted(inputs.hosts, key=natural_key), hosts, on_host, context)
    builds = plan_builds([g for g in groups if not g.failed], hosts, inputs.overrides, findings)
    stacks = {
        name: plan_stack(hosts[name], [g for g in planned if not g.failed], context)
        for name, planned in on_host.items()
    }
    check_hosts(on_host, hosts, context, fabrics, stacks)
    return assemble(on_host, hosts, placed, builds, stacks, fabrics, networks, findings)


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


def _sizing(context: Context, hosts: Dict[str, Host]) -> Sizing:
    """How many hosts a replica takes, asked of the backend of the first host; hosts of one kind answer alike."""

    def kind(claim: Claim, host: Host) -> Any:
        assert host.hardware is not None
        name = claim.request.backend or _found_backend(host)
        device = next((kind for kind, backend in BACKEND_OF.items() if backend == name), None)
        if device is None:
            return (name,)
        like = host
        if unread(host.hardware, device):  # a host of the pool that was read already says what the others are
            like = next((h for h in map(hosts.get, claim.hosts) if h and _read_twin(h, host, device)), host)
        assert like.hardware is not None
        found = next((d for d in like.hardware.accelerators if d.kind == device), None)
        known = context.catalogue.devices.identify(found.raw) if found is not None else None
        driver = driver_to_be(context.catalogue, host, device, known.family if known else "", claim.request.version)
        return (name,) + kind_of(like.hardware, device, driver)

    def size(claim: Claim, hosts: List[Host]) -> int:
        name = claim.request.backend or _found_backend(hosts[0])
        return BACKENDS[name].size(claim, hosts, context)

    return Sizing(kind, size)


def _read_twin(host: Host, other: Host, kind: str) -> bool:
    """Whether the accelerators of `host` were read and are, by their PCI ids, those of `other`."""
    if host.hardware is None or other.hardware is None or unread(host.hardware, kind):
        return False
    ids = [
        sorted(
            {(str(d.raw.get("pci")), str(d.raw.get("device_id"))) for d in h.accelerators if d.kind == kind and d.raw}
        )
        for h in (host.hardware, other.hardware)
    ]
    return bool(ids[0]) and ids[0] == ids[1]


def _apportion(host: Host, groups: List[Group], context: Context) -> None:
    """Let a backend divide what its instances on one host do not share; alone, an instance has all of it."""
    owners: Dict[str, List[Group]] = {}
    spans = any(len(group.hosts) > 1 for group in groups)
    for group in groups if len(groups) > 1 and not spans else []:
        if group.request.model in context.catalogue.models:
            owners.setdefault(group.request.backend or _found_backend(host), []).append(group)
    for name in sorted(owners):
        BACKENDS[name].apportion(host, owners[name], context)


def _found_backend(host: Host) -> str:
    assert host.hardware is not None
    kinds = sorted({BACKEND_OF[d.kind] for d in host.hardware.accelerators if d.kind in BACKEND_OF})
    return kinds[0] if kinds else "cpu"


def _backend_of(host: Host, context: Context, group: Group) -> str:
    assert host.hardware is not None
    name = _found_backend(host)
    context.findings.decide(
        "R_BACKEND_FROM_DEVICES",
        "engine.backend",
        name,
        "{} accelerator(s) were found on {}".format(len(host.hardware.accelerators), host.name)
        if name != "cpu"
        else "no accelerator was found on {}".format(host.name),
        group=group.name,
    )
    return name


def _place(on_host: Dict[str, List[Group]], hosts: Dict[str, Host], context: Context) -> Dict[str, Dict[str, Binding]]:
    """Settle what instances share on each host: names, ports, CPUs, memory, disks, one release."""
    placed = {}
    for name, planned in on_host.items():
        host, present = hosts[name], [g for g in planned if not g.failed]
        _check_together(host, present, context.findings)
        assign_ports(host, [g for g in present if g.head is host], context.findings)
        bindings: Dict[str, Binding] = {}
        for backend in sorted({g.backend for g in present}):
            own = [g for g in present if g.backend == backend]
            bindings.update(BACKENDS[backend].bind(host, own, context))
            own = [g for g in own if g.instance in bindings]
            if own:
                BACKENDS[backend].settle(host, own, bindings, context)
        check_reserved(host, [g for g in present if not g.failed], context.findings)
        check_space(host, [g for g in present if not g.failed], context.findings)
        placed[name] = bindings
    return placed


def _check_names(groups: List[Group], findings: Findings) -> None:
    """A replica is named after its instance and its first host: a of b-1 and a-b of 1 would be one."""
    first: Dict[str, Group] = {}
    for group in groups:
        other = first.setdefault(group.name, group)
        if other.head is not group.head:
            findings.problem(
                "E_INSTANCE_NAME",
                "{} on {} and {} on {} would both be the replica {}".format(
                    other.instance, other.head.name, group.instance, group.head.name, group.name
                ),
                "another name in the request of {}".format(group.pool),
                host=group.head.name,
                field="engine_request.name",
                seen=group.instance,
            )


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
