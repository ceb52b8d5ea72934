# SPDX-License-Identifier: Apache-2.0
"""Generated models: the same bytes everywhere, the tensors their config asks for, a tokenizer that works."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import tokenizers
import yaml
from ansible.module_utils.vllm_ansible import artefact
from ansible.module_utils.vllm_ansible.convert import ModelError, architectures, bpe, generated, safetensors
from ansible.module_utils.vllm_ansible.convert.gguf_source import check_round_trip

NAME = "deepseek-v3-tiny-random"


@pytest.fixture(scope="module")
def entry() -> dict[str, Any]:
    """The model as the catalogue has it."""
    path = Path(__file__).parents[4] / "roles/deployment_plan/vars/main/models.yml"
    return yaml.safe_load(path.read_text())["__deployment_plan_models"][NAME]


@pytest.fixture(scope="module")
def model(entry: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated directory."""
    path = tmp_path_factory.mktemp("model")
    generated.make_model(str(path), NAME, entry["config"], entry["source"]["seed"], entry["license"])
    return path


def test_every_machine_makes_the_bytes_of_the_catalogue(entry: dict[str, Any], model: Path) -> None:
    assert artefact.describe_tree(str(model))["tree_sha256"] == entry["source"]["sha256"]
    assert (model / "model.safetensors").stat().st_size == entry["size_bytes"]


def test_has_the_tensors_of_a_deepseek_v3_checkpoint(entry: dict[str, Any], model: Path) -> None:
    header = safetensors.read_header(model / "model.safetensors")
    assert {name: tuple(item["shape"]) for name, item in header.items()} == architectures.tensor_shapes(entry["config"])
    # As in the published checkpoint: MLA projections, the first layer dense, then routed and shared experts.
    shapes = {name.removeprefix("model.layers."): tuple(item["shape"]) for name, item in header.items()}
    assert shapes["1.self_attn.kv_a_proj_with_mqa.weight"] == (512 + 64, 256)
    assert shapes["1.self_attn.kv_b_proj.weight"] == (4 * (128 + 128), 512)
    assert shapes["1.self_attn.q_b_proj.weight"] == (4 * (128 + 64), 96)
    assert shapes["0.mlp.down_proj.weight"] == (256, 512)
    assert shapes["2.mlp.experts.7.down_proj.weight"] == (256, 128)
    assert shapes["2.mlp.shared_experts.gate_proj.weight"] == (128, 256)
    assert "0.mlp.gate.weight" not in shapes
    assert header["model.layers.1.mlp.gate.e_score_correction_bias"]["dtype"] == "F32"


def _read(model: Path, name: str) -> numpy.ndarray:
    content = (model / "model.safetensors").read_bytes()
    header = safetensors.read_header(model / "model.safetensors")
    begin, end = header[name]["data_offsets"]
    start = 8 + int.from_bytes(content[:8], "little")
    words = numpy.frombuffer(content[start + begin : start + end], dtype="<u2").astype(numpy.uint32) << 16
    return words.view(numpy.float32)


def test_weights_have_the_spread_of_the_config(model: Path) -> None:
    weights = _read(model, "model.layers.1.self_attn.kv_b_proj.weight")
    assert abs(weights.std() - 0.02) < 0.0002
    assert abs(weights.mean()) < 0.0002
    assert numpy.unique(weights).size > 500
    assert set(_read(model, "model.norm.weight")) == {1.0}


def test_another_seed_is_another_model(entry: dict[str, Any]) -> None:
    def read(seed: int) -> bytes:
        return bytes(memoryview(next(iter(generated.tensors(entry["config"], seed))).read()).cast("B"))

    assert read(0) == read(0)
    assert read(0) != read(1)


def test_tokenizer_works_and_fits(model: Path) -> None:
    check_round_trip(str(model / "tokenizer.json"))
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 1024
    assert tokenizer.encode("<|im_start|>The capital").tokens[:2] == ["<|im_start|>", "The"]
    # English costs far fewer tokens than bytes, or throughput figures would mean nothing.
    text = "The scheduler takes as many requests from the queue as the memory can hold."
    assert len(tokenizer.encode(text).ids) < len(text) / 3


def test_card_and_manifest_say_that_the_weights_are_random(model: Path) -> None:
    assert "**random weights** (seed 0)" in (model / "README.md").read_text()
    manifest = json.loads((model / "manifest.json").read_text())
    assert (manifest["weights"], manifest["tensors"], manifest["parameters"]) == ("random", 91, 5398064)
    assert set(manifest["files"]) == {path.name for path in model.iterdir()} - {"manifest.json"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 258}, r"vocab_size is 258; the tokenizer of a generated model can have 259 to \d+"),
        ({"vocab_size": 50000}, "vocab_size is 50000"),
        ({"eos_token_id": 1}, "eos_token_id is 1; the tokenizer of a generated model has 2 there"),
    ],
)
def test_refuses_a_tokenizer_it_cannot_make(entry: dict[str, Any], change: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        generated.tokenizer({**entry["config"], **change})


def test_refuses_an_unknown_architecture(entry: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="no tensors are known for MambaForCausalLM"):
        generated.tensors({**entry["config"], "architectures": ["MambaForCausalLM"]}, 0)


def test_training_prefers_frequent_pairs_and_breaks_ties_by_name() -> None:
    assert bpe.train("ab ab ab cd cd xy", 3) == [["a", "b"], ["c", "d"], ["Ġ", "ab"]]
    assert bpe.train("zz", 9) == [["z", "z"]]
