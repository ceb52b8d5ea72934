# SPDX-License-Identifier: Apache-2.0
"""Small genuine ELF files of any processor, made without its tools: headers, segments, dynamic section, versions."""

import struct
from pathlib import Path

MACHINES = {"x86_64": 62, "aarch64": 183, "riscv64": 243, "s390x": 22}


def make_elf(
    path: Path,
    needed: list[str] | None = None,
    soname: str | None = None,
    machine: str = "x86_64",
    requires: dict[str, list[str]] | None = None,
    defines: list[str] | None = None,
    align: int = 65536,
    kind: int = 3,
    weak: bool = False,
    empty: bool = False,
) -> Path:
    """Write a 64-bit little-endian file.

    Args:
        requires: library -> versions, as in {"libc.so.6": ["GLIBC_2.28"]}.
        empty: with a segment that maps nothing, as patchelf leaves them.
    """
    strings, places = bytearray(b"\0"), {}

    def text(value: str) -> int:
        if value not in places:
            places[value] = len(strings)
            strings.extend(value.encode() + b"\0")
        return places[value]

    tags = [(1, text(name)) for name in needed or []] + ([(14, text(soname))] if soname else [])
    need = b""
    for number, (library, versions) in enumerate(sorted((requires or {}).items()), 1):
        last = number == len(requires or {})
        entry = struct.pack("<HHIII", 1, len(versions), text(library), 16, 0 if last else 16 + 16 * len(versions))
        for index, version in enumerate(versions, 1):
            following = 0 if index == len(versions) else 16
            entry += struct.pack("<IHHII", 0, 2 if weak else 0, 2, text(version), following)
        need += entry
    define = b""
    for index, version in enumerate(defines or [], 1):
        following = 0 if index == len(defines or []) else 28
        define += struct.pack("<HHHHIII", 1, 0, index, 1, 0, 20, following) + struct.pack("<II", text(version), 0)
    start, base = 64 + (2 + empty) * 56, 0x400000
    at = start + len(strings)
    if need:
        tags += [(0x6FFFFFFE, base + at), (0x6FFFFFFF, len(requires or {}))]
    if define:
        tags += [(0x6FFFFFFC, base + at + len(need)), (0x6FFFFFFD, len(defines or []))]
    tags += [(5, base + start), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    body = bytes(strings) + need + define + dynamic
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", kind, MACHINES[machine], 1, 0, 64, 0, 0, 64, 56, 2 + empty, 0, 0, 0
    )  # fmt: skip
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, start + len(body), start + len(body), align)
    where = start + len(body) - len(dynamic)
    segment = struct.pack("<IIQQQQQQ", 2, 6, where, base + where, 0, len(dynamic), len(dynamic), 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    nothing = struct.pack("<IIQQQQQQ", 1, 6, 0x1A480, 0x4171F8, 0x4171F8, 0, 0, 4096) if empty else b""
    path.write_bytes(header + load + nothing + segment + body)
    return path
