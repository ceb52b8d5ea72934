# SPDX-License-Identifier: Apache-2.0
"""Directories that appear whole or not at all, and the digests that say what is in them."""

import contextlib
import errno
import hashlib
import json
import os
import shutil

from ansible.module_utils.vllm_ansible import locks
from ansible.module_utils.vllm_ansible.convert import ModelError

_CHUNK = 4 * 1024 * 1024


def digest_of(content):
    """sha256 of any JSON-like value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_digest(path, on_progress=None):
    """sha256 of a file in lower-case hex; `on_progress` gets (bytes read, size of the file)."""
    digest, done, size = hashlib.sha256(), 0, os.path.getsize(path)
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK), b""):
            digest.update(chunk)
            done += len(chunk)
            if on_progress:
                on_progress(done, size)
    return digest.hexdigest()


def list_files(directory):
    """Relative paths of all files below a directory, sorted.

    Raises:
        ModelError: a symbolic link that leads out of the directory, or something that is no plain file.
    """
    root, found = os.path.realpath(directory), []
    for parent, _folders, names in os.walk(root):
        for name in names:
            path = os.path.join(parent, name)
            if not os.path.realpath(path).startswith(root + os.sep):
                raise ModelError(f"{path} is a link out of the model directory, to {os.path.realpath(path)}")
            if not os.path.isfile(path):
                raise ModelError(f"{path} is not a regular file; remove it from the model")
            found.append(os.path.relpath(path, root))
    return sorted(found)


def describe_files(directory, on_progress=None):
    """{relative path: {"size_bytes", "sha256"}} of every file below a directory."""
    return {
        name: {
            "size_bytes": os.path.getsize(os.path.join(directory, name)),
            "sha256": file_digest(os.path.join(directory, name), on_progress),
        }
        for name in list_files(directory)
    }


def snapshot(path):
    """{relative path: [size, time of last change in ns]} of a file or of all files below a directory; no reading."""
    if os.path.isfile(path):
        names = {os.path.basename(path): path}
    else:
        names = {name: os.path.join(path, name) for name in list_files(path)}
    return {name: [os.stat(full).st_size, os.stat(full).st_mtime_ns] for name, full in names.items()}


def compare_files(directory, files, full):
    """How a directory differs from what describe_files said of it.

    Args:
        files: the earlier answer of describe_files.
        full: read all content again; otherwise names and sizes decide.

    Returns:
        list of sentences, empty where nothing differs.
    """
    if not os.path.isdir(directory):
        return [f"{directory} does not exist"]
    seen = list_files(directory)
    problems = [f"{name} is missing" for name in sorted(set(files) - set(seen))]
    problems += [f"{name} does not belong there" for name in sorted(set(seen) - set(files))]
    for name in sorted(set(seen) & set(files)):
        path, expected = os.path.join(directory, name), files[name]
        size = os.path.getsize(path)
        if size != expected["size_bytes"]:
            problems.append(f"{name} has {size} bytes, expected {expected['size_bytes']}")
        elif full and file_digest(path) != expected["sha256"]:
            problems.append(f"{name} has other content than its digest {expected['sha256'][:12]} says")
    return problems


def write_json(path, content):
    """Write a JSON file whose bytes depend on the content alone, and flush it to the disk."""
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(content, stream, indent=2, ensure_ascii=False, sort_keys=True)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())


def read_json(path):
    """The content of a JSON file; None where the file is absent or not JSON."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def require_space(directory, needed, option):
    """Refuse before anything is written where `needed` bytes do not fit.

    Args:
        directory: where the bytes will go; its nearest existing parent is asked.
        option: name of the setting that chooses the directory, for the message.
    """
    existing = os.path.abspath(directory)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    status = os.statvfs(existing)
    available = status.f_bavail * status.f_frsize
    if available < needed:
        raise ModelError(
            f"{existing} has {available} bytes free, {needed} are needed. Free some space or set {option} to a larger "
            "file system."
        )


@contextlib.contextmanager
def exclusive(dest):
    """Hold the one right to change `dest`; a second run waits instead of mixing its files in."""
    folder, name = os.path.split(dest)
    os.makedirs(folder, exist_ok=True)
    try:
        with locks.exclusive(os.path.join(folder, f".{name}.lock")):
            yield
    except locks.BusyError as error:
        raise ModelError(
            f"another run has been working on {dest} for {locks.WAIT_SECONDS // 60} minutes; wait for it to end"
        ) from error


@contextlib.contextmanager
def explain_full_disk(directory, option):
    """Turn "no space left" into a ModelError that names the directory and the setting that moves it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ModelError(
            f"no space left under {directory}. Free some space or set {option} to a larger file system; "
            "a rerun continues."
        ) from error


def publish(staging, dest):
    """Make a finished staging directory visible as `dest`, in place of what was there.

    A reader sees the old directory, for a moment none, or the new one; never a mixture.
    """
    retired = f"{dest}.old"
    remove(retired)
    if os.path.lexists(dest):
        os.rename(dest, retired)
    os.rename(staging, dest)
    folder = os.open(os.path.dirname(dest), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    remove(retired)


def remove(path):
    """Remove a file or a directory tree; nothing happens where there is none."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
