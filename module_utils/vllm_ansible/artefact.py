# SPDX-License-Identifier: Apache-2.0
"""Artefacts: one deterministic tar that becomes one immutable directory.

Format 1. An uncompressed outer tar: first ``artefact.json`` (see `read_manifest`),
then the payloads named there, each a tar of a part of the tree, plain or
compressed. Hosts have no zstd, so a zstd payload is unpacked by the Python that
an earlier payload of the same artefact brought (``bin/python3`` + zstandard).

The same tree packs to the same bytes wherever it lies: names are sorted, owners
are root, modes are 0755 or 0644, times are constant.

Runs on hosts: Python 3.6, standard library only.
"""

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import stat
import subprocess
import tarfile
import threading
import time
from typing import Dict, List, Set, Tuple

SCHEMA = 1
MANIFEST = "artefact.json"
# Written at installation, so no part of the artefact: which one it was, and how fast the disk reads it.
RECEIPT = ".installed.json"
# 1980-01-01: the earliest time that zip based tools accept.
MTIME = 315532800
# Room left on the file system after unpacking, and an upper bound for the metadata of one file.
SPARE_BYTES = 64 * 1024 * 1024
BYTES_PER_INODE = 4096
CHUNK = 1024 * 1024
READ_SAMPLE_BYTES = 256 * 1024 * 1024

_COMPRESS = {
    "gzip": "import gzip,shutil,sys\n"
    "with gzip.GzipFile('', 'wb', 6, sys.stdout.buffer, 0) as out: shutil.copyfileobj(sys.stdin.buffer, out)",
    "zstd": "import sys,zstandard\n"
    "zstandard.ZstdCompressor(level=9, threads=2).copy_stream(sys.stdin.buffer, sys.stdout.buffer)",
}
_UNZSTD = "import sys,zstandard; zstandard.ZstdDecompressor().copy_stream(sys.stdin.buffer, sys.stdout.buffer)"


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


def _mode(info_mode):
    return 0o755 if info_mode & 0o111 else 0o644


def _entry(relative, kind, mode, content):
    return "{0}\0{1}\0{2:o}\0{3}\n".format(relative, kind, mode, content).encode("utf-8", "surrogateescape")


def _tree_digest(entries):
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
            entries[relative] = _entry(relative, "l", 0, os.readlink(path))
        elif stat.S_ISREG(info.st_mode):
            size += info.st_size
            entries[relative] = _entry(relative, "f", _mode(info.st_mode), sha256_file(path))
        else:
            raise ArtefactError("{0} is neither a file, a directory nor a symbolic link".format(path))
    return {"tree_sha256": _tree_digest(entries), "files": files, "unpacked_bytes": size}


def _count_tree(root):
    """{"files", "unpacked_bytes"} without reading any content."""
    files, size = 0, 0
    for _relative, info in walk(root):
        if not stat.S_ISDIR(info.st_mode):
            files += 1
            size += info.st_size if stat.S_ISREG(info.st_mode) else 0
    return {"files": files, "unpacked_bytes": size}


def _check_member_path(name):
    parts = name.split("/")
    if not name or name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ArtefactError("artefact member {0!r} would leave the directory; the artefact is not ours".format(name))


def _check_link(name, target):
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
        member.mode, member.size = _mode(info.st_mode), info.st_size
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
                _check_link(relative, member.linkname)
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
            return _read_manifest(archive, path)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ArtefactError(
            "{0} is not a readable artefact ({1}). Build or copy it again.".format(path, error)
        ) from error


def _read_manifest(archive, path):
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
        _check_member_path(item["file"])
        if item["compression"] not in ("none", "gzip", "zstd"):
            raise ArtefactError(
                "{0}: payload {1} has unknown compression {2!r}".format(path, item["file"], item["compression"])
            )
    return manifest


def read_receipt(directory):
    """What RECEIPT in `directory` says, or None when nothing is installed there."""
    try:
        with open(os.path.join(directory, RECEIPT)) as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def verify(directory, sha256=None, full=False):
    """Problems of the installation in `directory` as a list of sentences; empty when it is sound.

    Quick: the receipt names artefact `sha256`, and number and size of the files are right.
    full: every byte is read and compared with the digest of the tree.
    """
    if not os.path.isdir(directory):
        return ["{0} does not exist".format(directory)]
    receipt = read_receipt(directory)
    if receipt is None:
        return ["{0} has no readable {1}: nothing was completely installed there".format(directory, RECEIPT)]
    if sha256 and receipt.get("artefact_sha256") != sha256:
        return ["{0} holds artefact {1}, wanted {2}".format(directory, receipt.get("artefact_sha256"), sha256)]
    try:
        with open(os.path.join(directory, MANIFEST)) as stream:
            manifest = json.load(stream)
        seen = describe_tree(directory) if full else _count_tree(directory)
    except (OSError, ValueError, ArtefactError) as error:
        return ["{0} cannot be read: {1}".format(directory, error)]
    return [
        "{0}: {1} is {2}, should be {3}".format(directory, key, seen[key], manifest.get(key))
        for key in sorted(seen)
        if seen[key] != manifest.get(key)
    ]


# --------------------------------------------------------------------------- installing


class _HashingReader:
    """Hashes what is read from `stream`; `finish` reads the rest."""

    def __init__(self, stream):
        self._stream = stream
        self._digest = hashlib.sha256()

    def read(self, size=-1):
        block = self._stream.read(size)
        self._digest.update(block)
        return block

    def finish(self):
        while self.read(CHUNK):
            pass
        return self._digest.hexdigest()


@contextlib.contextmanager
def _plain_stream(reader, compression, root):
    """The uncompressed bytes of a payload."""
    if compression == "none":
        yield reader
    elif compression == "gzip":
        with gzip.GzipFile(fileobj=reader, mode="rb") as stream:
            yield stream
    else:
        python = os.path.join(root, "bin", "python3")
        process = subprocess.Popen(
            [python, "-I", "-c", _UNZSTD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        feed_to, plain, complaints = process.stdin, process.stdout, process.stderr
        assert feed_to and plain and complaints
        errors = []

        def feed():
            try:
                with feed_to:
                    shutil.copyfileobj(reader, feed_to, CHUNK)
            except (OSError, tarfile.TarError) as error:
                errors.append(error)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            yield plain
            while plain.read(CHUNK):
                pass
        finally:
            plain.close()
            feeder.join()
            message = complaints.read().decode("utf-8", "replace").strip()
            complaints.close()
            code = process.wait()
        if code != 0 or errors:
            raise ArtefactError(
                "{0} could not unpack a zstd payload: {1}".format(
                    python, message or (errors and errors[0]) or "exit code {0}".format(code)
                )
            )


def _extract(stream, root, entries, links):
    """Unpack the tar `stream` below `root`, noting each entry in `entries`; no path is trusted."""
    with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as archive:
        for member in archive:
            name = member.name
            _check_member_path(name)
            parent = os.path.dirname(name)
            while parent:
                if parent in links:
                    raise ArtefactError("artefact member {0!r} lies below the link {1!r}".format(name, parent))
                parent = os.path.dirname(parent)
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            if member.isdir():
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, 0o755)
                os.chmod(path, 0o755)
            elif member.issym():
                _check_link(name, member.linkname)
                os.symlink(member.linkname, path)
                links.add(name)
                entries[name] = _entry(name, "l", 0, member.linkname)
            elif member.isfile():
                mode = _mode(member.mode)
                reader = _HashingReader(archive.extractfile(member))
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
                with os.fdopen(descriptor, "wb") as target:
                    shutil.copyfileobj(reader, target, CHUNK)
                os.chmod(path, mode)
                os.utime(path, (MTIME, MTIME))
                entries[name] = _entry(name, "f", mode, reader.finish())
            else:
                raise ArtefactError("artefact member {0!r} is neither file, directory nor link".format(name))


def _existing_parent(path):
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "."
    return path


def _check_room(manifest, parent):
    needed = manifest["unpacked_bytes"] + manifest["files"] * BYTES_PER_INODE + SPARE_BYTES
    volume = os.statvfs(_existing_parent(parent))
    available = volume.f_bavail * volume.f_frsize
    if available < needed:
        raise ArtefactError(
            "not enough room for {0} below {1}: {2} MiB are free, {3} MiB are needed. Free some space "
            "or put {1} on a larger file system.".format(manifest["name"], parent, available >> 20, needed >> 20)
        )


@contextlib.contextmanager
def _locked(directory):
    """Only one installation into `directory` at a time; a killed one leaves no lock behind, only the empty file."""
    parent, name = os.path.split(directory)
    path = os.path.join(parent, "." + name + ".lock")
    with open(path, "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArtefactError(
                "another run is installing {0}. Wait for it to end, then run again.".format(directory)
            ) from None
        try:
            yield
        finally:
            os.unlink(path)


_LEFTOVER = re.compile(r"^\.(?:staging-|removed-)(?P<staged>.+)$|^\.(?P<locked>.+)\.lock$")


def _leftovers(parent):
    """(hidden name, name of the directory it belongs to) of what installations into `parent` use meanwhile."""
    for name in sorted(os.listdir(parent)) if os.path.isdir(parent) else ():
        match = _LEFTOVER.match(name)
        if match:
            yield name, match.group("staged") or match.group("locked")


def _is_running(parent, name):
    path = os.path.join(parent, "." + name + ".lock")
    try:
        with open(path) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def find_leftovers(parent):
    """Hidden names in `parent` that interrupted installations and removals left."""
    return [hidden for hidden, name in _leftovers(parent) if not _is_running(parent, name)]


def remove_leftovers(parent):
    """Remove what `find_leftovers` finds."""
    for hidden in find_leftovers(parent):
        path = os.path.join(parent, hidden)
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def measure_read_speed(directory):
    """Bytes per second with which the largest files of `directory` come from the disk, or None if it holds none.

    The page cache is dropped for these files first; a sample of READ_SAMPLE_BYTES at most is read.
    """
    files = sorted(
        ((info.st_size, relative) for relative, info in walk(directory) if stat.S_ISREG(info.st_mode)), reverse=True
    )
    total, started = 0, time.monotonic()
    for _size, relative in files[:16]:
        with open(os.path.join(directory, relative), "rb", buffering=0) as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while total < READ_SAMPLE_BYTES:
                block = stream.read(CHUNK)
                if not block:
                    break
                total += len(block)
        if total >= READ_SAMPLE_BYTES:
            break
    return int(total / max(time.monotonic() - started, 1e-6)) if total else None


def staging_directory(directory):
    """Where `install` unpacks before the result becomes visible as `directory`."""
    parent, name = os.path.split(directory)
    return os.path.join(parent, ".staging-" + name)


def remove_tree(directory):
    """Remove `directory`: gone for readers at once (rename), then deleted. An interrupted removal leaves the
    hidden name, which the next call for the same directory deletes."""
    parent, name = os.path.split(directory)
    trash = os.path.join(parent, ".removed-" + name)
    if os.path.lexists(trash):
        shutil.rmtree(trash)
    if os.path.lexists(directory):
        os.rename(directory, trash)
        shutil.rmtree(trash)


def install(source, sha256, directory, progress=None):
    """Make `directory` hold the content of the artefact file `source`; returns its receipt.

    The file's sha256 is checked before anything is unpacked, every payload's and the whole tree's after;
    only then the directory appears, by one rename. An existing directory is replaced.
    progress: called with (stage, percent or None, message).
    Raises ArtefactError; then `directory` is as it was.
    """
    say = progress or (lambda stage, percent, message: None)
    directory = os.path.abspath(directory)
    parent = os.path.dirname(directory)
    say("verify", None, "checking the digest of {0}".format(source))
    try:
        seen = sha256_file(source)
    except OSError as error:
        raise ArtefactError("artefact {0} cannot be read: {1}".format(source, error)) from error
    if seen != sha256:
        raise ArtefactError(
            "{0} has sha256 {1}, expected {2}: the file is damaged, cut short or another artefact. "
            "Copy it again, or correct the expected sha256.".format(source, seen, sha256)
        )
    manifest = read_manifest(source)
    _check_room(manifest, parent)
    os.makedirs(parent, mode=0o755, exist_ok=True)
    with _locked(directory):
        staging = staging_directory(directory)
        shutil.rmtree(staging, ignore_errors=True)
        try:
            os.mkdir(staging, 0o755)
            _unpack(source, manifest, staging, say)
            say("sync", None, "writing to disk")
            os.sync()
            receipt = {"artefact_sha256": sha256, "read_bytes_per_s": measure_read_speed(staging)}
            with open(os.path.join(staging, MANIFEST), "w") as stream:
                json.dump(manifest, stream, sort_keys=True, indent=1)
            with open(os.path.join(staging, RECEIPT), "w") as stream:
                json.dump(receipt, stream, sort_keys=True)
                stream.flush()
                os.fsync(stream.fileno())
            remove_tree(directory)
            os.rename(staging, directory)
            _fsync_directory(parent)
        except OSError as error:
            raise ArtefactError("could not install {0} into {1}: {2}".format(source, directory, error)) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return receipt


def _fsync_directory(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unpack(source, manifest, root, say):
    entries: Dict[str, bytes] = {}
    links: Set[str] = set()
    try:
        with tarfile.open(source, "r:") as archive:
            _read_manifest(archive, source)
            for number, item in enumerate(manifest["payload"]):
                say("unpack", 100 * number // len(manifest["payload"]), "unpacking " + item["file"])
                member = archive.next()
                if member is None or member.name != item["file"]:
                    raise ArtefactError("{0}: payload {1} is missing".format(source, item["file"]))
                reader = _HashingReader(archive.extractfile(member))
                with _plain_stream(reader, item["compression"], root) as stream:
                    _extract(stream, root, entries, links)
                seen = reader.finish()
                if seen != item["sha256"]:
                    raise ArtefactError(
                        "{0}: payload {1} has sha256 {2}, expected {3}".format(
                            source, item["file"], seen, item["sha256"]
                        )
                    )
    except (tarfile.TarError, EOFError) as error:
        raise ArtefactError("{0} is damaged: {1}. Copy or build it again.".format(source, error)) from error
    tree = _tree_digest(entries)
    if tree != manifest["tree_sha256"]:
        raise ArtefactError(
            "{0} unpacked to a tree with digest {1}, expected {2}".format(source, tree, manifest["tree_sha256"])
        )


_RELEASE_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")


def release_id(id_prefix, sha256):
    """Name of the directory an artefact is installed as: prefix and the first 12 digits of its sha256."""
    value = "{0}-{1}".format(id_prefix, sha256[:12])
    if not _RELEASE_ID.match(value):
        raise ArtefactError("{0!r} cannot name a directory".format(value))
    return value
