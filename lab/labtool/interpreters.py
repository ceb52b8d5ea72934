# SPDX-License-Identifier: Apache-2.0
"""Finding an old Python on this machine and giving it to a host."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .common import EXIT_NO_PYTHON, EXIT_USAGE, LabError

INSIDE = "/opt/lab-python"  # where its tree appears in a host


@dataclass(frozen=True)
class Interpreter:
    """A Python that can be carried: its version ("3.7"), its file and the folder it was installed under."""

    version: str
    executable: Path
    prefix: Path


def parse_requests(values: list[str]) -> dict[str, str]:
    """Turn ["3.7=kylin01"] into {"kylin01": "3.7"}."""
    wanted = {}
    for value in values:
        match = re.fullmatch(r"([23]\.\d+)=([a-z0-9-]+)", value)
        if not match:
            raise LabError(f"--python is '{value}'. Write VERSION=NAME, for example 3.7=kylin01.", EXIT_USAGE)
        wanted[match[2]] = match[1]
    return wanted


def candidates(version: str, path: str, pyenv_root: Path | None) -> list[Path]:
    """Files that could be that Python, best first: PATH (pyenv's shims left out), then pyenv's newest patch level."""
    name = f"python{version}"
    shims = pyenv_root / "shims" if pyenv_root else None
    found = [Path(d) / name for d in path.split(":") if d and Path(d) != shims]
    if pyenv_root:
        installed = [d for d in (pyenv_root / "versions").glob(f"{version}.*") if d.name.rpartition(".")[2].isdigit()]
        installed.sort(key=lambda d: int(d.name.rpartition(".")[2]), reverse=True)
        found += [d / "bin" / name for d in installed]
    return [f for f in found if os.access(f, os.X_OK)]


def find(version: str) -> Interpreter:
    """That Python, asked for its own prefix; LabError with exit status 3 when this machine has none."""
    root = None
    if pyenv := shutil.which("pyenv"):
        root = Path(subprocess.run([pyenv, "root"], capture_output=True, text=True, check=True).stdout.strip())
    for executable in candidates(version, os.environ.get("PATH", ""), root):
        ask = "import sys; print(getattr(sys, 'base_prefix', sys.prefix))"
        answer = subprocess.run([executable, "-I" if version[0] == "3" else "-E", "-c", ask],
                                capture_output=True, text=True, check=False)  # fmt: skip
        if not answer.returncode:
            return Interpreter(version, executable, Path(answer.stdout.strip()))
    raise LabError(
        f"No Python {version} on this machine: looked for python{version} in PATH and in pyenv's versions."
        f" Install one (for example `pyenv install {version}`) or leave --python out.",
        EXIT_NO_PYTHON,
    )


def binds(python: Interpreter) -> list[tuple[Path, str]]:
    """(outside, inside) read-only mounts which carry the interpreter into a host."""
    if str(python.prefix) in ("/usr", "/usr/local"):  # shared with everything else: carry only its own parts
        library = python.prefix / "lib" / f"python{python.version}"
        return [
            (python.executable.resolve(), f"{INSIDE}/bin/python{python.version}"),
            (library, f"{INSIDE}/lib/python{python.version}"),
        ]
    return [(python.prefix, INSIDE)]


def install(python: Interpreter, root: Path, alone: bool = True) -> None:
    """Make it the only Python of a host's tree: nothing can then fall back on the newer one.

    Not `alone`: it is what /usr/bin/python3 names, and /usr/libexec/platform-python stays.
    """
    for other in (root / "usr/bin").glob("python*"):
        other.unlink()
    # its library path names the folder it was built for, so the loader must find its library in a usual place
    for library in (python.prefix / "lib").glob("libpython*.so*"):
        (root / "usr/lib" / library.name).symlink_to(f"{INSIDE}/lib/{library.name}")
    (root / f"usr/bin/python{python.version}").symlink_to(f"{INSIDE}/bin/python{python.version}")
    if not alone:
        (root / "usr/bin/python3").symlink_to(f"python{python.version}")
