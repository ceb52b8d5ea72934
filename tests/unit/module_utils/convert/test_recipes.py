# SPDX-License-Identifier: Apache-2.0
"""Requests, conversions that survive interruption, and directories that are checked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible import artefact, locks
from ansible.module_utils.vllm_ansible.convert import ModelError, directory, files, recipes

DESIRED = {
    "name": "tiny",
    "weights": "real",
    "license": "MIT",
    "dtype": "bfloat16",
    "source": {"type": "gguf", "sha256": "0" * 64},
    "recipe": dict(recipes.RECIPE),
}


def _request(**given: Any) -> dict[str, Any]:
    return {"dtype": None, "format": "safetensors", "quantization": None, "input_shape": None, **given}


@pytest.mark.parametrize(
    ("given", "dtype", "notes"),
    [
        ({}, "bfloat16", []),
        ({"dtype": "float16"}, "float16", []),
        ({"quantization": "fp16"}, "float16", ["quantization=fp16 is a number format"]),
        ({"quantization": "BF16", "dtype": "bfloat16"}, "bfloat16", ["quantization=BF16 is a number format"]),
        ({"quantization": "none"}, "bfloat16", []),
        ({"input_shape": [1, 32, 2048]}, "bfloat16", [r"input_shape=[1, 32, 2048] is ignored"]),
    ],
)
def test_words_of_the_article_are_translated(given: dict[str, Any], dtype: str, notes: list[str]) -> None:
    seen, said = recipes.translate(_request(**given))
    assert seen == dtype
    assert len(said) == len(notes)
    assert all(note.startswith(start) for note, start in zip(said, notes, strict=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "om"}, "cannot be made of a language model.*Set format: safetensors"),
        ({"quantization": "int8"}, "quantization=int8 is not available.*bfloat16, float16, float32"),
        ({"quantization": "fp16", "dtype": "bfloat16"}, "contradict each other"),
    ],
)
def test_the_impossible_is_refused_with_the_reason(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        recipes.translate(_request(**given))


@pytest.fixture
def convert(write_gguf, tmp_path: Path) -> Callable[..., Path]:
    """Function that converts the tiny file into a directory of the given name."""

    def run(name: str = "model", source: Path | None = None, **options: Any) -> Path:
        path = source or write_gguf("Q4_1")[0]
        recipes.gguf_to_safetensors(str(path), str(tmp_path / name), DESIRED, "dest", **options)
        return tmp_path / name

    return run


def test_same_source_gives_the_same_bytes(convert: Callable[..., Path], write_gguf) -> None:
    one, two = convert("one"), convert("two", source=write_gguf("Q4_1", name="copy.gguf")[0])
    assert artefact.describe_tree(str(one)) == artefact.describe_tree(str(two))


def test_plan_sees_what_is_there(convert: Callable[..., Path], tmp_path: Path) -> None:
    dest = tmp_path / "model"
    assert recipes.plan_changes(str(dest), DESIRED)["action"] == "create"
    convert()
    assert recipes.plan_changes(str(dest), DESIRED, full=True) == {
        "action": "none",
        "reasons": [],
        "before": json.loads((dest / "manifest.json").read_text()),
    }
    other = {**DESIRED, "source": {"type": "gguf", "sha256": "1" * 64}}
    assert recipes.plan_changes(str(dest), other)["reasons"][0].startswith("source: ")
    newer = {**DESIRED, "recipe": {**recipes.RECIPE, "version": 99}}
    assert recipes.plan_changes(str(dest), newer)["action"] == "replace"


@pytest.mark.parametrize(
    ("damage", "full", "reason"),
    [
        (lambda dest: (dest / "config.json").unlink(), False, "config.json is missing"),
        (lambda dest: (dest / "more.bin").write_text("x"), False, "more.bin does not belong there"),
        (lambda dest: (dest / "tokenizer.json").write_text("{}"), False, "tokenizer.json has 2 bytes, expected"),
        (lambda dest: _flip_last_byte(dest / "model.safetensors"), True, "model.safetensors has other content"),
    ],
)
def test_damage_is_found_and_repaired(
    convert: Callable[..., Path], damage: Callable[[Path], object], full: bool, reason: str
) -> None:
    dest = convert()
    before = artefact.describe_tree(str(dest))
    damage(dest)
    changes = recipes.plan_changes(str(dest), DESIRED, full=full)
    assert changes["action"] == "replace"
    assert changes["reasons"][0].startswith(reason)
    convert()
    assert artefact.describe_tree(str(dest)) == before


def _flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


class Killed(BaseException):
    """Stands for SIGKILL: no handler of ours runs, whatever is on the disk stays."""


@pytest.mark.parametrize("step", range(3))
def test_interrupted_conversion_shows_nothing_and_a_rerun_completes(
    convert: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    expected = artefact.describe_tree(str(convert("whole")))

    def stop(*_arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        if step == 0:  # among the tensors
            convert(on_progress=stop)
        elif step == 1:  # everything written, not yet checked
            patch.setattr(recipes.gguf_source, "check_round_trip", stop)
            convert()
        else:  # between the two renames of a replacement
            convert()
            rename = files.os.rename
            patch.setattr(files.os, "rename", lambda old, new: stop() if "partial" in old else rename(old, new))
            convert()
    dest = tmp_path / "model"
    assert not dest.exists()
    assert recipes.plan_changes(str(dest), DESIRED)["action"] == "create"
    assert artefact.describe_tree(str(convert())) == expected
    assert {path.name for path in tmp_path.iterdir() if "partial" in path.name or "old" in path.name} == set()


def test_what_an_interrupted_replacement_left_is_cleared_away(tmp_path: Path) -> None:
    for name in ("model.old", "model", "staging"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text(name)
    files.publish(str(tmp_path / "staging"), str(tmp_path / "model"))
    assert (tmp_path / "model/content").read_text() == "staging"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_too_little_space_is_refused_before_anything_is_written(
    convert: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = files.os.statvfs(tmp_path)
    small = type("Status", (), {"f_bavail": 10, "f_frsize": status.f_frsize})
    monkeypatch.setattr(files.os, "statvfs", lambda path: small)
    with pytest.raises(ModelError, match=r"bytes free, \d+ are needed.*set dest to a larger file system"):
        convert()
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / ".model.partial").exists()


def test_a_second_run_at_the_same_time_is_refused(
    convert: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0)
    with files.exclusive(str(tmp_path / "model")), pytest.raises(ModelError, match="another run has been working on"):
        convert()


def _edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda dest: (dest / "config.json").unlink(), "no readable config.json"),
        (lambda dest: (dest / "model.safetensors").unlink(), "no weights in safetensors format"),
        (lambda dest: (dest / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda dest: _edit_json(dest / "config.json", architectures=[]), "must name one architecture"),
        (lambda dest: _edit_json(dest / "config.json", hidden_size=128), "has the shape .*config.json says .*more"),
        (lambda dest: _edit_json(dest / "config.json", num_hidden_layers=3), r"layers\.2\..* is missing"),
        (lambda dest: _edit_json(dest / "config.json", num_hidden_layers=1), r"layers\.1\..* does not belong there"),
        (lambda dest: _edit_json(dest / "config.json", intermediate_size=None), "shape"),
        (lambda dest: _edit_json(dest / "tokenizer.json", added_tokens=[{"id": 5000}]), "has the token id 5000"),
        (lambda dest: (dest / "link").symlink_to("/etc/hosts"), "is a link out of the model directory"),
    ],
)
def test_a_directory_that_is_no_sound_model_is_refused(
    convert: Callable[..., Path], damage: Callable[[Path], object], message: str
) -> None:
    dest = convert()
    damage(dest)
    with pytest.raises(ModelError, match=message):
        directory.check_model(str(dest))
