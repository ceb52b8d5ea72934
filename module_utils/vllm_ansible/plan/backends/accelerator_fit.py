# SPDX-License-Identifier: Apache-2.0
"""Layout, lengths and device memory of an accelerator engine: how it is divided, and how much it carries."""

import json
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ansible.module_utils.vllm_ansible.plan.backends.accelerator_checks import Found, device_bytes, same_weights
from ansible.module_utils.vllm_ansible.plan.backends.base import Context, fail
from ansible.module_utils.vllm_ansible.plan.canonical import gib, show
from ansible.module_utils.vllm_ansible.plan.catalogue import Row
from ansible.module_utils.vllm_ansible.plan.devices import Device
from ansible.module_utils.vllm_ansible.plan.fit import advice
from ansible.module_utils.vllm_ansible.plan.fit.layouts import (
    Answer,
    Pins,
    Question,
    choose,
    closest,
    is_roomy,
    tensor_sizes,
)
from ansible.module_utils.vllm_ansible.plan.fit.sizes import USABLE, scheme_of, sequence_bytes, taken
from ansible.module_utils.vllm_ansible.plan.groups import Group
from ansible.module_utils.vllm_ansible.plan.models import DTYPE_BYTES, Quantisation

# A shorter default context than this is no service worth starting; the request can still pin one.
SHORTEST = 4096
SHARE = ("gpu-memory-utilization", "device-memory-utilization")  # one flag under two names
MLA_HEADS = (32, 64, 128)
# Weights of the same size that a device may compute in instead, smallest change first.
SMALLER = (("w8a8", 8), ("fp8", 8), ("w4a8", 4), ("awq", 4), ("gptq", 4), ("w4a16", 4))


def utilisation(group: Group, row: Row) -> float:
    """Share of the usable memory the engine may take: the row's, or what extra_args says."""
    return _share(_extra(group, *SHARE)) or float(row.memory.get("utilisation", 0.9))


def _share(value: Any) -> float:
    """The value as a share above 0 and at most 1, else 0."""
    try:
        share = float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError):
        return 0.0
    return share if 0.0 < share <= 1.0 else 0.0


def question(group: Group, found: Sequence[Found], hosts: Sequence[int]) -> Question:
    """Return what the layout of `group` is chosen by; every input of the choice is in it."""
    model, row, request = group.model, group.row, group.request
    assert model is not None and row is not None
    shape = model.shape
    limit = shape.positions
    wished = min(request.max_model_len or row.defaults["max_model_len"], limit)
    lengths = [wished]
    while not request.max_model_len and lengths[-1] // 2 >= min(SHORTEST, limit):
        lengths.append(lengths[-1] // 2)
    sequences = request.max_num_seqs or row.defaults["max_num_seqs"]
    total = min(device_bytes(own) for own in found)
    return Question(
        shape=shape,
        scheme=scheme_of(shape, model.quantisation, DTYPE_BYTES[group.dtype]),
        overheads=taken(
            group.backend,
            row.memory,
            utilisation(group, row),
            row.mla_block_tokens if shape.mla else row.block_tokens,
            total,
        ),
        device_bytes=int(total * USABLE[group.backend]),
        per_host=min(len(own.healthy) for own in found) if group.allotted is None else group.allotted,
        hosts=tuple(hosts),
        lengths=tuple(lengths),
        sequences=sequences,
        step_tokens=max(request.max_num_batched_tokens or row.defaults["max_num_batched_tokens"], sequences),
        pins=Pins(request.tensor_parallel_size, request.pipeline_parallel_size, request.data_parallel_size),
        heads=mla_heads(row) if shape.mla else (),
        drafts=shape.mtp_layers if _speculates(group) else 0,
        cache_bytes=1 if str(_extra(group, "kv-cache-dtype")).startswith("fp8") else 0,
    )


def _extra(group: Group, *flags: str) -> Any:
    """What extra_args says of a flag that changes memory, by any of its names; None when it says nothing."""
    given = {key.lstrip("-").replace("_", "-"): value for key, value in group.request.extra_args.items()}
    return next((given[flag] for flag in flags if flag in given), None)


def _speculates(group: Group) -> bool:
    """Whether extra_args loads the layers of the checkpoint that are made for speculation."""
    asked = _extra(group, "speculative-config")
    if isinstance(asked, str):
        try:
            asked = json.loads(asked)
        except ValueError:
            return False
    return isinstance(asked, dict) and "mtp" in str(asked.get("method"))


def mla_heads(row: Row) -> Tuple[int, ...]:
    """Heads per rank that latent attention should have on this backend; () for any number."""
    listed = row.mla.get("heads_per_rank", MLA_HEADS if row.backend == "ascend" else ())
    return tuple(n for n in listed if isinstance(n, int)) if isinstance(listed, (list, tuple)) else ()


def check_request(group: Group, asked: Question, context: Context) -> bool:
    """Whether the pins could run at all, whatever a device's memory."""
    model, request = group.model, group.request
    assert model is not None
    limit = model.shape.positions
    if request.max_model_len is not None and request.max_model_len > limit:
        fail(group, context, "E_MODEL_LENGTH",
             "{} was made for at most {} tokens of context".format(model.name, limit),
             "max_model_len: {} or less".format(limit), "engine_request.max_model_len",
             request.max_model_len)  # fmt: skip
    share = _extra(group, *SHARE)
    if share is not None and asked.overheads.utilisation != _share(share):
        fail(group, context, "E_ARG_VALUE",
             "{} cannot be {}".format(SHARE[0], show(share)), SHARE[0] + ": a share above 0 and at most 1",
             "engine_request.extra_args." + SHARE[0], share)  # fmt: skip
    tokens, sequences = request.max_num_batched_tokens, asked.sequences
    if tokens is not None and tokens < sequences:
        fail(group, context, "E_BATCH_TOKENS",
             "max_num_batched_tokens {} is below {}: a step has to hold one token of each request".format(
                 tokens, sequences),
             "max_num_batched_tokens: {} or more".format(sequences), "engine_request.max_num_batched_tokens",
             tokens)  # fmt: skip
    size = request.tensor_parallel_size
    devices = asked.per_host * max(asked.hosts)
    possible = tensor_sizes(model.shape, devices)
    if size is not None and size not in possible:
        fail(group, context, "E_LAYOUT",
             "tensor_parallel_size {} {}".format(
                 size,
                 "is more than the {} devices there".format(devices) if size > devices else
                 "does not divide the {} attention heads ({} KV heads) of {}".format(
                     model.shape.heads, model.shape.kv_heads, model.name)),
             "tensor_parallel_size: " + " or ".join(str(n) for n in possible),
             "engine_request.tensor_parallel_size", size)  # fmt: skip
    return not group.failed


def decide(group: Group, asked: Question, answer: Answer, context: Context) -> None:
    """Take over a layout that fits, with its reasons."""
    model, request, say = group.model, group.request, context.findings.decide
    assert model is not None
    layout, memory = answer.layout, answer.memory
    group.layout.update(
        tensor_parallel=layout.tensor,
        pipeline_parallel=layout.pipeline,
        data_parallel=layout.data,
        expert_parallel=layout.expert,
    )
    say(
        _rule(asked, answer),
        "engine.layout",
        layout_text(answer),
        _because(asked, answer),
        group=group.name,
    )
    group.max_model_len = answer.load.length
    wished = asked.lengths[0]
    say(
        "R_LENGTH_PINNED" if request.max_model_len
        else "R_LENGTH_DEFAULT" if group.max_model_len == wished else "R_LENGTH_WHAT_FITS",
        "engine.max_model_len", group.max_model_len,
        "engine_request.max_model_len asks for it" if request.max_model_len
        else "the smaller of the model's {} and the row's default".format(model.shape.positions)
        if group.max_model_len == wished
        else "{} tokens, the smaller of the model's {} and the row's default, do not fit; this is the longest of their "
        "halves that does".format(wished, model.shape.positions),
        group=group.name,
    )  # fmt: skip
    group.max_num_seqs = answer.load.sequences
    say("R_SEQUENCES_PINNED" if request.max_num_seqs else "R_SEQUENCES_DEFAULT", "engine.max_num_seqs",
        group.max_num_seqs,
        "engine_request.max_num_seqs asks for it" if request.max_num_seqs
        else "the row's default, in each data-parallel copy",
        group=group.name)  # fmt: skip
    group.max_num_batched_tokens = answer.load.step_tokens
    say("R_TOKENS_PINNED" if request.max_num_batched_tokens else "R_TOKENS_DEFAULT", "engine.max_num_batched_tokens",
        group.max_num_batched_tokens,
        "engine_request.max_num_batched_tokens asks for it" if request.max_num_batched_tokens
        else "the row's default, at least one token for each of {} requests".format(group.max_num_seqs),
        group=group.name)  # fmt: skip
    group.kv_cache_gib = memory.kv_cache // 1024**3
    tokens = memory.tokens
    if memory.token:
        full = tokens / float(group.max_model_len)
        say("R_KV_REST", "engine.kv_cache_tokens", tokens * layout.data,
            "{} of each device are left: {} tokens of {} bytes, that is {:.1f} requests of full length{}".format(
                gib(memory.kv_cache), tokens, memory.token, full,
                ", in each of {} data-parallel copies".format(layout.data) if layout.data > 1 else ""),
            group=group.name)  # fmt: skip
    group.memory = {
        "weights_bytes": memory.weights,
        "kv_cache_bytes": max(0, memory.kv_cache),
        "activation_bytes": memory.activation,
        "graph_bytes": memory.graph,
        "communication_bytes": memory.communication,
        "context_bytes": memory.context,
        "total_bytes": memory.total,
        "budget_bytes": memory.capacity,
        "kv_cache_tokens": tokens * layout.data,
    }
    say("R_MEMORY", "engine.device_bytes", memory.total,
        "on each device: weights {}, KV cache {}, activations {}, graphs {}, communication {}, context {}; "
        "a framework can use {}, the engine takes {:.0%} of that and captures graphs beside it".format(
            gib(memory.weights), gib(memory.kv_cache), gib(memory.activation), gib(memory.graph),
            gib(memory.communication), gib(memory.context), gib(memory.capacity), asked.overheads.utilisation),
        group=group.name)  # fmt: skip
    _warn(group, asked, answer, context)


def layout_text(answer: Answer) -> str:
    layout = answer.layout
    parts = [("TP", layout.tensor), ("PP", layout.pipeline), ("DP", layout.data), ("EP", layout.expert)]
    return " ".join("{}{}".format(name, size) for name, size in parts if size > 1) or "one device"


def _rule(asked: Question, answer: Answer) -> str:
    if any(pin is not None for pin in asked.pins):
        return "R_LAYOUT_PINNED"
    if asked.shape.experts and answer.layout.expert > 1:
        return "R_LAYOUT_EXPERTS"
    return "R_LAYOUT_ROOMY" if is_roomy(asked, answer.layout) else "R_LAYOUT_SMALLEST_FIT"


def _because(asked: Question, answer: Answer) -> str:
    layout, shape = answer.layout, asked.shape
    where = "{} host(s) with {} device(s) each".format(layout.hosts, asked.per_host)
    pins = [name for name, pin in zip(("tensor", "pipeline", "data"), asked.pins) if pin is not None]
    if pins:
        return "the request pins {}_parallel_size; on {}".format(" and ".join(pins), where)
    if layout.expert > 1:
        heads = shape.heads // layout.tensor
        return "{}: {} experts divided among {} ranks; attention over {} ({} heads each), {} time(s)".format(
            where, shape.experts, layout.expert, layout.tensor, heads, layout.data
        )
    share = answer.memory.weights / float(answer.memory.capacity)
    reason = "the smallest tensor size whose weights leave room ({:.0%} of a device)".format(share)
    if not is_roomy(asked, layout):
        reason = "the smallest tensor size that fits at all (weights are {:.0%} of a device)".format(share)
    if layout.data > 1:
        reason += "; {} copies use all devices".format(layout.data)
    return "{}: {}".format(where, reason)


def _warn(group: Group, asked: Question, answer: Answer, context: Context) -> None:
    layout, shape, row = answer.layout, asked.shape, group.row
    assert row is not None
    if asked.heads and shape.mla and shape.heads // layout.tensor not in asked.heads:
        context.findings.warning(
            "W_MLA_HEADS",
            "{} runs {} heads per rank: the FAQ of {} allows {} only, while its DeepSeek-R1 tutorial also knows DP2 x "
            "TP8, that is 16, and recommends DP4 x TP4".format(
                group.name, shape.heads // layout.tensor, row.plugin or row.engine,
                ", ".join(str(n) for n in asked.heads)),
            group.head.name, "engine_request.tensor_parallel_size",
        )  # fmt: skip
    used = layout.world // layout.hosts
    if used < asked.per_host:
        context.findings.warning(
            "W_DEVICES_IDLE",
            "{} uses {} of {} devices on {}: no layout of {} divides into more".format(
                group.name, used, asked.per_host, "each host" if layout.hosts > 1 else group.head.name,
                group.request.model),
            group.head.name,
        )  # fmt: skip


def refuse(group: Group, asked: Question, found: Sequence[Found], context: Context) -> None:
    """Say by how much it does not fit, and the changes that would make it, each tried."""
    model = group.model
    assert model is not None
    where = "{} device(s) of {} on {} host(s)".format(
        asked.per_host * max(asked.hosts), gib(min(device_bytes(own) for own in found)), max(asked.hosts)
    )
    best = closest(asked)
    if best is None:
        changes = advice.other_pins(asked)
        pinned = ["{}_parallel_size".format(name) for name, pin in asked.pins._asdict().items() if pin is not None]
        field = next((key for change in changes for key in change.sets), pinned[0] if pinned else "")
        fail(group, context, "E_LAYOUT",
             "No layout of {} divides over {}{}".format(model.name, where, " with the pinned sizes" if pinned else ""),
             advice.as_text(changes, "no {}: the plan finds them".format(" and no ".join(pinned))),
             "engine_request." + field, getattr(group.request, field, None))  # fmt: skip
        return
    memory = best.memory
    other = memory.activation + memory.communication + memory.context
    needed = sequence_bytes(memory, best.load.length, asked.overheads.block_tokens)
    room = min(int(memory.capacity * asked.overheads.utilisation), memory.capacity - memory.graph)
    device = found[0].device
    shared = context.neighbours.get(group.head.name, 1) > 1
    # what more devices or hosts would do for one engine says nothing about several on a host
    found_changes = advice.proposals(
        asked,
        alternatives(group, device, context),
        0 if shared else _most(device),
        _other_devices(group, device, context),
        0 if shared else advice.MOST_HOSTS,
    )
    healthy = min(len(own.healthy) for own in found)
    if asked.per_host < healthy and choose(asked._replace(per_host=healthy)):
        found_changes.insert(0, advice.Proposal("fewer engines on this host", {}))
    repaired = None if shared else _repaired(asked, found)
    if repaired:
        found_changes.insert(0, advice.Proposal(repaired, {}))
    fail(
        group,
        context,
        "E_DEVICE_MEMORY",
        "{} does not fit {}. The closest is {}: each device needs {} for weights, {} for activations, communication "
        "and context, {} for one request of {} tokens, and the engine gets {} of the {} a framework can use "
        "(utilisation {:.0%}; graphs of {} lie beside it)".format(
            model.name, where, layout_text(best), gib(memory.weights), gib(other), gib(needed), best.load.length,
            gib(room), gib(memory.capacity), asked.overheads.utilisation, gib(memory.graph)),
        advice.as_text(found_changes, "a smaller model, or devices with more memory"),
        "engine_request.model",
        "{} short on each device".format(gib(max(0, memory.weights + other + needed - room))),
    )  # fmt: skip


def _most(device: Device) -> int:
    """Devices a host of this kind can have: 16 dies in an A3, 8 boards elsewhere."""
    return 16 if device.family == "a3" else 8


def _other_devices(group: Group, device: Device, context: Context) -> Dict[str, int]:
    """Devices of the same backend that the row runs on and that compute in the model's format: name -> usable bytes."""
    model, row = group.model, group.row
    assert model is not None and row is not None
    return {
        other.name: int(other.memory_bytes * USABLE[group.backend])
        for other in context.catalogue.devices.all
        if other.backend == device.backend
        and other.supported
        and other.family in row.families
        and (model.quantisation is None or model.quantisation.method in other.quantisations)
        and (not other.dtypes or group.dtype in other.dtypes)
    }


def _repaired(asked: Question, found: Sequence[Found]) -> Optional[str]:
    """Whether it would fit if the sick devices were well again."""
    whole = min(len(own.every) for own in found)
    if whole > asked.per_host and choose(asked._replace(per_host=whole)):
        return "the {} sick device(s) repaired".format(sum(len(own.every) - len(own.healthy) for own in found))
    return None


def alternatives(group: Group, device: Device, context: Context) -> List[advice.Alternative]:
    """Smaller weights this device and row compute in: models of the catalogue first, then formats nobody made yet."""
    model, row = group.model, group.row
    assert model is not None and row is not None
    found: List[advice.Alternative] = []
    dtype_bytes = DTYPE_BYTES[group.dtype]
    for name in sorted(context.catalogue.models):
        other = context.catalogue.models[name]
        stored = other.quantisation
        if stored is None or stored == model.quantisation or not same_weights(other, model):
            continue
        if stored.method in device.quantisations and stored.method in row.quantisations:
            found.append(advice.Alternative(name, scheme_of(other.shape, stored, dtype_bytes), True, other.shape))
    found.sort(key=lambda alternative: (-sum(size for _part, size in alternative.scheme.quantised), alternative.name))
    bits = model.quantisation.bits if model.quantisation else 8 * dtype_bytes
    for method, smaller in SMALLER:
        if smaller < bits and method in device.quantisations and method in row.quantisations:
            stored = Quantisation(method, smaller, 128 if smaller < 8 else 0)
            found.append(advice.Alternative(method, scheme_of(model.shape, stored, dtype_bytes), False, model.shape))
    return found
