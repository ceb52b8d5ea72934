# SPDX-License-Identifier: Apache-2.0
"""The plugin has to recognise the engine it was written for, whoever built it."""

import ast
import sys
import types
from pathlib import Path

import pytest
from packaging.version import InvalidVersion, Version

pytestmark = pytest.mark.engine


def asks(plugin: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> bool:
    """`vllm_version_is("0.23.0")` of the source, alone, beside an engine of `version`."""
    path = plugin / "vllm_ascend" / "utils.py"
    functions = [
        node for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "vllm_version_is"
    ]  # fmt: skip
    for node in functions:
        node.decorator_list = []
    engine = types.ModuleType("vllm")
    engine.__version__ = version
    monkeypatch.setitem(sys.modules, "vllm", engine)
    names = {
        "Version": Version, "InvalidVersion": InvalidVersion, "envs_ascend": types.SimpleNamespace(VLLM_VERSION=None)
    }  # fmt: skip
    exec(compile(ast.Module(functions, []), str(path), "exec"), names)
    return names["vllm_version_is"]("0.23.0")


@pytest.mark.parametrize("version", ["0.23.0+empty", "0.23.0+ascend.p3.s00000000"])
def test_the_published_source_does_not(
    version: str, ascend_plugin: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not asks(ascend_plugin[0], monkeypatch, version), "fixed upstream: drop the patch"


@pytest.mark.parametrize(
    ("version", "same"),
    [
        ("0.23.0", True), ("0.23.0+empty", True), ("0.23.0+ascend.p3.s00000000", True), ("0.23.0rc1", False),
        ("0.23.0.post1", False), ("0.24.0+empty", False),
    ],
)  # fmt: skip
def test_the_patched_source_ignores_the_local_part(
    version: str, same: bool, ascend_plugin: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asks(ascend_plugin[1], monkeypatch, version) is same
