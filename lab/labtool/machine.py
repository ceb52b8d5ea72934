# SPDX-License-Identifier: Apache-2.0
"""One host: its disk, its processes, its power switch."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import cgroup, network, render
from .common import Lab, LabError, run, unmount_below, write_atomically

REBOOT = 133  # nspawn's exit status when the host asked for a reboot
OPEN_FLAG = "etc/lab-open"
INIT = "usr/local/sbin/lab-init"
# nspawn mounts the control groups read-only, then systemd cannot limit anything. They show this host's own groups
# only, so writing is safe. /proc/sys is another matter (vm.* and kernel.* belong to the whole machine): on request.
INIT_SCRIPT = f"""#!/bin/sh
for tree in /sys/fs/cgroup/*/; do mount -o remount,bind,rw "$tree" 2>/dev/null; done
[ ! -e /{OPEN_FLAG} ] || mount -o remount,bind,rw /proc/sys
[ ! -x /usr/lib/lab/pci-devices ] || /usr/lib/lab/pci-devices
[ ! -x /usr/lib/lab/lab-boot ] || /usr/lib/lab/lab-boot || exit 1
exec /lib/systemd/systemd
"""


class Machine:
    """A host of a lab, running or not. Folder: upper and work (its disk), root (mounted), host.json, console.log."""

    def __init__(self, lab: Lab, host: render.Host) -> None:
        self.lab = lab
        self.host = host
        self.folder = lab.hosts / host.name
        self.root = self.folder / "root"
        self.console = self.folder / "console.log"

    def running(self) -> bool:
        return bool(cgroup.processes(self.lab.tag, self.host.name))

    def leader(self) -> int | None:
        return cgroup.leader(self.lab.tag, self.host.name)

    # --- disk -------------------------------------------------------------------------------------------------

    def mount(self) -> None:
        """Mount the disk: the base tree below, the host's own changes above."""
        if self.root.is_mount():
            return
        for part in ("upper", "work", "root"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        layers = f"lowerdir={self.host.base},upperdir={self.folder}/upper,workdir={self.folder}/work"
        run("mount", "-t", "overlay", self.lab.machine(self.host.octet), "-o", layers, self.root)

    def furnish(self) -> None:
        """Write what a new host needs to come up and be reached: network, keys, init."""
        ssh = self.root / "root/.ssh"
        ssh.mkdir(mode=0o700, exist_ok=True)
        write_atomically(ssh / "authorized_keys", (self.lab.state / "id.pub").read_text(), 0o600)
        key = self.root / "etc/ssh/ssh_host_ed25519_key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.host.name, "-f", key)
        shutil.copy(f"{key}.pub", self.folder / "host_key.pub")
        write_atomically(self.root / "etc/hostname", self.host.name + "\n")
        settings = render.networkd(self.host, self.lab.network.prefixlen, self.lab.gateway)
        write_atomically(self.root / "etc/systemd/network/10-host0.network", settings)
        write_atomically(self.root / INIT, INIT_SCRIPT, 0o755)

    def write_hosts_file(self, hosts: list[render.Host]) -> None:
        """Tell the host its neighbours' names, keeping lines it added itself."""
        if self.root.is_mount():
            path = self.root / "etc/hosts"
            before = path.read_text() if path.exists() else ""
            wanted = render.etc_hosts(hosts, before)
            if wanted != before:
                write_atomically(path, wanted)

    # --- power ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Switch the host on, in the background."""
        self.clear_leftovers()
        # entered before the first instruction: there is no moment in which `down` could overlook the keeper
        groups = cgroup.create(self.lab.tag, self.host.name, "keeper")
        with self.console.open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, str(Path(__file__).parents[1] / "lab"), "_keep", self.host.name],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
                env=os.environ | {"LAB_ID": str(self.lab.id), "LAB_STORE": str(self.lab.store)},
                preexec_fn=partial(cgroup.enter, groups),
            )  # fmt: skip
        write_atomically(self.folder / "pid", f"{keeper.pid}\n")

    def keep(self) -> int:
        """Run the host until it powers off, again after each reboot: the manager that nspawn expects around it."""
        command = [
            "systemd-nspawn", "--quiet", f"--directory={self.root}", f"--machine={self.lab.machine(self.host.octet)}",
            f"--hostname={self.host.name}", "--keep-unit", "--register=no", "--kill-signal=SIGRTMIN+3",
            f"--network-bridge={self.lab.tag}", "--resolv-conf=off", "--link-journal=no", "--capability=all",
            *(f"--bind-ro={outside}:{inside}" for outside, inside in self.host.binds), f"/{INIT}",
        ]  # fmt: skip
        # /tmp on the host's disk, as on a real Debian 12 server: nspawn's own is a small tmpfs
        environment = os.environ | {"SYSTEMD_NSPAWN_TMPFS_TMP": "0"}
        asked_to_stop = threading.Event()
        nspawn: subprocess.Popen[bytes] | None = None

        def stop(*_: object) -> None:
            asked_to_stop.set()
            if nspawn:
                nspawn.terminate()

        signal.signal(signal.SIGTERM, stop)
        status = REBOOT
        while status == REBOOT and not asked_to_stop.is_set():
            network.remove_link(f"vb-{self.lab.machine(self.host.octet)}")
            # fresh groups for each boot: nspawn leaves version 2 ones in a state that accepts no process
            cgroup.remove(self.lab.tag, f"{self.host.name}/machine")
            groups = cgroup.create(self.lab.tag, self.host.name, "machine")
            nspawn = subprocess.Popen(command, env=environment, preexec_fn=partial(cgroup.enter, groups))
            if asked_to_stop.is_set():  # between the question above and nspawn's start
                nspawn.terminate()
            status = nspawn.wait()
        return status

    def wait_ready(self, deadline: float, unlike: int | None = None) -> str:
        """Wait for a finished boot whose process 1 is not `unlike`; return systemd's word for it.

        Raises LabError when the host ends or the deadline (time.monotonic) passes.
        """
        seen = "no answer"
        while time.monotonic() < deadline:
            if not self.running():
                raise LabError(f"{self.host.name} went off while booting.")
            if self.leader() not in (None, unlike) and self._ssh_port_answers():
                state = run("ssh", "-F", self.lab.ssh_config, "-o", "ConnectTimeout=5", self.host.name,
                            "systemctl is-system-running --wait", check=False)  # fmt: skip
                seen = state.stdout.strip() or state.stderr.strip()
                if seen in ("running", "degraded"):
                    return seen
            time.sleep(0.1)
        raise LabError(f"{self.host.name} is not up in time; last seen: {seen}.")

    def _ssh_port_answers(self) -> bool:
        try:
            with socket.create_connection((self.host.address, 22), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def _keeper(self) -> int | None:
        """Id of the host's keeper; a recorded id counts only while it still is one of the host's processes."""
        try:
            pid = int((self.folder / "pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if pid in cgroup.processes(self.lab.tag, self.host.name) else None

    def reboot(self) -> None:
        """Ask systemd in the host for an orderly reboot; return at once."""
        if not (leader := self.leader()):
            raise LabError(f"{self.host.name} is off. Start it with `lab up {self.host.name}`.")
        os.kill(leader, signal.SIGRTMIN + 5)  # systemd(1): starts reboot.target

    def request_power_off(self) -> None:
        """Ask for an orderly power-off; return at once."""
        if keeper := self._keeper():
            os.kill(keeper, signal.SIGTERM)

    def wait_off(self, timeout: float) -> bool:
        return wait_until(lambda: not self.running(), timeout)

    def cut_power(self) -> None:
        """Switch the host off as a power cut would; its disk stays."""
        cgroup.cut_power(self.lab.tag, self.host.name)
        self.clear_leftovers()

    def clear_leftovers(self) -> None:
        """Remove what a boot leaves in the machine when it ended badly."""
        network.remove_link(f"vb-{self.lab.machine(self.host.octet)}")
        cgroup.remove(self.lab.tag, self.host.name)
        (self.folder / "pid").unlink(missing_ok=True)

    def open(self) -> None:
        """Make vm.* and kernel.* sysctls writable inside, now and after every reboot."""
        (self.root / OPEN_FLAG).touch()
        if leader := self.leader():
            run("nsenter", "-t", str(leader), "-m", "mount", "-o", "remount,bind,rw", "/proc/sys")

    def discard(self) -> None:
        """Remove the switched-off host and its disk."""
        self.clear_leftovers()
        unmount_below(self.folder)
        shutil.rmtree(self.folder)


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Whether the condition came true within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def load(lab: Lab) -> list[Machine]:
    """All hosts of the lab, by address."""
    found = [render.Host(**json.loads(p.read_text())) for p in lab.hosts.glob("*/host.json")]
    return [Machine(lab, host) for host in sorted(found, key=lambda h: h.octet)]
