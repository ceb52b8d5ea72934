# SPDX-License-Identifier: Apache-2.0
"""Every compiled kernel file of the upstream's CPU wheel has to come along."""

import ast
import zipfile
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.build.engine import check_compiled_files
from ansible.module_utils.vllm_ansible.build.tree import BuildError

KERNELS = {"vllm/_C.abi3.so", "vllm/_C_AVX512.abi3.so", "vllm/_C_AVX2.abi3.so"}


def taken(source: Path) -> set[str]:
    """The literal members of setup.py's `exact_members.update({...})`."""
    for node in ast.walk(ast.parse((source / "setup.py").read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "exact_members.update":
            return set(ast.literal_eval(node.args[0]))
    raise AssertionError("setup.py has no exact_members.update(...)")


@pytest.mark.engine
def test_the_published_source_leaves_two_behind(unpatched: Path) -> None:
    assert taken(unpatched) & KERNELS == {"vllm/_C.abi3.so"}, "fixed upstream: drop the patch"


@pytest.mark.engine
def test_the_patched_source_takes_all(patched: Path) -> None:
    assert taken(patched) >= KERNELS


def write_wheel(path: Path, files: dict[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return str(path)


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ({"vllm/_C.so": b"1", "vllm/_C_AVX2.so": b"2", "vllm/x.py": b""}, None),
        ({"vllm/_C.so": b"1"}, "lacks or alters vllm/_C_AVX2.so"),
        ({"vllm/_C.so": b"1", "vllm/_C_AVX2.so": b"3"}, "lacks or alters vllm/_C_AVX2.so"),
    ],
)
def test_a_wheel_without_a_kernel_is_not_built(ours: dict, message: str | None, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "ours.whl", ours)
    kernels = write_wheel(tmp_path / "theirs.whl", {"vllm/_C.so": b"1", "vllm/_C_AVX2.so": b"2", "vllm/y.py": b""})
    if message is None:
        check_compiled_files(wheel, kernels)
    else:
        with pytest.raises(BuildError, match=message):
            check_compiled_files(wheel, kernels)


def test_a_kernels_wheel_without_kernels_is_refused(tmp_path: Path) -> None:
    empty = write_wheel(tmp_path / "empty.whl", {"vllm/y.py": b""})
    with pytest.raises(BuildError, match="holds no compiled files"):
        check_compiled_files(empty, empty)
