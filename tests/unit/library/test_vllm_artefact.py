# SPDX-License-Identifier: Apache-2.0
"""The module around the artefact: check mode, idempotence, messages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vllm_artefact
from ansible.module_utils.vllm_ansible import artefact

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def packed(tmp_path: Path) -> dict:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(b"content")
    return artefact.pack(str(tree), str(tmp_path / "x.tar"), kind="model", name="x", metadata={"glibc": "2.36"})


def test_install_twice_then_remove_twice(run_module: Run, packed: dict, tmp_path: Path) -> None:
    target = tmp_path / "out" / "x"
    present = {"src": packed["path"], "sha256": packed["sha256"], "dest": str(target)}
    planned = run_module(vllm_artefact, present, check_mode=True, diff=True)
    assert planned["changed"] and planned["action"] == "install" and planned["size_bytes"] is None
    assert planned["diff"]["after"] == f"artefact: {packed['sha256']}\n" and not target.exists()

    first = run_module(vllm_artefact, present)
    assert first["changed"] and first["action"] == "install" and first["directory"] == str(target)
    assert first["size_bytes"] == 7 and first["metadata"] == {"glibc": "2.36"}
    assert first["tree_sha256"] == packed["manifest"]["tree_sha256"] and first["read_bytes_per_s"] > 0

    # The file may be gone: a host that has the artefact needs no transport, and the measured speed stays the same.
    Path(packed["path"]).unlink()
    second = run_module(vllm_artefact, present)
    assert not second["changed"] and second["action"] == "none" and second["problems"] == []
    assert {key: second[key] for key in ("size_bytes", "read_bytes_per_s", "tree_sha256")} == {
        key: first[key] for key in ("size_bytes", "read_bytes_per_s", "tree_sha256")
    }
    assert not run_module(vllm_artefact, {**present, "verify": "full"})["changed"]

    absent = {"dest": str(target), "state": "absent"}
    assert run_module(vllm_artefact, absent, check_mode=True)["changed"] and target.exists()
    assert run_module(vllm_artefact, absent)["action"] == "remove" and not target.exists()
    assert not run_module(vllm_artefact, absent)["changed"]


def test_check_mode_needs_no_file(run_module: Run, tmp_path: Path) -> None:
    result = run_module(vllm_artefact, {"sha256": "0" * 64, "dest": str(tmp_path / "x")}, check_mode=True)
    assert result["changed"] and "does not exist" in result["problems"][0]


def test_a_missing_file_says_what_to_set(run_module: Run, tmp_path: Path) -> None:
    result = run_module(vllm_artefact, {"sha256": "0" * 64, "dest": str(tmp_path / "x")})
    assert result["failed"] and "Set src to the artefact file" in result["msg"]
    result = run_module(
        vllm_artefact, {"sha256": "0" * 64, "dest": str(tmp_path / "x"), "src": str(tmp_path / "absent.tar")}
    )
    assert result["failed"] and "absent.tar cannot be read" in result["msg"]


def test_a_folder_that_is_no_artefact_is_not_removed(run_module: Run, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    result = run_module(vllm_artefact, {"dest": str(tmp_path / "precious"), "state": "absent"})
    assert result["failed"] and "was not installed from an artefact" in result["msg"]
    assert (tmp_path / "precious").is_dir()


def test_damage_is_repaired_and_reported(run_module: Run, packed: dict, tmp_path: Path) -> None:
    present = {"src": packed["path"], "sha256": packed["sha256"], "dest": str(tmp_path / "x")}
    run_module(vllm_artefact, present)
    (tmp_path / "x" / "file").write_bytes(b"damaged content")
    result = run_module(vllm_artefact, present)
    assert result["action"] == "replace" and "unpacked_bytes is 15, should be 7" in result["problems"][0]
    assert (tmp_path / "x" / "file").read_bytes() == b"content"
