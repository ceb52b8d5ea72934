# SPDX-License-Identifier: Apache-2.0
"""The stand-in of GRUB and its tools: genuine files in, genuine files and words out."""

import os
import subprocess
from pathlib import Path

import pytest

from lab.labtool import systems
from lab.labtool.systems import Choice

PROGRAM = Path(__file__).resolve().parents[3] / "lab/vendor/boot/boot-loader"
OLD, NEW = "4.19.90-52.15.v2207.ky10.aarch64", "4.19.90-52.22.v2207.ky10.aarch64"
TITLE = "Kylin Linux Advanced Server ({}) V10 (Lance)"


class Machine:
    """A host's boot files below a folder, with the kernel OLD."""

    def __init__(self, root: Path, choice: Choice) -> None:
        self.root = root
        systems.write_files(root, systems.identity(choice) | systems.boot_files(choice))
        (root / "etc/os-release").symlink_to("../usr/lib/os-release")
        (root / "proc").mkdir()
        (root / "proc/version").write_text("Linux version 6.1.0 (someone@somewhere) #1 SMP\n")
        self.menu = root / systems.boot_folder(choice) / "grub.cfg"

    def kernel(self, release: str) -> None:
        for name in (f"vmlinuz-{release}", f"initramfs-{release}.img"):
            (self.root / "boot" / name).touch()

    def call(self, *words: str, status: int = 0) -> str:
        name = self.root / words[0]
        if not name.is_symlink():
            name.symlink_to(PROGRAM)
        environment = {**os.environ, "LAB_ROOT": str(self.root)}
        command = ["python3", str(name), *words[1:]]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == status, result.stderr
        return result.stdout

    def booted(self) -> list[str]:
        self.call("lab-boot")
        state = (self.root / "usr/lib/lab/running-kernel").read_text().splitlines()
        return [state[0], (self.root / "run/lab/proc-cmdline").read_text().strip()]


@pytest.fixture
def server(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, Choice("kylin-v10-sp3", "4.19.90-52.15.v2207.ky10", "aarch64"))
    machine.kernel(OLD)
    machine.call("grub2-mkconfig", "-o", "/boot/efi/EFI/kylin/grub.cfg")
    return machine


def add(machine: Machine, release: str, *more: str) -> None:
    """As the scriptlet of the kernel package."""
    machine.kernel(release)
    machine.call("grubby", f"--add-kernel=/boot/vmlinuz-{release}", "--copy-default", *more,
                 f"--initrd=/boot/initramfs-{release}.img", f"--title={TITLE.format(release)}")  # fmt: skip


def test_grubby_shows_an_entry_as_version_8_does(server: Machine) -> None:
    arguments = "ro rd.lvm.lv=klas/root rd.lvm.lv=klas/swap rhgb quiet crashkernel=1024M,high"
    assert server.call("grubby", "--info=ALL").splitlines() == [
        "index=0",
        f"kernel=/boot/vmlinuz-{OLD}",
        f'args="{arguments}"',
        "root=/dev/mapper/klas-root",
        f"initrd=/boot/initramfs-{OLD}.img",
        f"title={TITLE.format(OLD)}",
    ]
    assert server.call("grubby", "--default-kernel") == f"/boot/vmlinuz-{OLD}\n"
    assert server.booted() == [OLD, f"BOOT_IMAGE=/vmlinuz-{OLD} root=/dev/mapper/klas-root {arguments}"]


def test_a_new_kernel_is_started_next_and_the_old_one_can_be_taken_back(server: Machine) -> None:
    add(server, NEW, "--make-default")
    assert server.call("grubby", "--default-kernel") == f"/boot/vmlinuz-{NEW}\n"
    assert server.booted()[0] == NEW
    server.call("grubby", "--set-default", f"/boot/vmlinuz-{OLD}")
    assert server.call("grubby", "--default-index") == "1\n"
    assert server.call("grubby", "--default-title") == TITLE.format(OLD) + "\n"
    assert f"saved_entry={TITLE.format(OLD)}\n" == server.call("grub2-editenv", "-", "list")
    assert (server.menu.parent / "grubenv").stat().st_size == 1024
    assert server.booted()[0] == OLD


def test_a_kernel_that_is_not_made_the_default_is_not_started(server: Machine) -> None:
    add(server, NEW)
    assert server.call("grubby", "--default-kernel") == f"/boot/vmlinuz-{OLD}\n"
    server.call("grub2-reboot", "0")
    assert [server.booted()[0], server.booted()[0]] == [NEW, OLD]
    server.call("grub2-set-default", "0")
    assert server.booted()[0] == NEW


def test_a_removed_kernel_leaves_the_menu(server: Machine) -> None:
    add(server, NEW, "--make-default")
    server.call("grubby", f"--remove-kernel=/boot/vmlinuz-{NEW}")
    assert NEW not in server.menu.read_text()
    assert server.call("grubby", "--default-kernel") == f"/boot/vmlinuz-{OLD}\n"


def test_arguments_are_added_replaced_and_removed(server: Machine) -> None:
    add(server, NEW, "--make-default")
    server.call("grubby", "--update-kernel=ALL", "--args=iommu.passthrough=1 crashkernel=512M")
    shown = server.call("grubby", "--info=ALL")
    assert shown.count("crashkernel=512M iommu.passthrough=1") == 2 and "1024M" not in shown
    server.call("grubby", "--update-kernel=DEFAULT", "--remove-args=iommu.passthrough quiet")
    assert "iommu.passthrough" not in server.booted()[1] and " quiet" not in server.booted()[1]
    assert "iommu.passthrough=1" in server.call("grubby", f"--info=/boot/vmlinuz-{OLD}")
    # grub2-mkconfig knows only what /etc/default/grub says
    server.call("grub2-mkconfig", "-o", "/boot/efi/EFI/kylin/grub.cfg")
    assert "iommu.passthrough" not in server.menu.read_text()


def test_wrong_use(server: Machine) -> None:
    server.call("grubby", "--info=/boot/vmlinuz-9", status=1)
    server.call("grubby", "--set-default=/boot/vmlinuz-9", status=1)
    server.call("grubby", "--update-kernel=/boot/vmlinuz-9", "--args=x", status=1)
    server.call("grubby", "--what", status=1)
    server.call("grub2-set-default", status=1)
    server.call("grub2-mkconfig", "-o", "/boot/absent/grub.cfg", status=1)


def test_a_host_without_its_kernel_does_not_start(server: Machine) -> None:
    (server.root / f"boot/vmlinuz-{OLD}").unlink()
    server.call("lab-boot", status=1)


def test_the_desktop_edition_has_a_submenu(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Choice("kylin-v10-desktop", "5.4.18-35.21", "x86_64"))
    for release in ("5.4.18-35-generic", "5.4.18-85-generic"):
        machine.kernel(release)
    machine.call("update-grub")
    assert machine.booted()[0] == "5.4.18-85-generic"
    names = "Advanced options for Kylin V10 SP1>Kylin V10 SP1, with Linux 5.4.18-35-generic"
    for default in (names, "1>1"):
        (tmp_path / "etc/default/grub.d").mkdir(exist_ok=True)
        (tmp_path / "etc/default/grub.d/50-kernel.cfg").write_text(f'GRUB_DEFAULT="{default}"\n')
        machine.call("update-grub")
        assert machine.booted()[0] == "5.4.18-35-generic"
