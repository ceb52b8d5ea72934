# SPDX-License-Identifier: Apache-2.0
"""Where the release's own Python comes from.

Three providers with the same two methods: `describe()` says what the Python is made of, as part of the build's
inputs, and changes nothing; `provide(root)` lays it out as bin/pythonX.Y, lib/pythonX.Y and lib/*.so.

debian: the packages of the build machine's Debian, unpacked, not installed. The release then runs on a host of the
same or a newer glibc without any Python. Which versions these are is decided by the first build and kept until a
refresh is asked for: a security update of Debian must not restart a fleet by surprise.
For another architecture they come from a root of apt's own that holds nothing but the lists of that architecture.
archive: a relocatable Python in one tar file, for hosts whose glibc is older than Debian's.
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
import tarfile
from typing import Any, Dict

from ansible.module_utils.vllm_ansible.artefact import check_link, check_member_path, sha256_file
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


# Debian's names.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class DebianRuntime:
    """Python from Debian packages.

    architecture: of the release when it is not this machine's. may_ask: whether apt's lists of that architecture may
    be fetched into `downloads` when they are not there.
    """

    from_host = ()

    def __init__(self, run, packages, downloads, refresh=False, architecture=None, may_ask=True):
        self._run, self._names, self._downloads, self._refresh = run, packages, downloads, refresh
        self._may_ask = may_ask
        self._apt = ["apt-get", "--quiet"]
        self._apt_root = os.path.join(downloads, "apt") if architecture else ""
        if architecture:
            for option, value in (
                ("APT::Architecture", _ARCHITECTURES.get(architecture, architecture)),
                ("APT::Architectures", _ARCHITECTURES.get(architecture, architecture)),
                ("Dir::State::lists", os.path.join(self._apt_root, "lists")),
                ("Dir::State::status", os.path.join(self._apt_root, "status")),
                ("Dir::Cache", os.path.join(self._apt_root, "cache")),
            ):
                self._apt += ["-o", "{0}={1}".format(option, value)]
        self._chosen = os.path.join(downloads, "chosen.json")
        self._packages: Dict[str, Dict[str, Any]] = {}

    def _known(self):
        try:
            with open(self._chosen) as stream:
                found = json.load(stream)
        except (OSError, ValueError):
            return None
        return found if sorted(found) == sorted(self._names) else None

    def _update(self):
        """Fetch the lists of the other architecture into apt's own root."""
        if not self._apt_root or (os.path.isdir(os.path.join(self._apt_root, "lists")) and not self._refresh):
            return
        if not self._may_ask:
            raise RuntimeUnknownError("apt has no package lists of that architecture yet")
        for name in ("lists/partial", "cache/archives/partial"):
            os.makedirs(os.path.join(self._apt_root, name), exist_ok=True)
        with open(os.path.join(self._apt_root, "status"), "w"):
            pass
        # A source that does not answer is apt's to report; what counts is whether the packages are known.
        self._run(self._apt + ["update"])

    def _ask(self):
        self._update()
        rc, out, err = self._run(self._apt + ["--print-uris", "download"] + self._names)
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
                    self._apt + ["download", "{0}={1}".format(name, item["version"])],
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


class ArchiveRuntime:
    """Python from one tar file that holds bin/pythonX.Y and lib/pythonX.Y, below one folder or none."""

    # These may come from the host: such a Python needs none of them, and the packages take the system's.
    from_host = PRELOADED

    def __init__(self, path, sha256, version):
        self._path, self._sha256, self._version = path, sha256, "python" + version

    def describe(self):
        """{"provider", "python", "sha256"}."""
        return {"provider": "archive", "python": self._version, "sha256": self._sha256}

    def provide(self, root):
        """Unpack interpreter, standard library and shared libraries below `root`."""
        try:
            seen = sha256_file(self._path)
        except OSError as error:
            raise BuildError("the Python archive {0} cannot be read: {1}".format(self._path, error)) from error
        if seen != self._sha256:
            raise BuildError(
                "{0} has the sha256 {1}, wanted is {2}. Provide that file, or correct "
                "engine_build_runtime_archives.".format(self._path, seen, self._sha256)
            )
        unpacked = root + ".archive"
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(self._path) as archive:
            for member in archive:
                check_member_path(member.name.lstrip("./") or "x")
                if member.issym():
                    check_link(member.name, member.linkname)
                if member.isreg() or member.isdir() or member.issym():
                    archive.extract(member, unpacked)
        tops = [os.path.dirname(path) for path in glob.glob(os.path.join(unpacked, "bin"))]
        tops += [os.path.dirname(path) for path in glob.glob(os.path.join(unpacked, "*", "bin"))]
        for top in tops:
            binary = os.path.join(top, "bin", self._version)
            stdlib = os.path.join(top, "lib", self._version)
            if os.path.isfile(binary) and os.path.isdir(stdlib):
                break
        else:
            raise BuildError("{0} holds no bin/{1} and lib/{1}".format(self._path, self._version))
        os.makedirs(os.path.join(root, "bin"))
        shutil.copy2(binary, os.path.join(root, "bin", self._version))
        shutil.copytree(
            stdlib,
            os.path.join(root, "lib", self._version),
            symlinks=True,
            ignore=shutil.ignore_patterns("site-packages", "__pycache__", "*.a"),
        )
        for path in sorted(glob.glob(os.path.join(top, "lib", "*.so*"))):
            shutil.copy2(path, os.path.join(root, "lib"), follow_symlinks=False)
        shutil.rmtree(unpacked)


class PrefixRuntime:
    """Python from an installation prefix such as /opt/python3.11."""

    from_host = ()

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
