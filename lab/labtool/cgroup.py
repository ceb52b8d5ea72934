# SPDX-License-Identifier: Apache-2.0
"""Each host's own control groups: they carry its limits, and they are the exact list of its processes."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup tree: version 1 (one per controller set) or 2."""

    mount: Path
    version: int
    options: frozenset[str] = frozenset()


def hierarchies(mountinfo: str) -> list[Hierarchy]:
    """Every cgroup tree in the text of /proc/self/mountinfo; on an ordinary systemd machine one of version 2."""
    found = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            mount = Path(left.split()[4])
            found[mount] = Hierarchy(mount, 2 if kind == "cgroup2" else 1, frozenset(options.split(",")))
    return list(found.values())


def mounted() -> list[Hierarchy]:
    return hierarchies(Path("/proc/self/mountinfo").read_text())


def folders(lab_tag: str, host: str = "", trees: Sequence[Hierarchy] | None = None) -> list[Path]:
    """The existing groups of one host, or of the whole lab."""
    paths = [t.mount / lab_tag / host for t in (mounted() if trees is None else trees)]
    return [p for p in paths if p.is_dir()]


def create(lab_tag: str, host: str, part: str) -> list[Path]:
    """Make the groups LAB/HOST/PART in every tree and return them."""
    made = []
    for tree in mounted():
        group = tree.mount
        for name in (lab_tag, host, part):
            if tree.version == 2 and group != tree.mount:
                _hand_down(group)
            parent, group = group, group / name
            group.mkdir(exist_ok=True)
            if "cpuset" in tree.options and tree.version == 1:
                # a version 1 cpuset starts empty and then accepts no process
                for key in ("cpuset.cpus", "cpuset.mems"):
                    (group / key).write_text((parent / key).read_text())
        made.append(group)
    return made


def _hand_down(group: Path) -> None:
    """Version 2: let the groups below use all controllers this one has; systemd in a host needs them to limit."""
    controllers = (group / "cgroup.controllers").read_text().split()
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in controllers))


def enter(groups: Sequence[Path]) -> None:
    """Move the calling process into the groups."""
    for group in groups:
        (group / "cgroup.procs").write_text(str(os.getpid()))


def processes(lab_tag: str, host: str = "") -> set[int]:
    """Ids of all processes of one host, or of the whole lab."""
    found: set[int] = set()
    for folder in folders(lab_tag, host):
        for group, _, _ in os.walk(folder):  # skips what the host removes meanwhile
            with contextlib.suppress(OSError):
                found.update(int(p) for p in Path(group, "cgroup.procs").read_text().split())
    return found


def leader(lab_tag: str, host: str) -> int | None:
    """Id, outside, of the process that is 1 inside the host; None while there is none."""
    for pid in processes(lab_tag, host):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        own_depth = len(_namespace_ids())
        if len(ids) == own_depth + 1 and ids[-1] == "1":
            return pid
    return None


def _namespace_ids() -> list[str]:
    status = Path("/proc/self/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]


def cut_power(lab_tag: str, host: str = "", timeout: float = 20) -> None:
    """End every process of the host (or lab) at one instant, as a power cut would.

    Frozen first where a version 1 freezer exists, or by version 2's cgroup.kill: otherwise those killed last
    would still see the first ones die and write to their disks. Raises TimeoutError naming the survivors.
    """
    places = folders(lab_tag, host)
    freezers = [p for p in places if (p / "freezer.state").exists()]
    for place in freezers:
        (place / "freezer.state").write_text("FROZEN")
    for place in places:
        if (place / "cgroup.kill").exists():
            (place / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + timeout
    while alive := processes(lab_tag, host):
        for pid in alive - {os.getpid()}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for place in freezers:
            (place / "freezer.state").write_text("THAWED")
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(alive)} of {host or lab_tag} do not end")
        time.sleep(0.02)


def remove(lab_tag: str, host: str = "") -> None:
    """Remove the (empty) groups of one host, or of the whole lab."""
    for folder in folders(lab_tag, host):
        for path, _, _ in os.walk(folder, topdown=False):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                continue
