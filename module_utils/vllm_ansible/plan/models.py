# SPDX-License-Identifier: Apache-2.0
"""Models as numbers: parameters, weights and KV cache from the Hugging Face configuration."""

import re
from typing import Any, Dict, NamedTuple, Optional

from ansible.module_utils.vllm_ansible.plan.reader import Reader

MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}"
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


class Shape(NamedTuple):
    """The dimensions that decide memory. `kv_lora_rank` 0 means ordinary (MHA/GQA) attention, `experts` 0 dense."""

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

    @property
    def mla(self) -> bool:
        return self.kv_lora_rank > 0

    def attention_parameters(self) -> int:
        """Weights of one layer's attention."""
        if not self.mla:
            projections = 2 * self.heads + 2 * self.kv_heads  # q and o; k and v
            return self.hidden * self.head_dim * projections
        query_dim = self.heads * (self.nope_dim + self.rope_dim)
        query = self.hidden * self.q_lora_rank + self.q_lora_rank * query_dim
        if not self.q_lora_rank:
            query = self.hidden * query_dim
        down = self.hidden * (self.kv_lora_rank + self.rope_dim)
        up = self.kv_lora_rank * self.heads * (self.nope_dim + self.v_dim)
        return query + down + up + self.heads * self.v_dim * self.hidden

    def parameters(self) -> int:
        """All weights: embeddings, attention, gated MLPs or experts with their router, norms."""
        dense = self.layers if not self.experts else min(self.dense_layers, self.layers)
        mlp = 3 * self.hidden * self.intermediate * dense
        expert = 3 * self.hidden * self.moe_intermediate
        moe = (self.experts + self.shared_experts) * expert + self.experts * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        norms = self.hidden * (2 * self.layers + 1)
        return embeddings + norms + self.layers * self.attention_parameters() + mlp + (self.layers - dense) * moe

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """KV cache of one token over all layers: the latent with MLA, else keys and values of the KV heads."""
        width = self.kv_lora_rank + self.rope_dim if self.mla else 2 * self.kv_heads * self.head_dim
        return self.layers * width * dtype_bytes

    def activation_bytes(self, step_tokens: int, sequences: int, dtype_bytes: int) -> int:
        """Largest intermediate results of one step: residual, projections and MLP of one layer, and the logits.

        An estimate from the shapes; float32 logits are what the sampler holds.
        """
        widest = max(self.intermediate, self.moe_intermediate * max(1, self.experts_per_token))
        per_token = 4 * self.hidden + 2 * widest + 2 * self.heads * max(self.head_dim, self.nope_dim + self.rope_dim)
        return step_tokens * per_token * dtype_bytes + 2 * sequences * self.vocabulary * 4


class Model(NamedTuple):
    """One catalogue entry (or one of the site's ``engine_models``)."""

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


def read_shape(config: Reader) -> Shape:
    """Read a Hugging Face configuration; missing or unusable numbers are complained about."""
    hidden = config.integer("hidden_size", required=True, minimum=1)
    heads = config.integer("num_attention_heads", default=1, required=True, minimum=1)
    intermediate = config.integer("intermediate_size", required=True, minimum=1)
    return Shape(
        hidden=hidden,
        layers=config.integer("num_hidden_layers", default=1, required=True, minimum=1),
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", default=heads, minimum=1),
        head_dim=config.integer("head_dim", default=hidden // heads, minimum=1),
        intermediate=intermediate,
        vocabulary=config.integer("vocab_size", required=True, minimum=1),
        tied=config.flag("tie_word_embeddings"),
        positions=config.integer("max_position_embeddings", required=True, minimum=1),
        kv_lora_rank=config.integer("kv_lora_rank"),
        q_lora_rank=config.integer("q_lora_rank"),
        rope_dim=config.integer("qk_rope_head_dim"),
        nope_dim=config.integer("qk_nope_head_dim"),
        v_dim=config.integer("v_head_dim"),
        experts=config.integer("n_routed_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        shared_experts=config.integer("n_shared_experts"),
        moe_intermediate=config.integer("moe_intermediate_size"),
        dense_layers=config.integer("first_k_dense_replace"),
    )


def read_model(name: str, entry: Reader) -> Model:
    """Read one model entry; what is unusable is complained about through `entry`."""
    if not re.match(MODEL_NAME + r"\Z", name):
        entry.complain(entry.path, name, "named with letters, digits, dots and dashes: the name becomes a folder")
    config = entry.mapping("config", required=True)
    source = entry.mapping("source", required=True)
    kind = source.text("type", required=True)
    if kind and kind not in ("python_package", "url", "path", "generated"):
        entry.complain(source.field("type"), kind, "one of python_package, url, path, generated")
    weights = entry.text("weights", required=True)
    if weights not in ("", "real", "random"):
        entry.complain(entry.field("weights"), weights, "real or random")
    dtype = entry.text("dtype", default="bfloat16")
    if dtype not in DTYPE_BYTES:
        entry.complain(entry.field("dtype"), dtype, "one of " + ", ".join(sorted(DTYPE_BYTES)))
    convert = entry.raw.get("convert")
    return Model(
        name=name,
        architecture=entry.text("architecture", required=True),
        weights=weights,
        license=entry.text("license", required=True),
        source=source.raw,
        convert=entry.mapping("convert").raw if convert is not None else None,
        size_bytes=entry.integer("size_bytes", required=True, minimum=1),
        dtype=dtype,
        shape=read_shape(config),
        config=config.raw,
    )
