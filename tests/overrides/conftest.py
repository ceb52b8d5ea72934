# SPDX-License-Identifier: Apache-2.0
"""Sources and releases for the tests of engine_overrides.

Unmarked tests need only the repository. Tests marked `engine` need what a build left: the engine's source archive and
the artefact. They fail, and do not skip, when there is none: `make demo` or `make test` build first.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import types
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible import installation
from ansible.module_utils.vllm_ansible.overrides import apply, series

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "engine_overrides" / "vllm" / "0.32.0"
ARCHIVE = "vllm-0.32.0.tar.gz"
# Where builds put things; elsewhere on a machine that builds in another folder.
BUILD = Path(os.environ.get("VLLM_ANSIBLE_BUILD", ROOT / ".cache" / "build"))
ARTEFACTS = Path(os.environ.get("VLLM_ANSIBLE_ARTEFACTS", ROOT / ".cache" / "artefacts"))


def run(argv, environ_update=None, **_options):
    result = subprocess.run(argv, env={**os.environ, **(environ_update or {})}, capture_output=True, text=True)
    return result.returncode, result.stdout, result.stderr


@pytest.fixture(scope="session")
def unpatched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine's source as published."""
    found = sorted(BUILD.rglob(ARCHIVE))
    assert found, f"no {ARCHIVE} below {BUILD}: build first (role engine_build), or set VLLM_ANSIBLE_BUILD"
    target = tmp_path_factory.mktemp("unpatched")
    with tarfile.open(found[0]) as archive:
        archive.extractall(target, filter="data")
    return target / ARCHIVE.removesuffix(".tar.gz")


@pytest.fixture(scope="session")
def patched(unpatched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine's source after the CPU series, applied as for a release."""
    target = tmp_path_factory.mktemp("patched") / "source"
    shutil.copytree(unpatched, target, symlinks=True)
    apply.apply_series(run, str(target), str(FOLDER), series.read_series(str(FOLDER), "cpu"))
    return target


@pytest.fixture(scope="session")
def health(tmp_path_factory: pytest.TempPathFactory) -> types.ModuleType:
    """The module that the healthz patch adds, taken from the patch: it is pure and needs no engine."""
    tree = tmp_path_factory.mktemp("health")
    name = "vllm/v1/metrics/health.py"
    text = (FOLDER / "common" / "0001-answer-healthz-with-progress.patch").read_text("utf-8")
    part = text[text.index(f"--- /dev/null\n+++ b/{name}\n") :]
    (tree / "part.patch").write_text(part, "utf-8")
    apply.apply_patch(run, str(tree), str(tree / "part.patch"))
    try:
        import psutil
    except ImportError:  # a dependency of the engine, not of this repository
        psutil = types.ModuleType("psutil")
        psutil.Error = OSError
        sys.modules["psutil"] = psutil
    spec = importlib.util.spec_from_file_location("patched_health", tree / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def newest_receipt() -> dict:
    """Receipt of the artefact that was built last."""
    found = sorted(ARTEFACTS.glob("vllm-*.json"), key=lambda path: path.stat().st_mtime)
    assert found, f"no artefact in {ARTEFACTS}: build first (role engine_build), or set VLLM_ANSIBLE_ARTEFACTS"
    receipt = json.loads(found[-1].read_text("utf-8"))
    return {**receipt, "path": str(found[-1].with_suffix("")) + ".artefact.tar"}


@pytest.fixture(scope="session")
def release(newest_receipt: dict) -> Path:
    """The newest artefact, installed; kept between runs because unpacking takes half a minute."""
    target = ROOT / ".cache" / "test-releases" / newest_receipt["release_id"]
    if installation.verify(str(target), newest_receipt["sha256"]):
        shutil.rmtree(target.parent, ignore_errors=True)
        installation.install(newest_receipt["path"], newest_receipt["sha256"], str(target))
    return target
