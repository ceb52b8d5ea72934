# SPDX-License-Identifier: Apache-2.0
"""Patch series of engine_overrides: headers, order, digests and the rules they obey.

A version's folder holds ``common/`` and one folder per backend with a ``series`` file: relative paths of
patches, one a line, in the order of application. See docs/engine-overrides.md.

Runs on hosts: Python 3.6, standard library only.
"""

import hashlib
import os
import re
from typing import Set

BUDGET = 8
SHARED_FOLDER = "common"
SERIES_FILE = "series"
REQUIRED_FIELDS = ("Description", "Origin", "Forwarded", "Last-Update", "X-Drop-When", "X-Verified-By")

_NAME = re.compile(r"^\d{4}-[a-z][a-z0-9]*(-[a-z0-9]+)*\.patch$")
_FIELD = re.compile(r"^([A-Za-z][A-Za-z-]*):[ \t]*(.*)$")
_ORIGIN = re.compile(r"^(upstream|backport|vendor|other), *\S")
_FORWARDED = re.compile(r"^(no|not-needed|https?://\S+)$")
_DATE = re.compile(r"^\d{4}-\d{2}-\d{2}$")
_DROP_WHEN = re.compile(r"^engine\s*>=\s*(\d+(?:\.\d+)*)\b")
_FILE = re.compile(r"^(?:---|\+\+\+) (\S+)")


class OverridesError(Exception):
    """Says what is wrong, what was seen and what to do."""


def parse_header(text):
    """DEP-3 fields of a patch as {name: value}; continuation lines keep their line breaks.

    The header ends at the first line that begins a diff or is ``---``.
    """
    fields, current = {}, None
    for line in text.splitlines():
        if line == "---" or line.startswith(("--- ", "diff ", "Index: ")):
            break
        match = _FIELD.match(line)
        if match:
            current = match.group(1)
            fields[current] = match.group(2).strip()
        elif current and line.startswith((" ", "\t")):
            fields[current] += "\n" + line.strip()
    return fields


def touched_files(text):
    """Sorted paths a patch changes, without the a/ or b/ in front. Raises OverridesError for a path outside."""
    paths = set()
    for line in text.splitlines():
        match = _FILE.match(line)
        if match and match.group(1) != "/dev/null":
            head, _slash, path = match.group(1).partition("/")
            if head not in ("a", "b") or not path or path.startswith("/") or ".." in path.split("/"):
                raise OverridesError(
                    "the patch names {0!r}; write a/PATH and b/PATH inside the source".format(match.group(1))
                )
            paths.add(path)
    return sorted(paths)


def version_tuple(text):
    """(0, 32, 0) for "0.32.0"; parts that are no numbers end it."""
    numbers = []
    for part in text.split("."):
        digits = re.match(r"\d+", part)
        if not digits:
            break
        numbers.append(int(digits.group(0)))
        if digits.group(0) != part:
            break
    return tuple(numbers)


def backends(folder):
    """Sorted names of the backends that have a series below the version's `folder`."""
    return sorted(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name, SERIES_FILE)))


def read_series(folder, backend):
    """Paths of the patches of `backend` relative to the version's `folder`, in order of application.

    Raises OverridesError when the series names a file that is not there, that lies elsewhere, or twice.
    """
    listing = os.path.join(folder, backend, SERIES_FILE)
    try:
        with open(listing) as stream:
            lines = [line.strip() for line in stream]
    except OSError as error:
        raise OverridesError("{0} cannot be read: {1}".format(listing, error.strerror)) from error
    paths = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        path = os.path.normpath(os.path.join(backend, line))
        if os.path.dirname(path) not in (SHARED_FOLDER, backend):
            raise OverridesError(
                "{0} names {1}; a series takes patches of {2}/ and of its own folder only".format(
                    listing, line, SHARED_FOLDER
                )
            )
        if not os.path.isfile(os.path.join(folder, path)):
            raise OverridesError(
                "{0} names {1}, which does not exist. Correct the name or remove the line".format(listing, line)
            )
        if path in paths:
            raise OverridesError("{0} names {1} twice".format(listing, line))
        paths.append(path)
    return paths


def read_patch(folder, path):
    """Text of a patch."""
    with open(os.path.join(folder, path), encoding="utf-8") as stream:
        return stream.read()


def series_digest(folder, paths):
    """sha256 over the contents of the patches in order: what a build depends on."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(read_patch(folder, path).encode("utf-8")).digest())
    return digest.hexdigest()


def result_digest(source, paths):
    """sha256 that names the patched state of the files `paths` below `source` (a removed file counts as such)."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        try:
            with open(os.path.join(source, path), "rb") as stream:
                content = hashlib.sha256(stream.read()).hexdigest()
        except OSError:
            content = "removed"
        digest.update("{0}\0{1}\n".format(path, content).encode("utf-8"))
    return digest.hexdigest()


def patch_problems(path, text, version, root):
    """Everything wrong with one patch, as sentences. `root`: the repository, where X-Verified-By is looked up."""
    problems = []
    name = os.path.basename(path)
    fields = parse_header(text)

    def say(message):
        problems.append("{0}: {1}".format(path, message))

    if not _NAME.match(name):
        say("the name must be NNNN-words-with-hyphens.patch")
    if version in name or version.replace(".", "-") in name:
        say("the name must not hold the engine's version; the folder says it")
    for field in REQUIRED_FIELDS:
        if not fields.get(field):
            say("the header lacks {0}".format(field))
    if fields.get("Origin") and not _ORIGIN.match(fields["Origin"]):
        say("Origin is {0!r}; write upstream, backport, vendor or other, a comma and where".format(fields["Origin"]))
    if fields.get("Forwarded") and not _FORWARDED.match(fields["Forwarded"].splitlines()[0]):
        say("Forwarded is {0!r}; write no, not-needed or the address".format(fields["Forwarded"]))
    if fields.get("Last-Update") and not _DATE.match(fields["Last-Update"]):
        say("Last-Update is {0!r}; write YYYY-MM-DD".format(fields["Last-Update"]))
    applied = version_tuple(fields.get("Applied-Upstream", ""))
    if applied and applied <= version_tuple(version):
        say("Applied-Upstream is {0}: {1} has it already. Remove the patch".format(fields["Applied-Upstream"], version))
    drop = _DROP_WHEN.match(fields.get("X-Drop-When", ""))
    if drop and version_tuple(version) >= version_tuple(drop.group(1)):
        say("X-Drop-When is {0!r} and this is {1}. Remove the patch".format(fields["X-Drop-When"], version))
    for proof in fields.get("X-Verified-By", "").replace(",", " ").split():
        if not os.path.isfile(os.path.join(root, proof)):
            say("X-Verified-By names {0}, which does not exist".format(proof))
    try:
        if not touched_files(text):
            say("it changes no file")
    except OverridesError as error:
        say(str(error))
    return problems


def folder_problems(folder, version, root):
    """Everything wrong with the folder of one engine version, as sentences."""
    problems, listed = [], set()
    names = backends(folder)
    if not names:
        problems.append("{0}: no backend has a {1} file".format(folder, SERIES_FILE))
    for backend in names:
        try:
            paths = read_series(folder, backend)
        except OverridesError as error:
            problems.append(str(error))
            continue
        listed.update(paths)
        if len(paths) > BUDGET:
            problems.append(
                "{0}: {1} patches, the budget is {2}. Bring some upstream or fork".format(backend, len(paths), BUDGET)
            )
    present: Set[str] = set()
    for entry in sorted(os.listdir(folder)):
        if os.path.isdir(os.path.join(folder, entry)):
            present.update(
                os.path.join(entry, name) for name in os.listdir(os.path.join(folder, entry)) if name != SERIES_FILE
            )
    for path in sorted(present - listed):
        problems.append("{0}: in no series. List it or remove it".format(path))
    for path in sorted(present & listed):
        problems.extend(patch_problems(path, read_patch(folder, path), version, root))
    return problems
