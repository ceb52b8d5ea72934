# SPDX-License-Identifier: Apache-2.0
"""tools/overrides.py: the manifest is a lock, and CI notices when it is not."""

import shutil
import tarfile
from pathlib import Path

import pytest
import yaml

from tools import overrides

SOURCE = {"x.py": "one\ntwo\nthree\n", "y.py": "keep\n"}
PATCH = """Description: Make x louder
Origin: vendor, us
Forwarded: no
Last-Update: 2026-11-30
X-Drop-When: engine >= 2.0
X-Verified-By: tests/test_x.py
---
--- a/x.py
+++ b/x.py
@@ -1,3 +1,3 @@
 one
-two
+TWO
 three
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "engine_overrides" / "demo" / "1.0"
    (folder / "common").mkdir(parents=True)
    (folder / "cpu").mkdir()
    (folder / "cpu" / "0001-louder.patch").write_text(PATCH)
    (folder / "cpu" / "series").write_text("0001-louder.patch\n")
    (folder / "flags.yml").write_text(yaml.safe_dump({"engine": "demo", "version": "1.0", "flags": {"port": {}}}))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").touch()
    tree = tmp_path / "demo-1.0"
    tree.mkdir()
    for name, text in SOURCE.items():
        (tree / name).write_text(text)
    with tarfile.open(tmp_path / "demo-1.0.tar.gz", "w:gz") as archive:
        archive.add(tree, "demo-1.0")
    return tmp_path


@pytest.fixture
def folder(root: Path) -> Path:
    return root / "engine_overrides" / "demo" / "1.0"


def test_lock_then_check(root: Path, folder: Path) -> None:
    assert "not up to date" in overrides.check(folder, root)[0]
    overrides.lock(folder, root / "demo-1.0.tar.gz")
    assert overrides.check(folder, root) == []
    manifest = yaml.safe_load((folder / "manifest.yml").read_text())
    assert manifest["backends"]["cpu"]["local_version"].startswith("cpu.p1.s")
    assert manifest["patches"]["cpu/0001-louder.patch"]["touches"] == ["x.py"]
    assert manifest["source"]["file"] == "demo-1.0.tar.gz"
    before = (folder / "manifest.yml").read_bytes()
    overrides.lock(folder, root / "demo-1.0.tar.gz")
    assert (folder / "manifest.yml").read_bytes() == before


def test_any_edit_of_a_patch_or_the_manifest_is_noticed(root: Path, folder: Path) -> None:
    overrides.lock(folder, root / "demo-1.0.tar.gz")
    (folder / "cpu" / "0001-louder.patch").write_text(PATCH.replace("louder", "very loud", 1))
    assert "not up to date" in overrides.check(folder, root)[0]
    (folder / "cpu" / "0001-louder.patch").write_text(PATCH)
    assert overrides.check(folder, root) == []
    manifest = folder / "manifest.yml"
    manifest.write_text(manifest.read_text().replace("strip: 1", "strip: 2"))
    assert "not up to date" in overrides.check(folder, root)[0]


def test_another_source_is_refused(root: Path, folder: Path) -> None:
    overrides.lock(folder, root / "demo-1.0.tar.gz")
    (root / "demo-1.0.tar.gz").write_bytes((root / "demo-1.0.tar.gz").read_bytes() + b"\0")
    with pytest.raises(overrides.series.OverridesError, match=r"manifest\.yml names"):
        overrides.lock(folder, root / "demo-1.0.tar.gz")


@pytest.mark.parametrize("content", [None, {"engine": "demo", "version": "0.9", "flags": {"port": {}}},
                                     {"engine": "demo", "version": "1.0", "flags": {}}])  # fmt: skip
def test_flags_have_to_be_there(content: dict | None, root: Path, folder: Path) -> None:
    overrides.lock(folder, root / "demo-1.0.tar.gz")
    (folder / "flags.yml").unlink()
    if content is not None:
        (folder / "flags.yml").write_text(yaml.safe_dump(content))
    assert "flags.yml: missing or of another version" in overrides.check(folder, root)[0]


def test_refresh_moves_a_patch_to_where_it_applies(root: Path, folder: Path) -> None:
    tree = root / "demo-1.0"
    (tree / "x.py").write_text("zero\n" + SOURCE["x.py"])
    assert overrides.refresh(folder, tree) == ["cpu/0001-louder.patch"]
    text = (folder / "cpu" / "0001-louder.patch").read_text()
    assert text.startswith(PATCH[: PATCH.index("--- a/")]) and "@@ -1,4 +1,4 @@" in text
    assert overrides.refresh(folder, tree) == []
    overrides.apply_to(folder, tree, "cpu")
    assert (tree / "x.py").read_text() == "zero\none\nTWO\nthree\n"


def test_refresh_knows_new_and_removed_files(root: Path, folder: Path) -> None:
    patch = folder / "cpu" / "0001-louder.patch"
    patch.write_text(
        PATCH[: PATCH.index("--- a/")]
        + "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+new\n--- a/y.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-keep\n"
    )
    tree = root / "demo-1.0"
    overrides.refresh(folder, tree)
    overrides.apply_to(folder, tree, "cpu")
    assert (tree / "new.py").read_text() == "new\n" and not (tree / "y.py").exists()


def test_the_flags_come_from_the_engine_that_is_asked(root: Path, folder: Path) -> None:
    python = root / "python3"
    answer = '{"version": "1.0+cpu", "flags": {"port": {"type": "int"}}}'
    python.write_text(f"#!/bin/sh\necho noise\necho 'FLAGS {answer}'\n")
    python.chmod(0o755)
    overrides.record_flags(folder, python)
    assert yaml.safe_load((folder / "flags.yml").read_text())["flags"] == {"port": {"type": "int"}}
    python.write_text(python.read_text().replace("1.0+cpu", "1.1"))
    with pytest.raises(overrides.series.OverridesError, match=r"has version 1\.1, the folder is 1\.0"):
        overrides.record_flags(folder, python)


def test_the_repository_is_up_to_date(project_root: Path) -> None:
    folders = overrides.version_folders(project_root)
    names = [str(folder.relative_to(project_root / "engine_overrides")) for folder in folders]
    assert names == ["vllm/0.23.0", "vllm/0.32.0", "vllm-ascend/0.23.0.post1"]
    assert [problem for folder in folders for problem in overrides.check(folder, project_root)] == []


def test_the_command_line_lists_problems(root: Path, folder: Path, capsys: pytest.CaptureFixture) -> None:
    shutil.rmtree(folder / "common")
    assert overrides.main(["check", "--folder", str(folder)]) == 1
    assert "X-Verified-By names tests/test_x.py" in capsys.readouterr().err


def test_a_source_names_its_folder(root: Path, folder: Path) -> None:
    assert overrides.version_folders(root) == [folder]
    assert overrides.folder_of(root / "demo-1.0.tar.gz", [folder]) == folder
    plugin = root / "engine_overrides" / "vllm-ascend" / "0.23.0.post1"
    assert overrides.folder_of(Path("vllm_ascend-0.23.0.post1.tar.gz"), [folder, plugin]) == plugin
    with pytest.raises(overrides.series.OverridesError, match="--folder"):
        overrides.folder_of(Path("demo-2.0.tar.gz"), [folder])


def test_a_plugin_has_no_flags(root: Path, folder: Path) -> None:
    plugin = root / "engine_overrides" / "vllm-ascend" / "1.0"
    shutil.copytree(folder, plugin)
    (plugin / "flags.yml").unlink()
    overrides.lock(plugin, root / "demo-1.0.tar.gz")
    assert overrides.check(plugin, root) == []
