# SPDX-License-Identifier: Apache-2.0
"""What a release needs of a host, and where the two do not fit."""

from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.build import scan

from tests.support.elves import make_elf

# Kylin V10 SP3 on Kunpeng: glibc and libstdc++ of the V10 service packs, pages of 64 KiB.
KYLIN = {"machine": "aarch64", "glibc": "2.28", "glibcxx": "3.4.24", "page_size": 65536, "python": "3.11"}
PACKAGES = "lib/python3.11/site-packages"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    make_elf(tmp_path / "bin" / "python3.11", machine="aarch64", kind=2, requires={"libc.so.6": ["GLIBC_2.17"]})
    (tmp_path / "bin" / "python3").symlink_to("python3.11")
    (tmp_path / PACKAGES).mkdir(parents=True)
    return tmp_path


def add(release: Path, name: str = "x/x.so", **options) -> None:
    make_elf(release / PACKAGES / name, **{"machine": "aarch64", **options})


def wheel(release: Path, name: str, *tags: str) -> None:
    folder = release / PACKAGES / f"{name}.dist-info"
    folder.mkdir()
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\n" + "".join(f"Tag: {tag}\n" for tag in tags))


def compare(release: Path, target: dict = KYLIN) -> list[tuple[str, str, str, str]]:
    found, _excused = scan.findings(scan.requirements(str(release)), target)
    return [(item["file"].rsplit("/", 1)[-1], item["what"], item["seen"], item["needed"]) for item in found]


def test_what_fits_is_not_mentioned(release: Path) -> None:
    add(release, requires={"libc.so.6": ["GLIBC_2.28"], "libstdc++.so.6": ["GLIBCXX_3.4.24"]})
    wheel(release, "x-1", "cp311-cp311-manylinux_2_27_aarch64", "cp311-cp311-manylinux_2_28_aarch64")
    wheel(release, "y-1", "py3-none-any")
    assert compare(release) == []
    needs = scan.requirements(str(release))
    assert {key: needs[key] for key in ("machine", "glibc", "glibcxx", "page_size", "python", "files")} == {
        "machine": "aarch64", "glibc": "2.28", "glibcxx": "3.4.24", "page_size": 65536, "python": "3.11", "files": 2
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "finding"),
    [
        ({"machine": "x86_64"}, ("x.so", "machine", "aarch64", "x86_64")),
        ({"requires": {"libc.so.6": ["GLIBC_2.29"]}}, ("x.so", "glibc", "2.28", "2.29")),
        ({"requires": {"libstdc++.so.6": ["GLIBCXX_3.4.25"]}}, ("x.so", "glibcxx", "3.4.24", "3.4.25")),
        ({"align": 4096}, ("x.so", "page size", "65536", "at most 4096")),
    ],
)
def test_each_thing_that_does_not_fit(options: dict, finding: tuple, release: Path) -> None:
    add(release, **options)
    assert compare(release) == [finding]


@pytest.mark.parametrize(
    "tag",
    ["cp311-cp311-manylinux_2_31_aarch64", "cp311-cp311-manylinux2014_x86_64", "cp312-cp312-manylinux_2_17_aarch64",
     "cp312-abi3-manylinux_2_17_aarch64", "cp311-cp311-linux_x86_64", "cp311-cp311-win_amd64"],
)  # fmt: skip
def test_a_wheel_for_another_system(tag: str, release: Path) -> None:
    wheel(release, "x-1", tag)
    assert compare(release) == [("x-1.dist-info", "wheel tag", "aarch64, glibc 2.28, Python 3.11", tag)]


@pytest.mark.parametrize(
    "tag",
    [
        "cp39-abi3-manylinux_2_28_aarch64",
        "py3-none-manylinux2014_aarch64",
        "cp311-none-any",
        "cp38-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64",
        "cp311-cp311-linux_aarch64",
    ],
)
def test_a_wheel_for_this_one(tag: str, release: Path) -> None:
    wheel(release, "x-1", tag)
    assert compare(release) == []


def test_a_release_with_its_own_libstdcxx_needs_none(release: Path) -> None:
    make_elf(release / "lib" / "libstdc++.so.6.0.30", machine="aarch64", defines=["GLIBCXX_3.4.30"])
    add(release, requires={"libstdc++.so.6": ["GLIBCXX_3.4.30"]})
    assert compare(release) == []
    add(release, "y.so", requires={"libstdc++.so.6": ["GLIBCXX_3.4.31"]})
    assert compare(release) == [("y.so", "glibcxx", "3.4.24", "3.4.31")]


def test_a_broken_file_is_named(release: Path) -> None:
    add(release)
    path = release / PACKAGES / "x" / "x.so"
    path.write_bytes(path.read_bytes()[:100])
    [(name, what, _seen, _needed)] = compare(release)
    assert (name, what) == ("x.so", "ELF")


def test_the_release_of_another_processor(release: Path) -> None:
    assert compare(release, {"machine": "x86_64"}) == [("python3", "machine", "x86_64", "aarch64")]


def test_what_is_not_known_of_the_host_is_not_compared(release: Path) -> None:
    add(release, align=4096, requires={"libc.so.6": ["GLIBC_2.99"]})
    assert compare(release, {"machine": "aarch64", "glibc": None}) == []


def test_an_exception_has_a_reason(release: Path) -> None:
    add(release, align=4096)
    add(release, "other/y.so", align=4096)
    found, excused = scan.findings(scan.requirements(str(release)), KYLIN, {"*/x/*": "never loaded"})
    assert [item["file"] for item in found] == [PACKAGES + "/other/y.so"]
    assert [(item["file"], item["reason"]) for item in excused] == [(PACKAGES + "/x/x.so", "never loaded")]


def test_all_are_counted_and_few_are_told() -> None:
    items = [{"file": str(number), "what": "glibc", "seen": "2.28", "needed": "2.29"} for number in range(30)]
    text = scan.sentences(items)
    assert text.startswith("0: glibc: the host has 2.28, needed is 2.29; ") and text.endswith("; and 10 more")
