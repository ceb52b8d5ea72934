# SPDX-License-Identifier: Apache-2.0
"""Where the release's own Python comes from.

Two providers with the same two methods: `describe()` says what the Python is made of, as part of the build's
inputs, and changes nothing; `provide(root)` lays it out as bin/pythonX.Y, lib/pythonX.Y and lib/*.so.

debian: the packages of the build machine's Debian, unpacked, not installed. The release then runs on a host of the
same or a newer glibc without any Python. Which versions these are is decided by the first build and kept until a
refresh is asked for: a security update of Debian must not restart a fleet by surprise.
prefix: any interpreter that lies in a folder of its own; the libraries it loads are taken from the build machine.

Runs on hosts: Python 3.6, standard library only.
"""

import glob
import hashlib
import json
import os
import re
import shutil
import stat
from typing import Any, Dict

from ansible.module_utils.vllm_ansible.artefact import sha256_file
from ansible.module_utils.vllm_ansible.build import elf
from ansible.module_utils.vllm_ansible.build.tree import (
    DROPPED_EXTENSIONS,
    GLIBC_LIBRARIES,
    PRELOADED,
    BuildError,
    checked,
)

_URI_LINE = re.compile(r"^'[^']*' (\S+) (\d+) SHA256:([0-9a-f]{64})$")
_LIBRARY_FOLDERS = (
    "/lib/*-linux-gnu",
    "/usr/lib/*-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
)


class RuntimeUnknownError(BuildError):
    """What the runtime would be made of cannot be said yet."""


def parse_uris(text):
    """{package: {"file", "version", "size", "sha256"}} from `apt-get --print-uris download`."""
    found = {}
    for line in text.splitlines():
        match = _URI_LINE.match(line.strip())
        if match:
            filename, size, sha256 = match.groups()
            name, version, _architecture = filename[: -len(".deb")].split("_")
            found[name] = {
                "file": filename,
                "version": version.replace("%3a", ":"),
                "size": int(size),
                "sha256": sha256,
            }
    return found


class DebianRuntime:
    """Python from Debian packages."""

    def __init__(self, run, packages, downloads, refresh=False):
        self._run, self._names, self._downloads, self._refresh = run, packages, downloads, refresh
        self._chosen = os.path.join(downloads, "chosen.json")
        self._packages: Dict[str, Dict[str, Any]] = {}

    def _known(self):
        try:
            with open(self._chosen) as stream:
                found = json.load(stream)
        except (OSError, ValueError):
            return None
        return found if sorted(found) == sorted(self._names) else None

    def _ask(self):
        rc, out, err = self._run(["apt-get", "--print-uris", "--quiet", "download"] + self._names)
        found = parse_uris(out)
        missing = sorted(set(self._names) - set(found))
        if missing:
            raise RuntimeUnknownError(
                "apt knows no package {0}. Refresh its lists (apt-get update), or set the runtime provider to prefix "
                "on a machine that is not Debian.\n{1}".format(", ".join(missing), err.strip()[-500:])
            )
        if rc != 0:
            raise BuildError("apt-get could not name its packages: {0}".format(err.strip()[-500:]))
        return found

    def describe(self):
        """{"provider", "packages": {name: {"version", "sha256"}}}."""
        self._packages = found = (None if self._refresh else self._known()) or self._ask()
        return {
            "provider": "debian",
            "packages": {name: {"version": item["version"], "sha256": item["sha256"]} for name, item in found.items()},
        }

    def provide(self, root):
        """Unpack the packages and lay the interpreter out below `root`."""
        os.makedirs(self._downloads, exist_ok=True)
        partial = self._chosen + ".partial"
        with open(partial, "w") as stream:
            json.dump(self._packages, stream, sort_keys=True, indent=1)
        os.rename(partial, self._chosen)
        unpacked = root + ".packages"
        shutil.rmtree(unpacked, ignore_errors=True)
        for name in sorted(self._packages):
            item = self._packages[name]
            path = os.path.join(self._downloads, item["file"])
            if not os.path.exists(path) or sha256_file(path) != item["sha256"]:
                checked(
                    self._run,
                    ["apt-get", "--quiet", "download", "{0}={1}".format(name, item["version"])],
                    "downloading {0} {1} (when Debian has replaced it: set refresh_runtime)".format(
                        name, item["version"]
                    ),
                    cwd=self._downloads,
                )
            if sha256_file(path) != item["sha256"]:
                raise BuildError(
                    "{0} has not the sha256 {1} that apt names. Remove it and run again.".format(path, item["sha256"])
                )
            checked(self._run, ["dpkg-deb", "--extract", path, unpacked], "unpacking " + name)
        interpreters = glob.glob(os.path.join(unpacked, "usr/bin/python3.*"))
        if len(interpreters) != 1:
            raise BuildError("the runtime's packages hold {0} interpreters, expected one".format(len(interpreters)))
        version = os.path.basename(interpreters[0])
        os.makedirs(os.path.join(root, "bin"))
        shutil.copy2(interpreters[0], os.path.join(root, "bin", version))
        shutil.copytree(os.path.join(unpacked, "usr/lib", version), os.path.join(root, "lib", version), symlinks=True)
        for folder in ("lib/*-linux-gnu", "usr/lib/*-linux-gnu"):
            for path in sorted(glob.glob(os.path.join(unpacked, folder, "*.so*"))):
                shutil.copy2(path, os.path.join(root, "lib"), follow_symlinks=False)
        shutil.rmtree(unpacked)


class PrefixRuntime:
    """Python from an installation prefix such as /opt/python3.11."""

    def __init__(self, prefix, version):
        self._prefix, self._version = prefix, "python" + version

    def _files(self):
        """Sorted paths of the interpreter's files, relative to the prefix."""
        binary = os.path.join("bin", self._version)
        stdlib = os.path.join("lib", self._version)
        if not os.path.isfile(os.path.join(self._prefix, binary)) or not os.path.isdir(
            os.path.join(self._prefix, stdlib)
        ):
            raise BuildError(
                "{0} holds no {1} and {2}. Name the folder that holds both.".format(self._prefix, binary, stdlib)
            )
        found = [binary]
        found += [
            os.path.relpath(path, self._prefix)
            for path in glob.glob(os.path.join(self._prefix, "lib", "lib" + self._version + "*.so*"))
        ]
        for directory, folders, names in os.walk(os.path.join(self._prefix, stdlib)):
            folders[:] = [name for name in folders if name not in ("site-packages", "__pycache__", "test")]
            found += [
                os.path.relpath(os.path.join(directory, name), self._prefix)
                for name in names
                if not name.endswith(".a") and not name.startswith(DROPPED_EXTENSIONS)
            ]
        return sorted(found)

    def _libraries(self):
        """{soname: path} of the host libraries that the interpreter and the packages load."""
        own = [os.path.join(self._prefix, name) for name in self._files()]
        provided = {os.path.basename(path) for path in own} | GLIBC_LIBRARIES
        queue = [path for path in own if stat.S_ISREG(os.lstat(path).st_mode) and elf.is_elf(path)]
        wanted, libraries = list(PRELOADED), {}
        while queue or wanted:
            while queue:
                dynamic = elf.read_dynamic(queue.pop())
                wanted += dynamic["needed"] if dynamic else []
            soname = wanted.pop() if wanted else None
            if soname and soname not in provided and soname not in libraries:
                libraries[soname] = find_library(soname)
                queue.append(libraries[soname])
        return libraries

    def describe(self):
        """{"provider", "python", "sha256"}: version and one digest over interpreter and libraries."""
        digest = hashlib.sha256()
        paths = {name: os.path.join(self._prefix, name) for name in self._files()}
        paths.update(self._libraries())
        for name in sorted(paths):
            content = (
                os.readlink(paths[name])
                if os.path.islink(paths[name]) and name in self._files()
                else (sha256_file(paths[name]))
            )
            digest.update("{0}\0{1}\n".format(name, content).encode("utf-8"))
        return {"provider": "prefix", "python": self._version, "sha256": digest.hexdigest()}

    def provide(self, root):
        """Copy the interpreter and the libraries it loads below `root`."""
        for name in self._files():
            target = os.path.join(root, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(os.path.join(self._prefix, name), target, follow_symlinks=False)
        for soname, path in self._libraries().items():
            shutil.copy2(path, os.path.join(root, "lib", soname))


def find_library(soname):
    """Path of a shared library of this machine."""
    for pattern in _LIBRARY_FOLDERS:
        for folder in sorted(glob.glob(pattern)):
            path = os.path.join(folder, soname)
            if os.path.exists(path) and elf.is_elf(os.path.realpath(path)):
                return path
    raise BuildError(
        "{0} is needed by the Python runtime and is not on this machine. Install the package that brings it.".format(
            soname
        )
    )
