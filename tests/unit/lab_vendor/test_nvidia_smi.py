# SPDX-License-Identifier: Apache-2.0
"""The stand-in of nvidia-smi: recorded layouts and failures, as the project's own parsers read them."""

import os
import subprocess
import sys

import pytest
from ansible.module_utils.vllm_ansible.hardware import nvidia_smi, topology

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {0}  Release Build  (stand-in)\n"


@pytest.fixture
def smi(tmp_path, project_root):
    """Run the stand-in on a pretended machine: library, loaded driver (None: not loaded) and settings; (rc, stdout)."""

    def run(*words, library="580.126.09", loaded="580.126.09", settings="product=h200\n"):
        files = {"usr/lib/nvidia-stand-in/library": library, "etc/nvidia-stand-in.conf": settings}
        if loaded:
            files["proc/driver/nvidia/version"] = OPEN.format(loaded)
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        done = subprocess.run(
            [sys.executable, project_root / "lab/vendor/nvidia/nvidia-smi", *words],
            env={**os.environ, "STAND_IN_ROOT": str(tmp_path)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stderr == ""
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize(
    ("version", "words", "cuda", "columns"),
    [
        ("535.129.03", "Driver Version: 535.129.03", "12.2", 89),
        ("550.135", "Driver Version: 550.135", "12.4", 91),
        ("610.43.02", "KMD Version: 610.43.02", "13.3", 91),
    ],
)
def test_the_screen_of_each_branch(smi, version, words, cuda, columns):
    code, text = smi(library=version, loaded=version)
    assert code == 0 and words in text
    assert nvidia_smi.parse_banner(text) == {"driver": version, "cuda": cuda}
    assert {len(line) for line in text.splitlines()} == {columns}


def test_tables_lists_and_links(smi):
    code, text = smi(*nvidia_smi.query()[1:])
    gpus = nvidia_smi.parse_query(text)
    assert code == 0 and [gpu["index"] for gpu in gpus] == list(range(8))
    assert (gpus[0]["pci"], gpus[0]["memory_bytes"], gpus[0]["lost"]) == ("0000:1b:00.0", 143771 * 2**20, None)
    assert smi("--query-gpu=index,foo", "--format=csv")[1] == 'Field "foo" is not a valid field to query.\n\n'
    assert smi("-L")[1].startswith("GPU 0: NVIDIA H200 (UUID: GPU-")
    links = topology.parse_matrix(smi("topo", "-m")[1])["links"]
    assert set(links.values()) == {"NV18"} and len({frozenset(pair) for pair in links}) == 28
    assert "State" in smi("-q")[1]


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"loaded": None}, 9, "couldn't communicate with the NVIDIA driver"),
        ({"loaded": "580.65.06"}, 18, "Driver/library version mismatch\nNVML library version: 580.126\n"),
        ({"settings": "product=l20\nabsent=3B 86\n"}, 6, "No devices were found"),
        ({"settings": "product=l20\nlost=86\n"}, 15, "device handle for GPU0000:86:00.0: Unknown Error"),
    ],
)
def test_each_recorded_failure(smi, changes, code, said):
    found, text = smi("-L", **changes)
    assert found == code and said in text
