# SPDX-License-Identifier: Apache-2.0
"""Turns an artefact into one immutable directory: all of it or none.

Apart from `artefact`, whose code decides what an artefact's bytes are: a change here must not lead to new artefacts.

Runs on hosts: Python 3.6, standard library only.
"""

import contextlib
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tarfile
import threading
import time
from typing import Dict, Set

from ansible.module_utils.vllm_ansible import artefact, locks
from ansible.module_utils.vllm_ansible.artefact import RECEIPT

# Room left on the file system after unpacking, and an upper bound for the metadata of one file.
SPARE_BYTES = 64 * 1024 * 1024
BYTES_PER_INODE = 4096
READ_SAMPLE_BYTES = 256 * 1024 * 1024

_UNZSTD = "import sys,zstandard; zstandard.ZstdDecompressor().copy_stream(sys.stdin.buffer, sys.stdout.buffer)"


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
        with open(os.path.join(directory, artefact.MANIFEST)) as stream:
            manifest = json.load(stream)
        seen = artefact.describe_tree(directory) if full else artefact.count_tree(directory)
    except (OSError, ValueError, artefact.ArtefactError) as error:
        return ["{0} cannot be read: {1}".format(directory, error)]
    return [
        "{0}: {1} is {2}, should be {3}".format(directory, key, seen[key], manifest.get(key))
        for key in sorted(seen)
        if seen[key] != manifest.get(key)
    ]


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
        while self.read(artefact.CHUNK):
            pass
        return self._digest.hexdigest()


@contextlib.contextmanager
def _plain_stream(reader, compression, root, python=None):
    """The uncompressed bytes of a payload."""
    if compression == "none":
        yield reader
    elif compression == "gzip":
        with gzip.GzipFile(fileobj=reader, mode="rb") as stream:
            yield stream
    else:
        python = python or os.path.join(root, "bin", "python3")
        process = subprocess.Popen(
            [python, "-I", "-c", _UNZSTD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        feed_to, plain, complaints = process.stdin, process.stdout, process.stderr
        assert feed_to and plain and complaints
        errors = []

        def feed():
            try:
                with feed_to:
                    shutil.copyfileobj(reader, feed_to, artefact.CHUNK)
            except (OSError, tarfile.TarError) as error:
                errors.append(error)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            yield plain
            while plain.read(artefact.CHUNK):
                pass
        finally:
            plain.close()
            feeder.join()
            message = complaints.read().decode("utf-8", "replace").strip()
            complaints.close()
            code = process.wait()
        if code != 0 or errors:
            raise artefact.ArtefactError(
                "{0} could not unpack a zstd payload: {1}".format(
                    python, message or (errors and errors[0]) or "exit code {0}".format(code)
                )
            )


def _extract(stream, root, entries, links):
    """Unpack the tar `stream` below `root`, noting each entry in `entries`; no path is trusted."""
    folders = {""}
    with tarfile.open(fileobj=stream, mode="r|", bufsize=artefact.CHUNK) as archive:
        for member in archive:
            # Python 3.7 leaves the slash at the end of a directory's name when that is long.
            name = member.name.rstrip("/") if member.isdir() else member.name
            artefact.check_member_path(name)
            path = os.path.join(root, name)
            _make_folders(root, name if member.isdir() else os.path.dirname(name), folders, links)
            if member.isdir():
                continue
            if member.issym():
                artefact.check_link(name, member.linkname)
                os.symlink(member.linkname, path)
                links.add(name)
                entries[name] = artefact.tree_entry(name, "l", 0, member.linkname)
            elif member.isfile():
                mode = artefact.file_mode(member.mode)
                reader = _HashingReader(archive.extractfile(member))
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
                with os.fdopen(descriptor, "wb") as target:
                    shutil.copyfileobj(reader, target, artefact.CHUNK)
                entries[name] = artefact.tree_entry(name, "f", mode, reader.finish())
            else:
                raise artefact.ArtefactError("artefact member {0!r} is neither file, directory nor link".format(name))


def _make_folders(root, name, folders, links):
    """Create the directory `name` below `root`, parents first, never through a link of the artefact."""
    if name in folders:
        return
    if name in links:
        raise artefact.ArtefactError("artefact has members below its link {0!r}".format(name))
    _make_folders(root, os.path.dirname(name), folders, links)
    with contextlib.suppress(FileExistsError):
        os.mkdir(os.path.join(root, name), 0o755)
    folders.add(name)


def _existing_parent(path):
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "."
    return path


def _check_room(manifest, parent):
    needed = manifest["unpacked_bytes"] + manifest["files"] * BYTES_PER_INODE + SPARE_BYTES
    volume = os.statvfs(_existing_parent(parent))
    available = volume.f_bavail * volume.f_frsize
    if available < needed:
        raise artefact.ArtefactError(
            "not enough room for {0} below {1}: {2} MiB are free, {3} MiB are needed. Free some space "
            "or put {1} on a larger file system.".format(manifest["name"], parent, available >> 20, needed >> 20)
        )


def _lock_file(directory):
    parent, name = os.path.split(directory)
    return os.path.join(parent, "." + name + ".lock")


@contextlib.contextmanager
def _umask(mask):
    """Files get exactly the modes they are created with, whatever the caller's umask is."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


_LEFTOVER = re.compile(r"^\.(?:staging-|removed-)(?P<staged>.+)$|^\.(?P<locked>.+)\.lock$")


def _leftovers(parent):
    """(hidden name, name of the directory it belongs to) of what installations into `parent` use meanwhile."""
    for name in sorted(os.listdir(parent)) if os.path.isdir(parent) else ():
        match = _LEFTOVER.match(name)
        if match:
            yield name, match.group("staged") or match.group("locked")


def find_leftovers(parent):
    """Hidden names in `parent` that interrupted installations and removals left."""
    return [hidden for hidden, name in _leftovers(parent) if not locks.is_held(_lock_file(os.path.join(parent, name)))]


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
        ((info.st_size, relative) for relative, info in artefact.walk(directory) if stat.S_ISREG(info.st_mode)),
        reverse=True,
    )
    total, started = 0, time.monotonic()
    for _size, relative in files[:16]:
        with open(os.path.join(directory, relative), "rb", buffering=0) as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while total < READ_SAMPLE_BYTES:
                block = stream.read(artefact.CHUNK)
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


def _trash(directory):
    parent, name = os.path.split(directory)
    return os.path.join(parent, ".removed-" + name)


def remove_tree(directory):
    """Remove `directory`: gone for readers at once (rename), then deleted. An interrupted removal leaves the
    hidden name, which the next call for the same directory deletes."""
    trash = _trash(directory)
    if os.path.lexists(trash):
        shutil.rmtree(trash)
    if os.path.lexists(directory):
        os.rename(directory, trash)
        shutil.rmtree(trash)


def install(source, sha256, directory, progress=None, python=None):
    """Make `directory` hold the content of the artefact file `source`; returns its receipt.

    The file's sha256 is checked before anything is unpacked, every payload's and the whole tree's after;
    only then the directory appears, by one rename. An existing directory is replaced.
    progress: called with (stage, percent or None, message).
    python: interpreter with zstandard that unpacks, when the artefact's own is for another processor.
    Raises artefact.ArtefactError; then `directory` is as it was.
    """
    say = progress or (lambda stage, percent, message: None)
    directory = os.path.abspath(directory)
    parent = os.path.dirname(directory)
    say("verify", None, "checking the digest of {0}".format(source))
    try:
        seen = artefact.sha256_file(source)
    except OSError as error:
        raise artefact.ArtefactError("artefact {0} cannot be read: {1}".format(source, error)) from error
    if seen != sha256:
        raise artefact.ArtefactError(
            "{0} has sha256 {1}, expected {2}: the file is damaged, cut short or another artefact. "
            "Copy it again, or correct the expected sha256.".format(source, seen, sha256)
        )
    manifest = artefact.read_manifest(source)
    os.makedirs(parent, mode=0o755, exist_ok=True)
    try:
        with locks.exclusive(_lock_file(directory), lambda: say("wait", None, "another run is installing it")):
            # by the run that was waited for
            if not verify(directory, sha256, full=True):
                return read_receipt(directory)
            with _umask(0o022):
                return _install(source, sha256, manifest, directory, say, python)
    except locks.BusyError:
        raise artefact.ArtefactError(
            "another run has been installing {0} for {1} minutes. Wait for it to end, then run again.".format(
                directory, locks.WAIT_SECONDS // 60
            )
        ) from None
    except OSError as error:
        raise artefact.ArtefactError("could not install {0} into {1}: {2}".format(source, directory, error)) from error


def _install(source, sha256, manifest, directory, say, python):
    """Unpack into the staging directory, prove it, rename it; returns the receipt."""
    staging = staging_directory(directory)
    shutil.rmtree(staging, ignore_errors=True)
    _check_room(manifest, os.path.dirname(directory))
    try:
        os.mkdir(staging, 0o755)
        _unpack(source, manifest, staging, say, python)
        say("sync", None, "writing to disk")
        os.sync()
        receipt = {"artefact_sha256": sha256, "read_bytes_per_s": measure_read_speed(staging)}
        with open(os.path.join(staging, artefact.MANIFEST), "w") as stream:
            json.dump(manifest, stream, sort_keys=True, indent=1)
        with open(os.path.join(staging, RECEIPT), "w") as stream:
            json.dump(receipt, stream, sort_keys=True)
            stream.flush()
            os.fsync(stream.fileno())
        _replace(directory, staging)
        _fsync_directory(os.path.dirname(directory))
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return receipt


def _replace(directory, staging):
    """Let `staging` become `directory`; what was there is moved aside first and then deleted."""
    trash = _trash(directory)
    shutil.rmtree(trash, ignore_errors=True)
    if os.path.lexists(directory):
        os.rename(directory, trash)
    os.rename(staging, directory)
    shutil.rmtree(trash, ignore_errors=True)


def _fsync_directory(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unpack(source, manifest, root, say, python):
    entries: Dict[str, bytes] = {}
    links: Set[str] = set()
    try:
        with tarfile.open(source, "r:") as archive:
            artefact.manifest_of(archive, source)
            for number, item in enumerate(manifest["payload"]):
                say("unpack", 100 * number // len(manifest["payload"]), "unpacking " + item["file"])
                member = archive.next()
                if member is None or member.name != item["file"]:
                    raise artefact.ArtefactError("{0}: payload {1} is missing".format(source, item["file"]))
                reader = _HashingReader(archive.extractfile(member))
                with _plain_stream(reader, item["compression"], root, python) as stream:
                    _extract(stream, root, entries, links)
                seen = reader.finish()
                if seen != item["sha256"]:
                    raise artefact.ArtefactError(
                        "{0}: payload {1} has sha256 {2}, expected {3}".format(
                            source, item["file"], seen, item["sha256"]
                        )
                    )
    except (tarfile.TarError, EOFError) as error:
        raise artefact.ArtefactError("{0} is damaged: {1}. Copy or build it again.".format(source, error)) from error
    tree = artefact.tree_digest(entries)
    if tree != manifest["tree_sha256"]:
        raise artefact.ArtefactError(
            "{0} unpacked to a tree with digest {1}, expected {2}".format(source, tree, manifest["tree_sha256"])
        )
