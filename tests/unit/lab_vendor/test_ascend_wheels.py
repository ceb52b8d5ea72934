# SPDX-License-Identifier: Apache-2.0
"""The stand-in wheels of the Ascend row say what they are and are made the same way again."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from lab.vendor import ascend_wheels


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "vllm_ascend-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in {
            "vllm_ascend/x.py": "x = 1\n", "csrc/kernel.cpp": "",
            "vllm_ascend.egg-info/requires.txt": "torch==2.10.0\n",
            "vllm_ascend.egg-info/entry_points.txt": "[vllm.platform_plugins]\nascend = vllm_ascend:register\n",
        }.items():  # fmt: skip
            member = tarfile.TarInfo(f"vllm_ascend-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_both_wheels(source: Path, tmp_path: Path) -> None:
    made = ascend_wheels.make(source, "ascend910_9391", "aarch64", tmp_path / "a")
    assert [path.name for path in made] == [
        "vllm_ascend-1.0-cp311-cp311-linux_aarch64.whl", "triton_ascend-3.2.2-cp311-cp311-linux_aarch64.whl"
    ]  # fmt: skip
    with zipfile.ZipFile(made[0]) as archive:
        names = archive.namelist()
        assert "vllm_ascend/x.py" in names and "csrc/kernel.cpp" not in names
        assert b"__device_type__ = 'A3'" in archive.read("vllm_ascend/_build_info.py")
        metadata = archive.read("vllm_ascend-1.0.dist-info/METADATA").decode()
        assert "STAND-IN" in metadata and "Requires-Dist: torch==2.10.0" in metadata
    with zipfile.ZipFile(made[1]) as archive:
        assert b"STAND-IN" in archive.read("triton_ascend-3.2.2.dist-info/METADATA")
    again = ascend_wheels.make(source, "ascend910_9391", "aarch64", tmp_path / "b")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in made]
