# SPDX-License-Identifier: Apache-2.0
"""Artefacts: the format and its writer. One deterministic tar that `installation` turns into one immutable directory.

Format 1. An uncompressed outer tar: first ``artefact.json`` (see `read_manifest`),
then the payloads named there, each a tar of a part of the tree, plain or
compressed. Hosts have no zstd, so a zstd payload is unpacked by the Python that
an earlier payload of the same artefact brought (``bin/python3`` + zstandard).

The same tree packs to the same bytes wherever it lies: names are sorted, owners
are root, modes are 0755 or 0644, times are constant.

Runs on hosts: Python 3.6, standard library only.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import stat
import subprocess
import tarfile
from typing import List, Tuple

SCHEMA = 1
MANIFEST = "artefact.json"
# Written at installation, so no part of the artefact: which one it was, and how fast the disk reads it.
RECEIPT = ".installed.json"
# 1980-01-01: the earliest time that zip based tools accept.
MTIME = 315532800
CHUNK = 1024 * 1024

_COMPRESS = {
    "gzip": "import gzip,shutil,sys\n"
    "with gzip.GzipFile('', 'wb', 6, sys.stdout.buffer, 0) as out: shutil.copyfileobj(sys.stdin.buffer, out)",
    "zstd": "import sys,zstandard\n"
    "zstandard.ZstdCompressor(level=9, threads=2).copy_stream(sys.stdin.buffer, sys.stdout.buffer)",
}


class ArtefactError(Exception):
    """Says what is wrong, what was seen and what to do."""


# --------------------------------------------------------------------------- trees


def _is_own_file(relative):
    return relative in (MANIFEST, RECEIPT)


def walk(root):
    """Yield (relative path, lstat) of everything below `root`, sorted by path; parents first.

    Sorted by path components, so that the order does not depend on the file system or the locale.
    """

    def scan(prefix):
        directory = os.path.join(root, prefix) if prefix else root
        for name in sorted(os.listdir(directory)):
            relative = os.path.join(prefix, name) if prefix else name
            info = os.lstat(os.path.join(root, relative))
            if not prefix and _is_own_file(relative):
                continue
            yield relative, info
            if stat.S_ISDIR(info.st_mode):
                yield from scan(relative)

    return scan("")


def file_mode(info_mode):
    """The mode a file has in an artefact."""
    return 0o755 if info_mode & 0o111 else 0o644


def tree_entry(relative, kind, mode, content):
    """One line of the tree's digest. kind: "f" with the sha256 of the content, or "l" with the target."""
    return "{0}\0{1}\0{2:o}\0{3}\n".format(relative, kind, mode, content).encode("utf-8", "surrogateescape")


def tree_digest(entries):
    """sha256 over the sorted entries; `entries` maps relative path -> entry bytes."""
    digest = hashlib.sha256()
    for relative in sorted(entries):
        digest.update(entries[relative])
    return digest.hexdigest()


def sha256_file(path):
    """Hexadecimal sha256 of the file at `path`."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(CHUNK), b""):
            digest.update(block)
    return digest.hexdigest()


def describe_tree(root):
    """{"tree_sha256", "files", "unpacked_bytes"} of the tree at `root`, reading all of it."""
    entries, files, size = {}, 0, 0
    for relative, info in walk(root):
        path = os.path.join(root, relative)
        if stat.S_ISDIR(info.st_mode):
            continue
        files += 1
        if stat.S_ISLNK(info.st_mode):
            entries[relative] = tree_entry(relative, "l", 0, os.readlink(path))
        elif stat.S_ISREG(info.st_mode):
            size += info.st_size
            entries[relative] = tree_entry(relative, "f", file_mode(info.st_mode), sha256_file(path))
        else:
            raise ArtefactError("{0} is neither a file, a directory nor a symbolic link".format(path))
    return {"tree_sha256": tree_digest(entries), "files": files, "unpacked_bytes": size}


def count_tree(root):
    """{"files", "unpacked_bytes"} without reading any content."""
    files, size = 0, 0
    for _relative, info in walk(root):
        if not stat.S_ISDIR(info.st_mode):
            files += 1
            size += info.st_size if stat.S_ISREG(info.st_mode) else 0
    return {"files": files, "unpacked_bytes": size}


def check_member_path(name):
    """Raise ArtefactError unless `name` stays inside the directory it is unpacked in."""
    parts = name.split("/")
    if not name or name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ArtefactError("artefact member {0!r} would leave the directory; the artefact is not ours".format(name))


def check_link(name, target):
    """Raise ArtefactError unless the link `name` leads to a place inside the directory."""
    if target.startswith("/") or not target:
        raise ArtefactError("artefact member {0!r} links to {1!r}, outside the directory".format(name, target))
    resolved = os.path.normpath(os.path.join(os.path.dirname(name), target))
    if resolved == ".." or resolved.startswith("../"):
        raise ArtefactError("artefact member {0!r} links to {1!r}, outside the directory".format(name, target))


# --------------------------------------------------------------------------- packing


def _tar_info(name, info):
    member = tarfile.TarInfo(name)
    member.mtime = MTIME
    if stat.S_ISDIR(info.st_mode):
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    elif stat.S_ISLNK(info.st_mode):
        member.type, member.mode = tarfile.SYMTYPE, 0o777
    else:
        member.mode, member.size = file_mode(info.st_mode), info.st_size
    return member


def _write_payload(root, names, compression, python, target):
    """Write one payload to the file `target`; returns its sha256."""
    with open(target, "wb") as raw:
        if compression == "none":
            _write_tar(root, names, raw)
        else:
            # The Python in the tree compresses: its zlib and zstd are part of the artefact's
            # inputs, those of the machine that happens to pack are not.
            process = subprocess.Popen([python, "-I", "-c", _COMPRESS[compression]], stdin=subprocess.PIPE, stdout=raw)
            assert process.stdin
            with process.stdin:
                _write_tar(root, names, process.stdin)
            if process.wait() != 0:
                raise ArtefactError("{0} could not compress a payload with {1}".format(python, compression))
    return sha256_file(target)


def _write_tar(root, names, stream):
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT, bufsize=CHUNK) as archive:
        for relative, info in names:
            member = _tar_info(relative, info)
            if member.issym():
                member.linkname = os.readlink(os.path.join(root, relative))
                check_link(relative, member.linkname)
                archive.addfile(member)
            elif member.isdir():
                archive.addfile(member)
            else:
                with open(os.path.join(root, relative), "rb") as content:
                    archive.addfile(member, content)


def _layer_of(relative, layers):
    """Index of the layer that names the longest parent of `relative`."""
    best, index = -1, None
    for position, layer in enumerate(layers):
        for path in layer["paths"]:
            if len(path) > best and (not path or relative == path or relative.startswith(path + "/")):
                best, index = len(path), position
    if index is None:
        raise ArtefactError("{0} belongs to no layer".format(relative))
    return index


def pack(
    source_dir, destination, kind, name, metadata=None, layers=None, created_from=None, id_prefix=None, python=None
):
    """Pack `source_dir` into the artefact `destination` (atomically) and describe it.

    kind: "engine-release" or "model". name: what people call it.
    metadata: free facts about the content. created_from: the inputs it was made of.
    layers: [{"file": "x.tar", "compression": "none"|"gzip"|"zstd", "paths": [path, ...]}]; an entry goes into
        the layer that names it or its closest parent ("" is the root). Default: everything in one plain payload.
    python: interpreter that compresses; needed for gzip and zstd.
    Returns {"path", "sha256", "size_bytes", "manifest"}. Raises ArtefactError.
    """
    layers = layers or [{"file": "tree.tar", "compression": "none", "paths": [""]}]
    members: List[List[Tuple[str, os.stat_result]]] = [[] for _layer in layers]
    for relative, info in walk(source_dir):
        members[_layer_of(relative, layers)].append((relative, info))

    workdir = destination + ".partial.d"
    partial = destination + ".partial"
    shutil.rmtree(workdir, ignore_errors=True)
    os.makedirs(workdir)
    try:
        payload = []
        for layer, names in zip(layers, members):
            target = os.path.join(workdir, layer["file"])
            digest = _write_payload(source_dir, names, layer["compression"], python, target)
            payload.append({"file": layer["file"], "sha256": digest, "compression": layer["compression"]})
        manifest = {
            "schema": SCHEMA,
            "kind": kind,
            "name": name,
            "id_prefix": id_prefix or name,
            "created_from": created_from or {},
            "payload": payload,
            "metadata": metadata or {},
        }
        manifest.update(describe_tree(source_dir))
        text = (json.dumps(manifest, sort_keys=True, indent=1) + "\n").encode()
        with open(partial, "wb") as raw:
            with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
                member = tarfile.TarInfo(MANIFEST)
                member.size, member.mtime = len(text), MTIME
                archive.addfile(member, io.BytesIO(text))
                for item in payload:
                    path = os.path.join(workdir, item["file"])
                    member = tarfile.TarInfo(item["file"])
                    member.size, member.mtime = os.path.getsize(path), MTIME
                    with open(path, "rb") as content:
                        archive.addfile(member, content)
            raw.flush()
            os.fsync(raw.fileno())
        sha256 = sha256_file(partial)
        os.rename(partial, destination)
    finally:
        shutil.rmtree(workdir, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(partial)
    return {"path": destination, "sha256": sha256, "size_bytes": os.path.getsize(destination), "manifest": manifest}


# --------------------------------------------------------------------------- reading


def read_manifest(path):
    """The parsed artefact.json of the artefact at `path`, checked for shape. Raises ArtefactError."""
    try:
        with tarfile.open(path, "r:") as archive:
            return manifest_of(archive, path)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ArtefactError(
            "{0} is not a readable artefact ({1}). Build or copy it again.".format(path, error)
        ) from error


def manifest_of(archive, path):
    """`read_manifest` of an artefact opened as a tar; leaves it at the first payload."""
    member = archive.next()
    if member is None or member.name != MANIFEST or not member.isfile() or member.size > 16 * CHUNK:
        raise ArtefactError("{0} does not begin with {1}; it is not an artefact".format(path, MANIFEST))
    try:
        manifest = json.loads(archive.extractfile(member).read().decode("utf-8"))
    except ValueError as error:
        raise ArtefactError("{0} in {1} is not JSON: {2}".format(MANIFEST, path, error)) from error
    if manifest.get("schema") != SCHEMA:
        raise ArtefactError(
            "{0} has artefact schema {1!r}, this version reads {2}. Build it again.".format(
                path, manifest.get("schema"), SCHEMA
            )
        )
    for key in ("kind", "name", "tree_sha256", "files", "unpacked_bytes", "payload"):
        if key not in manifest:
            raise ArtefactError("{0} in {1} lacks {2!r}. Build it again.".format(MANIFEST, path, key))
    for item in manifest["payload"]:
        check_member_path(item["file"])
        if item["compression"] not in ("none", "gzip", "zstd"):
            raise ArtefactError(
                "{0}: payload {1} has unknown compression {2!r}".format(path, item["file"], item["compression"])
            )
    return manifest


_RELEASE_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")


def release_id(id_prefix, sha256):
    """Name of the directory an artefact is installed as: prefix and the first 12 digits of its sha256."""
    value = "{0}-{1}".format(id_prefix, sha256[:12])
    if not _RELEASE_ID.match(value):
        raise ArtefactError("{0!r} cannot name a directory".format(value))
    return value
