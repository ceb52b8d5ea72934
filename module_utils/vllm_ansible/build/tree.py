# SPDX-License-Identifier: Apache-2.0
"""Turns an interpreter and a folder of installed packages into a relocatable tree.

Layout: bin/python3, lib/<host libraries>, lib/pythonX.Y/site-packages. Nothing in it
knows where it lies, and every byte follows from the inputs.

`run` is always AnsibleModule.run_command or something that behaves like it:
run(argv, environ_update=...) -> (rc, stdout, stderr).

Runs on hosts: Python 3.6, standard library only.
"""

import base64
import csv
import hashlib
import io
import os
import shutil
import stat

from ansible.module_utils.vllm_ansible.build import elf

# What every glibc system has; all else must be in the tree.
GLIBC_LIBRARIES = frozenset(
    (
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
        "libc.so.6",
        "libdl.so.2",
        "libm.so.6",
        "libpthread.so.0",
        "libresolv.so.2",
        "librt.so.1",
        "libutil.so.1",
        "libanl.so.1",
        "libmvec.so.1",
    )
)
# Loaded with the interpreter, so that every extension finds them under their names
# although its own search path does not lead into the tree.
PRELOADED = ("libstdc++.so.6", "libgcc_s.so.1", "libnuma.so.1")
# Extension modules of the standard library that would need more host libraries and that nothing here uses.
DROPPED_EXTENSIONS = ("_dbm.", "_gdbm.", "nis.", "_tkinter.")
DROPPED_STDLIB = ("test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "pydoc_data", "turtle.py")
# Never used by a running engine. torch/bin keeps torch_shm_manager, which it starts. share: manual pages.
DROPPED_PACKAGE_PATHS = (
    "share",
    "torch/include",
    "torch/share",
    "torch/test",
    "torch/lib/*.a",
    "torch/bin/protoc*",
    "torch/bin/test_*",
    "numpy/_core/include",
    "numpy/*/tests",
    "numpy/tests",
    "numba/tests",
    "llvmlite/tests",
    "sympy/*/tests",
    "numba/np/ufunc/omppool*",
    "numba/np/ufunc/tbbpool*",
    "networkx/*/tests",
    "networkx/*/*/tests",
    "networkx/*/*/*/tests",
)


class BuildError(Exception):
    """Says what is wrong, what was seen and what to set."""


def checked(run, argv, what, environ=None, cwd=None):
    """Run `argv`; returns its standard output, raises BuildError with the last lines of its output."""
    rc, out, err = run(argv, environ_update=environ or {}, cwd=cwd)
    if rc != 0:
        tail = "\n".join((out + "\n" + err).strip().splitlines()[-15:])
        hint = " The file system is full: free some space." if "No space left on device" in tail else ""
        raise BuildError("{0} failed with exit code {1}.{2}\n{3}".format(what, rc, hint, tail))
    return out


def elf_files(root):
    """Paths of the regular ELF files below `root`, sorted."""
    found = []
    for directory, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(directory, name)
            if stat.S_ISREG(os.lstat(path).st_mode) and elf.is_elf(path):
                found.append(path)
    return found


def python_version(root):
    """ "X.Y" of the interpreter in the tree `root`."""
    names = [name for name in os.listdir(os.path.join(root, "lib")) if name.startswith("python3.")]
    if len(names) != 1:
        raise BuildError("{0}/lib holds {1}, expected one pythonX.Y".format(root, sorted(names)))
    return names[0][len("python") :]


def site_packages(root):
    """Absolute path of the tree's site-packages."""
    return os.path.join(root, "lib", "python" + python_version(root), "site-packages")


def remove(path):
    """Remove a file, a link or a directory if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def finish_runtime(root, run, patchelf, from_host=()):
    """Make the interpreter tree `root` independent of its place and of the host's libraries.

    from_host: libraries of PRELOADED that may come from the host when the runtime has none.
    """
    version = python_version(root)
    library = os.path.join(root, "lib")
    stdlib = os.path.join(library, "python" + version)
    for name in DROPPED_STDLIB:
        remove(os.path.join(stdlib, name))
    for name in os.listdir(stdlib):
        # config-3.11-<triplet>: static library and Makefile; sitecustomize: on Debian a link into the host's /etc.
        if name.startswith("config-") or name == "sitecustomize.py":
            remove(os.path.join(stdlib, name))
    dynload = os.path.join(stdlib, "lib-dynload")
    for name in os.listdir(dynload) if os.path.isdir(dynload) else ():
        if name.startswith(DROPPED_EXTENSIONS):
            remove(os.path.join(dynload, name))
    os.makedirs(os.path.join(stdlib, "site-packages"), exist_ok=True)
    # Debian's interpreter looks into dist-packages instead.
    link = os.path.join(stdlib, "dist-packages")
    remove(link)
    os.symlink("site-packages", link)

    binary = os.path.join(root, "bin", "python" + version)
    for path in elf_files(root):
        checked(
            run,
            [patchelf, "--set-rpath", "$ORIGIN/" + os.path.relpath(library, os.path.dirname(path)), path],
            "patchelf on " + os.path.relpath(path, root),
        )
    for soname in PRELOADED:
        if soname in from_host and not os.path.exists(os.path.join(library, soname)):
            continue
        if not os.path.exists(os.path.join(library, soname)):
            raise BuildError("{0} is not among the runtime's libraries: add the package that brings it".format(soname))
        checked(run, [patchelf, "--add-needed", soname, binary], "patchelf on the interpreter")
    for name in ("python3", "python"):
        path = os.path.join(root, "bin", name)
        remove(path)
        os.symlink("python" + version, path)


def prune_packages(packages):
    """Remove what a running engine never reads, pip's traces of this machine, and start scripts (their first line
    names the machine that installed them)."""
    import glob

    for pattern in DROPPED_PACKAGE_PATHS:
        for path in glob.glob(os.path.join(packages, pattern)):
            remove(path)
    remove(os.path.join(packages, "bin"))
    for name in os.listdir(packages):
        if name.endswith(".dist-info"):
            for trace in ("direct_url.json", "REQUESTED", "INSTALLER"):
                remove(os.path.join(packages, name, trace))


def strip_files(root, run, strip):
    """Strip every ELF file except those auditwheel placed in *.libs: these were rewritten in ways strip mistakes."""
    paths = [
        path
        for path in elf_files(root)
        if not any(part.endswith(".libs") for part in os.path.relpath(path, root).split(os.sep))
    ]
    for start in range(0, len(paths), 50):
        checked(run, [strip, "--strip-unneeded", "--preserve-dates"] + paths[start : start + 50], "strip")


def compile_all(root, run, python=None):
    """Byte-compile the whole tree; the .pyc name paths relative to it and are never checked against the source,
    because times differ from host to host. python: an interpreter of the same version, when the tree's cannot run."""
    python = python or os.path.join(root, "bin", "python3")
    for directory, folders, _names in os.walk(root):
        if "__pycache__" in folders:
            shutil.rmtree(os.path.join(directory, "__pycache__"))
            folders.remove("__pycache__")
    # -I would ignore PYTHONHASHSEED, which decides the order of constant sets in the .pyc.
    rc, out, err = run(
        [
            python,
            "-s",
            "-P",
            "-m",
            "compileall",
            "-q",
            "-j",
            "0",
            "--invalidation-mode",
            "unchecked-hash",
            "-s",
            root,
            "-p",
            "/",
            os.path.join(root, "lib"),
        ],
        environ_update={"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    # Some packages ship templates and tests for other Pythons that do not compile: only noise matters here.
    if rc not in (0, 1):
        raise BuildError("compileall failed with exit code {0}: {1}".format(rc, (out + err)[-500:]))


def rewrite_records(packages):
    """Recompute every RECORD: the files on the disk are the truth after pruning, stripping and compiling."""
    packages = os.path.abspath(packages)
    for name in sorted(os.listdir(packages)):
        path = os.path.join(packages, name, "RECORD")
        if not name.endswith(".dist-info") or not os.path.exists(path):
            continue
        with open(path, newline="") as stream:
            listed = [row[0] for row in csv.reader(stream) if row]
        kept = set()
        for relative in listed:
            full = os.path.normpath(os.path.join(packages, relative))
            if full.startswith(packages + os.sep) and os.path.isfile(full):
                kept.add(os.path.relpath(full, packages))
                cache = os.path.join(os.path.dirname(full), "__pycache__")
                stem = os.path.splitext(os.path.basename(full))[0]
                if full.endswith(".py") and os.path.isdir(cache):
                    kept.update(
                        os.path.relpath(os.path.join(cache, item), packages)
                        for item in os.listdir(cache)
                        if item.startswith(stem + ".cpython-")
                    )
        own = name + "/RECORD"
        output = io.StringIO()
        writer = csv.writer(output, lineterminator="\n")
        for relative in sorted(kept - {own}):
            with open(os.path.join(packages, relative), "rb") as stream:
                content = stream.read()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            writer.writerow((relative, "sha256=" + digest, len(content)))
        writer.writerow((own, "", ""))
        with open(path, "w") as stream:
            stream.write(output.getvalue())


def missing_libraries(root, from_host=()):
    """{relative path: [soname, ...]} of libraries that neither the tree nor glibc nor `from_host` provides."""
    available = set(GLIBC_LIBRARIES) | set(from_host)
    asked = {}
    for path in elf_files(root):
        dynamic = elf.read_dynamic(path)
        available.add(os.path.basename(path))
        if dynamic is None:
            continue
        if dynamic["soname"]:
            available.add(dynamic["soname"])
        asked[os.path.relpath(path, root)] = dynamic["needed"]
    for directory, _folders, names in os.walk(root):
        available.update(name for name in names if os.path.islink(os.path.join(directory, name)))
    missing = {}
    for path, needed in asked.items():
        absent = sorted(set(needed) - available)
        if absent:
            missing[path] = absent
    return missing
