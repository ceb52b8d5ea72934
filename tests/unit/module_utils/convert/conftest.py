# SPDX-License-Identifier: Apache-2.0
"""Tiny models for the tests of conversion, made in the test."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest
from ansible.module_utils.vllm_ansible.convert import bpe

HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 64, 2, 1, 128, 2
HEAD_DIM = HIDDEN // HEADS
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "4 2"]  # the last never applies where digits are cut apart
TOKENS = SPECIAL + sorted(bpe.BYTE_ALPHABET.values()) + [merge.replace(" ", "") for merge in MERGES]

_BLOCK_SHAPES = {
    "attn_norm": (HIDDEN,),
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_norm": (HIDDEN,),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}


def interleave(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """The row order llama.cpp wants: row i and row i + half of each head become neighbours."""
    half = weight.shape[0] // heads // 2
    order = [head * 2 * half + part * half + row for head in range(heads) for row in range(half) for part in (0, 1)]
    return weight[order]


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., tuple[Path, dict[str, numpy.ndarray]]]:
    """Function that writes a GGUF file: (path, {llama.cpp tensor name: values as a Hugging Face model has them})."""

    def write(
        quantisation: str = "F32",
        tied: bool = True,
        metadata: Mapping[str, Any] | None = None,
        extra: Mapping[str, numpy.ndarray] | None = None,
        change: Callable[[dict[str, numpy.ndarray]], None] | None = None,
        name: str = "tiny.gguf",
    ) -> tuple[Path, dict[str, numpy.ndarray]]:
        random = numpy.random.default_rng(1)
        weights = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
        if not tied:
            weights["output.weight"] = (len(TOKENS), HIDDEN)
        for layer in range(LAYERS):
            weights.update({f"blk.{layer}.{kind}.weight": shape for kind, shape in _BLOCK_SHAPES.items()})
        values = {key: random.standard_normal(shape, dtype=numpy.float32) for key, shape in weights.items()}
        if change:
            change(values)
        writer = gguf.GGUFWriter(str(tmp_path / name), "llama")
        fields = {
            "llama.block_count": LAYERS,
            "llama.context_length": 512,
            "llama.embedding_length": HIDDEN,
            "llama.feed_forward_length": INNER,
            "llama.attention.head_count": HEADS,
            "llama.attention.head_count_kv": KV_HEADS,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.freq_base": 100000.0,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.chat_template": "{{ messages[0]['content'] }}",
            **(metadata or {}),
        }
        for key, value in fields.items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            else:
                writer.add_string(key, value)
        writer.add_token_list(TOKENS)
        writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
        writer.add_token_merges(MERGES)
        expected = {}
        for key, value in {**values, **(extra or {})}.items():
            # Norms stay in float32 in real files, whatever the quantisation of the matrices.
            kind = gguf.GGMLQuantizationType[quantisation if value.ndim > 1 else "F32"]
            heads = HEADS if "attn_q" in key else KV_HEADS if "attn_k" in key else None
            stored = value if heads is None else interleave(value, heads)
            packed = gguf.quants.quantize(stored, kind)
            writer.add_tensor(key, packed, raw_dtype=kind)
            expected[key] = gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / name, expected

    return write
