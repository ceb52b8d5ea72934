# SPDX-License-Identifier: Apache-2.0
"""--api-key-file reads keys and fails closed."""

import ast
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.engine


def reader(source: Path):
    """`read_api_keys` of the source, alone, or None."""
    path = source / "vllm/entrypoints/serve/middleware/register.py"
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "read_api_keys":
            names = {"Path": Path}
            exec(compile(ast.Module([node], []), str(path), "exec"), names)
            return names["read_api_keys"]
    return None


def test_the_published_source_knows_no_key_file(unpatched: Path) -> None:
    assert reader(unpatched) is None


@pytest.mark.parametrize(
    ("content", "keys"),
    [("secret", ["secret"]), ("secret\n", ["secret"]), ("\n one \n\ntwo\r\n", ["one", "two"])],
)
def test_one_key_a_line(content: str, keys: list[str], patched: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content.encode())
    assert reader(patched)(str(path)) == keys


@pytest.mark.parametrize("content", ["", "\n", "  \n\t\n"])
def test_a_file_without_a_key_raises(content: str, patched: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ValueError, match="holds no key"):
        reader(patched)(str(path))


def test_a_file_that_is_not_there_raises(patched: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        reader(patched)(str(tmp_path / "absent"))


def test_the_planner_knows_the_flag(project_root: Path) -> None:
    flags = yaml.safe_load((project_root / "engine_overrides/vllm/0.32.0/flags.yml").read_text("utf-8"))["flags"]
    assert flags["api-key-file"] == {"type": "str"}
