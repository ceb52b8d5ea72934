# SPDX-License-Identifier: Apache-2.0
"""Lengths, memory and flags of a CPU engine: how much it carries."""

from typing import Any, Dict

from ansible.module_utils.vllm_ansible.plan.backends.base import Context, fail
from ansible.module_utils.vllm_ansible.plan.canonical import GIB, gib
from ansible.module_utils.vllm_ansible.plan.catalogue import Row
from ansible.module_utils.vllm_ansible.plan.groups import Group
from ansible.module_utils.vllm_ansible.plan.models import DTYPE_BYTES

# Both from the resident memory of serving engines, which tests/site compares with the plan. Tied embeddings are kept
# as the table and packed again for the output layer; what a step used stays with the allocator.
PACKED_EMBEDDINGS = 2
ACTIVATION_COPIES = 2


def machine_budget(total_bytes: int) -> int:
    """Memory of a host that engines may use: all but 5 %, at least 1 GiB, for the system and its page cache."""
    return max(0, total_bytes - max(GIB, total_bytes // 20))


def machine_for(needed_bytes: int) -> int:
    """Memory of the smallest host, in whole GiB, whose budget is at least `needed_bytes`."""
    return -(-max(needed_bytes + GIB, -(-needed_bytes * 20 // 19)) // GIB) * GIB


def _chunks_prefill(group: Group) -> bool:
    """Whether a prompt may be split over steps: latent attention on CPUs without AMX cannot."""
    assert group.model is not None
    return not group.model.shape.mla or all(
        any(isa.startswith("amx") for isa in h.hardware.isa) for h in group.hosts if h.hardware
    )


def decide_lengths(group: Group, row: Row, context: Context) -> None:
    request, model, decide = group.request, group.model, context.findings.decide
    assert model is not None
    limit = model.shape.positions
    if request.max_model_len is not None and request.max_model_len > limit:
        fail(
            group,
            context,
            "E_MODEL_LENGTH",
            "{} was made for at most {} tokens of context".format(model.name, limit),
            "max_model_len: {} or less".format(limit),
            "engine_request.max_model_len",
            request.max_model_len,
        )
    group.max_model_len = min(request.max_model_len or row.defaults["max_model_len"], limit)
    decide(
        "R_LENGTH_PINNED" if request.max_model_len else "R_LENGTH_DEFAULT",
        "engine.max_model_len",
        group.max_model_len,
        "engine_request.max_model_len asks for it"
        if request.max_model_len
        else "the smaller of the model's {} and the row's default of {} tokens".format(
            limit, row.defaults["max_model_len"]
        ),
        group=group.name,
    )
    group.max_num_seqs = request.max_num_seqs or row.defaults["max_num_seqs"]
    decide(
        "R_SEQUENCES_PINNED" if request.max_num_seqs else "R_SEQUENCES_DEFAULT",
        "engine.max_num_seqs",
        group.max_num_seqs,
        "engine_request.max_num_seqs asks for it" if request.max_num_seqs else "the row's default for CPUs",
        group=group.name,
    )
    chunks = _chunks_prefill(group)
    least = group.max_num_seqs if chunks else max(group.max_num_seqs, group.max_model_len)
    tokens = request.max_num_batched_tokens or max(row.defaults["max_num_batched_tokens"], least)
    if tokens < least:
        fail(
            group,
            context,
            "E_BATCH_TOKENS",
            "max_num_batched_tokens {} is below {}: {}".format(
                tokens,
                least,
                "a step has to hold one token of each of the {} requests".format(group.max_num_seqs)
                if chunks
                else "latent attention without AMX cannot split a prompt, so a step has to hold the longest one",
            ),
            "max_num_batched_tokens: {} or more".format(least),
            "engine_request.max_num_batched_tokens",
            tokens,
        )
    group.max_num_batched_tokens = tokens
    decide(
        "R_TOKENS_PINNED"
        if request.max_num_batched_tokens
        else ("R_TOKENS_DEFAULT" if chunks else "R_TOKENS_WHOLE_PROMPT"),
        "engine.max_num_batched_tokens",
        tokens,
        "engine_request.max_num_batched_tokens asks for it"
        if request.max_num_batched_tokens
        else "the row's default, at least one token for each of {} requests".format(group.max_num_seqs)
        if chunks
        else "latent attention without AMX cannot split a prompt: a step has to hold {} tokens".format(
            group.max_model_len
        ),
        group=group.name,
    )


def decide_memory(group: Group, row: Row, context: Context) -> None:
    """Weights, KV cache, activations and processes of one replica on its host, in bytes."""
    model, request, ranks = group.model, group.request, group.ranks
    assert model is not None
    size = DTYPE_BYTES[group.dtype]
    weights = max(model.shape.parameters() * size, model.size_bytes * size // DTYPE_BYTES[model.dtype])
    if model.shape.tied:
        weights += PACKED_EMBEDDINGS * model.shape.vocabulary * model.shape.hidden * size
    # each host of a replica holds the part of its own workers
    weights = -(-weights // len(group.hosts))
    activation = ACTIVATION_COPIES * model.shape.activation_bytes(
        group.max_num_batched_tokens, group.max_num_seqs, size
    )
    overhead = row.process_bytes + ranks * row.worker_bytes
    split = 1 if model.shape.mla else min(group.layout["tensor_parallel"], model.shape.kv_heads)
    token = -(-model.shape.kv_bytes_per_token(size) // split)
    block = row.block_tokens if not model.shape.mla else row.mla_block_tokens
    sequence = -(-group.max_model_len // block) * block * token
    least = -(-sequence // GIB)
    room = min(
        (machine_budget(h.hardware.memory_bytes) // context.neighbours[h.name] if h.hardware else 0)
        for h in group.hosts
    )
    # A tenth stays free: page cache of the weights and what the estimates miss count against the unit's limit too.
    free = (room * 9 // 10 - weights - activation - overhead) // ranks // GIB
    wished = -(-sequence * group.max_num_seqs // GIB)
    if request.kv_cache_gib is not None:
        group.kv_cache_gib = request.kv_cache_gib
        rule, because = "R_KV_PINNED", "engine_request.kv_cache_gib asks for it"
    else:
        group.kv_cache_gib = max(1, min(wished, free))
        rule = "R_KV_ALL_REQUESTS" if wished <= free else "R_KV_WHAT_FITS"
        because = "{} requests of {} tokens at {} bytes each need {}; {} is left after weights and processes".format(
            group.max_num_seqs,
            group.max_model_len,
            token,
            gib(sequence * group.max_num_seqs),
            gib(max(0, free) * GIB),
        )
    carried = group.kv_cache_gib * GIB // (block * token) * block
    context.findings.decide(
        rule,
        "engine.kv_cache_gib",
        group.kv_cache_gib,
        "{}; it holds {} tokens, that is {:.1f} requests of full length".format(
            because, carried, carried / group.max_model_len
        ),
        group=group.name,
    )
    fixed = weights + activation + overhead

    def held(cache_gib: int) -> bool:
        return fixed + ranks * cache_gib * GIB <= room

    if group.kv_cache_gib < least:
        fail(
            group,
            context,
            "E_KV_TOO_SMALL",
            "One request of {} tokens needs {} of KV cache, and it has {} GiB".format(
                group.max_model_len, gib(sequence), group.kv_cache_gib
            ),
            " or ".join(
                ["kv_cache_gib: {}".format(least)] * held(least)
                + ["max_model_len: {} or less".format(carried)] * (carried > 0 and held(group.kv_cache_gib))
            )
            or "a smaller model, or a host with {} of memory for each engine on it".format(
                gib(machine_for(fixed + ranks * least * GIB))
            ),
            "engine_request.kv_cache_gib" if request.kv_cache_gib else "engine_request.max_model_len",
            group.kv_cache_gib,
        )
    cache = ranks * group.kv_cache_gib * GIB
    total = weights + cache + activation + overhead
    group.host_bytes = total
    group.memory = {
        "weights_bytes": weights,
        "kv_cache_bytes": cache,
        "activation_bytes": activation,
        "overhead_bytes": overhead,
        "total_bytes": total,
        "budget_bytes": min(machine_budget(h.hardware.memory_bytes) for h in group.hosts if h.hardware),
    }
    context.findings.decide(
        "R_MEMORY",
        "engine.memory_bytes",
        total,
        "weights {} ({:.1f} M parameters in {}), KV cache {}, activations {}, processes {}; "
        "the host gives engines {}".format(
            gib(weights),
            model.shape.parameters() / 1e6,
            group.dtype,
            gib(cache),
            gib(activation),
            gib(overhead),
            gib(group.memory["budget_bytes"]),
        ),
        group=group.name,
    )


def decide_settings(group: Group, row: Row, context: Context) -> None:
    """The engine's own flags and environment, from the decisions above and the row."""
    flags: Dict[str, Any] = dict(row.flags)
    flags.update(
        {
            "dtype": group.dtype,
            "max-model-len": group.max_model_len,
            "max-num-seqs": group.max_num_seqs,
            "max-num-batched-tokens": group.max_num_batched_tokens,
        }
    )
    if group.layout["tensor_parallel"] > 1:
        flags["tensor-parallel-size"] = group.layout["tensor_parallel"]
    if flags.get("enforce-eager"):
        context.findings.decide(
            "R_EAGER",
            "engine.enforce_eager",
            True,
            "torch.compile needs a C++ compiler, which serving hosts do not have",
            group=group.name,
        )
    group.flags = flags
    group.environment = {key: str(value) for key, value in row.environment.items()}
    group.environment["VLLM_CPU_KVCACHE_SPACE"] = str(group.kv_cache_gib)
    if group.layout["tensor_parallel"] > 1 and flags.get("enforce-eager"):
        # vllm/model_executor/layers/vocab_parallel_embedding.py compiles a function of its own, eager mode or not
        group.environment["TORCH_COMPILE_DISABLE"] = "1"
