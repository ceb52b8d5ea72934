# SPDX-License-Identifier: Apache-2.0
"""Device memory of one rank, part by part, from a model's numbers and a layout. All sizes in bytes.

``tools/fit_table.py`` sets these estimates beside what others published and states the error.
"""

from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.plan.models import LINEAR, Quantisation, Shape

# Share of a device's memory that a framework can use at all; the rest belongs to driver and firmware.
# ascend: 65452113920 of 64 GiB (vllm-ascend#3874, #3843). cuda: 23.58 of 23.99 GiB (vllm#14447), 44.42 of 44.99 GiB
# (vllm#15815), 79.22 of 80 GiB (vllm#10511): the smallest of them.
USABLE = {"ascend": 0.952, "cuda": 0.983}
# Float32 arrays of the vocabulary that the sampler holds for each sequence: logits, probabilities, a sorted copy with
# its indices, cumulative sums. 1.26 GiB of activations at 256 sequences of 128256 words (vllm#10511) are 10.3 of them.
SAMPLER_COPIES = 10


# What an engine takes beside the model on one rank, where a row has no figure of its own.
# ascend: context 0.22 GiB and graphs 0.79 GiB as printed (vllm-ascend#13439); a communicator takes twice HCCL_BUFFSIZE,
# 200 MB by default (HCCL documentation). Two of them and the context make 1.0 GiB; 1.05 is printed (vllm-ascend#10122).
# cuda: context 0.33 GiB on one device (vllm#14452; 0.30 in #15815), 2.57 GiB with NCCL on sixteen (vllm#13074); graphs
# 2464 MiB (vllm#7553).
GIB = 1024**3
TAKEN = {
    "ascend": {"context_bytes": int(0.22 * GIB), "graph_bytes": int(0.79 * GIB), "comm_bytes": 200 * 1024**2},
    "cuda": {"context_bytes": int(0.33 * GIB), "graph_bytes": 2464 * 1024**2, "comm_bytes": int((2.57 - 0.33) * GIB)},
}


class Scheme(NamedTuple):
    """How weights are stored: bytes per weight of the quantised parts, scales included; all else in `dtype_bytes`.

    `block`: columns that share a scale and cannot be cut, 0 when any width can.
    """

    dtype_bytes: int
    quantised: Tuple[Tuple[str, float], ...] = ()
    block: int = 0

    def of(self, part: str) -> float:
        """Bytes per weight of `part`, a name of `models.PARTS`."""
        return dict(self.quantised).get(part, float(self.dtype_bytes))


def scheme_of(shape: Shape, quantisation: Optional[Quantisation], dtype_bytes: int) -> Scheme:
    """Return how a model's weights lie on the device."""
    if quantisation is None:
        return Scheme(dtype_bytes)
    parts = tuple(
        (part, quantisation.bits_of(part, 8 * dtype_bytes, shape.hidden) / 8)
        for part in LINEAR
        if part not in quantisation.ignored
    )
    return Scheme(dtype_bytes, parts, quantisation.block[-1] if quantisation.block else quantisation.group_size)


class Layout(NamedTuple):
    """Parallel sizes of one replica. `expert` is the number of ranks its experts are divided among (1: not divided)."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    hosts: int = 1

    @property
    def world(self) -> int:
        """Devices of the whole replica."""
        return self.tensor * self.pipeline * self.data


class Load(NamedTuple):
    """What one data-parallel rank has to carry: context length, sequences at once, tokens of one step.

    `drafts`: layers for speculation (DeepSeek's MTP) that are loaded too. `cache_bytes`: bytes of one element of the
    KV cache, 0 for the data type's.
    """

    length: int
    sequences: int
    step_tokens: int
    drafts: int = 0
    cache_bytes: int = 0


class Overheads(NamedTuple):
    """What an engine takes beside the model, per rank. `utilisation` is the engine's own share of usable memory.

    `communication`: of a replica of several ranks; `communicator`: for each group of ranks that exchange data.
    """

    utilisation: float
    context: int
    graph: int
    communication: int
    block_tokens: int = 16
    communicator: int = 0


class Memory(NamedTuple):
    """One rank. `kv_cache` is what the rest holds; `total` includes it. `capacity` is what a framework can use."""

    weights: int
    kv_cache: int
    activation: int
    graph: int
    communication: int
    context: int
    total: int
    capacity: int
    token: int

    @property
    def tokens(self) -> int:
        """Tokens the KV cache of one data-parallel rank holds."""
        return max(0, self.kv_cache) // self.token if self.token else 0


def taken(
    backend: str, known: Mapping[str, Any], utilisation: float, block_tokens: int, device_bytes: int = 0
) -> Overheads:
    """Return the overheads of a row: its own figures in `known`, else the published ones.

    `device_bytes` is all memory of the device. On Ascend a row's `context_bytes` counts what the vendor's tool shows as
    taken on an idle device, and most of that is the part no framework sees; `comm_bytes` is the buffer of one
    communicator, which holds two.
    """
    figures = {key: int(known.get(key, usual)) for key, usual in TAKEN[backend].items()}
    ascend = backend == "ascend"
    if ascend and "context_bytes" in known:
        unseen = int(device_bytes * (1 - USABLE[backend]))
        figures["context_bytes"] = max(TAKEN[backend]["context_bytes"], figures["context_bytes"] - unseen)
    return Overheads(
        utilisation=utilisation,
        context=figures["context_bytes"],
        graph=figures["graph_bytes"],
        communication=0 if ascend else figures["comm_bytes"],
        block_tokens=block_tokens,
        communicator=2 * figures["comm_bytes"] if ascend else 0,
    )


def _divided(count: int, parts: int) -> int:
    return -(-count // parts)


def stage_layers(shape: Shape, layout: Layout) -> List[int]:
    """Layers of each pipeline stage, as the engine divides them: what is left over goes to the stages before the last,
    from the end."""
    stages = layout.pipeline
    share, left = divmod(shape.layers, stages)
    return [share + (1 if stages - 1 - left <= stage < stages - 1 else 0) for stage in range(stages)]


def weight_bytes(shape: Shape, scheme: Scheme, layout: Layout, drafts: int = 0) -> int:
    """Weights of the fullest rank."""
    return max(stage_weights(shape, scheme, layout, drafts))


def stage_weights(shape: Shape, scheme: Scheme, layout: Layout, drafts: int = 0) -> List[int]:
    """Weights of one rank of each pipeline stage; `drafts` layers for speculation lie on the last."""
    tensor = layout.tensor
    leading = shape.layers if not shape.experts else min(shape.dense_layers, shape.layers)
    expert = 3 * shape.hidden * shape.moe_intermediate
    held = float(_divided(shape.experts, layout.expert)) if layout.expert > 1 else shape.experts / float(tensor)
    shared = shape.shared_experts * expert + 3 * shape.hidden * shape.shared_intermediate
    matrices = 2 if shape.encoder else 3
    words = shape.vocabulary + (shape.positions if shape.encoder else 0)
    table = _divided(words, tensor) * shape.hidden
    sizes = []
    before = 0
    for stage, layers in enumerate(stage_layers(shape, layout)):
        dense = min(layers, max(0, leading - before))
        moe = layers - dense
        before += layers
        joined = 0
        if stage == layout.pipeline - 1 and drafts:
            layers, moe, dense = (
                layers + drafts,
                moe + drafts * bool(shape.experts),
                dense + drafts * (not shape.experts),
            )
            joined = drafts * 2 * shape.hidden * shape.hidden  # embedding and hidden state become one
        tables = (1 if stage == 0 else 0) + (1 if stage == layout.pipeline - 1 else 0)
        if (shape.tied or shape.encoder) and layout.pipeline == 1:
            tables = 1
        size = layers * _attention(shape, scheme, tensor)
        size += dense * matrices * shape.hidden * _divided(shape.intermediate, tensor) * scheme.of("dense_mlp")
        size += moe * held * expert * scheme.of("experts")
        size += moe * shared * scheme.of("shared_experts") / tensor
        plain = tables * table + joined + moe * shape.experts * shape.hidden + 2 * layers * shape.hidden
        sizes.append(int(size + plain * scheme.dtype_bytes))
    return sizes


def _attention(shape: Shape, scheme: Scheme, tensor: int) -> float:
    """Bytes of one layer's attention on one rank."""
    heads = shape.heads // tensor if shape.heads % tensor == 0 else _divided(shape.heads, tensor)
    linear = scheme.of("attention")
    if not shape.mla:
        kv_heads = max(1, shape.kv_heads // tensor)
        return shape.hidden * shape.head_dim * (2 * heads + 2 * kv_heads) * linear
    query = heads * (shape.nope_dim + shape.rope_dim)
    down = shape.hidden * (shape.kv_lora_rank + shape.rope_dim + shape.q_lora_rank)
    up = (shape.q_lora_rank or shape.hidden) * query
    output = heads * shape.v_dim * shape.hidden
    # the latent's up-projection is kept twice: as loaded, and in the data type for the absorbed form
    latent = shape.kv_lora_rank * heads * (shape.nope_dim + shape.v_dim)
    return (down + up + output + latent) * linear + latent * scheme.dtype_bytes


def kv_token_bytes(shape: Shape, layout: Layout, dtype_bytes: int, drafts: int = 0) -> int:
    """KV cache of one token on one rank: the whole latent with MLA, else its share of the KV heads, at least one."""
    if shape.encoder:
        return 0
    width = shape.kv_lora_rank + shape.rope_dim
    if not shape.mla:
        width = 2 * max(1, shape.kv_heads // layout.tensor) * shape.head_dim
    layers = stage_layers(shape, layout)
    return max(layers[:-1] + [layers[-1] + drafts]) * width * dtype_bytes


def activation_bytes(shape: Shape, layout: Layout, load: Load, dtype_bytes: int) -> int:
    """Peak of one step: the larger of a layer's intermediate results and the sampler's copies of the vocabulary."""
    tensor, tokens = layout.tensor, load.step_tokens
    heads = _divided(shape.heads, tensor) * max(shape.head_dim, shape.nope_dim + shape.rope_dim)
    kv = 2 * max(1, shape.kv_heads // tensor) * max(shape.head_dim, shape.nope_dim + shape.v_dim)
    residual = 4 * shape.hidden
    layer = tokens * (residual + max(2 * heads + kv, 3 * _divided(shape.intermediate, tensor)))
    if shape.experts:
        routed = tokens * shape.experts_per_token
        if layout.expert > 1:
            # tokens travel to their experts: all ranks send, each receives its part
            mixture = _divided(routed, tensor) * (2 * shape.hidden + 3 * shape.moe_intermediate)
        else:
            mixture = routed * (shape.hidden + 3 * _divided(shape.moe_intermediate, tensor))
        layer = max(layer, tokens * residual + mixture)
    sampler = load.sequences * shape.vocabulary * 4 * SAMPLER_COPIES
    return max(layer * dtype_bytes, sampler)


def memory(
    shape: Shape,
    scheme: Scheme,
    layout: Layout,
    load: Load,
    overheads: Overheads,
    device_bytes: int,
) -> Memory:
    """What the fullest rank of `layout` holds on a device with `device_bytes` usable; `kv_cache` is negative when
    weights and overheads alone are too much.

    The engine keeps weights, activations and KV cache within its utilisation; captured graphs lie beside that.
    """
    token = kv_token_bytes(shape, layout, load.cache_bytes or scheme.dtype_bytes, load.drafts)
    weights = weight_bytes(shape, scheme, layout, load.drafts)
    activation = activation_bytes(shape, layout, load, scheme.dtype_bytes)
    communication = 0
    if layout.world > 1:
        groups = 1 + sum(size > 1 for size in (layout.tensor, layout.pipeline, layout.data, layout.expert))
        communication = overheads.communication + overheads.communicator * groups
    fixed = weights + activation + overheads.context + communication
    room = min(int(device_bytes * overheads.utilisation), device_bytes - overheads.graph) - fixed
    block = token * overheads.block_tokens
    kv_cache = room // block * block if block else min(room, 0)
    total = fixed + overheads.graph + max(0, kv_cache)
    return Memory(
        weights, kv_cache, activation, overheads.graph, communication, overheads.context, total, device_bytes, token
    )


def sequence_bytes(found: Memory, length: int, block_tokens: int) -> int:
    """KV cache of one sequence of `length` tokens, in whole blocks."""
    return _divided(length, block_tokens) * block_tokens * found.token
