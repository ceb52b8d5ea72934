# SPDX-License-Identifier: Apache-2.0
"""An emulated machine with four NUMA nodes: what a systemd-nspawn host on a machine with one node cannot be.

The lab's base tree and Debian's cloud kernel in one initial RAM file system, started by QEMU without KVM: 8 CPUs, two
to a node, with the distances of a server with two Kunpeng 920. Reached by ssh on a port of the loopback interface.
"""

import os
import re
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import base
from .common import Lab, LabError, locked, run

NODES, MEMORY_MIB = 4, 512
# Kunpeng 920, two sockets of two dies: 12 within a socket, 20 to 24 between them.
DISTANCES = {(0, 1): 12, (0, 2): 20, (0, 3): 22, (1, 2): 22, (1, 3): 24, (2, 3): 12}
KERNEL = "linux-image-cloud-amd64"
# In the order they need each other.
MODULES = (
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
)
# What the guest does not need of the base tree, whose size is time under emulation.
LEFT_OUT = (
    "usr/share", "usr/bin/perl", "usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/libperl",
    "usr/lib/x86_64-linux-gnu/gconv", "var/cache", "var/lib/apt", "var/lib/dpkg",
)  # fmt: skip
KEPT = ("usr/share/dbus-1",)
# The address comes from INIT; the rest has no use here.
MASKED = (
    "systemd-networkd.service", "systemd-networkd.socket", "systemd-timesyncd.service", "systemd-update-utmp.service",
    "systemd-journal-flush.service", "systemd-sysusers.service", "systemd-random-seed.service",
    "systemd-network-generator.service", "systemd-modules-load.service", "systemd-sysctl.service",
    "systemd-remount-fs.service", "nftables.service", "getty@tty1.service", "serial-getty@ttyS0.service",
    "systemd-logind.service", "modprobe@.service", "dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount", "console-getty.service", "apt-daily.timer",
    "e2scrub_all.timer", "fstrim.timer", "dpkg-db-backup.timer", "systemd-tmpfiles-clean.timer",
)  # fmt: skip
INIT = """#!/bin/sh
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in {modules}; do insmod /modules/$module.ko; done
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
exec /sbin/init
"""
START_SECONDS = 240


class Archive:
    """Writes a cpio archive in the kernel's "newc" format."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("wb")
        self._count = 0

    def add(self, name: str, mode: int, data: bytes = b"") -> None:
        self._count += 1
        encoded = name.encode() + b"\0"
        numbers = (self._count, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        header = b"070701" + b"".join(b"%08x" % number for number in numbers) + encoded
        self._stream.write(header + b"\0" * (-len(header) % 4) + data + b"\0" * (-len(data) % 4))

    def add_tree(self, tree: Path) -> None:
        """Add a directory's content, without what the guest has no use for."""
        for folder, directories, names in os.walk(tree):
            for name in sorted(directories + names):
                path = Path(folder) / name
                inside = str(path.relative_to(tree))
                if inside.startswith(LEFT_OUT) and not any(
                    kept.startswith(inside) or inside.startswith(kept) for kept in KEPT
                ):
                    continue
                mode = path.lstat().st_mode
                if stat.S_ISLNK(mode):
                    self.add(inside, mode, os.readlink(path).encode())
                elif stat.S_ISDIR(mode):
                    self.add(inside, mode)
                elif stat.S_ISREG(mode):
                    self.add(inside, mode, path.read_bytes())

    def close(self) -> None:
        self.add("TRAILER!!!", 0)
        self._stream.close()


class Guest:
    """One guest of a lab; its files lie in the lab's folder, its ssh port is 7200 and the lab's number."""

    def __init__(self, lab: Lab) -> None:
        self.folder = lab.state / "guest"
        self.lab = lab
        self.port = 7200 + lab.id
        self.log = self.folder / "console.log"

    @property
    def ssh_options(self) -> list[str]:
        return [
            "-o", f"IdentityFile={self.folder / 'key'}", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR",
            "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=8", "-o", "ControlMaster=auto",
            "-o", f"ControlPath={self.folder / 'ssh'}", "-o", "ControlPersist=60",
        ]  # fmt: skip

    def inventory(self, python: str = "/usr/bin/python3") -> dict[str, object]:
        """Return an inventory with the guest in it."""
        host = {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": "root",
            "ansible_python_interpreter": python,
            "ansible_ssh_common_args": " ".join(self.ssh_options),
            "ansible_pipelining": True,
        }
        return {"all": {"hosts": {"guest": host}}}

    def ssh(self, command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a shell command in the guest."""
        argv = ["ssh", *self.ssh_options, "-p", str(self.port), "root@127.0.0.1", command]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=timeout)

    def build(self) -> Path:
        """Return the image, made first unless it is there: seconds, after the kernel's package was fetched (27 MB)."""
        image = self.folder / "image.cpio"
        with locked(self.lab.store / "guest.lock"):
            if image.exists():
                return image
            self.folder.mkdir(parents=True, exist_ok=True)
            kernel = self._kernel()
            for name in ("key", "host_key"):
                (self.folder / name).unlink(missing_ok=True)
                run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name)
            staged = image.with_suffix(".staged")
            archive = Archive(staged)
            archive.add_tree(base.ensure(self.lab))
            archive.add("modules", stat.S_IFDIR | 0o755)
            for module in MODULES:
                found = next(kernel.glob(f"lib/modules/*/kernel/{module}.ko"))
                archive.add(f"modules/{found.name}", stat.S_IFREG | 0o644, found.read_bytes())
            names = " ".join(Path(module).name for module in MODULES)
            archive.add("init", stat.S_IFREG | 0o755, INIT.format(modules=names).encode())
            archive.add("etc/hostname", stat.S_IFREG | 0o644, b"guest\n")
            archive.add("root/.ssh", stat.S_IFDIR | 0o700)
            for target, source in (
                ("root/.ssh/authorized_keys", "key.pub"),
                ("etc/ssh/ssh_host_ed25519_key", "host_key"),
            ):
                archive.add(target, stat.S_IFREG | 0o600, (self.folder / source).read_bytes())
            for unit in MASKED:
                archive.add(f"etc/systemd/system/{unit}", stat.S_IFLNK | 0o777, b"/dev/null")
            archive.close()
            staged.replace(image)
        return image

    def _kernel(self) -> Path:
        """Return the folder with Debian's cloud kernel, fetched by apt and unpacked when it is not there."""
        target = self.folder / "kernel"
        if next(target.glob("boot/vmlinuz-*"), None) is None:
            # the package of that name only depends on the one with the newest kernel
            depends = run("apt-cache", "depends", KERNEL).stdout.split()
            name = next((word for word in depends if re.match(r"linux-image-[0-9]", word)), None)
            if name is None:
                raise LabError(f"apt knows no {KERNEL}. Run apt-get update.")
            subprocess.run(["apt-get", "-q", "download", name], cwd=self.folder, check=True, capture_output=True)
            run("dpkg-deb", "-x", next(self.folder.glob("linux-image-*.deb")), target)
        return target

    def command(self, image: Path) -> list[str]:
        """Return QEMU's arguments."""
        argv = ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"]
        argv += ["-smp", f"{2 * NODES},sockets={NODES},cores=2", "-m", str(NODES * MEMORY_MIB)]
        for node in range(NODES):
            argv += ["-object", f"memory-backend-ram,id=m{node},size={MEMORY_MIB}M"]
            argv += ["-numa", f"node,nodeid={node},cpus={2 * node}-{2 * node + 1},memdev=m{node}"]
        for (one, other), distance in DISTANCES.items():
            argv += ["-numa", f"dist,src={one},dst={other},val={distance}"]
        argv += ["-kernel", str(next((self.folder / "kernel").glob("boot/vmlinuz-*"))), "-initrd", str(image)]
        argv += ["-append", "console=ttyS0 net.ifnames=0 quiet mitigations=off"]
        argv += ["-netdev", f"user,id=n0,hostfwd=tcp:127.0.0.1:{self.port}-:22", "-device", "virtio-net-pci,netdev=n0"]
        return [*argv, "-display", "none", "-serial", f"file:{self.log}", "-no-reboot"]

    @contextmanager
    def running(self) -> Iterator["Guest"]:
        """Start the guest, wait until ssh answers, and end it afterwards."""
        image = self.build()
        with subprocess.Popen(self.command(image), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as qemu:
            try:
                self._wait(qemu)
                yield self
            finally:
                subprocess.run(["ssh", *self.ssh_options, "-O", "exit", "127.0.0.1"], capture_output=True, check=False)
                qemu.kill()

    def _wait(self, qemu: subprocess.Popen[str]) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if qemu.poll() is not None:
                raise LabError(f"QEMU ended: {qemu.stderr.read() if qemu.stderr else ''}")
            try:
                if self.ssh("true", timeout=15).returncode == 0:
                    return
            except subprocess.TimeoutExpired:
                pass
            time.sleep(0.5)
        raise LabError(f"The guest did not answer within {START_SECONDS} s. Its console is in {self.log}.")
