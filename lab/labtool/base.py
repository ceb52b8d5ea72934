# SPDX-License-Identifier: Apache-2.0
"""The read-only Debian trees below the hosts: built once by mmdebstrap, kept by a hash of their recipes."""

import hashlib
import inspect
import os
import re
import shutil
from pathlib import Path

from . import systems
from .common import Lab, LabError, locked, mounts_below, run, unmount_below

SUITE = "bookworm"
PACKAGES = [
    "ca-certificates",
    "dbus",
    "iproute2",
    "iputils-ping",
    "kmod",
    "less",
    "nftables",
    "openssh-server",
    "procps",
    "python3",
    "python3-apt",
    "sudo",
    "systemd",
    "systemd-sysv",
]

# What Kylin's server edition stands on. A tree of its own: apt's Python bindings would make it look like one with apt.
RPM_PACKAGES = [*(package for package in PACKAGES if package != "python3-apt"), "dnf", "python3-dnf", "rpm"]

# A host without --registry has no package index at all, so apt is left without sources.
# systemd-binfmt clears the machine-wide table when it stops; ssh host keys belong to one host, not to a tree.
CUSTOMIZE = """
rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1"/etc/apt/apt.conf.d/99mmdebstrap
rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf "$1"/etc/hostname
: > "$1"/etc/machine-id
for unit in systemd-binfmt.service proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount; do
  ln -sf /dev/null "$1/etc/systemd/system/$unit"
done
chroot "$1" systemctl --quiet enable systemd-networkd.service ssh.service
chroot "$1" systemctl --quiet disable systemd-networkd-wait-online.service \
  apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer
"""
DROPPED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


def recipe_digest(rpm: bool = False) -> str:
    """Twelve hex digits that change whenever the tree's recipe does."""
    recipe = [SUITE, *(RPM_PACKAGES if rpm else PACKAGES), *DROPPED, CUSTOMIZE]
    if rpm:
        recipe += [inspect.getsource(part) for part in (systems.equip, systems.point_at_platform_python)]
    return hashlib.sha256("\n".join(recipe).encode()).hexdigest()[:12]


def base_tree(lab: Lab, rpm: bool = False) -> Path:
    """Folder the tree has, or will have once built."""
    return lab.store / "base" / f"{SUITE}{'-rpm' if rpm else ''}-{recipe_digest(rpm)}"


def apt_sources() -> list[str]:
    """The machine's own Debian sources, so that its mirror is used; empty means mmdebstrap's default."""
    for source in ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"):
        path = Path(source)
        if path.exists() and re.search(r"^(deb |Types:)", path.read_text(), re.MULTILINE):
            return [source]
    return []


def apt_options() -> list[str]:
    """The machine's own settings for reaching its mirror (proxy, how old an index may be)."""
    wanted = re.compile(r'^Acquire::(https?::|Check-).*"[^"]+";$')
    dump = run("apt-config", "dump").stdout
    return [f"--aptopt={line.removesuffix(';')}" for line in dump.splitlines() if wanted.match(line)]


def ensure(lab: Lab, rpm: bool = False) -> Path:
    """Return a base tree, building it first when its recipe has not been built yet (about 20 s quiet)."""
    tree = base_tree(lab, rpm)
    with locked(lab.store / "base.lock"):
        if tree.exists():
            return tree
        staged = tree.with_name(f".{tree.name}.{os.getpid()}")
        print(f"building the base tree {tree.name} (once) …", flush=True)
        packages = ",".join(RPM_PACKAGES if rpm else PACKAGES)
        try:
            tree.parent.mkdir(parents=True, exist_ok=True)
            run(
                "mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", *apt_options(),
                '--aptopt=Acquire::Languages "none"', *(f"--dpkgopt=path-exclude={p}" for p in DROPPED),
                f"--customize-hook={CUSTOMIZE}", SUITE, staged, *apt_sources(),
            )  # fmt: skip
            if rpm:
                systems.equip(staged)
            staged.replace(tree)
        finally:
            if staged.exists():
                unmount_below(staged)  # never remove through the tree's /proc or /dev
                shutil.rmtree(staged)
    return tree


def purge(lab: Lab) -> None:
    """Remove all base trees; refused while a host of any lab in this store stands on one."""
    with locked(lab.store / "base.lock"):
        if used := mounts_below(lab.store, Path("/proc/self/mountinfo").read_text()):
            raise LabError(f"Base trees are in use by {', '.join(used)}. Run `lab down --all` for those labs first.")
        for part in ("base", "repositories"):
            shutil.rmtree(lab.store / part, ignore_errors=True)
        (lab.store / "base.lock").unlink()
