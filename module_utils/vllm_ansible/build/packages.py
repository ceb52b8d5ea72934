# SPDX-License-Identifier: Apache-2.0
"""Lock files and the folder of downloaded packages: nothing is used whose digest was not checked just now.

Runs on hosts: Python 3.6, standard library only.
"""

import os
import re
from typing import Dict, List, Tuple

from ansible.module_utils.vllm_ansible.artefact import sha256_file
from ansible.module_utils.vllm_ansible.build.tree import BuildError, checked, remove

_LINE = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;]+)((?:\s+--hash=sha256:[0-9a-f]{64})*)\s*$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Locked:
    """One line of a lock file: name, version and the sha256 that are allowed (none: any)."""

    def __init__(self, name, version, hashes):
        self.name, self.version, self.hashes = normalise(name), version, frozenset(hashes)

    @property
    def line(self):
        """The line as pip reads it."""
        return "{0}=={1}".format(self.name, self.version) + "".join(
            " --hash=sha256:" + value for value in sorted(self.hashes)
        )


def normalise(name):
    """A distribution's name in its one spelling."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_lock(text, source):
    """The `Locked` lines of a lock file. Raises BuildError for anything else than NAME==VERSION [--hash=…]."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if not match:
            raise BuildError("{0}, line {1}: {2!r} is not NAME==VERSION --hash=sha256:…".format(source, number, line))
        found.append(Locked(match.group(1), match.group(2), _HASH.findall(match.group(3))))
    return found


def identify(filename):
    """(normalised name, version) a wheel or a source archive carries in its name, or None."""
    if filename.endswith(".whl"):
        parts = filename[: -len(".whl")].split("-")
        return (normalise(parts[0]), parts[1]) if len(parts) >= 5 else None
    if filename.endswith(".tar.gz"):
        name, _dash, version = filename[: -len(".tar.gz")].rpartition("-")
        return (normalise(name), version) if name else None
    return None


def suits(filename, architecture):
    """Whether a file with this name is a wheel for hosts of `architecture` (None: any file)."""
    if architecture is None:
        return True
    if not filename.endswith(".whl"):
        return False
    platforms = filename[: -len(".whl")].split("-")[-1].split(".")
    return any(platform == "any" or platform.endswith("_" + architecture) for platform in platforms)


def options_for(architecture, python_version):
    """Options with which pip takes wheels for hosts of `architecture`, whatever machine it runs on."""
    names = ["manylinux_2_{0}_{1}".format(minor, architecture) for minor in range(31, 16, -1)]
    names.append("manylinux2014_" + architecture)
    return (
        ["--only-binary=:all:", "--implementation=cp", "--python-version=" + python_version]
        + ["--platform=" + name for name in names]
        + ["--platform=linux_" + architecture]
    )


def match_files(folder, locked, architecture=None):
    """({name: path}, [Locked without a sound file]) for what lies in `folder`; every file is hashed."""
    present: Dict[Tuple[str, str], List[str]] = {}
    for filename in sorted(os.listdir(folder)):
        identity = identify(filename)
        if identity and suits(filename, architecture):
            present.setdefault(identity, []).append(os.path.join(folder, filename))
    found, missing = {}, []
    for item in locked:
        for path in present.get((item.name, item.version), ()):
            if not item.hashes or sha256_file(path) in item.hashes:
                found[item.name] = path
                break
        else:
            missing.append(item)
    return found, missing


def fetch(run, pip, folder, locked, scratch, environ=None, options=("--only-binary=:all:",), architecture=None):
    """{name: path} of a file for every locked package, downloading with `pip` (an argv) what is missing.

    pip takes index, proxies and certificates from its own configuration. A file that is cut short or altered
    fails its digest, is fetched again, and is never installed.
    """
    os.makedirs(folder, exist_ok=True)
    found, missing = match_files(folder, locked, architecture)
    for checked_hashes in (True, False):
        wanted = [item for item in missing if bool(item.hashes) == checked_hashes]
        if not wanted:
            continue
        for item in wanted:
            _forget(folder, item, architecture)
        listing = os.path.join(scratch, "download.txt")
        with open(listing, "w") as stream:
            stream.write("\n".join(item.line for item in wanted) + "\n")
        checked(
            run,
            pip
            + ["download", "--quiet", "--no-deps", "--dest", folder, "--requirement", listing]
            + list(options)
            + (["--require-hashes"] if checked_hashes else []),
            "downloading "
            + ", ".join(item.name for item in wanted[:3])
            + (" and {0} more".format(len(wanted) - 3) if len(wanted) > 3 else ""),
            environ,
        )
    if missing:
        found, missing = match_files(folder, locked, architecture)
    if missing:
        raise BuildError(
            "pip delivered no file with the locked digest for {0}. The index serves other files than "
            "the lock names; correct the index, or lock again with tools/engine_lock.py.".format(
                ", ".join("{0}=={1}".format(item.name, item.version) for item in missing)
            )
        )
    return found


def _forget(folder, item, architecture):
    for filename in os.listdir(folder):
        if identify(filename) == (item.name, item.version) and suits(filename, architecture):
            remove(os.path.join(folder, filename))
