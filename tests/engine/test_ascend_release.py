# SPDX-License-Identifier: Apache-2.0
"""An Ascend release for aarch64, assembled on this machine and compared with the hosts it is for.

Real: the locked aarch64 wheels (torch, torch-npu and all others), Debian's arm64 Python, the patched sources.
Stand-in: the vllm-ascend wheel (genuine Python files, no kernels) and an empty triton-ascend, which only the vendor's
index has. Nothing of the release is run: there is no such processor here.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vllm_artefact_scan
import yaml
from ansible.module_utils.vllm_ansible import artefact
from ansible.module_utils.vllm_ansible.build import elf, engine

from lab.vendor import ascend_wheels

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="assembles for another architecture"),
]

ROOT = Path(__file__).resolve().parents[2]
ROW = ROOT / "roles/engine_build/files/rows/vllm-ascend-0.23.0.post1"
KYLIN = {"architecture": "aarch64", "glibc": "2.28", "glibcxx": "3.4.24", "page_size": 65536, "python": "3.11"}
DEBIAN = {"architecture": "aarch64", "glibc": "2.36", "page_size": 4096, "python": "3.11"}


def run(argv, environ_update=None, cwd=None):
    environment = {**os.environ, **(environ_update or {})}
    result = subprocess.run(argv, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout, result.stderr


def specification(wheels: Path, artefacts: Path) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "build": "vllm-ascend-0.23.0.post1-a2-aarch64", "engine": "vllm", "version": "0.23.0", "backend": "ascend",
        "architecture": "aarch64", "row": ROW.name, "row_directory": str(ROW), "pins": {}, "keep": 0,
        "plugin": "vllm-ascend", "plugin_version": "0.23.0.post1", "soc_version": "ascend910b1",
        "index_urls": [], "wheel_directories": [str(wheels)], "target": {}, "scan_exceptions": {},
        "python": "/usr/bin/python3", "python_version": "3.11", "runtime_provider": "debian", "runtime_prefix": None,
        "refresh_runtime": False, "work_directory": str(ROOT / ".cache/build"), "artefact_directory": str(artefacts),
    }  # fmt: skip
    for prefix, name, version in (("", "vllm", "0.23.0"), ("plugin_", "vllm-ascend", "0.23.0.post1")):
        folder = ROOT / "engine_overrides" / name / version
        manifest = yaml.safe_load((folder / "manifest.yml").read_text("utf-8"))
        spec[prefix + "overrides_directory"] = str(folder)
        spec[prefix + "source_sha256"] = manifest["source"]["sha256"]
        for key in ("series_sha256", "result_sha256", "local_version"):
            spec[prefix + key] = manifest["backends"]["ascend"][key]
    return spec


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    # beside the build's own folders, so that a directory can be renamed into it
    path = ROOT / ".cache/build/test-ascend"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path)
    shutil.rmtree(ROOT / ".cache/build/vllm-ascend-0.23.0.post1-a2-aarch64", ignore_errors=True)


class Kept(engine.EngineBuild):
    """A build that leaves what it unpacked elsewhere for the tests, which saves unpacking it again."""

    release = ""

    def _check(self, environment: str, packed: dict[str, Any], scratch: str) -> None:
        super()._check(environment, packed, scratch)
        os.rename(os.path.join(scratch, "elsewhere", "release"), self.release)


@pytest.fixture(scope="module")
def made(place: Path) -> tuple[engine.EngineBuild, dict[str, Any]]:
    scratch = place / "scratch"
    scratch.mkdir()
    builder = Kept(run, specification(place / "wheels", place / "artefacts"))
    builder.release = str(place / "release")
    source = builder.fetch_source(
        builder.environment(str(scratch)),
        str(scratch),
        "vllm-ascend",
        "0.23.0.post1",
        builder.spec["plugin_source_sha256"],
    )
    ascend_wheels.make(Path(source), "ascend910b1", "aarch64", place / "wheels")
    receipt = builder.build(json.loads(json.dumps(builder.inputs())))
    requires = receipt["metadata"]["requires"]
    print(f"\nartefact {receipt['size_bytes']} bytes, {requires['files']} ELF files, stages {builder.stages}")
    return builder, receipt


@pytest.fixture(scope="module")
def release(place: Path, made: tuple[engine.EngineBuild, dict[str, Any]]) -> Path:
    return place / "release"


def test_it_says_what_it_is(made: tuple[engine.EngineBuild, dict[str, Any]]) -> None:
    metadata = artefact.read_manifest(made[1]["path"])["metadata"]
    assert metadata["proof"] == "assembled" and metadata["version"].startswith("0.23.0+ascend.p3.s")
    assert sorted(metadata["recorded_sha256"]) == ["triton-ascend", "vllm-ascend"]
    assert (metadata["requires"]["machine"], metadata["requires"]["python"]) == ("aarch64", "3.11")
    assert made[1]["size_bytes"] <= 600_000_000


def test_debian_12_on_arm_can_run_it(made: tuple[engine.EngineBuild, dict[str, Any]], run_module: Any) -> None:
    result = run_module(vllm_artefact_scan, {"path": made[1]["path"], "target": DEBIAN})
    assert result["findings"] == []


def test_kylin_v10_sp3_refuses_debians_python_by_name(
    made: tuple[engine.EngineBuild, dict[str, Any]], run_module: Any
) -> None:
    result = run_module(vllm_artefact_scan, {"path": made[1]["path"], "target": KYLIN, "report_only": True})
    packages = [item for item in result["findings"] if "site-packages" in item["file"]]
    runtime = {item["file"] for item in result["findings"] if item["what"] == "glibc"} - {i["file"] for i in packages}
    assert "bin/python3.11" in runtime and "lib/libstdc++.so.6.0.30" in runtime
    # one package was built for a newer C library, and its wheel says so; this version has no other one for aarch64
    newer = [(item["file"].rsplit("site-packages/", 1)[1], item["needed"]) for item in packages]
    assert newer == [("llguidance/_lib.abi3.so", "2.30")]
    tags = [item["file"] for item in result["findings"] if item["what"] == "wheel tag"]
    assert tags == ["llguidance-1.7.6.dist-info"]
    assert {item["what"] for item in result["findings"]} == {"glibc", "wheel tag"}


def test_the_patched_files_are_in_it(release: Path) -> None:
    packages = release / "lib/python3.11/site-packages"
    assert "_LOG_MAX_FILES" in (packages / "vllm_ascend/logger.py").read_text("utf-8")
    assert "/healthz" in (packages / "vllm/entrypoints/serve/instrumentator/health.py").read_text("utf-8")
    names = {path.name.split("-")[0] for path in packages.glob("*.dist-info")}
    assert {"vllm", "vllm_ascend", "torch", "torch_npu", "triton_ascend"} <= names and "triton" not in names
    assert list(packages.glob("vllm_ascend-0.23.0.post1+ascend.p2.s*.dist-info"))
    assert (packages / "torch/__pycache__/__init__.cpython-311.pyc").exists()


def test_every_file_is_for_the_target_and_the_tree_says_what_the_artefact_says(
    release: Path, made: tuple[engine.EngineBuild, dict[str, Any]], run_module: Any
) -> None:
    assert elf.describe(str(release / "bin" / "python3.11"))["machine"] == "aarch64"
    started = time.process_time()
    result = run_module(vllm_artefact_scan, {"path": str(release), "target": DEBIAN})
    seconds = time.process_time() - started
    size = sum(path.stat().st_size for path in release.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"\n{size} bytes unpacked, scanned in {seconds:.1f} CPU seconds")
    assert result["requires"] == made[1]["metadata"]["requires"]
    assert seconds < 20


def test_a_wheel_for_another_soc_is_refused(made: tuple[engine.EngineBuild, dict[str, Any]], release: Path) -> None:
    packages = release / "lib/python3.11/site-packages"
    with pytest.raises(engine.BuildError, match="made for A2, the plan wants A3"):
        engine.plugin.check_soc(str(packages), "vllm-ascend", "ascend910_9391")
