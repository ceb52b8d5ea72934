# SPDX-License-Identifier: Apache-2.0
"""Kylin stand-ins: what makes a Debian tree look like one edition of Kylin V10, and the traps of such hosts."""

import contextlib
import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..vendor import kernel_packages
from .common import EXIT_USAGE, LabError, locked, run, unmount_below

BOOT = Path(__file__).resolve().parents[1] / "vendor/boot"
OWN = "usr/lib/lab"  # everything of the stand-in in a tree
REPOSITORY = "/srv/kylin"  # where a host sees its package repositories
MACHINES = ("x86_64", "aarch64")
TRAPS = ("redhat-release", "podman", "no-tuned", "repository-unreachable")
PLATFORM_PYTHON = "usr/libexec/platform-python"
DEBIAN = "debian-12"
# What --npu puts on a host's PCI bus: product, and the id that decides which packages fit.
NPUS = {"a2": "19e5:d802", "a3": "19e5:d803", "310p": "19e5:d500"}
# Service packs of the server edition by their code name: os-release tells them apart by nothing else.
CODENAMES = {
    "kylin-v10-sp1": "Tercel",
    "kylin-v10-sp2": "Sword",
    "kylin-v10-sp3": "Lance",
    "kylin-v10-sp3-2403": "Halberd",
}
DESKTOP = "kylin-v10-desktop"
SYSTEMS = (DEBIAN, *CODENAMES, DESKTOP)
PYTHON = "3.7"  # of the server edition
UNREACHABLE = "http://127.0.0.1:9"  # refused at once; a real one is waited for

DESKTOP_RELEASE = """\
NAME="Kylin"
VERSION="银河麒麟桌面操作系统V10 (SP1)"
VERSION_US="Kylin Linux Desktop V10 (SP1)"
ID=kylin
ID_LIKE=debian
PRETTY_NAME="Kylin V10 SP1"
VERSION_ID="v10"
VERSION_CODENAME=kylin
UBUNTU_CODENAME=kylin
PROJECT_CODENAME=V10SP1
"""
DESKTOP_LSB = """\
DISTRIB_ID=Kylin
DISTRIB_RELEASE=v10
DISTRIB_CODENAME=kylin
DISTRIB_DESCRIPTION="Kylin V10 SP1"
"""
DNF = """\
[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
"""
GRUB_SERVER = """\
GRUB_TIMEOUT=5
GRUB_DISTRIBUTOR="$(sed 's, release .*$,,g' /etc/system-release)"
GRUB_DEFAULT=saved
GRUB_DISABLE_SUBMENU=true
GRUB_TERMINAL_OUTPUT="console"
GRUB_CMDLINE_LINUX="rd.lvm.lv=klas/root rd.lvm.lv=klas/swap rhgb quiet crashkernel=1024M,high"
GRUB_DISABLE_RECOVERY="true"
"""
GRUB_DESKTOP = """\
GRUB_DEFAULT=0
GRUB_TIMEOUT=5
GRUB_DISTRIBUTOR=Kylin
GRUB_CMDLINE_LINUX_DEFAULT="quiet splash"
GRUB_CMDLINE_LINUX=""
"""


@dataclass(frozen=True)
class Choice:
    """One Kylin stand-in: the edition, the kernel it is installed with, the machine its kernel reports, its traps."""

    system: str
    kernel: str
    machine: str
    traps: tuple[str, ...] = ()

    @property
    def server(self) -> bool:
        return self.system != DESKTOP

    @property
    def release(self) -> str:
        return kernel_packages.EDITIONS[self.system].release(self.kernel, self.machine)

    @property
    def repository(self) -> str:
        """Name of the folder with its packages."""
        return f"{self.system}-{self.machine}-{kernel_packages.digest()}"

    def digest(self, tree: Path) -> str:
        """Changes with the tree below, the stand-in's own files and everything chosen."""
        parts = [
            tree.name,
            self.repository,
            self.kernel,
            *sorted(self.traps),
            Path(__file__).read_text(),
            boot_digest(),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def boot_digest() -> str:
    content = b"".join(path.read_bytes() for path in sorted(BOOT.iterdir()) if path.is_file())
    return hashlib.sha256(content).hexdigest()[:12]


def choose(system: str, kernel: str, machine: str, traps: Sequence[str]) -> Choice | None:
    """What was asked for on the command line; None for plain Debian. LabError says what does not go together."""
    if system == DEBIAN:
        if kernel or traps or machine:
            raise LabError("--kernel, --machine and --trap are for Kylin hosts. Add --os kylin-v10-….", EXIT_USAGE)
        return None
    kernels = kernel_packages.EDITIONS[system].kernels
    wanted = next((k for k in kernels if kernel in ("", k)), None)
    if wanted is None:
        raise LabError(f"{system} has no kernel '{kernel}'. There are: {', '.join(kernels)}.", EXIT_USAGE)
    if system == DESKTOP and "redhat-release" in traps:
        raise LabError("The desktop edition is no rpm system: leave --trap redhat-release out.", EXIT_USAGE)
    return Choice(system, wanted, machine or MACHINES[0], tuple(sorted(set(traps))))


def give_npus(root: Path, product: str) -> None:
    """Put the stand-ins of a product's NPUs on a host's PCI bus, and describe the machine to the vendor's stand-ins."""
    (root / OWN).mkdir(parents=True, exist_ok=True)
    shutil.copy(BOOT / "pci-devices", root / OWN)
    write_files(root, {"etc/ascend-stand-in.conf": f"product={product}\npci_ids={NPUS[product]}\n"})


# --- the tree below every host of one kind ----------------------------------------------------------------------------


def equip(tree: Path) -> None:
    """Turn a fresh Debian tree into the ground of the server edition: its package manager and its Python."""
    (tree / "usr/libexec").mkdir(exist_ok=True)
    platform_python = tree / PLATFORM_PYTHON
    # dnf's bindings belong to the tree's own Python, so it stays, where RHEL 8 has its platform Python
    python = next(p for p in (tree / "usr/bin").iterdir() if re.fullmatch(r"python3\.\d+", p.name))
    moved = platform_python.with_name(platform_python.name + python.name.removeprefix("python"))
    python.rename(moved)
    python.symlink_to(f"/{moved.relative_to(tree)}")
    platform_python.symlink_to(moved.name)
    for folder in ("usr/bin", "usr/sbin"):
        for path in (tree / folder).iterdir():
            point_at_platform_python(path)
    (tree / "usr/bin/yum").symlink_to("dnf-3")
    (tree / OWN / "debian").mkdir(parents=True)
    for pattern in ("apt*", "dpkg*"):
        for path in (tree / "usr/bin").glob(pattern):
            path.rename(tree / OWN / "debian" / path.name)


def point_at_platform_python(path: Path) -> None:
    """Give a script of the tree's own Python that Python by name: /usr/bin/python3 will be another one."""
    if path.is_symlink() or not path.is_file():
        return
    with path.open("rb") as stream:
        first = stream.readline()
    if first.startswith(b"#!") and b"python3" in first:
        rest = path.read_bytes()[len(first) :]
        path.write_bytes(f"#!/{PLATFORM_PYTHON}\n".encode() + rest)


# --- one edition ------------------------------------------------------------------------------------------------------


def identity(choice: Choice) -> dict[str, str]:
    """Files that say which edition this is; "" for one that must not be there."""
    if not choice.server:
        return {
            "usr/lib/os-release": DESKTOP_RELEASE,
            "etc/lsb-release": DESKTOP_LSB,
            "etc/debian_version": "bullseye/sid\n",
            "etc/issue": "Kylin V10 SP1 \\n \\l\n",
        }
    codename = CODENAMES[choice.system]
    name = "Kylin Linux Advanced Server"
    line = f"{name} release V10 ({codename})\n"
    return {
        "usr/lib/os-release": f'NAME="{name}"\nVERSION="V10 ({codename})"\nID="kylin"\nVERSION_ID="V10"\n'
        f'PRETTY_NAME="{name} V10 ({codename})"\nANSI_COLOR="0;31"\n',
        "etc/kylin-release": line,
        "etc/system-release": "-> kylin-release",
        "etc/redhat-release": "-> kylin-release" if "redhat-release" in choice.traps else "",
        "etc/debian_version": "",
        "etc/lsb-release": "",
        "etc/issue": "\nAuthorized users only. All activities may be monitored and reported.\n",
    }


def sources(choice: Choice) -> tuple[str, str]:
    """(path, text) of the configuration of the package repositories."""
    address = UNREACHABLE if "repository-unreachable" in choice.traps else f"file://{REPOSITORY}"
    parts = [("os", "os", "Os")] + [("addons", "addons", "Addons")] * ("no-tuned" not in choice.traps)
    if not choice.server:
        address = address.replace("file://", "file:")
        return "etc/apt/sources.list", "".join(f"deb [trusted=yes] {address}/{part} ./\n" for part, _, _ in parts)
    head = "###Kylin Linux Advanced Server 10 - os repo###\n"
    return f"etc/yum.repos.d/kylin_{choice.machine}.repo", head + "".join(
        f"\n[ks10-adv-{name}]\nname = Kylin Linux Advanced Server 10 - {title}\nbaseurl = {address}/{part}/\n"
        "gpgcheck = 0\nenabled = 1\n"
        for part, name, title in parts
    )


def boot_files(choice: Choice) -> dict[str, str]:
    """An empty menu and its settings; the entries come with the kernel."""
    empty = "### BEGIN /etc/grub.d/10_linux ###\n### END /etc/grub.d/10_linux ###\n"
    block = "# GRUB Environment Block\n"
    folder = boot_folder(choice)
    page = 65536 if choice.machine == "aarch64" else 4096
    files = {
        f"{OWN}/kernel.conf": f"machine={choice.machine}\npage_size={page}\nbuild=#1 SMP\n",
        f"{folder}/grub.cfg": empty,
        f"{folder}/grubenv": block + "#" * (1024 - len(block)),
        "etc/default/grub": GRUB_SERVER if choice.server else GRUB_DESKTOP,
    }
    if not choice.server:
        return files | {f"etc/kernel/{step}.d/zz-update-grub": UPDATE_GRUB for step in ("postinst", "postrm")}
    efi = choice.machine == "aarch64"
    files["etc/grub2-efi.cfg" if efi else "etc/grub2.cfg"] = f"-> ../{folder}/grub.cfg"
    if efi:
        files["boot/grub2/grubenv"] = "-> ../efi/EFI/kylin/grubenv"
    return files | {"etc/sysconfig/kernel": "UPDATEDEFAULT=yes\nDEFAULTKERNEL=kernel\n", "etc/dnf/dnf.conf": DNF}


UPDATE_GRUB = "#!/bin/sh\nexec update-grub\n"


def write_files(root: Path, files: dict[str, str]) -> None:
    """Write texts; "-> target" makes a link, "" removes."""
    for name, text in files.items():
        path = root / name
        if path.is_symlink() or path.exists():
            path.unlink()
        if not text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text[3:])
        else:
            path.write_text(text)
            path.chmod(0o755 if text.startswith("#!") else 0o644)


def install_boot_loader(root: Path, server: bool) -> None:
    """Put the stand-ins of GRUB and of another kernel in their places."""
    own = root / OWN
    own.mkdir(exist_ok=True)
    run("gcc", "-shared", "-fPIC", "-O2", "-o", own / "pretend.so", BOOT / "pretend.c", "-ldl")
    shutil.copy(BOOT / "boot-loader", own)
    (own / "boot-loader").chmod(0o755)
    (own / "lab-boot").symlink_to("boot-loader")
    names = ["mkconfig", "set-default", "reboot"]
    names = ["grubby", *(f"grub2-{n}" for n in names)] if server else ["update-grub", *(f"grub-{n}" for n in names)]
    for name in names:
        (root / "usr/sbin" / name).symlink_to(f"/{OWN}/boot-loader")
    (root / "usr/bin" / ("grub2-editenv" if server else "grub-editenv")).symlink_to(f"/{OWN}/boot-loader")
    write_files(root, {"etc/ld.so.preload": f"/{OWN}/pretend.so\n"})


def install(root: Path, choice: Choice, repository: Path) -> None:
    """Write an edition's files and install its kernel with the edition's own package manager."""
    path, text = sources(choice)
    write_files(root, identity(choice) | boot_files(choice) | {path: text})
    if not choice.server:
        write_files(root, {PLATFORM_PYTHON: "-> /usr/bin/python3"})
    install_boot_loader(root, choice.server)
    (root / "usr/lib/modules").mkdir(exist_ok=True)
    packages = kernel_packages.packages_of(repository, choice.system, choice.machine, choice.kernel)
    if choice.server:
        packages = sorted((repository / "os").glob("kylin-release-*.rpm")) + packages
        if "podman" in choice.traps:
            packages += [p for name in kernel_packages.PODMAN for p in (repository / "os").glob(f"{name}-*.rpm")]
        # as if this were the machine the packages are for
        command = ["rpm", "--ignorearch", "--nosignature", "--install"]
    else:
        command = ["dpkg", "--force-architecture", "--install"]
    staged = root / "var/tmp/lab-packages"
    staged.mkdir()
    for package in packages:
        shutil.copy(package, staged)
    run("chroot", root, *command, *(f"/var/tmp/lab-packages/{package.name}" for package in packages))
    shutil.rmtree(staged)
    # as the installer of the system leaves it
    menu = boot_folder(choice) + "/grub.cfg"
    run("chroot", root, "grub2-mkconfig" if choice.server else "grub-mkconfig", "-o", f"/{menu}")
    if choice.server:
        run("chroot", root, "grubby", f"--set-default=/boot/vmlinuz-{choice.release}")


def boot_folder(choice: Choice) -> str:
    """Folder of grub.cfg: Kunpeng servers start by UEFI."""
    if not choice.server:
        return "boot/grub"
    return "boot/efi/EFI/kylin" if choice.machine == "aarch64" else "boot/grub2"


@contextlib.contextmanager
def published(folder: Path) -> Iterator[Path | None]:
    """Yield a folder to fill, which becomes `folder` in one step; None when that is there already."""
    if folder.exists():
        yield None
        return
    staged = folder.with_name(f".{folder.name}.staged")
    if staged.exists():
        unmount_below(staged)
        shutil.rmtree(staged)
    staged.mkdir(parents=True)
    try:
        yield staged
        staged.replace(folder)
    finally:
        if staged.exists():
            unmount_below(staged)
            shutil.rmtree(staged)


def ensure(store: Path, choice: Choice, tree: Path) -> tuple[Path, Path]:
    """Return (layer above the tree, repository) of a stand-in, making what is not there yet (about 2 s)."""
    repository = store / "repositories" / choice.repository
    layer = store / "base" / f"{choice.system}-{choice.digest(tree)}"
    with locked(store / "base.lock"):
        with published(repository) as staged:
            if staged:
                print(f"building the packages {repository.name} (once) …", flush=True)
                kernel_packages.build(choice.system, choice.machine, staged)
        with published(layer) as staged:
            if staged:
                print(f"building the layer {layer.name} (once) …", flush=True)
                parts = {name: staged / name for name in ("upper", "work", "root")}
                for path in parts.values():
                    path.mkdir()
                options = f"lowerdir={tree},upperdir={parts['upper']},workdir={parts['work']}"
                run("mount", "-t", "overlay", "lab-layer", "-o", options, parts["root"])
                install(parts["root"], choice, repository)
                unmount_below(parts["root"])
    return layer / "upper", repository
