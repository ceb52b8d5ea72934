#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resolve the *.in files of a version row into *.txt lock files with versions and sha256.

    tools/engine_lock.py roles/engine_build/files/rows/ROW --python python3.11 [--upgrade]
    tools/engine_lock.py ROW --architecture aarch64 [--architecture x86_64]

Without --upgrade versions already locked stay. The resolver is pip, configured as pip is configured.
Packages named in UNHASHED get a version but no sha256; `engine_build` says why. With --architecture, engine.in alone
is resolved, for hosts of that processor whatever this machine is, into engine-ARCHITECTURE.txt.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# A registry serves one file for one name and version. torch's CPU build comes from an index of its own or from a
# local wheel folder, and such a file may have been rebuilt: its version is locked, its sha256 recorded at the build.
UNHASHED = {"torch"}
# The registry's x86-64 builds of these are for CUDA; the CPU builds have a local version and no file there.
CPU_BUILDS = {"torch", "torchvision", "torchaudio"}
# Dependencies of the packages that the row leaves out on purpose; its engine.in says why.
DROPPED = {"triton", "torchvision", "torchaudio"}
# What only CUDA builds need.
CUDA = re.compile(r"(nvidia|cuda)-|triton$")
# Taken apart rather than installed: no dependency of these is needed.
DIRECT_ONLY = {"kernels.in"}
# It names torch's CPU build, which the registry has not.
WITHOUT_DEPENDENCIES = ("torch-npu",)
# Newest first: what wheels of one architecture may call themselves. 2.31 is above the oldest C library that the rows
# want; engine_build compares what the files really need with the host.
PLATFORMS = ("manylinux_2_31", "manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_24",
             "manylinux_2_17", "manylinux2014")  # fmt: skip

# pip evaluates markers for the machine it runs on, also when it looks for wheels of another.
PIP_AS = (
    "import platform, runpy, sys; machine = sys.argv.pop(1); platform.machine = lambda: machine; "
    "runpy.run_module('pip', run_name='__main__')"
)

Packages = dict[str, tuple[str, str]]


def resolve(python: str, source: Path, pins: Path | None) -> Packages:
    """{normalised name: (version, sha256)} of everything `source` needs, as pip resolves it for `python`."""
    options = ["--no-deps"] if source.name in DIRECT_ONLY else []
    found = _report([python, "-m", "pip"], [*options, f"--requirement={source}"], pins)
    return {name: item for name, item in found.items() if name not in DROPPED}


def resolve_for(python: str, source: Path, pins: Path | None, architecture: str) -> Packages:
    """The same for hosts of another processor; `python` is of the row's version."""
    lines = source.read_text("utf-8").splitlines()
    alone = [line for line in lines if line.startswith(WITHOUT_DEPENDENCIES)]
    pip = [python, "-c", PIP_AS, architecture]
    with tempfile.TemporaryDirectory() as scratch:
        options = [f"--platform={name}_{architecture}" for name in PLATFORMS]
        options += ["--implementation=cp", f"--target={scratch}/none"]
        together = Path(scratch) / "together.in"
        together.write_text("\n".join(line for line in lines if line not in alone), "utf-8")
        found = _report(pip, [*options, f"--requirement={together}"], pins)
        if alone:
            found.update(_report(pip, [*options, "--no-deps", *(line.replace(" ", "") for line in alone)], pins))
    if architecture == "x86_64":
        for name in CPU_BUILDS & set(found):
            found[name] = (found[name][0].split("+")[0] + "+cpu", "")
    return {name: item for name, item in found.items() if not CUDA.match(name)}


def _report(pip: list[str], arguments: list[str], pins: Path | None) -> Packages:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        argv = [*pip, "install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary=:all:",
                f"--report={report}", *arguments]  # fmt: skip
        if pins is not None:
            argv.append(f"--constraint={pins}")
        subprocess.run(argv, check=True)
        packages = json.loads(report.read_text("utf-8"))["install"]
    found = {}
    for item in packages:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        found[name] = (item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"])
    return found


def render(source: Path, packages: Packages, unhashed: frozenset[str] | set[str] = frozenset(UNHASHED)) -> str:
    """The text of a lock file."""
    lines = ["# SPDX-License-Identifier: Apache-2.0", f"# Generated from {source.name} by tools/engine_lock.py."]
    for name, (version, sha256) in sorted(packages.items()):
        lines.append(f"{name}=={version}" + ("" if name in unhashed else f" --hash=sha256:{sha256}"))
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", type=Path, help="folder of the row")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the row's Python version, with pip")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    parser.add_argument("--architecture", action="append", default=[], help="resolve engine.in for such hosts")
    options = parser.parse_args(arguments)
    work = [(options.row / "engine.in", name) for name in options.architecture]
    for source, architecture in work or [(path, "") for path in sorted(options.row.glob("*.in"))]:
        target = source.with_name(f"{source.stem}-{architecture}.txt") if architecture else source.with_suffix(".txt")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
            if target.exists() and not options.upgrade:
                locked = re.sub(r" --hash=\S+", "", target.read_text("utf-8"))
                pins.write(locked.replace("+cpu", "") if architecture else locked)
                pins.flush()
            if architecture:
                packages = resolve_for(options.python, source, Path(pins.name), architecture)
                unhashed = CPU_BUILDS if architecture == "x86_64" else set()
            else:
                packages, unhashed = resolve(options.python, source, Path(pins.name)), UNHASHED
        target.write_text(render(source, packages, unhashed), "utf-8")
        print(f"{target}: {len(packages)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
