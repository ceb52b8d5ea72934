# SPDX-License-Identifier: Apache-2.0
"""The plugin's log files: bounded, and no condition for serving."""

import importlib.util
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

Load = Callable[[Path], types.ModuleType]


@pytest.fixture
def load(sources: Callable[[str, str], tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Import the plugin's logger with what it needs of the engine; the engine's package itself would need torch."""
    _published, engine = sources("vllm", "0.23.0")
    package = types.ModuleType("vllm")
    package.__path__ = [str(engine / "vllm")]
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", package)
    names = ("vllm", "vllm_ascend")
    before = {name: list(logging.getLogger(name).handlers) for name in names}

    def load(plugin: Path) -> types.ModuleType:
        spec = importlib.util.spec_from_file_location("plugin_logger", plugin / "vllm_ascend" / "logger.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in names:
        for handler in set(logging.getLogger(name).handlers) - set(before[name]):
            logging.getLogger(name).removeHandler(handler)
            handler.close()
    for name in [name for name in sys.modules if name.startswith("vllm.")]:
        del sys.modules[name]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("vllm_ascend_*.log"))


def write(handler: logging.Handler, times: int) -> None:
    for number in range(times):
        handler.emit(logging.LogRecord("vllm", logging.INFO, "x.py", 1, f"{number:>100}", (), None))


def test_the_published_source_keeps_every_file(load: Load, ascend_plugin: tuple[Path, Path], tmp_path: Path) -> None:
    handler = load(ascend_plugin[0]).RotatingAscendFileHandler(str(tmp_path), max_bytes=1)
    write(handler, 100)
    handler.close()
    assert len(files(tmp_path)) == 100, "fixed upstream: drop the patch"


def test_the_newest_files_stay(load: Load, ascend_plugin: tuple[Path, Path], tmp_path: Path) -> None:
    for number in range(100):
        path = tmp_path / f"vllm_ascend_20260101_000000_{number}.log"
        path.touch()
        os.utime(path, (number, number))
    (tmp_path / "of-somebody-else.log").touch()
    handler = load(ascend_plugin[1]).RotatingAscendFileHandler(str(tmp_path), max_bytes=1)
    write(handler, 3)
    handler.close()
    kept = files(tmp_path)
    assert len(kept) == 64 and "vllm_ascend_20260101_000000_99.log" in kept
    assert "vllm_ascend_20260101_000000_10.log" not in kept
    assert (tmp_path / "of-somebody-else.log").exists()


def test_a_removed_file_does_not_grow_unseen(load: Load, ascend_plugin: tuple[Path, Path], tmp_path: Path) -> None:
    handler = load(ascend_plugin[1]).RotatingAscendFileHandler(str(tmp_path))
    write(handler, 1)
    for name in files(tmp_path):
        (tmp_path / name).unlink()
    write(handler, 1)
    handler.close()
    assert [(tmp_path / name).stat().st_size > 0 for name in files(tmp_path)] == [True]


def test_a_removed_folder_does_not_reach_the_caller(
    load: Load, ascend_plugin: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    handler = load(ascend_plugin[1]).RotatingAscendFileHandler(str(folder))
    (folder / files(folder)[0]).unlink()
    folder.rmdir()
    write(handler, 2)
    handler.close()
    assert not folder.exists()


def test_the_published_source_does_not_start_without_a_folder(
    load: Load, ascend_plugin: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(OSError, match="home"):
        load(ascend_plugin[0])._setup_file_logging(str(tmp_path / "home" / "ascend"))


def test_without_a_folder_the_console_is_all(
    load: Load, ascend_plugin: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").touch()
    load(ascend_plugin[1])._setup_file_logging(str(tmp_path / "home" / "ascend"))
    assert "No log files are written" in caplog.text
