# SPDX-License-Identifier: Apache-2.0
"""The CPU backend: workers on NUMA nodes, KV cache in host memory."""

from typing import Any, Dict, List, Sequence, Set

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist, parse_cpulist
from ansible.module_utils.vllm_ansible.plan.backends.base import Backend, Binding, Context, fail
from ansible.module_utils.vllm_ansible.plan.canonical import GIB, gib, version_key
from ansible.module_utils.vllm_ansible.plan.catalogue import Row, choose_row
from ansible.module_utils.vllm_ansible.plan.facts import Node
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host
from ansible.module_utils.vllm_ansible.plan.models import DTYPE_BYTES
from ansible.module_utils.vllm_ansible.plan.topology import divide, nodes_of, reserved_cpus

BFLOAT16_ISA = ("amx_bf16", "avx512_bf16", "bf16")


def machine_budget(total_bytes: int) -> int:
    """Memory of a host that engines may use: all but 5 %, at least 1 GiB, for the system and its page cache."""
    return max(0, total_bytes - max(GIB, total_bytes // 20))


class CpuBackend(Backend):
    """vLLM's CPU platform."""

    name = "cpu"

    def plan(self, group: Group, context: Context) -> None:
        row = choose_row(context.catalogue, self.name, group.request.version)
        if row is None:
            versions = sorted({r.version for r in context.catalogue.rows if r.backend == self.name})
            fail(
                group,
                context,
                "E_VERSION",
                "No row of the catalogue has a CPU engine of version {}".format(group.request.version),
                "version: " + (" or ".join('"={}"'.format(v) for v in versions) or "none is in the catalogue"),
                "engine_request.version",
                group.request.version,
            )
            return
        group.row = row
        _decide_row(group, row, context)
        for host in group.hosts:
            _check_machine(group, row, host, context)
        _check_model(group, row, context)
        _decide_dtype(group, row, context)
        _decide_layout(group, context)
        if not group.failed:
            _decide_lengths(group, row, context)
            _decide_memory(group, row, context)
            _decide_settings(group, row, context)

    def bind(self, host: Host, groups: List[Group], context: Context) -> Dict[str, Binding]:
        assert host.hardware is not None
        nodes = host.hardware.nodes
        bindings: Dict[str, Binding] = {}
        taken: Set[int] = set()
        for group in [g for g in groups if g.request.cpus]:
            ranks = _pinned(group, host, taken, context)
            if ranks:
                bindings[group.instance] = _binding(nodes, ranks)
        open_groups = [g for g in groups if not g.request.cpus]
        wanted = sum(g.ranks for g in open_groups)
        reserve = set() if taken else set(reserved_cpus(nodes))
        shares = divide(nodes, taken | reserve, wanted) if wanted else []
        for group in open_groups:
            ranks, shares = shares[: group.ranks], shares[group.ranks :]
            if not all(ranks):
                fail(
                    group,
                    context,
                    "E_CPUS_TOO_FEW",
                    "{} has {} usable CPUs, {} of them pinned: {} workers cannot have one each".format(
                        host.name, len(host.hardware.cpus), len(taken), wanted
                    ),
                    "fewer replicas_per_host, a smaller tensor_parallel_size, or fewer pinned cpus",
                    "engine_request.replicas_per_host",
                    len(host.hardware.cpus),
                    host,
                )
                continue
            binding = _binding(nodes, ranks)
            bindings[group.instance] = binding
            context.findings.decide(
                "R_CPUS_FROM_TOPOLOGY",
                "numa.cpus",
                _bind_text(binding),
                "{} has {} usable CPUs on {} NUMA node(s) for {} worker(s); a worker never spans nodes, and {}".format(
                    host.name,
                    len(host.hardware.cpus),
                    len(nodes),
                    wanted,
                    "CPU {} is left to the system".format(format_cpulist(reserve))
                    if reserve
                    else "none is left to the system on so small a machine",
                ),
                host.name,
                group.name,
            )
        return bindings

    def settle(self, host: Host, groups: List[Group], bindings: Dict[str, Binding], context: Context) -> None:
        assert host.hardware is not None
        budget = machine_budget(host.hardware.memory_bytes)
        total = sum(g.memory["total_bytes"] for g in groups)
        if total > budget:
            _refuse_memory(host, groups, total - budget, budget, context)
            return
        for group in groups:
            group.memory["limit_bytes"] = group.memory["total_bytes"] + (budget - total) // len(groups)
            binding = bindings[group.instance]
            group.environment["VLLM_CPU_OMP_THREADS_BIND"] = _bind_text(binding)


def _binding(nodes: Sequence[Node], ranks: List[List[int]]) -> Binding:
    return Binding(ranks, nodes_of(nodes, [cpu for rank in ranks for cpu in rank]))


def _bind_text(binding: Binding) -> str:
    return "|".join(format_cpulist(rank) for rank in binding.ranks)


def _decide_row(group: Group, row: Row, context: Context) -> None:
    context.findings.decide(
        "R_ROW_PINNED" if group.request.version else "R_ROW_DEFAULT",
        "engine.version",
        "{} {}".format(row.engine, row.version),
        "engine_request.version asks for it"
        if group.request.version
        else "row {} is the tested default of backend {}".format(row.name, row.backend),
        group=group.name,
    )


def _check_machine(group: Group, row: Row, host: Host, context: Context) -> None:
    """Architecture, instruction sets and C library of one host against the row."""
    hardware = host.hardware
    assert hardware is not None
    machine = row.machines.get(hardware.architecture)
    if machine is None:
        fail(
            group,
            context,
            "E_ARCHITECTURE",
            "{} is {}, and row {} has a locked set of packages for {} only".format(
                host.name, hardware.architecture, row.name, ", ".join(sorted(row.machines))
            ),
            "hosts of these architectures in {}, or another version".format(group.pool),
            "vllm_hardware.architecture",
            hardware.architecture,
            host,
        )
        return
    missing = [isa for isa in machine.isa if isa not in hardware.isa]
    if missing:
        fail(
            group,
            context,
            "E_ISA",
            "The kernels of {} {} need {}, which {} ({}) does not have".format(
                row.engine, row.version, ", ".join(missing), host.name, hardware.cpu_model or "unknown CPU"
            ),
            "another host in {}, or expose these instructions to the virtual machine".format(group.pool),
            "vllm_hardware.cpu.isa",
            ", ".join(sorted(hardware.isa)) or "none",
            host,
        )
    if version_key(hardware.glibc) < version_key(machine.glibc):
        fail(
            group,
            context,
            "E_GLIBC",
            "{} runs glibc {}, and the engine needs {} or newer".format(
                host.name, hardware.glibc or "of unknown version", machine.glibc
            ),
            "a host with a newer operating system than {}".format(hardware.os_name or "this one"),
            "vllm_hardware.os.glibc",
            hardware.glibc,
            host,
        )


def _check_model(group: Group, row: Row, context: Context) -> None:
    model = group.model
    assert model is not None
    if model.architecture not in row.model_architectures:
        fail(
            group,
            context,
            "E_MODEL_ARCHITECTURE",
            "{} {} on {} does not serve {} ({})".format(
                row.engine, row.version, row.backend, model.architecture, model.name
            ),
            "a model of one of these architectures: " + ", ".join(sorted(row.model_architectures)),
            "engine_request.model",
            model.architecture,
        )
    if model.shape.mla:
        numbers = {"kv_lora_rank": model.shape.kv_lora_rank, "qk_rope_head_dim": model.shape.rope_dim}
        for key in sorted(numbers):
            if key in row.mla and numbers[key] != row.mla[key]:
                fail(
                    group,
                    context,
                    "E_MODEL_SHAPE",
                    "The latent-attention kernel of {} {} on {} is compiled for {} {} only; {} has {}".format(
                        row.engine, row.version, row.backend, key, row.mla[key], model.name, numbers[key]
                    ),
                    "a model with {}: {}".format(key, row.mla[key]),
                    "engine_request.model",
                    numbers[key],
                )


def _decide_dtype(group: Group, row: Row, context: Context) -> None:
    assert group.model is not None
    asked = group.request.dtype if group.request.dtype != "auto" else None
    group.dtype = asked or group.model.dtype
    if group.dtype not in row.dtypes:
        fail(
            group,
            context,
            "E_DTYPE",
            "{} {} on {} does not compute in {}".format(row.engine, row.version, row.backend, group.dtype),
            "dtype: " + " or ".join(row.dtypes),
            "engine_request.dtype",
            group.dtype,
        )
        return
    if asked:
        rule, because = "R_DTYPE_PINNED", "engine_request.dtype asks for it"
    elif group.dtype != "bfloat16":
        rule, because = "R_DTYPE_MODEL", "the weights are stored in it"
    else:
        slow = [h.name for h in group.hosts if h.hardware and not h.hardware.isa.intersection(BFLOAT16_ISA)]
        rule = "R_DTYPE_EMULATED" if slow else "R_DTYPE_NATIVE"
        because = (
            "the weights are stored in it; {} computes it through float32, having none of {}".format(
                ", ".join(slow), ", ".join(BFLOAT16_ISA)
            )
            if slow
            else "the weights are stored in it and the CPU computes it natively"
        )
    context.findings.decide(rule, "engine.dtype", group.dtype, because, group=group.name)


def _decide_layout(group: Group, context: Context) -> None:
    """One worker unless pinned: on CPUs a second replica gains more than splitting one."""
    request, model = group.request, group.model
    assert model is not None
    if len(group.hosts) > 1:
        fail(
            group,
            context,
            "E_MULTI_NODE",
            "A CPU engine over {} hosts is not installed by this version".format(len(group.hosts)),
            "nodes: 1",
            "engine_request.nodes",
            len(group.hosts),
        )
    if (request.pipeline_parallel_size or 1) > 1:
        fail(
            group,
            context,
            "E_LAYOUT",
            "Pipeline parallelism fails in eager mode, and the CPU engine runs in eager mode",
            "pipeline_parallel_size: 1",
            "engine_request.pipeline_parallel_size",
            request.pipeline_parallel_size,
        )
    if (request.data_parallel_size or 1) > 1:
        fail(
            group,
            context,
            "E_LAYOUT",
            "Data parallelism inside one CPU engine is not tested",
            "replicas_per_host: {}".format(request.data_parallel_size),
            "engine_request.data_parallel_size",
            request.data_parallel_size,
        )
    size = request.tensor_parallel_size or 1
    heads, kv_heads = model.shape.heads, model.shape.kv_heads
    if heads % size or (not model.shape.mla and kv_heads % size and size % kv_heads):
        fits = [n for n in range(1, heads + 1) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)]
        fail(
            group,
            context,
            "E_LAYOUT",
            "tensor_parallel_size {} does not divide the {} attention heads ({} KV heads) of {}".format(
                size, heads, kv_heads, model.name
            ),
            "tensor_parallel_size: " + " or ".join(str(n) for n in fits),
            "engine_request.tensor_parallel_size",
            size,
        )
        return
    group.layout["tensor_parallel"] = size
    context.findings.decide(
        "R_LAYOUT_PINNED" if request.tensor_parallel_size else "R_LAYOUT_ONE_WORKER",
        "engine.tensor_parallel",
        size,
        "engine_request.tensor_parallel_size asks for it"
        if request.tensor_parallel_size
        else "one worker per replica; replicas_per_host uses further NUMA nodes",
        group=group.name,
    )


def _chunks_prefill(group: Group) -> bool:
    """Whether a prompt may be split over steps: latent attention on CPUs without AMX cannot."""
    assert group.model is not None
    return not group.model.shape.mla or all(
        any(isa.startswith("amx") for isa in h.hardware.isa) for h in group.hosts if h.hardware
    )


def _decide_lengths(group: Group, row: Row, context: Context) -> None:
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


def _decide_memory(group: Group, row: Row, context: Context) -> None:
    """Weights, KV cache, activations and processes of one replica on its host, in bytes."""
    model, request, ranks = group.model, group.request, group.ranks
    assert model is not None
    size = DTYPE_BYTES[group.dtype]
    weights = max(model.shape.parameters() * size, model.size_bytes * size // DTYPE_BYTES[model.dtype])
    activation = model.shape.activation_bytes(group.max_num_batched_tokens, group.max_num_seqs, size)
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
    free = (room - weights - activation - overhead) // ranks // GIB
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
    if group.kv_cache_gib < least:
        fail(
            group,
            context,
            "E_KV_TOO_SMALL",
            "One request of {} tokens needs {} of KV cache, and it has {} GiB".format(
                group.max_model_len, gib(sequence), group.kv_cache_gib
            ),
            "kv_cache_gib: {}, or max_model_len: {} or less".format(least, carried),
            "engine_request.kv_cache_gib" if request.kv_cache_gib else "engine_request.max_model_len",
            group.kv_cache_gib,
        )
    cache = ranks * group.kv_cache_gib * GIB
    total = weights + cache + activation + overhead
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


def _decide_settings(group: Group, row: Row, context: Context) -> None:
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
            "serving hosts have no C++ compiler, and a first compilation took 98 s where eager starts in 29 s",
            group=group.name,
        )
    group.flags = flags
    group.environment = {key: str(value) for key, value in row.environment.items()}
    group.environment["VLLM_CPU_KVCACHE_SPACE"] = str(group.kv_cache_gib)


def _pinned(group: Group, host: Host, taken: Set[int], context: Context) -> List[List[int]]:
    """The CPUs the request pins, checked against the machine; they are added to `taken`."""
    assert host.hardware is not None and group.request.cpus is not None
    field, text = "engine_request.cpus", group.request.cpus
    ranks = [parse_cpulist(part) for part in text.split("|")]
    cpus = [cpu for rank in ranks for cpu in rank]
    unknown = sorted(set(cpus) - set(host.hardware.cpus))
    usable = format_cpulist(host.hardware.cpus)
    if len(ranks) != group.ranks:
        fail(group, context, "E_CPUS_RANKS",
             "cpus names {} list(s) and the replica has {} worker(s)".format(len(ranks), group.ranks),
             "{} list(s) separated by |".format(group.ranks), field, text, host)  # fmt: skip
    elif unknown:
        fail(group, context, "E_CPUS_UNKNOWN",
             "{} has no usable CPU {}".format(host.name, format_cpulist(unknown)),
             "cpus within " + usable, field, text, host)  # fmt: skip
    elif taken.intersection(cpus) or len(set(cpus)) != len(cpus):
        fail(group, context, "E_CPUS_OVERLAP",
             "CPU {} of {} is pinned twice".format(
                 format_cpulist(taken.intersection(cpus) or [c for c in cpus if cpus.count(c) > 1]), host.name),
             "disjoint lists within " + usable, field, text, host)  # fmt: skip
    else:
        taken.update(cpus)
        context.findings.decide("R_CPUS_PINNED", "numa.cpus", text, "engine_request.cpus asks for it",
                                host.name, group.name)  # fmt: skip
        return ranks
    return []


def _refuse_memory(host: Host, groups: List[Group], excess: int, budget: int, context: Context) -> None:
    """Say that the instances on `host` do not fit, and the smallest change that would make them."""
    largest = max(groups, key=lambda g: (g.kv_cache_gib, g.instance))
    smaller = largest.kv_cache_gib - -(-excess // (largest.ranks * GIB))
    assert host.hardware is not None
    if smaller >= 1:
        set_to = "kv_cache_gib: {} for {}".format(smaller, largest.instance)
    elif len(groups) > 1:
        set_to = "fewer engines on this host, or one with {} of memory".format(gib(host.hardware.memory_bytes + excess))
    else:
        set_to = "a smaller model, or a host with {} of memory".format(gib(host.hardware.memory_bytes + excess))
    for group in groups:
        group.failed = True
    context.findings.problem(
        "E_MEMORY",
        "{} needs {} for {} and has {} for engines ({} in all): {} too little".format(
            host.name,
            gib(budget + excess),
            " and ".join(g.instance for g in groups),
            gib(budget),
            gib(host.hardware.memory_bytes),
            gib(excess),
        ),
        set_to,
        host=host.name,
        field="engine_request.kv_cache_gib",
        seen=largest.kv_cache_gib,
    )
