# SPDX-License-Identifier: Apache-2.0
"""The scan of an artefact and of a directory, as a module."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vllm_artefact_scan
from ansible.module_utils.vllm_ansible import artefact
from ansible.module_utils.vllm_ansible.build import scan

from tests.support.elves import make_elf

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    root = tmp_path / "release"
    make_elf(root / "bin" / "python3", machine="aarch64", kind=2, requires={"libc.so.6": ["GLIBC_2.36"]})
    return root


def test_a_directory_and_its_artefact_say_the_same(release: Path, tmp_path: Path, run_module: Run) -> None:
    packed = artefact.pack(
        str(release), str(tmp_path / "x.artefact.tar"), "engine-release", "x",
        metadata={"requires": scan.requirements(str(release))},
    )  # fmt: skip
    target = {"architecture": "aarch64", "glibc": "2.28", "page_size": 65536}
    results = [
        run_module(vllm_artefact_scan, {"path": path, "target": target, "report_only": True})
        for path in (str(release), packed["path"])
    ]
    for key in ("findings", "excused", "requires"):
        assert results[0][key] == results[1][key]
    assert results[0]["findings"] == [{"file": "bin/python3", "what": "glibc", "seen": "2.28", "needed": "2.36"}]
    assert results[0]["changed"] is False


def test_a_finding_fails(release: Path, run_module: Run) -> None:
    result = run_module(vllm_artefact_scan, {"path": str(release), "target": {"architecture": "x86_64"}})
    assert result["failed"] and "bin/python3: machine: the host has x86_64, needed is aarch64" in result["msg"]


def test_an_exception_excuses(release: Path, run_module: Run) -> None:
    result = run_module(
        vllm_artefact_scan,
        {"path": str(release), "target": {"glibc": "2.28"}, "exceptions": {"bin/*": "for the test"}},
    )
    assert result["findings"] == [] and result["excused"][0]["reason"] == "for the test"


def test_an_older_artefact_does_not_pass(release: Path, tmp_path: Path, run_module: Run) -> None:
    packed = artefact.pack(str(release), str(tmp_path / "x.artefact.tar"), "engine-release", "x")
    result = run_module(vllm_artefact_scan, {"path": packed["path"], "target": {}})
    assert result["failed"] and "does not say what it needs" in result["msg"]


def test_a_path_that_is_not_there(tmp_path: Path, run_module: Run) -> None:
    assert run_module(vllm_artefact_scan, {"path": str(tmp_path / "none"), "target": {}})["failed"]
