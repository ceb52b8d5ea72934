#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds Python interpreters of given versions: on PATH, among pyenv's, or the one running this.

tools/pythons.py 3.13 3.12 3.11     print the path of the first that exists; exit 1 when none does
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def find(version: str) -> str | None:
    """The path of a working interpreter of `version` ("3.6"), or None.

    Every candidate is run: a pyenv shim exists for versions that it then refuses to start.
    """
    candidates = [sys.executable, shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates += sorted(str(path) for path in pyenv.glob(f"versions/{version}.*/bin/python"))
    probe = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        try:
            result = subprocess.run([candidate, "-c", probe], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if result.stdout.strip() == version:
            return candidate
    return None


def main(versions: list[str]) -> int:
    """Print the first interpreter found; returns the exit code."""
    for version in versions:
        path = find(version)
        if path:
            print(path)
            return 0
    print(f"tools/pythons.py: no Python of {', '.join(versions)} on PATH or among pyenv's", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
