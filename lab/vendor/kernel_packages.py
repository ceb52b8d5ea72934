#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds rpm and deb repositories with STAND-INS of Kylin's kernels: genuine packages, content of our own.

A kernel package puts ``/boot/vmlinuz-*``, ``/lib/modules/<release>``, a devel package ``/usr/src/kernels/<release>``;
the boot entry is written and removed by the same calls of ``grubby`` and ``update-grub`` that the real ones make.

    lab/vendor/kernel_packages.py FOLDER kylin-v10-sp3 --machine aarch64
"""

import argparse
import gzip
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
DEB_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
TOOLS = (("rpmbuild", "rpm"), ("createrepo_c", "createrepo-c"), ("dpkg-scanpackages", "dpkg-dev"))


class BuildError(Exception):
    """Says which tool failed and with which words."""


class Edition(NamedTuple):
    """What the repository of one edition holds. ``kernels``: release without architecture, the installed one first."""

    family: str  # "rpm" or "deb"
    kernels: tuple[str, ...]

    def release(self, kernel: str, machine: str) -> str:
        """As `uname -r` prints it."""
        return f"{kernel}.{machine}" if self.family == "rpm" else kernel.rpartition(".")[0] + "-generic"


# Kernel numbers seen in public reports; a deb kernel is written with its build ("5.4.18-85.74").
EDITIONS = {
    "kylin-v10-sp1": Edition("rpm", ("4.19.90-17.ky10", "4.19.90-23.8.v2101.ky10")),
    "kylin-v10-sp2": Edition("rpm", ("4.19.90-24.4.v2101.ky10", "4.19.90-25.25.v2101.ky10")),
    "kylin-v10-sp3": Edition(
        "rpm", ("4.19.90-52.22.v2207.ky10", "4.19.90-52.15.v2207.ky10", "4.19.90-52.39.v2207.ky10")
    ),
    "kylin-v10-sp3-2403": Edition("rpm", ("4.19.90-89.11.v2401.ky10",)),
    "kylin-v10-desktop": Edition("deb", ("5.4.18-35.21", "5.4.18-85.74")),
}
# Empty stand-ins of what a role may ask for: name and version (invented).
TOOLS_PACKAGED = {"make": "4.3", "gcc": "7.3.0", "dkms": "2.6.1", "net-tools": "2.0", "pciutils": "3.7.0"}
PODMAN = {"runc": "1.0.0", "containers-common": "1", "podman": "0.10.1"}
ADDONS = {"tuned": "2.10.0"}

RPM_HEAD = """\
Name: {name}
Version: {version}
Release: {release}
Summary: STAND-IN of {name} for the lab
License: Apache-2.0
AutoReqProv: no
{more}
%description
STAND-IN built by lab/vendor/kernel_packages.py. It holds nothing of the package it is named after.
"""
KERNEL_SPEC = (
    RPM_HEAD
    + """
%package core
Summary: STAND-IN
Provides: installonlypkg(kernel)
%description core
STAND-IN
%package modules
Summary: STAND-IN
Provides: installonlypkg(kernel-module)
%description modules
STAND-IN
%package devel
Summary: STAND-IN
Provides: installonlypkg(kernel)
%description devel
STAND-IN
%package headers
Summary: STAND-IN
%description headers
STAND-IN

%install
mkdir -p %{{buildroot}}/boot %{{buildroot}}/lib/modules/{uname}/kernel %{{buildroot}}/usr/src/kernels/{uname}/include
mkdir -p %{{buildroot}}/usr/include/linux
echo 'STAND-IN of Linux {uname}' > %{{buildroot}}/boot/vmlinuz-{uname}
echo 'CONFIG_ARM64_64K_PAGES=y' > %{{buildroot}}/boot/config-{uname}
touch %{{buildroot}}/lib/modules/{uname}/modules.builtin %{{buildroot}}/usr/include/linux/version.h
ln -s /usr/src/kernels/{uname} %{{buildroot}}/lib/modules/{uname}/build
echo 'all:' > %{{buildroot}}/usr/src/kernels/{uname}/Makefile
echo '#define UTS_RELEASE "{uname}"' > %{{buildroot}}/usr/src/kernels/{uname}/include/utsrelease.h

%posttrans core
touch /boot/initramfs-{uname}.img
default=; grep -qs '^UPDATEDEFAULT=yes' /etc/sysconfig/kernel && default=--make-default
[ ! -x /usr/sbin/grubby ] || /usr/sbin/grubby --add-kernel=/boot/vmlinuz-{uname} --copy-default $default \\
  --initrd=/boot/initramfs-{uname}.img --title="$(sed -n 's/^NAME="\\(.*\\)"/\\1/p' /etc/os-release) ({uname}) \\
$(sed -n 's/^VERSION="\\(.*\\)"/\\1/p' /etc/os-release)"
:
%preun core
[ ! -x /usr/sbin/grubby ] || /usr/sbin/grubby --remove-kernel=/boot/vmlinuz-{uname}
rm -f /boot/initramfs-{uname}.img

%files
%files core
/boot/vmlinuz-{uname}
/boot/config-{uname}
%dir /lib/modules/{uname}
%files modules
/lib/modules/{uname}/kernel
/lib/modules/{uname}/modules.builtin
/lib/modules/{uname}/build
%files devel
/usr/src/kernels/{uname}
%files headers
/usr/include/linux/version.h
"""
)


def run(*argv: str | Path, cwd: Path | None = None) -> str:
    """Run a build tool; return its output, or raise BuildError with its words."""
    result = subprocess.run([str(word) for word in argv], cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BuildError(f"{argv[0]} failed: {(result.stderr or result.stdout).strip()}")
    return result.stdout


def rpm(spec: str, machine: str, folder: Path) -> None:
    """Build the rpm packages of a spec for a machine into `folder`. The content is data: no compiler is asked."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "stand-in.spec"
        path.write_text(spec)
        run("rpmbuild", "-bb", "--quiet", "--nodeps", "--target", f"{machine}-linux", "--define", f"_topdir {name}",
            "--define", "debug_package %{nil}", "--define", "__os_install_post %{nil}",
            "--define", "_build_id_links none", path)  # fmt: skip
        for built in Path(name).glob("RPMS/*/*.rpm"):
            shutil.copy(built, folder)


def kernel_rpm(kernel: str, machine: str, folder: Path) -> None:
    """The packages kernel, kernel-core, kernel-modules, kernel-devel and kernel-headers of one kernel."""
    version, _, release = kernel.partition("-")
    more = f"Requires: kernel-core = {kernel}\nRequires: kernel-modules = {kernel}\nProvides: installonlypkg(kernel)\n"
    values = {"name": "kernel", "version": version, "release": release, "uname": f"{kernel}.{machine}", "more": more}
    rpm(KERNEL_SPEC.format(**values), machine, folder)


def plain_rpm(name: str, version: str, folder: Path, more: str = "") -> None:
    """A package without files."""
    head = RPM_HEAD.format(name=name, version=version, release="1.ky10", more=f"BuildArch: noarch\n{more}")
    rpm(head + "\n%files\n", "noarch", folder)


def deb(name: str, version: str, architecture: str, folder: Path, files: dict[str, str], **more: str) -> None:
    """Build one deb. `more`: further fields, and the maintainer scripts `postinst` and `postrm`."""
    with tempfile.TemporaryDirectory() as staging:
        tree = Path(staging)
        tree.chmod(0o755)
        for path, text in files.items():
            target = tree / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("-> "):
                target.symlink_to(text[3:])
            else:
                target.write_text(text)
                target.chmod(0o755 if text.startswith("#!") else 0o644)
        (tree / "DEBIAN").mkdir()
        for script in ("postinst", "postrm"):
            if script in more:
                (tree / "DEBIAN" / script).write_text(f"#!/bin/sh\nset -e\n{more.pop(script)}\n")
                (tree / "DEBIAN" / script).chmod(0o755)
        fields = {"Package": name, "Version": version, "Architecture": architecture, "Maintainer": "lab <lab@invalid>"}
        fields |= {key.capitalize(): value for key, value in more.items()}
        fields["Description"] = f"STAND-IN of {name} for the lab"
        (tree / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
        run("dpkg-deb", "--build", "--root-owner-group", "-Zgzip", tree, folder)


def kernel_deb(kernel: str, machine: str, folder: Path) -> None:
    """linux-image, linux-modules and the two linux-headers packages of one kernel."""
    abi = kernel.rpartition(".")[0]
    uname, architecture = f"{abi}-generic", DEB_ARCHITECTURE[machine]
    # as the real ones: the hooks in /etc/kernel run update-grub
    initrd = f"/boot/initrd.img-{uname}"
    steps = {"postinst": f"[ $1 != configure ] || touch {initrd}", "postrm": f"[ $1 != remove ] || rm -f {initrd}"}
    hooks = {
        name: f"{step}\n[ ! -d /etc/kernel/{name}.d ] ||"
        f" run-parts --arg={uname} --arg=/boot/vmlinuz-{uname} /etc/kernel/{name}.d"
        for name, step in steps.items()
    }
    image = {f"/boot/vmlinuz-{uname}": f"STAND-IN of Linux {uname}\n"}
    modules = {
        f"/lib/modules/{uname}/modules.builtin": "",
        f"/lib/modules/{uname}/build": f"-> /usr/src/linux-headers-{uname}",
    }
    utsrelease = {f"/usr/src/linux-headers-{uname}/include/generated/utsrelease.h": f'#define UTS_RELEASE "{uname}"\n'}
    deb(f"linux-image-{uname}", kernel, architecture, folder, image, depends=f"linux-modules-{uname}", **hooks)
    deb(f"linux-modules-{uname}", kernel, architecture, folder, modules)
    deb(f"linux-headers-{abi}", kernel, "all", folder, {f"/usr/src/linux-headers-{abi}/Makefile": "all:\n"})
    deb(f"linux-headers-{uname}", kernel, architecture, folder, utsrelease, depends=f"linux-headers-{abi}")


def build(edition: str, machine: str, folder: Path) -> None:
    """Build the repositories of one edition: `os` (kernels and tools) and `addons` (tuned), with their metadata."""
    family, kernels = EDITIONS[edition]
    base, addons = folder / "os", folder / "addons"
    for part in (base, addons):
        part.mkdir(parents=True, exist_ok=True)
    for kernel in kernels:
        (kernel_rpm if family == "rpm" else kernel_deb)(kernel, machine, base)
    if family == "rpm":
        # The tree of the lab's hosts is Debian's: this package says to rpm what it has without owning it.
        plain_rpm("kylin-release", "10", base, "Provides: /bin/sh\nProvides: system-release = 10\n")
        plain_rpm("runc", PODMAN["runc"], base)
        plain_rpm("containers-common", PODMAN["containers-common"], base)
        plain_rpm("podman", PODMAN["podman"], base, "Requires: runc\nRequires: containers-common\n")
    for where, packages in ((base, TOOLS_PACKAGED), (addons, ADDONS)):
        for name, version in packages.items():
            if family == "rpm":
                plain_rpm(name, version, where)
            else:
                deb(name, version, "all", where, {})
    for part in (base, addons):
        index(part, family)


def index(folder: Path, family: str) -> None:
    """Write a repository's metadata."""
    if family == "rpm":
        run("createrepo_c", "--quiet", folder)
        return
    packages = run("dpkg-scanpackages", "--multiversion", ".", cwd=folder)
    (folder / "Packages").write_text(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages.encode(), mtime=0))


def digest() -> str:
    """Twelve hex digits that change whenever this file does."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


def packages_of(folder: Path, edition: str, machine: str, kernel: str) -> list[Path]:
    """The files that make a kernel bootable, in the order of their installation."""
    if EDITIONS[edition].family == "rpm":
        return [folder / f"os/{name}-{kernel}.{machine}.rpm" for name in ("kernel-core", "kernel-modules", "kernel")]
    uname, architecture = EDITIONS[edition].release(kernel, machine), DEB_ARCHITECTURE[machine]
    return [folder / f"os/{name}-{uname}_{kernel}_{architecture}.deb" for name in ("linux-modules", "linux-image")]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Build stand-in kernel repositories of one edition.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("edition", choices=sorted(EDITIONS))
    parser.add_argument("--machine", choices=sorted(DEB_ARCHITECTURE), default="x86_64")
    options = parser.parse_args(arguments)
    try:
        build(options.edition, options.machine, options.folder)
    except (BuildError, FileNotFoundError) as error:
        print(f"{re.sub(r'^.Errno 2. ', '', str(error))}. Run `lab/lab deps`.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
