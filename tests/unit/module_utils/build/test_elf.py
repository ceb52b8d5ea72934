# SPDX-License-Identifier: Apache-2.0
"""The ELF reader, against files of this machine and against objdump's answers recorded by hand."""

import os
import struct
import sys
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.build import elf


def make_elf(path: Path, needed: list[str], soname: str | None = None, glibc: tuple[str, ...] = ()) -> Path:
    """The smallest 64-bit ELF file with a dynamic section."""
    strings = b"\0"
    dynamic = b""
    for tag, text in [(1, name) for name in needed] + ([(14, soname)] if soname else []):
        dynamic += struct.pack("<qQ", tag, len(strings))
        strings += text.encode() + b"\0"
    for text in glibc:
        strings += text.encode() + b"\0"
    start = 64 + 2 * 56
    base = 0x400000
    dynamic += struct.pack("<qQ", 5, base + start) + struct.pack("<qQ", 0, 0)
    size = len(strings) + len(dynamic)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )  # fmt: skip
    load = struct.pack("<IIQQQQQQ", 1, 5, start, base + start, base + start, size, size, 4096)
    segment = struct.pack(
        "<IIQQQQQQ", 2, 6, start + len(strings), base + start + len(strings), 0, len(dynamic), len(dynamic), 8
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + load + segment + strings + dynamic)
    return path


def test_needed_and_soname(tmp_path: Path) -> None:
    path = make_elf(tmp_path / "x.so", ["libm.so.6", "libnuma.so.1"], "libx.so.1")
    assert elf.is_elf(str(path))
    assert elf.read_dynamic(str(path)) == {"needed": ["libm.so.6", "libnuma.so.1"], "soname": "libx.so.1"}


def test_the_running_interpreter_names_glibc() -> None:
    interpreter = os.path.realpath(sys.executable)
    assert "libc.so.6" in elf.read_dynamic(interpreter)["needed"]
    major, minor = elf.required_glibc(interpreter)
    assert major == 2 and minor >= 2


@pytest.mark.parametrize(
    ("names", "floor"),
    [((), None), (("GLIBC_2.17", "GLIBC_2.9", "GLIBC_2.2.5"), (2, 17)), (("GLIBC_2.4", "GLIBC_PRIVATE"), (2, 4)),
     (("GLIBCXX_3.4.30", "GLIBC_2.34"), (2, 34))],
)  # fmt: skip
def test_the_highest_glibc_counts_as_a_number(names: tuple[str, ...], floor: object, tmp_path: Path) -> None:
    assert elf.required_glibc(str(make_elf(tmp_path / "x.so", ["libc.so.6"], glibc=names))) == floor


def test_a_version_across_two_blocks_is_found(tmp_path: Path) -> None:
    for shift in range(16):
        path = tmp_path / "x"
        path.write_bytes(bytes((1 << 20) - shift) + b"GLIBC_2.36\0")
        assert elf.required_glibc(str(path)) == (2, 36)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, b"\x7fELF\x01\x01" + bytes(100)])
def test_other_files_have_no_dynamic_section(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    assert elf.read_dynamic(str(tmp_path / "x")) is None
