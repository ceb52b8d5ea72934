# SPDX-License-Identifier: Apache-2.0
"""GGUF to Hugging Face: values, rotary order, names, config, tokenizer and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import tokenizers
from ansible.module_utils.vllm_ansible.convert import ModelError, architectures, bpe
from ansible.module_utils.vllm_ansible.convert.gguf_source import GgufSource, check_round_trip

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.1.attn_q.weight": "model.layers.1.self_attn.q_proj.weight",
    "blk.1.attn_k.weight": "model.layers.1.self_attn.k_proj.weight",
    "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
    "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
}


def _values(source: GgufSource, dtype: str = "float32") -> dict[str, Any]:
    return {tensor.name: tensor.read() for tensor in source.tensors(dtype)}


@pytest.mark.parametrize("quantisation", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_values_come_back_in_hugging_face_order(write_gguf, quantisation: str) -> None:
    path, expected = write_gguf(quantisation, tied=False)
    seen = _values(GgufSource(str(path)))
    for name, target in NAMES.items():
        numpy.testing.assert_array_equal(seen[target], expected[name], err_msg=name)


@pytest.mark.parametrize("tied", [True, False])
def test_config_describes_exactly_the_tensors(write_gguf, tied: bool) -> None:
    source = GgufSource(str(write_gguf(tied=tied)[0]))
    config = source.config("bfloat16")
    assert config["tie_word_embeddings"] is tied
    shapes = {tensor.name: tensor.shape for tensor in source.tensors("bfloat16")}
    assert shapes == architectures.tensor_shapes(config)
    assert ("lm_head.weight" in shapes) is not tied


def test_config_carries_the_numbers_of_the_file(write_gguf) -> None:
    config = GgufSource(str(write_gguf()[0])).config("float16")
    wanted = {
        "architectures": ["LlamaForCausalLM"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "max_position_embeddings": 512,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "torch_dtype": "float16",
    }
    assert {key: config[key] for key in wanted} == wanted


def test_bfloat16_rounds_to_nearest_ties_to_even(write_gguf) -> None:
    numbers = numpy.array([1.0, 1.00390625, 1.01171875, 1.00390637, -3.0e-39] + [0.5] * 59, dtype=numpy.float32)

    def change(values: dict[str, numpy.ndarray]) -> None:
        values["output_norm.weight"] = numbers

    stored = _values(GgufSource(str(write_gguf(change=change)[0])), "bfloat16")["model.norm.weight"]
    words = numpy.asarray(stored).view(numpy.uint16)[:5].tolist()
    assert words == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x8021]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("bfloat16", numpy.nan), ("bfloat16", numpy.inf), ("bfloat16", 3.4e38), ("float16", 70000.0)],
)
def test_refuses_values_that_are_not_finite(write_gguf, dtype: str, value: float) -> None:
    def change(values: dict[str, numpy.ndarray]) -> None:
        values["blk.0.ffn_up.weight"][3, 5] = value

    source = GgufSource(str(write_gguf(change=change)[0]))
    with pytest.raises(ModelError, match=rf"blk\.0\.ffn_up\.weight: 1 values are not finite as {dtype}"):
        _values(source, dtype)


def test_tokenizer_is_the_one_of_the_file(write_gguf, tmp_path: Path) -> None:
    content, config = GgufSource(str(write_gguf()[0])).tokenizer()
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    check_round_trip(str(path))
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    assert tokenizer.encode("<|im_start|>hello 42").tokens == ["<|im_start|>", "hell", "o", "Ġ", "4", "2"]
    assert [config[f"{kind}_token"] for kind in ("bos", "eos", "pad")] == ["<|im_start|>", "<|im_end|>", "<|im_end|>"]
    assert config["chat_template"] == "{{ messages[0]['content'] }}"


def test_round_trip_refuses_a_tokenizer_that_loses_text(tmp_path: Path) -> None:
    content = bpe.tokenizer_json(["a", "b"], [], {}, bpe.PRE_TOKENIZERS["gpt-2"])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="does not give back the text"):
        check_round_trip(str(path))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.pre": "other"}, "has the tokenizer gpt2/other"),
        ({"tokenizer.ggml.model": "llama"}, "has the tokenizer llama/smollm"),
        ({"tokenizer.ggml.add_bos_token": True}, "sets tokenizer.ggml.add_bos_token"),
    ],
)
def test_refuses_tokenizers_it_cannot_rebuild(write_gguf, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        GgufSource(str(write_gguf(metadata=metadata)[0])).tokenizer()


def test_refuses_scaled_positions(write_gguf) -> None:
    source = GgufSource(str(write_gguf(metadata={"llama.rope.scaling.type": "yarn"})[0]))
    with pytest.raises(ModelError, match="scales its rotary positions"):
        source.config("bfloat16")


def test_refuses_a_tensor_nobody_knows(write_gguf) -> None:
    path, _expected = write_gguf(extra={"blk.0.attn_q.bias": numpy.zeros(64, dtype=numpy.float32)})
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.bias, which is not part of a llama model"):
        GgufSource(str(path)).tensors("bfloat16")


@pytest.mark.parametrize("keep", [0, 3, 100, 5000, 100000])
def test_refuses_a_file_cut_short(write_gguf, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(write_gguf()[0].read_bytes()[:keep])
    with pytest.raises(ModelError, match="is not a whole GGUF file"):
        GgufSource(str(path))


def test_refuses_another_architecture(write_gguf, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(write_gguf()[0].read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gemma", 1))
    with pytest.raises(ModelError, match="holds the architecture gemma"):
        GgufSource(str(path))
