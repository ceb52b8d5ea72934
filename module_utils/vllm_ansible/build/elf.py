# SPDX-License-Identifier: Apache-2.0
"""The little of ELF that decides whether a file can be loaded on a host. Reads a few kilobytes of each file, of any
processor; runs nothing.

Layout and constants: the System V ABI, its GNU symbol versioning (LSB Core, "Symbol Versioning").

Runs on hosts: Python 3.6, standard library only.
"""

import re
import struct

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 0, 1, 5, 10, 14
_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_WEAK = 2
_VERSION = re.compile(r"^(GLIBC|GLIBCXX|CXXABI|GCC)_(\d+(?:\.\d+)*)$")
# A version without a number: relative relocations in a compact form, which glibc 2.36 was the first to read.
_NAMED = {"GLIBC_ABI_DT_RELR": ("GLIBC", (2, 36))}

# e_machine -> the name `uname -m` uses.
MACHINES = {3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64",
            243: "riscv64", 258: "loongarch64"}  # fmt: skip
# e_type of what a host loads: programs and shared libraries. Object files are for linkers and devices.
LOADED = (2, 3)


class ElfError(Exception):
    """The file begins like ELF and contradicts itself."""


def is_elf(path):
    """Whether the regular file `path` begins like an ELF file."""
    with open(path, "rb") as stream:
        return stream.read(4) == b"\x7fELF"


def describe(path):
    """What the ELF file `path` is and needs, or None when it is none.

    {"machine": as `uname -m` says it, or "machine N"; "loaded": whether a host loads such a file;
     "needed": [soname]; "soname": str or None;
     "requires": {"GLIBC": highest version as a tuple, "GLIBCXX": ..., ...}, weak ones and libraries with other names
     than the system's left out; "defines": the same for what it provides;
     "page_size": largest page in bytes that its segments can be loaded with, or None}.
    Of files other than 64-bit little-endian only the machine is read. Raises ElfError.
    """
    with open(path, "rb") as stream:
        header = stream.read(64)
        if header[:4] != b"\x7fELF":
            return None
        if len(header) < 20:
            raise ElfError("{0} ends within its header".format(path))
        kind, machine = struct.unpack_from("<HH" if header[5] == 1 else ">HH", header, 16)
        found = {
            "machine": MACHINES.get(machine, "machine {0}".format(machine)),
            "loaded": kind in LOADED,
            "needed": [],
            "soname": None,
            "requires": {},
            "defines": {},
            "page_size": None,
        }
        if header[4:6] == b"\x02\x01":
            try:
                _read(stream, header, found)
            except (struct.error, ValueError, IndexError) as error:
                raise ElfError("{0} contradicts itself: {1}".format(path, error)) from error
        return found


def _read(stream, header, found):
    (offset,) = struct.unpack_from("<Q", header, 32)
    entry_size, count = struct.unpack_from("<HH", header, 54)
    loads, dynamic = [], None
    for index in range(count):
        stream.seek(offset + index * entry_size)
        kind, _flags, file_offset, address, _physical, file_size, _size, align = struct.unpack(
            "<IIQQQQQQ", stream.read(56)
        )
        # Nothing is mapped from the file for an empty one, such as patchelf leaves behind.
        if kind == _PT_LOAD and file_size:
            loads.append((address, file_offset, file_size, align))
        elif kind == _PT_DYNAMIC:
            dynamic = (file_offset, file_size)
    if loads:
        # glibc refuses a segment when its alignment, or its address less its offset, is no multiple of a page.
        found["page_size"] = min(_page(address - file_offset, align) for address, file_offset, _size, align in loads)
    if dynamic is None:
        return
    tags = {}
    needed = []
    stream.seek(dynamic[0])
    for tag, value in struct.iter_unpack("<qQ", stream.read(dynamic[1] // 16 * 16)):
        if tag == _DT_NULL:
            break
        if tag == _DT_NEEDED:
            needed.append(value)
        else:
            tags[tag] = value
    if _DT_STRTAB not in tags:
        return

    def place(address):
        for start, file_offset, size, _align in loads:
            if start <= address < start + size:
                return file_offset + address - start
        raise ValueError("address {0:#x} is in no segment".format(address))

    stream.seek(place(tags[_DT_STRTAB]))
    strings = stream.read(tags.get(_DT_STRSZ, 1 << 20))

    def text(position):
        return strings[position : strings.index(b"\0", position)].decode("ascii", "replace")

    found["needed"] = [text(value) for value in needed]
    if _DT_SONAME in tags:
        found["soname"] = text(tags[_DT_SONAME])

    def read(layout, position):
        stream.seek(position)
        return struct.unpack(layout, stream.read(struct.calcsize(layout)))

    if _DT_VERNEED in tags:
        position = place(tags[_DT_VERNEED])
        for _entry in range(tags.get(_DT_VERNEEDNUM, 0)):
            _version, names, library, first, following = read("<HHIII", position)
            auxiliary = position + first
            for _name in range(names):
                _hash, flags, _other, name, step = read("<IHHII", auxiliary)
                if not flags & _WEAK and _is_the_systems(text(library)):
                    _note(found["requires"], text(name))
                auxiliary += step
            position += following
    if _DT_VERDEF in tags:
        position = place(tags[_DT_VERDEF])
        for _entry in range(tags.get(_DT_VERDEFNUM, 0)):
            _version, _flags, _index, _names, _hash, first, following = read("<HHHHIII", position)
            _note(found["defines"], text(read("<II", position + first)[0]))
            position += following


def _is_the_systems(library):
    """Whether this is the name a system's own library has; wheels carry copies such as libstdc++-0a1b2c3d.so.6."""
    return not re.search(r"-[0-9a-f]{8}\.so", library)


def _page(difference, align):
    """Largest power of two that divides both."""
    value = abs(difference) | max(align, 1)
    return value & -value


def _note(versions, name):
    match = _VERSION.match(name)
    if match:
        family, version = match.group(1), tuple(int(part) for part in match.group(2).split("."))
    elif name in _NAMED:
        family, version = _NAMED[name]
    else:
        return
    versions[family] = max(versions.get(family, ()), version)


def read_dynamic(path):
    """{"needed": [soname, ...], "soname": str or None} of a 64-bit little-endian ELF file; None if it is not one
    or has no dynamic section."""
    try:
        found = describe(path)
    except ElfError:
        return None
    if found is None or not (found["needed"] or found["soname"]):
        return None
    return {"needed": found["needed"], "soname": found["soname"]}
