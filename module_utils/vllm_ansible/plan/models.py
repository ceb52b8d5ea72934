# SPDX-License-Identifier: Apache-2.0
"""Models as numbers: parameters, weights and KV cache from the Hugging Face configuration."""

import re
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.plan.reader import Reader

MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}"
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
PARTS = ("embeddings", "attention", "dense_mlp", "experts", "shared_experts", "router", "norms", "lm_head")
LINEAR = ("attention", "dense_mlp", "experts", "shared_experts")  # what quantisation is about
METHODS = ("fp8", "w8a8", "w4a8", "w4a16", "awq", "gptq")
TASKS = ("generate", "embed")
SOURCES = ("python_package", "url", "path", "generated")  # what role model_store can fetch
HUB = "hub"  # known by its configuration; a site names a path or url of its own before it can be installed


class Shape(NamedTuple):
    """The dimensions that decide memory. `kv_lora_rank` 0 means ordinary (MHA/GQA) attention, `experts` 0 dense.

    `encoder`: reads the whole text at once (BERT), has no KV cache, biases everywhere, learned positions. `mtp_layers`:
    extra layers of the checkpoint for speculation; they are not part of `parameters`.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    positions: int
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    v_dim: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    moe_intermediate: int = 0
    dense_layers: int = 0
    mtp_layers: int = 0
    shared_intermediate: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False
    router_bias: bool = False
    encoder: bool = False
    token_types: int = 0

    @property
    def mla(self) -> bool:
        return self.kv_lora_rank > 0

    def attention_parameters(self) -> int:
        """Weights of one layer's attention, without norms."""
        if not self.mla:
            projections = 2 * self.heads + 2 * self.kv_heads  # q and o; k and v
            biases = self.head_dim * (self.heads + 2 * self.kv_heads) * (self.qkv_bias or self.encoder)
            return self.hidden * self.head_dim * projections + biases + self.hidden * self.encoder
        query_dim = self.heads * (self.nope_dim + self.rope_dim)
        query = self.hidden * self.q_lora_rank + self.q_lora_rank * query_dim
        if not self.q_lora_rank:
            query = self.hidden * query_dim
        down = self.hidden * (self.kv_lora_rank + self.rope_dim)
        up = self.kv_lora_rank * self.heads * (self.nope_dim + self.v_dim)
        return query + down + up + self.heads * self.v_dim * self.hidden

    def parts(self) -> Dict[str, int]:
        """Weights by part (`PARTS`) of all layers that compute an answer; the parts add up to `parameters`."""
        dense = self.layers if not self.experts else min(self.dense_layers, self.layers)
        parts = self._layers(dense, self.layers - dense)
        parts["norms"] += self.hidden  # the last one
        parts["embeddings"] = self.vocabulary * self.hidden
        if self.encoder:
            parts["embeddings"] += (self.positions + self.token_types) * self.hidden
            parts["norms"] += self.hidden  # its bias; the last norm is the embeddings'
            parts["lm_head"] = self.hidden * (self.hidden + 1)  # the pooler
        elif not self.tied:
            parts["lm_head"] = self.vocabulary * self.hidden
        return parts

    def mtp_parts(self) -> Dict[str, int]:
        """Weights of the layers for speculation (DeepSeek's MTP): a layer each, its own embeddings and head."""
        parts = self._layers(0, self.mtp_layers) if self.experts else self._layers(self.mtp_layers, 0)
        parts["attention"] += self.mtp_layers * 2 * self.hidden * self.hidden  # joins hidden state and embedding
        parts["norms"] += self.mtp_layers * 3 * self.hidden
        parts["embeddings"] = parts["lm_head"] = self.mtp_layers * self.vocabulary * self.hidden
        return parts

    def _layers(self, dense: int, moe: int) -> Dict[str, int]:
        expert = 3 * self.hidden * self.moe_intermediate
        shared = 3 * self.hidden * self.shared_intermediate + self.hidden if self.shared_intermediate else 0
        norms = 2 * self.hidden * (2 if self.encoder else 1)
        if self.mla:
            norms += self.q_lora_rank + self.kv_lora_rank
        elif self.qk_norm:
            norms += 2 * self.head_dim
        mlp = 3 * self.hidden * self.intermediate
        if self.encoder:
            mlp = 2 * self.hidden * self.intermediate + self.intermediate + self.hidden
        parts = dict.fromkeys(PARTS, 0)
        parts["attention"] = (dense + moe) * self.attention_parameters()
        parts["dense_mlp"] = dense * mlp
        parts["experts"] = moe * self.experts * expert
        parts["shared_experts"] = moe * (self.shared_experts * expert + shared)
        parts["router"] = moe * self.experts * (self.hidden + self.router_bias)
        parts["norms"] = (dense + moe) * norms
        return parts

    def parameters(self) -> int:
        """All weights that compute an answer."""
        return sum(self.parts().values())

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """KV cache of one token over all layers: the latent with MLA, else keys and values of the KV heads."""
        if self.encoder:
            return 0
        width = self.kv_lora_rank + self.rope_dim if self.mla else 2 * self.kv_heads * self.head_dim
        return self.layers * width * dtype_bytes

    def activation_bytes(self, step_tokens: int, sequences: int, dtype_bytes: int) -> int:
        """Largest intermediate results of one step: residual, projections and MLP of one layer, and the logits.

        An estimate from the shapes; float32 logits are what the sampler holds.
        """
        widest = max(self.intermediate, self.moe_intermediate * max(1, self.experts_per_token))
        per_token = 4 * self.hidden + 2 * widest + 2 * self.heads * max(self.head_dim, self.nope_dim + self.rope_dim)
        return step_tokens * per_token * dtype_bytes + 2 * sequences * self.vocabulary * 4


class Quantisation(NamedTuple):
    """How the linear weights are stored.

    `group_size`: weights that share a scale along one row, 0 a row each; `block`: rows and columns that share one;
    `ignored`: the parts (`PARTS`) that keep the model's data type, besides embeddings, norms, router and head.
    """

    method: str
    bits: int
    group_size: int = 0
    block: Tuple[int, ...] = ()
    ignored: Tuple[str, ...] = ()

    def bits_of(self, part: str, dtype_bits: int, hidden: int) -> float:
        """Stored bits per weight of `part`, scales and zero points included; `hidden`: length of a row."""
        if part not in LINEAR or part in self.ignored:
            return dtype_bits
        if self.block:
            return self.bits + 32 / (self.block[0] * self.block[-1])
        if self.group_size:
            return self.bits + (16 + self.bits) / self.group_size
        return self.bits + 64 / max(1, hidden)


class Model(NamedTuple):
    """One catalogue entry, or a site's ``engine_models``. `size_bytes`: its files; computed when not stated."""

    name: str
    architecture: str
    weights: str
    license: str
    source: Dict[str, Any]
    convert: Optional[Dict[str, Any]]
    size_bytes: int
    dtype: str
    shape: Shape
    config: Dict[str, Any]
    quantisation: Optional[Quantisation] = None
    task: str = "generate"

    @property
    def fetchable(self) -> bool:
        """Whether role model_store can fetch it as it is described."""
        return self.source.get("type") in SOURCES

    def bits_of(self, part: str) -> float:
        """Stored bits per weight of one part (`PARTS`)."""
        bits = 8 * DTYPE_BYTES[self.dtype]
        return self.quantisation.bits_of(part, bits, self.shape.hidden) if self.quantisation else bits

    def stored_bytes(self) -> int:
        """Size of the checkpoint from the dimensions, layers for speculation included."""
        both = (self.shape.parts(), self.shape.mtp_parts())
        return int(sum(parts[p] * self.bits_of(p) for parts in both for p in PARTS) / 8)

    def slice(self) -> Dict[str, Any]:
        """The entry as role model_store takes it."""
        return {
            "name": self.name,
            "weights": self.weights,
            "license": self.license,
            "source": self.source,
            "convert": self.convert,
            "size_bytes": self.size_bytes,
            "architecture": self.architecture,
            "config": self.config,
        }


def read_shape(config: Reader, architecture: str = "") -> Shape:
    """Read a Hugging Face configuration; missing or unusable numbers are complained about.

    `architecture` says what the configuration leaves out: biases (Qwen2), norms of queries and keys (Qwen3), BERT.
    """
    hidden = config.integer("hidden_size", required=True, minimum=1)
    heads = config.integer("num_attention_heads", default=1, required=True, minimum=1)
    intermediate = config.integer("intermediate_size", required=True, minimum=1)
    # each family has its own word for the number of experts
    experts = config.integer("n_routed_experts") or config.integer("num_experts") or config.integer("num_local_experts")
    return Shape(
        hidden=hidden,
        layers=config.integer("num_hidden_layers", default=1, required=True, minimum=1),
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", default=heads, minimum=1),
        head_dim=config.integer("head_dim", default=max(1, hidden // heads), minimum=1),
        intermediate=intermediate,
        vocabulary=config.integer("vocab_size", required=True, minimum=1),
        tied=config.flag("tie_word_embeddings"),
        positions=config.integer("max_position_embeddings", required=True, minimum=1),
        kv_lora_rank=config.integer("kv_lora_rank"),
        q_lora_rank=config.integer("q_lora_rank"),
        rope_dim=config.integer("qk_rope_head_dim"),
        nope_dim=config.integer("qk_nope_head_dim"),
        v_dim=config.integer("v_head_dim"),
        experts=experts,
        experts_per_token=config.integer("num_experts_per_tok"),
        shared_experts=config.integer("n_shared_experts"),
        moe_intermediate=config.integer("moe_intermediate_size"),
        dense_layers=config.integer("first_k_dense_replace"),
        mtp_layers=config.integer("num_nextn_predict_layers"),
        shared_intermediate=config.integer("shared_expert_intermediate_size"),
        qkv_bias=config.flag("attention_bias", default=architecture.startswith("Qwen2")),
        qk_norm=architecture.startswith("Qwen3"),
        router_bias=config.text("topk_method") == "noaux_tc",
        encoder=architecture.startswith("Bert"),
        token_types=config.integer("type_vocab_size"),
    )


def read_quantisation(entry: Reader) -> Quantisation:
    """Read how the weights are quantised; what is unusable is complained about through `entry`."""
    entry.only(Quantisation._fields)
    block = tuple(size for size in entry.list("block") if isinstance(size, int) and size > 0)
    if len(block) not in (0, 2):
        entry.complain(entry.field("block"), entry.raw.get("block"), "two numbers: rows and columns")
    return Quantisation(
        method=entry.choice("method", METHODS),
        bits=entry.integer("bits", default=16, required=True, minimum=1),
        group_size=entry.integer("group_size"),
        block=block if len(block) == 2 else (),
        ignored=tuple(entry.choices("ignored", PARTS)),
    )


def read_model(name: str, entry: Reader) -> Model:
    """Read one model entry; what is unusable is complained about through `entry`."""
    if not re.match(MODEL_NAME + r"\Z", name):
        entry.complain(entry.path, name, "named with letters, digits, dots and dashes: the name becomes a folder")
    config = entry.mapping("config", required=True)
    source = entry.mapping("source", required=True)
    source.choice("type", SOURCES + (HUB,))
    dtype = entry.choice("dtype", tuple(sorted(DTYPE_BYTES)), default="bfloat16")
    convert, quantised = entry.raw.get("convert"), entry.raw.get("quantisation")
    architecture = entry.text("architecture", required=True)
    model = Model(
        name=name,
        architecture=architecture,
        weights=entry.choice("weights", ("real", "random")),
        license=entry.text("license", required=True),
        source=source.raw,
        convert=entry.mapping("convert").raw if convert is not None else None,
        size_bytes=entry.integer("size_bytes", minimum=1),
        dtype=dtype,
        shape=read_shape(config, architecture),
        config=config.raw,
        quantisation=read_quantisation(entry.mapping("quantisation")) if quantised is not None else None,
        task=entry.choice("task", TASKS, default="generate"),
    )
    return model if model.size_bytes else model._replace(size_bytes=model.stored_bytes())
