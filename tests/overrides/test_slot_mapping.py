# SPDX-License-Identifier: Apache-2.0
"""The CPU slot mapping has to have the parameters of the kernel it replaces."""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine


def parameters(path: Path, name: str) -> list[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return [argument.arg for argument in node.args.args if argument.arg != "self"]
    raise AssertionError(f"{path} has no function {name}")


def both(source: Path) -> tuple[list[str], list[str]]:
    tree = source / "vllm"
    replacement = parameters(tree / "utils/cpu_triton_utils.py", "_compute_slot_mapping_kernel_impl")
    return replacement, parameters(tree / "v1/worker/block_table.py", "kernel")


def test_the_published_source_has_the_defect(unpatched: Path) -> None:
    replacement, kernel = both(unpatched)
    assert replacement != kernel, "fixed upstream: drop the patch"


def test_the_patched_source_forwards_by_name(patched: Path) -> None:
    replacement, kernel = both(patched)
    assert replacement == kernel
