# SPDX-License-Identifier: Apache-2.0
"""The ELF reader, against files of this machine and against files of others made by tests.support.elves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.build import elf

from tests.support.elves import make_elf


def test_needed_and_soname(tmp_path: Path) -> None:
    path = make_elf(tmp_path / "x.so", ["libm.so.6", "libnuma.so.1"], "libx.so.1")
    assert elf.is_elf(str(path))
    assert elf.read_dynamic(str(path)) == {"needed": ["libm.so.6", "libnuma.so.1"], "soname": "libx.so.1"}


def test_the_running_interpreter_is_read_as_readelf_reads_it() -> None:
    interpreter = os.path.realpath(sys.executable)
    found = elf.describe(interpreter)
    assert found["machine"] == os.uname().machine and found["loaded"] and "libc.so.6" in found["needed"]
    output = subprocess.run(["readelf", "-VW", interpreter], capture_output=True, text=True, check=True).stdout
    named = {word for word in output.split() if word.startswith("GLIBC_2.")}
    highest = max(tuple(int(part) for part in word[len("GLIBC_") :].split(".")) for word in named)
    assert found["requires"]["GLIBC"] == highest


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_files_of_any_processor(machine: str, tmp_path: Path) -> None:
    path = make_elf(
        tmp_path / "x.so", ["libc.so.6"], machine=machine, align=65536,
        requires={"libc.so.6": ["GLIBC_2.17", "GLIBC_2.9", "GLIBC_2.28", "GLIBC_PRIVATE"],
                  "libstdc++.so.6": ["GLIBCXX_3.4.22", "CXXABI_1.3"]},
        defines=["libx.so", "GLIBCXX_3.4.30"],
    )  # fmt: skip
    assert elf.describe(str(path)) == {
        "machine": machine, "loaded": True, "needed": ["libc.so.6"], "soname": None, "page_size": 65536,
        "requires": {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 22), "CXXABI": (1, 3)}, "defines": {"GLIBCXX": (3, 4, 30)},
    }  # fmt: skip


def test_the_highest_glibc_counts_as_a_number(tmp_path: Path) -> None:
    path = make_elf(tmp_path / "x.so", requires={"libc.so.6": ["GLIBC_2.9", "GLIBC_2.17", "GLIBC_2.2.5"]})
    assert elf.describe(str(path))["requires"] == {"GLIBC": (2, 17)}


def test_compact_relocations_need_the_glibc_that_reads_them(tmp_path: Path) -> None:
    path = make_elf(tmp_path / "x.so", requires={"libc.so.6": ["GLIBC_2.17", "GLIBC_ABI_DT_RELR"]})
    assert elf.describe(str(path))["requires"] == {"GLIBC": (2, 36)}


def test_a_weak_version_is_no_need(tmp_path: Path) -> None:
    path = make_elf(tmp_path / "x.so", requires={"libc.so.6": ["GLIBC_2.34"]}, weak=True)
    assert elf.describe(str(path))["requires"] == {}


def test_a_copy_in_a_wheel_is_not_the_systems(tmp_path: Path) -> None:
    path = make_elf(tmp_path / "x.so", requires={"libstdc++-0a1b2c3d.so.6": ["GLIBCXX_3.4.32"]})
    assert elf.describe(str(path))["requires"] == {}


@pytest.mark.parametrize(("align", "page"), [(4096, 4096), (16384, 16384), (65536, 65536), (0, 1)])
def test_the_smallest_alignment_decides(align: int, page: int, tmp_path: Path) -> None:
    assert elf.describe(str(make_elf(tmp_path / "x.so", align=align)))["page_size"] == page


def test_a_segment_that_maps_nothing_needs_no_page(tmp_path):
    assert elf.describe(str(make_elf(tmp_path / "x.so", empty=True)))["page_size"] == 65536


def test_an_object_file_is_not_loaded(tmp_path: Path) -> None:
    assert elf.describe(str(make_elf(tmp_path / "kernel.o", kind=1)))["loaded"] is False


def test_a_file_of_32_bits_says_its_machine_only(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\x28\x00" + bytes(60))
    found = elf.describe(str(tmp_path / "x"))
    assert (found["machine"], found["page_size"]) == ("arm", None)


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n" * 20])
def test_other_files_are_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    assert elf.describe(str(tmp_path / "x")) is None and elf.read_dynamic(str(tmp_path / "x")) is None


def test_every_cut_file_is_refused_or_read(tmp_path: Path) -> None:
    whole = make_elf(
        tmp_path / "x.so", ["libc.so.6"], "libx.so", requires={"libc.so.6": ["GLIBC_2.28"]}, defines=["GLIBCXX_3.4.1"]
    ).read_bytes()
    refused = 0
    for length in range(4, len(whole), 3):
        (tmp_path / "cut").write_bytes(whole[:length])
        try:
            elf.describe(str(tmp_path / "cut"))
        except elf.ElfError:
            refused += 1
    assert refused > 50
