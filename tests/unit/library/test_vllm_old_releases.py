# SPDX-License-Identifier: Apache-2.0
"""Old releases go, but never one that an instance could be told to run."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vllm_old_releases
from ansible.module_utils.vllm_ansible import artefact

Run = Callable[..., dict[str, Any]]


def install(releases: Path, name: str, age: int) -> None:
    (releases / name).mkdir(parents=True)
    receipt = releases / name / artefact.RECEIPT
    receipt.write_text(json.dumps({"artefact_sha256": name}))
    os.utime(receipt, (1_000_000 - age, 1_000_000 - age))


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for age, name in enumerate(("new", "b", "c", "d", "e", "f")):
        install(tmp_path / "releases", name, age)
    (tmp_path / "releases" / "by-hand").mkdir()
    for instance, links in {"one": {"current": "e"}, "two": {"current": "b", "previous": "gone"}}.items():
        (tmp_path / "instances" / instance).mkdir(parents=True)
        for link, name in links.items():
            (tmp_path / "instances" / instance / link).symlink_to(tmp_path / "releases" / name)
    return tmp_path


def parameters(host: Path, keep: int) -> dict[str, Any]:
    return {
        "path": str(host / "releases"), "instances": str(host / "instances"), "current": "new", "keep": keep,
    }  # fmt: skip


@pytest.mark.parametrize(("keep", "removed"), [(0, ["c", "d", "f"]), (1, ["d", "f"]), (2, ["f"]), (9, [])])
def test_the_newest_and_the_used_stay(keep: int, removed: list[str], run_module: Run, host: Path) -> None:
    planned = run_module(vllm_old_releases, parameters(host, keep), check_mode=True, diff=True)
    assert planned["removed"] == removed and planned["changed"] == bool(removed)
    assert (host / "releases" / "f").is_dir()
    done = run_module(vllm_old_releases, parameters(host, keep))
    assert done["removed"] == removed
    left = {path.name for path in (host / "releases").iterdir()}
    assert left == {"new", "b", "c", "d", "e", "f", "by-hand"} - set(removed)
    assert done["kept"] == sorted(left - {"by-hand"})
    assert not run_module(vllm_old_releases, parameters(host, keep))["changed"]


def test_a_bare_host(run_module: Run, tmp_path: Path) -> None:
    result = run_module(vllm_old_releases, parameters(tmp_path, 2))
    assert not result["changed"] and result["kept"] == []
