# SPDX-License-Identifier: Apache-2.0
"""The little of ELF that a relocatable tree has to know: which libraries a file asks for.

Runs on hosts: Python 3.6, standard library only.
"""

import re
import struct

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SONAME = 0, 1, 5, 14
_GLIBC = re.compile(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)")


def is_elf(path):
    """Whether the regular file `path` begins like an ELF file."""
    with open(path, "rb") as stream:
        return stream.read(4) == b"\x7fELF"


def read_dynamic(path):
    """{"needed": [soname, ...], "soname": str or None} of a 64-bit little-endian ELF file; None if it is not one
    or has no dynamic section."""
    with open(path, "rb") as stream:
        header = stream.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            return None
        (offset,) = struct.unpack_from("<Q", header, 32)
        entry_size, count = struct.unpack_from("<HH", header, 54)
        loads, dynamic = [], None
        for index in range(count):
            stream.seek(offset + index * entry_size)
            kind, _flags, file_offset, address, _physical, file_size = struct.unpack("<IIQQQQ", stream.read(40))
            if kind == _PT_LOAD:
                loads.append((address, file_offset, file_size))
            elif kind == _PT_DYNAMIC:
                dynamic = (file_offset, file_size)
        if dynamic is None:
            return None
        stream.seek(dynamic[0])
        tags = struct.iter_unpack("<qQ", stream.read(dynamic[1] // 16 * 16))
        needed, soname, strings = [], None, None
        for tag, value in tags:
            if tag == _DT_NULL:
                break
            if tag == _DT_NEEDED:
                needed.append(value)
            elif tag == _DT_SONAME:
                soname = value
            elif tag == _DT_STRTAB:
                strings = value
        if strings is None:
            return None
        base = next(
            file_offset + strings - address
            for address, file_offset, size in loads
            if address <= strings < address + size
        )

        def text(position):
            stream.seek(base + position)
            return stream.read(1024).split(b"\0", 1)[0].decode("ascii", "replace")

        return {"needed": [text(value) for value in needed], "soname": None if soname is None else text(soname)}


def required_glibc(path):
    """Highest glibc version the file names among its symbol versions, as (major, minor), or None."""
    highest, tail = None, b""
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            for match in _GLIBC.finditer(tail + block):
                version = (int(match.group(1)), int(match.group(2)))
                highest = version if highest is None else max(highest, version)
            tail = block[-32:]
    return highest
