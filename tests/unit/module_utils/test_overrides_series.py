# SPDX-License-Identifier: Apache-2.0
"""The rules of engine_overrides, each broken once."""

import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.overrides import apply, series

HEADER = {
    "Description": "Make x y", "Origin": "vendor, us", "Forwarded": "no", "Last-Update": "2026-11-30",
    "X-Drop-When": "engine >= 2.0", "X-Verified-By": "tests/test_x.py",
}  # fmt: skip
DIFF = "--- a/x.py\n+++ b/x.py\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"


def run(argv, environ_update=None, **_options):
    result = subprocess.run(argv, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **environ_update})
    return result.returncode, result.stdout, result.stderr


def patch_text(diff: str = DIFF, **changes: str | None) -> str:
    fields = {**HEADER, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value is not None) + "---\n" + diff


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").touch()
    version = tmp_path / "engine" / "1.0"
    for name, patch in (("common", "0001-first.patch"), ("cpu", "0001-second.patch")):
        (version / name).mkdir(parents=True)
        (version / name / patch).write_text(patch_text())
    (version / "cpu" / "series").write_text("# comment\n../common/0001-first.patch\n\n0001-second.patch\n")
    return version


def problems(folder: Path) -> list[str]:
    return series.folder_problems(str(folder), "1.0", str(folder.parents[1]))


def test_a_good_folder(folder: Path) -> None:
    assert problems(folder) == []
    assert series.backends(str(folder)) == ["cpu"]
    assert series.read_series(str(folder), "cpu") == ["common/0001-first.patch", "cpu/0001-second.patch"]


def test_header_fields_may_go_on_and_end_at_the_diff() -> None:
    fields = series.parse_header("Description: one\n two\n three\nOrigin: vendor, us\n---\nForwarded: no\n")
    assert fields == {"Description": "one\ntwo\nthree", "Origin": "vendor, us"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Description": None}, "lacks Description"),
        ({"X_Verified_By": None}, "lacks X-Verified-By"),
        ({"X_Drop_When": ""}, "lacks X-Drop-When"),
        ({"Origin": "found it"}, "Origin is 'found it'"),
        ({"Forwarded": "maybe"}, "Forwarded is 'maybe'"),
        ({"Last_Update": "today"}, "Last-Update is 'today'"),
        ({"Applied_Upstream": "1.0"}, "1.0 has it already"),
        ({"Applied_Upstream": "0.9.3, commit:abc"}, "1.0 has it already"),
        ({"X_Drop_When": "engine >= 1.0"}, "and this is 1.0. Remove the patch"),
        ({"X_Verified_By": "tests/test_x.py, tests/gone.py"}, "names tests/gone.py, which does not exist"),
        ({"diff": "nothing\n"}, "changes no file"),
        ({"diff": DIFF.replace("b/x.py", "b/../x.py")}, "inside the source"),
        ({"diff": DIFF.replace("a/x.py", "/etc/x.py")}, "inside the source"),
    ],
)
def test_a_bad_patch_is_named(changes: dict, message: str, folder: Path) -> None:
    (folder / "cpu" / "0001-second.patch").write_text(patch_text(**changes))
    found = problems(folder)
    assert len(found) == 1 and found[0].startswith("cpu/0001-second.patch: ") and message in found[0]


@pytest.mark.parametrize("version", ["1.0.1", "2.0", "1.1rc1"])
def test_applied_upstream_later_is_fine(version: str, folder: Path) -> None:
    (folder / "cpu" / "0001-second.patch").write_text(patch_text(Applied_Upstream=version))
    assert problems(folder) == []


@pytest.mark.parametrize("name", ["1-x.patch", "0001_x.patch", "0001-X.patch", "0001-for-1.0-only.patch", "x.patch"])
def test_bad_names(name: str, folder: Path) -> None:
    (folder / "cpu" / "0001-second.patch").rename(folder / "cpu" / name)
    (folder / "cpu" / "series").write_text(f"../common/0001-first.patch\n{name}\n")
    assert any(name in problem for problem in problems(folder))


def test_orphans_and_ghosts(folder: Path) -> None:
    (folder / "common" / "0002-orphan.patch").write_text(patch_text())
    assert problems(folder) == ["common/0002-orphan.patch: in no series. List it or remove it"]
    (folder / "cpu" / "series").write_text("0009-ghost.patch\n")
    assert "0009-ghost.patch, which does not exist" in problems(folder)[0]


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        ("0001-second.patch\n0001-second.patch\n", "twice"),
        ("../../2.0/cpu/0001-x.patch\n", "of its own folder only"),
        ("/etc/passwd\n", "of its own folder only"),
    ],
)
def test_bad_series(listing: str, message: str, folder: Path) -> None:
    (folder / "cpu" / "series").write_text(listing)
    with pytest.raises(series.OverridesError, match=message):
        series.read_series(str(folder), "cpu")


def test_the_budget(folder: Path) -> None:
    names = [f"{number:04}-patch.patch" for number in range(series.BUDGET + 1)]
    for name in names:
        (folder / "cpu" / name).write_text(patch_text())
    (folder / "cpu" / "series").write_text("../common/0001-first.patch\n0001-second.patch\n" + "\n".join(names))
    assert any("the budget is 8" in problem for problem in problems(folder))


def test_the_digest_follows_content_and_order_only(folder: Path) -> None:
    paths = series.read_series(str(folder), "cpu")
    before = series.series_digest(str(folder), paths)
    (folder / "cpu" / "series").write_text("../common/0001-first.patch\n0001-second.patch\n")
    assert series.series_digest(str(folder), series.read_series(str(folder), "cpu")) == before
    assert series.series_digest(str(folder), ["common/0001-first.patch"]) != before
    (folder / "cpu" / "0001-second.patch").write_text(patch_text(Description="other"))
    assert series.series_digest(str(folder), paths) != before


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x.py").write_text("one\ntwo\nthree\n")
    return tmp_path / "source"


def test_a_patch_applies_and_applies_once(source: Path, folder: Path) -> None:
    patch = str(folder / "cpu" / "0001-second.patch")
    apply.apply_patch(run, str(source), patch)
    assert (source / "x.py").read_text() == "one\nTWO\nthree\n"
    with pytest.raises(series.OverridesError, match="does not apply"):
        apply.apply_patch(run, str(source), patch)
    assert (source / "x.py").read_text() == "one\nTWO\nthree\n"
    assert sorted(path.name for path in source.iterdir()) == ["x.py"]


def test_an_offset_is_refused_for_a_release_only(source: Path, folder: Path) -> None:
    (source / "x.py").write_text("zero\none\ntwo\nthree\n")
    patch = str(folder / "cpu" / "0001-second.patch")
    with pytest.raises(series.OverridesError, match="only with an offset"):
        apply.apply_patch(run, str(source), patch)
    assert "two" in (source / "x.py").read_text()
    apply.apply_patch(run, str(source), patch, exact=False)
    assert (source / "x.py").read_text() == "zero\none\nTWO\nthree\n"


def test_fuzz_is_refused_always(source: Path, folder: Path) -> None:
    (source / "x.py").write_text("one\ntwo\n3\n")
    with pytest.raises(series.OverridesError, match="does not apply"):
        apply.apply_patch(run, str(source), str(folder / "cpu" / "0001-second.patch"), exact=False)


def test_the_result_names_content_and_absence(source: Path) -> None:
    before = series.result_digest(str(source), ["x.py", "new.py"])
    (source / "new.py").write_text("")
    assert series.result_digest(str(source), ["x.py", "new.py"]) != before
    (source / "new.py").unlink()
    assert series.result_digest(str(source), ["new.py", "x.py"]) == before
