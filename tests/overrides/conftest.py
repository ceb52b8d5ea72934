# SPDX-License-Identifier: Apache-2.0
"""Sources and releases for the tests of engine_overrides.

Unmarked tests need only the repository. Tests marked `engine` build the engine first, in the folders the demo uses,
unless an artefact of this checkout is there.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.vllm_ansible import installation
from ansible.module_utils.vllm_ansible.build import engine
from ansible.module_utils.vllm_ansible.overrides import apply, series

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "engine_overrides" / "vllm" / "0.32.0"
BUILD = ROOT / ".cache" / "build"
ARTEFACTS = ROOT / ".cache" / "artefacts"


def run(argv, environ_update=None, cwd=None):
    """`AnsibleModule.run_command` for tests."""
    environment = {**os.environ, **(environ_update or {})}
    result = subprocess.run(argv, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout, result.stderr


def build_spec(work: Path, artefacts: Path, python: str) -> dict[str, Any]:
    """Parameters of vllm_engine_build for the build that tests/overrides/build.yml makes."""
    manifest = yaml.safe_load((FOLDER / "manifest.yml").read_text("utf-8"))
    cpu = manifest["backends"]["cpu"]
    return {
        "build": "vllm-0.32.0-cpu-x86_64", "engine": "vllm", "version": "0.32.0", "backend": "cpu",
        "architecture": "x86_64", "row": "vllm-0.32.0-cpu", "pins": {}, "keep": 0,
        "row_directory": str(ROOT / "roles/engine_build/files/rows/vllm-0.32.0-cpu"),
        "overrides_directory": str(FOLDER), "source_sha256": manifest["source"]["sha256"],
        "series_sha256": cpu["series_sha256"], "result_sha256": cpu["result_sha256"],
        "local_version": cpu["local_version"], "python": python, "python_version": "3.11",
        "runtime_provider": "debian", "runtime_prefix": None, "refresh_runtime": False,
        "work_directory": str(work), "artefact_directory": str(artefacts),
        "plugin": None, "plugin_version": None, "soc_version": None, "index_urls": [], "wheel_directories": [],
        "target": {}, "scan_exceptions": {}, "runtime_archive": None,
    }  # fmt: skip


Sources = Callable[[str, str], tuple[Path, Path]]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """`sources(engine, version)`: the source as published, and after its series, applied as for a release."""
    made: dict[tuple[str, str], tuple[Path, Path]] = {}
    builder = engine.EngineBuild(run, build_spec(BUILD, ARTEFACTS, "/usr/bin/python3"))

    def make(name: str, version: str) -> tuple[Path, Path]:
        folder = ROOT / "engine_overrides" / name / version
        manifest = yaml.safe_load((folder / "manifest.yml").read_text("utf-8"))
        (backend,) = manifest["backends"]
        scratch = tmp_path_factory.mktemp("source")
        os.makedirs(builder.work, exist_ok=True)
        archive = builder.fetch_source(
            builder.environment(str(scratch)), str(scratch), name, version, manifest["source"]["sha256"]
        )
        with tarfile.open(archive) as source:
            source.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none
            source.extractall(scratch)
        published = scratch / f"{name.replace('-', '_')}-{version}"
        patched = scratch / "patched"
        shutil.copytree(published, patched, symlinks=True)
        apply.apply_series(run, str(patched), str(folder), series.read_series(str(folder), backend))
        return published, patched

    def get(name: str, version: str) -> tuple[Path, Path]:
        if (name, version) not in made:
            made[name, version] = make(name, version)
        return made[name, version]

    return get


@pytest.fixture(scope="session")
def unpatched(sources: Sources) -> Path:
    """The CPU engine's source as published."""
    return sources("vllm", "0.32.0")[0]


@pytest.fixture(scope="session")
def patched(sources: Sources) -> Path:
    """The CPU engine's source after its series."""
    return sources("vllm", "0.32.0")[1]


@pytest.fixture(scope="session")
def ascend_engine(sources: Sources) -> tuple[Path, Path]:
    """The Ascend row's engine, as published and patched."""
    return sources("vllm", "0.23.0")


@pytest.fixture(scope="session")
def ascend_plugin(sources: Sources) -> tuple[Path, Path]:
    """The Ascend row's plugin, as published and patched."""
    return sources("vllm-ascend", "0.23.0.post1")


@pytest.fixture(scope="session", params=["0.32.0", "0.23.0"])
def engine_source(request: pytest.FixtureRequest, sources: Sources) -> tuple[Path, Path]:
    """Every engine that we patch, as published and patched."""
    return sources("vllm", request.param)


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
def newest_receipt(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Receipt of the artefact of this checkout, built by role engine_build if it is not there."""
    report = tmp_path_factory.mktemp("build") / "report.json"
    playbook = Path(__file__).with_name("build.yml")
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", str(playbook)]
    result = subprocess.run(argv + ["-e", f"report={report}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    (made,) = json.loads(report.read_text("utf-8")).values()
    receipt = json.loads(Path(made["path"].removesuffix(".artefact.tar") + ".json").read_text("utf-8"))
    assert receipt["sha256"] == made["sha256"]
    return {**receipt, "path": made["path"]}


@pytest.fixture(scope="session")
def release(newest_receipt: dict) -> Path:
    """The newest artefact, installed; kept between runs because unpacking takes half a minute."""
    target = ROOT / ".cache" / "test-releases" / newest_receipt["release_id"]
    if installation.verify(str(target), newest_receipt["sha256"]):
        shutil.rmtree(target.parent, ignore_errors=True)
        installation.install(newest_receipt["path"], newest_receipt["sha256"], str(target))
    return target
