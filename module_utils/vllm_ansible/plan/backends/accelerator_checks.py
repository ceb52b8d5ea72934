# SPDX-License-Identifier: Apache-2.0
"""Devices, row, model and data type of an accelerator engine: what runs at all on these hosts."""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ansible.module_utils.vllm_ansible.plan import nvidia, rows, stack
from ansible.module_utils.vllm_ansible.plan.backends.base import Context, fail
from ansible.module_utils.vllm_ansible.plan.canonical import gib
from ansible.module_utils.vllm_ansible.plan.devices import Device
from ansible.module_utils.vllm_ansible.plan.facts import Accelerator, Hardware, driver_of, unread
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host
from ansible.module_utils.vllm_ansible.plan.models import METHODS, Model

# Field of the facts that speaks against a row -> code of the problem.
ROW_CODES = {
    "catalogue.gpu_repositories": "E_GPU_DRIVER",
    "catalogue.hdk": "E_HDK",
    "engine_driver": "E_DRIVER",
    "vllm_hardware.accelerators.driver": "E_DRIVER",
    "vllm_hardware.architecture": "E_ARCHITECTURE",
    "vllm_hardware.cpu.isa": "E_ISA",
    "vllm_hardware.memory.page_size_bytes": "E_PAGE_SIZE",
    "vllm_hardware.os": "E_OS",
    "vllm_hardware.os.glibc": "E_GLIBC",
}
DTYPE_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class Found(NamedTuple):
    """The accelerators of one host: the healthy ones, all of them, and which device of the catalogue they are."""

    healthy: List[Accelerator]
    every: List[Accelerator]
    device: Device


def find_devices(group: Group, host: Host, kind: str, context: Context) -> Optional[Found]:
    """Return what `host` has of `kind`; problems say why it has nothing usable, warnings what is left out."""
    assert host.hardware is not None
    own = [d for d in host.hardware.accelerators if d.kind == kind]
    named = group.request.device_model or ""
    known = [(d, context.catalogue.devices.identify(d.raw, named)) for d in own]
    strange = [d for d, device in known if device is None]
    if strange:
        fail(group, context, "E_DEVICE_UNKNOWN",
             "{} has {} device(s) the catalogue does not know: {}".format(
                 host.name, len(strange), strange[0].model or "without a name"),
             "a device of the catalogue, or an entry for it in devices.yml", "vllm_hardware.accelerators",
             (strange[0].raw or {}).get("device_id") or strange[0].model, host)  # fmt: skip
        return None
    if not _name_is_clear(group, host, known, context):
        return None
    ill = [d for d in own if not d.healthy]
    if ill:
        context.findings.warning(
            "W_DEVICE_SICK",
            "{} of {} devices of {} cannot be used: {}".format(
                len(ill), len(own), host.name,
                "; ".join(sorted({"{} ({})".format(d.ill, _which([e for e in ill if e.ill == d.ill])) for d in ill})),
            ),
            host.name,
        )  # fmt: skip
    healthy = [(d, device) for d, device in known if d.healthy and device is not None]
    if not healthy:
        fail(group, context, "E_NO_DEVICE", "{} has no healthy {}".format(host.name, kind.upper()),
             "another host, or a backend this one has", "engine_request.backend", group.backend, host)  # fmt: skip
        return None
    devices = {device.name: device for _d, device in healthy}
    if len(devices) > 1:
        fail(group, context, "E_GROUP_MIXED",
             "{} has devices of several kinds, and the ranks of a replica have to be alike: {}".format(
                 host.name, ", ".join(sorted(devices))),
             "hosts with one kind of device in {}".format(group.pool), "vllm_hardware.accelerators",
             ", ".join(sorted(devices)), host)  # fmt: skip
        return None
    device = healthy[0][1]
    if unread(host.hardware, kind):
        context.findings.warning(
            "W_DEVICES_UNREAD",
            "No tool can read the {} devices of {} yet: planned as {} of {}. When their driver is there, site.yml "
            "reads them and plans again".format(len(own), host.name, device.name, gib(device.memory_bytes)),
            host.name, "vllm_hardware.accelerators",
        )  # fmt: skip
    if not device.supported:
        fail(group, context, "E_DEVICE_UNSUPPORTED",
             "The {} of {} cannot serve language models: {}".format(device.name, host.name, device.because),
             "other hosts in {}".format(group.pool), "vllm_hardware.accelerators", device.name, host)  # fmt: skip
        return None
    return Found([d for d, _device in healthy], own, device)


def _name_is_clear(
    group: Group, host: Host, known: Sequence[Tuple[Accelerator, Optional[Device]]], context: Context
) -> bool:
    """Whether it is known which board each device is: from the driver's tool, or while there is none the request."""
    named = group.request.device_model
    for accelerator, device in known:
        assert device is not None
        if accelerator.model and named and not device.named(named):
            fail(group, context, "E_DEVICE_OTHER",
                 "{} has {}, and the request says {}".format(host.name, accelerator.model, named),
                 "no device_model, or {}".format(accelerator.model), "engine_request.device_model", named,
                 host)  # fmt: skip
            return False
        sharing = context.catalogue.devices.sharing(device)
        if accelerator.model or len(sharing) == 1:
            continue
        choice = ", ".join("{} ({})".format(other.name, gib(other.memory_bytes)) for other in sharing)
        if not device.memory_bytes or (named and not device.named(named)):
            fail(group, context, "E_DEVICE_UNCLEAR",
                 "{} has devices {} and no driver that says which they are{}. It can be {}".format(
                     host.name, device.pci[0],
                     ", and none of them is called {}".format(named) if named else "", choice),
                 "device_model: the name on the order or the nameplate, such as 910B3", "engine_request.device_model",
                 named, host)  # fmt: skip
            return False
    if known and not known[0][0].model and named and known[0][1] is not None:
        context.findings.decide(
            "R_DEVICE_MODEL", "devices.model", known[0][1].name,
            "the request calls them {}; no driver is there to ask yet".format(named), host.name, group.name,
        )  # fmt: skip
    return True


def _which(devices: Sequence[Accelerator]) -> str:
    """Devices by number; those that no tool numbers, as a lost one, by their PCI address."""
    pci = [str((d.raw or {}).get("pci") or "unknown") for d in devices]
    return "device " + ", ".join(a if d.number is None else str(d.number) for d, a in zip(devices, pci))


def device_bytes(found: Found) -> int:
    """Memory of the smallest healthy device; the catalogue's figure where no tool could read it."""
    return min(d.memory_bytes or found.device.memory_bytes for d in found.healthy)


def check_alike(group: Group, found: Sequence[Found], kind: str, context: Context) -> bool:
    """Whether the hosts of one replica agree in device, driver and architecture, as they have to."""
    hardware = [host.hardware for host in group.hosts if host.hardware is not None]
    # what was read speaks for what was not yet
    names = [f.device.name for f, h in zip(found, hardware) if not unread(h, kind)] or [f.device.name for f in found]
    names = [names[0] if unread(h, kind) else f.device.name for f, h in zip(found, hardware)]
    drivers = [
        stack.driver_to_be(context.catalogue, host, kind, f.device.family, group.request.version) or "none"
        for host, f in zip(group.hosts, found)
    ]
    facts: Tuple[Tuple[str, str, List[str], str], ...] = (
        ("devices", "vllm_hardware.accelerators", names, "hosts with the same device"),
        ("driver versions", "vllm_hardware.accelerators.driver", drivers,
         "install the same driver on all of them, or name it: engine_driver"),
        ("architectures", "vllm_hardware.architecture", [h.architecture for h in hardware],
         "hosts of one architecture"),
    )  # fmt: skip
    for what, field, values, set_to in facts:
        if len(set(values)) > 1:
            odd = next(i for i, value in enumerate(values) if value != values[0])
            fail(group, context, "E_GROUP_MIXED",
                 "The hosts of one replica differ in {}: {}".format(
                     what, ", ".join("{} has {}".format(h.name, v) for h, v in zip(group.hosts, values))),
                 set_to, field, values[odd], group.hosts[odd])  # fmt: skip
    return not group.failed


def choose_row(group: Group, found: Sequence[Found], kind: str, context: Context) -> None:
    """Take the newest row that fits every host, or say what is against the one that comes closest."""
    pinned = group.request.version
    machines: Dict[rows.MachineFacts, Host] = {}
    for host, own in zip(group.hosts, found):
        assert host.hardware is not None
        driver, firmware = (driver_of(host.hardware, kind, part) for part in ("driver", "firmware"))
        machines.setdefault(rows.facts_of(host.hardware, [own.device.family], driver, firmware, host.driver), host)
    for release in [pinned] + [row.release for row in rows.candidates(context.catalogue, group.backend, pinned)]:
        choices = [rows.choose(context.catalogue, group.backend, release, machine) for machine in machines]
        unfit = [(host, choice) for host, choice in zip(machines.values(), choices) if choice.row is None]
        if release == pinned and unfit:
            host, choice = unfit[0]
            _no_row(group, host, next(own.device.family for own in found), choice.rejected, context)
            return
        if not unfit and len({choice.row.name for choice in choices if choice.row}) == 1:
            break
    else:
        fail(group, context, "E_GROUP_MIXED",
             "No row of the catalogue fits all of {}".format(", ".join(host.name for host in machines.values())),
             "hosts with one operating system", "vllm_hardware.os",
             ", ".join(host.hardware.os_name for host in machines.values() if host.hardware))  # fmt: skip
        return
    choice = choices[0]
    row = choice.row
    assert row is not None
    group.row = row
    newer = sorted({r.row for r in choice.rejected})
    because = "row {} is the newest final one that fits".format(row.name)
    if newer:
        because += "; not {}: {}".format(", ".join(newer), "; ".join(sorted({r.reason for r in choice.rejected})))
    context.findings.decide(
        "R_ROW_PINNED" if pinned else "R_ROW_NEWEST",
        "engine.version",
        "{} {}".format(row.engine, row.version)
        + (" with {} {}".format(row.plugin, row.plugin_version) if row.plugin else ""),
        "engine_request.version asks for it" if pinned else because,
        group=group.name,
    )
    if choice.cautions:
        context.findings.warning(
            "W_ROW_UNVERIFIED",
            "Not verified of row {}: {}".format(row.name, "; ".join(choice.cautions)),
            field="catalogue.rows." + row.name,
        )


def _no_row(group: Group, host: Host, family: str, rejected: Sequence[Any], context: Context) -> None:
    """Say what is against the row that comes closest, or that there is none for these devices."""
    finals = [row for row in rows.candidates(context.catalogue, group.backend, None) if family in row.families]
    reasons: Dict[str, List[Any]] = {}
    for entry in rejected:
        reasons.setdefault(entry.row, []).append(entry)
    if not reasons or not finals:
        names = sorted({row.plugin_version or row.version for row in finals})
        if group.request.version and finals:
            fail(group, context, "E_VERSION",
                 "No row of the catalogue is version {} of an engine for the {} of {}".format(
                     group.request.version, group.device, host.name),
                 "version: " + " or ".join('"={}"'.format(name) for name in names), "engine_request.version",
                 group.request.version)  # fmt: skip
        else:
            fail(group, context, "E_NO_ENGINE",
                 "No engine for the {} of {}: the catalogue has no row for it".format(group.device, host.name),
                 "hosts without accelerators in {}, or backend: cpu for those with a fitting CPU".format(group.pool),
                 "engine_request.backend", group.backend)  # fmt: skip
        return
    # `rejected` is in order from the newest on, and the first of equally near rows is taken
    nearest = min(reasons, key=lambda name: len(reasons[name]))
    for entry in reasons[nearest]:
        others: Dict[str, List[str]] = {}
        for other in (e for name in reasons for e in reasons[name] if name != nearest):
            if other.field == entry.field:
                others.setdefault(other.reason, []).append(other.row)
        older = "; ".join("{}: {}".format(", ".join(names), why) for why, names in others.items())
        fail(group, context, ROW_CODES.get(entry.field, "E_NO_ENGINE"),
             "{} does not fit {}: {}{}".format(
                 host.name, "any row" if entry.field == "vllm_hardware.os" else "row " + nearest, entry.reason,
                 "; nor the others ({})".format(older) if older else ""),
             entry.set_to, entry.field, entry.seen, host)  # fmt: skip


def check_model(group: Group, device: Device, context: Context) -> bool:
    """Whether the row serves the model on this device; decides data type and quantisation."""
    model, row = group.model, group.row
    assert model is not None and row is not None
    if model.architecture not in row.model_architectures:
        fail(group, context, "E_MODEL_ARCHITECTURE",
             "{} {} on {} does not serve {} ({})".format(
                 row.engine, row.version, row.backend, model.architecture, model.name),
             "a model of one of these architectures: " + ", ".join(sorted(row.model_architectures)),
             "engine_request.model", model.architecture)  # fmt: skip
    for key, value in (("kv_cache_gib", group.request.kv_cache_gib), ("cpus", group.request.cpus)):
        if value is not None:
            fail(group, context, "E_REQUEST_BACKEND",
                 "{} is for CPU engines: {}".format(
                     key, "the KV cache takes what a device has left" if key == "kv_cache_gib"
                     else "the plan gives an engine the CPUs near its devices"),
                 "no {}".format(key) + ", or extra_args: {gpu-memory-utilization: 0.8}" * (key == "kv_cache_gib"),
                 "engine_request." + key, value)  # fmt: skip
    _decide_quantisation(group, device, context)
    _decide_dtype(group, device, context)
    return not group.failed


def _decide_dtype(group: Group, device: Device, context: Context) -> None:
    """The requested data type, else the stored one, else float16 where the device has no bfloat16."""
    model, row = group.model, group.row
    assert model is not None and row is not None
    stored = model.dtype
    if group.request.dtype not in (None, "auto"):
        group.dtype, rule, because = group.request.dtype or "", "R_DTYPE_PINNED", "engine_request.dtype asks for it"
    elif stored == "bfloat16" and not _computes(device, stored) and _computes(device, "float16"):
        group.dtype, rule = "float16", "R_DTYPE_DEVICE"
        because = "{} does not compute in bfloat16, in which the weights are stored".format(device.name)
    else:
        group.dtype, rule, because = stored, "R_DTYPE_MODEL", "the weights are stored in it"
    allowed = [dtype for dtype in row.dtypes if _computes(device, dtype)]
    if group.dtype not in allowed:
        fail(group, context, "E_DTYPE",
             "{} {} does not compute in {} on {}".format(row.engine, row.version, group.dtype, device.name),
             "dtype: " + (" or ".join(allowed) or "none that the row and the device share"),
             "engine_request.dtype", group.dtype)  # fmt: skip
        return
    context.findings.decide(rule, "engine.dtype", group.dtype, because, group=group.name)


def _computes(device: Device, dtype: str) -> bool:
    return not device.dtypes or dtype in device.dtypes or DTYPE_NAMES.get(dtype, dtype) in device.dtypes


def warn_of_state(group: Group, host: Host, found: Found, context: Context) -> None:
    """Warn about a fabric manager that would stop the engine; preflight.py has the other checks of a host's state."""
    hardware, say = host.hardware, context.findings.warning
    assert hardware is not None
    manager = hardware.fabric_manager
    driver = driver_of(hardware, "gpu")
    if found.device.backend != "cuda" or not driver:
        return
    switched = nvidia.switches(hardware.raw, [found.device])
    version, runs = manager or ("not installed", False)
    if switched and (not runs or version != driver):
        say("W_FABRIC_MANAGER",
            "The fabric manager of {} is {}{} and its driver {}: CUDA starts only when they are equal and it "
            "runs; role nvidia_driver sees to it".format(
                host.name, version, "" if runs or manager is None else ", not running,", driver),
            host.name, "vllm_hardware.software.nvidia.fabric_manager")  # fmt: skip
    elif runs and not switched:
        say("W_FABRIC_MANAGER",
            "A fabric manager runs on {}, whose GPUs are on no NVSwitch: it has nothing to manage and fails; role "
            "nvidia_driver turns it off".format(host.name),
            host.name, "vllm_hardware.software.nvidia.fabric_manager")  # fmt: skip


def kind_of(hardware: Hardware, kind: str, driver: str) -> Tuple[Any, ...]:
    """What hosts have to share to work as one replica; `driver` is the one they will have."""
    own = [d for d in hardware.accelerators if d.kind == kind]
    models = tuple(sorted({(str((d.raw or {}).get("device_id")), d.model, d.memory_bytes) for d in own}))
    return (kind, models, sum(d.healthy for d in own), driver, hardware.architecture)


def _decide_quantisation(group: Group, device: Device, context: Context) -> None:
    """The format of the weights has to be one that both the device and the engine compute in."""
    model, row = group.model, group.row
    assert model is not None and row is not None
    if model.quantisation is None:
        return
    method = model.quantisation.method
    group.quantisation = method
    allowed = [q for q in device.quantisations if q in row.quantisations]
    if method not in allowed:
        others = sorted(
            other.name
            for other in context.catalogue.models.values()
            if same_weights(other, model) and (other.quantisation is None or other.quantisation.method in allowed)
        )
        quantised = [q for q in allowed if q not in DTYPE_NAMES.values()]
        fail(group, context, "E_QUANTISATION",
             "{} is stored in {}, and {} {} on {} computes in {}".format(
                 model.name, method, row.engine, row.version, device.name, ", ".join(allowed) or "none"),
             " or ".join(["model: {}".format(name) for name in others])
             or "weights converted to {}".format(" or ".join(quantised) or group.request.dtype or model.dtype),
             "engine_request.model", method)  # fmt: skip
        return
    context.findings.decide("R_QUANTISATION", "engine.quantisation", method,
                            "the weights are stored in it and {} computes in it".format(device.name),
                            group=group.name)  # fmt: skip


def same_weights(one: Model, other: Model) -> bool:
    """Whether two entries are one model stored in different ways: their names differ in the format alone.

    Quantised MLPs may be padded.
    """
    return one.shape == other.shape._replace(intermediate=one.shape.intermediate) and _plain(one.name) == _plain(
        other.name
    )


def _plain(name: str) -> str:
    return re.sub(r"-({}|int8|int4|bf16|fp16)\b".format("|".join(METHODS)), "", name.lower())
