# SPDX-License-Identifier: Apache-2.0
"""Names, folders, locks and small system helpers shared by the lab tool."""

import contextlib
import fcntl
import ipaddress
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_PYTHON = 3

NAME = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")


class LabError(Exception):
    """What is wrong, what was seen and what to do; `code` becomes the exit status."""

    def __init__(self, message: str, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Lab:
    """Everything that is named after one LAB_ID (1-254); nothing here touches the system."""

    id: int
    store: Path  # holds the base trees and one folder per lab

    @classmethod
    def from_environment(cls) -> "Lab":
        """The lab named by LAB_ID (default 77), kept below LAB_STORE (default: .cache/lab of this checkout)."""
        text = os.environ.get("LAB_ID", "77")
        if not text.isdigit() or not 1 <= int(text) <= 254:
            raise LabError(f"LAB_ID is '{text}'. Set a number from 1 to 254.", EXIT_USAGE)
        default = Path(__file__).resolve().parents[2] / ".cache" / "lab"
        return cls(int(text), Path(os.environ.get("LAB_STORE", default)).resolve())

    @property
    def tag(self) -> str:
        """Name of the bridge, the firewall table and the cgroups."""
        return f"vlab{self.id}"

    @property
    def state(self) -> Path:
        return self.store / str(self.id)

    @property
    def lock(self) -> Path:
        return self.store / f"{self.id}.lock"

    @property
    def hosts(self) -> Path:
        return self.state / "hosts"

    @property
    def inventory(self) -> Path:
        return self.state / "inventory.yml"

    @property
    def ssh_config(self) -> Path:
        return self.state / "ssh_config"

    @property
    def network(self) -> ipaddress.IPv4Network:
        # 198.18.0.0/15 is reserved for test networks (RFC 2544), so it cannot be a real site's
        return ipaddress.IPv4Network(f"198.18.{self.id}.0/24")

    @property
    def gateway(self) -> str:
        return str(self.network[1])

    def address(self, octet: int) -> str:
        return str(self.network[octet])

    def machine(self, octet: int) -> str:
        """nspawn's machine name: with "vb-" before it, it must fit the 15 characters of a link name."""
        return f"{self.tag}-{octet}"[1:]


def run(*argv: str | Path, check: bool = True, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command quietly; raise LabError with its own words when it fails and `check` is set."""
    command = [str(a) for a in argv]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
    )
    if check and result.returncode:
        said = (result.stderr or result.stdout).strip()
        raise LabError(f"`{' '.join(command)}` ended with {result.returncode}: {said}")
    return result


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file so that a reader sees the old text or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.write_text(text)
    staged.chmod(mode)
    staged.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the file may be deleted by the holder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # whoever held it before may have removed the file: then our lock guards nothing
        if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
            break
        os.close(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


def mounts_below(folder: Path, mountinfo: str) -> list[str]:
    """Mount points at or below `folder`, deepest first, from the text of /proc/self/mountinfo."""
    prefix = str(folder)
    points = [line.split()[4].encode().decode("unicode_escape") for line in mountinfo.splitlines()]
    inside = [p for p in points if p == prefix or p.startswith(prefix + "/")]
    return sorted(inside, key=len, reverse=True)


def unmount_below(folder: Path) -> None:
    """Unmount everything at or below `folder`; a busy mount is detached, it goes when its last user goes."""
    for point in mounts_below(folder, Path("/proc/self/mountinfo").read_text()):
        if run("umount", point, check=False).returncode:
            run("umount", "--lazy", point)


def missing_tools(tools: Sequence[tuple[str, str]]) -> list[str]:
    """Debian packages of those (command, packages) pairs whose command is not found."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    found = {c for c, _ in tools for d in path.split(":") if d and os.access(Path(d) / c, os.X_OK)}
    return sorted({name for command, packages in tools if command not in found for name in packages.split()})
