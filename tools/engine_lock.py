#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resolve the *.in files of a version row into *.txt lock files with versions and sha256.

    tools/engine_lock.py roles/engine_build/files/rows/ROW --python python3.11 [--upgrade]

Without --upgrade versions already locked stay. The resolver is pip, configured as pip is configured.
Packages named in UNHASHED get a version but no sha256; `engine_build` says why.
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
# Dependencies of the packages that the row leaves out on purpose; its engine.in says why.
DROPPED = {"triton", "torchvision", "torchaudio"}
# Taken apart rather than installed: no dependency of these is needed.
DIRECT_ONLY = {"kernels.in"}


def resolve(python: str, source: Path, pins: Path | None) -> dict[str, tuple[str, str]]:
    """{normalised name: (version, sha256)} of everything `source` needs, as pip resolves it for `python`."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        argv = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary=:all:",
                f"--report={report}", f"--requirement={source}"]  # fmt: skip
        if source.name in DIRECT_ONLY:
            argv.append("--no-deps")
        if pins is not None:
            argv.append(f"--constraint={pins}")
        subprocess.run(argv, check=True)
        packages = json.loads(report.read_text("utf-8"))["install"]
    found = {}
    for item in packages:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if name not in DROPPED:
            found[name] = (item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"])
    return found


def render(source: Path, packages: dict[str, tuple[str, str]]) -> str:
    """The text of a lock file."""
    lines = ["# SPDX-License-Identifier: Apache-2.0", f"# Generated from {source.name} by tools/engine_lock.py."]
    for name, (version, sha256) in sorted(packages.items()):
        lines.append(f"{name}=={version}" + ("" if name in UNHASHED else f" --hash=sha256:{sha256}"))
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", type=Path, help="folder of the row")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the row's Python version, with pip")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    options = parser.parse_args(arguments)
    for source in sorted(options.row.glob("*.in")):
        target = source.with_suffix(".txt")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
            if target.exists() and not options.upgrade:
                pins.write(re.sub(r" --hash=\S+", "", target.read_text("utf-8")))
                pins.flush()
            packages = resolve(options.python, source, Path(pins.name))
        target.write_text(render(source, packages), "utf-8")
        print(f"{target}: {len(packages)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
