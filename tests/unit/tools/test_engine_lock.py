# SPDX-License-Identifier: Apache-2.0
"""Lock files for hosts of another processor."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import engine_lock


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Arguments of each question to pip, which answers with a CUDA torch and what comes with it."""
    calls: list[list[str]] = []

    def report(pip: list[str], arguments: list[str], _pins: Path | None) -> engine_lock.Packages:
        calls.append([*pip, *arguments])
        if "--no-deps" in arguments:
            return {"torch-npu": ("2.10.0.post4", "b" * 64)}
        names = ("torch", "torchvision", "nvidia-nccl-cu12", "cuda-bindings", "triton", "tritonclient", "numpy")
        return dict.fromkeys(names, ("2.10.0", "a" * 64))

    monkeypatch.setattr(engine_lock, "_report", report)
    return calls


@pytest.mark.parametrize(("architecture", "torch"), [("aarch64", "2.10.0"), ("x86_64", "2.10.0+cpu")])
def test_cpu_builds_and_nothing_for_cuda(architecture: str, torch: str, asked: list[list[str]], tmp_path: Path) -> None:
    source = tmp_path / "engine.in"
    source.write_text("torch == 2.10.0\ntorch-npu == 2.10.0.post4\nnumpy\n")
    found = engine_lock.resolve_for("python", source, None, architecture)
    assert sorted(found) == ["numpy", "torch", "torch-npu", "torchvision", "tritonclient"]
    assert found["torch"][0] == torch
    assert all(f"--platform=manylinux_2_28_{architecture}" in call for call in asked)
    assert asked[1][-1] == "torch-npu==2.10.0.post4"


def test_pip_takes_the_markers_of_the_target() -> None:
    script = engine_lock.PIP_AS.replace(
        "runpy.run_module('pip', run_name='__main__')", "print(platform.machine(), sys.argv)"
    )
    out = subprocess.run(
        [sys.executable, "-c", script, "riscv64", "x"], capture_output=True, text=True, check=True
    ).stdout
    assert out.split() == ["riscv64", "['-c',", "'x']"]


def test_the_row_is_complete_for_both(project_root: Path) -> None:
    row = project_root / "roles/engine_build/files/rows/vllm-ascend-0.23.0.post1"
    locked = {}
    for architecture in ("aarch64", "x86_64"):
        lines = (row / f"engine-{architecture}.txt").read_text("utf-8").splitlines()[2:]
        locked[architecture] = {line.split("==")[0] for line in lines}
        unhashed = {line.split("==")[0] for line in lines if "--hash=sha256:" not in line}
        assert unhashed == (engine_lock.CPU_BUILDS if architecture == "x86_64" else set())
        assert "triton" not in locked[architecture]
    assert locked["aarch64"] == locked["x86_64"]
