# SPDX-License-Identifier: Apache-2.0
"""--api-key-file reads keys and fails closed."""

import ast
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.engine

# The module that adds the middleware, newest version first.
PLACES = ("vllm/entrypoints/serve/middleware/register.py", "vllm/entrypoints/serve/utils/server_utils.py")
USE = "tokens += read_api_keys(args.api_key_file)"


def reader(source: Path):
    """`read_api_keys` of the source, alone, or None."""
    for name in PLACES:
        path = source / name
        for node in ast.parse(path.read_text("utf-8")).body if path.exists() else ():
            if isinstance(node, ast.FunctionDef) and node.name == "read_api_keys":
                names = {"Path": Path}
                exec(compile(ast.Module([node], []), str(path), "exec"), names)
                return names["read_api_keys"]
    return None


def test_the_published_source_knows_no_key_file(engine_source: tuple[Path, Path]) -> None:
    assert reader(engine_source[0]) is None


@pytest.mark.parametrize(
    ("content", "keys"),
    [("secret", ["secret"]), ("secret\n", ["secret"]), ("\n one \n\ntwo\r\n", ["one", "two"])],
)
def test_one_key_a_line(content: str, keys: list[str], engine_source: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content.encode())
    assert reader(engine_source[1])(str(path)) == keys


@pytest.mark.parametrize("content", ["", "\n", "  \n\t\n"])
def test_a_file_without_a_key_raises(content: str, engine_source: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ValueError, match="holds no key"):
        reader(engine_source[1])(str(path))


def test_a_file_that_is_not_there_raises(engine_source: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        reader(engine_source[1])(str(tmp_path / "absent"))


def test_the_server_uses_it(engine_source: tuple[Path, Path]) -> None:
    users = [path for path in (engine_source[1] / "vllm/entrypoints").rglob("*.py") if USE in path.read_text("utf-8")]
    assert len(users) == 1


@pytest.mark.parametrize("version", ["0.32.0", "0.23.0"])
def test_the_planner_knows_the_flag(version: str, project_root: Path) -> None:
    flags = yaml.safe_load((project_root / f"engine_overrides/vllm/{version}/flags.yml").read_text("utf-8"))["flags"]
    assert flags["api-key-file"] == {"type": "str"}
