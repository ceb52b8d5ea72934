# SPDX-License-Identifier: Apache-2.0
"""Role kernel on booted Kylin STAND-INS: two servers (rpm) and a desktop (apt), from their first kernel to another.

The tests follow the hosts through their life and run in the order of the file. Server 2 has the bad luck: it does not
come back from a reboot, its /boot is full, its boot loader falls back.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.labtool.common import Lab
from lab.vendor import kernel_packages

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
LAB = Lab(int(os.environ.get("LAB_TEST_KERNEL_ID", "84")), ROOT / ".cache/lab")
ENVIRONMENT = os.environ | {
    "LAB_ID": str(LAB.id),
    "LAB_STORE": str(LAB.store),
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
    "ANSIBLE_NOCOLOR": "1",
}
HOSTS = ("server1", "server2", "desktop")
MACHINE = "aarch64"
PARAMETER = "iommu.passthrough=1"
OLD, NEW, NEWER = (f"4.19.90-52.{number}.v2207.ky10" for number in (15, 22, 39))
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: kernel, tasks_from: "{{ entry }}"}
    - ansible.builtin.debug: {msg: "reboot required: {{ kernel_reboot_required | default('unknown') }}"}
"""
HOOK = """
- name: Say when
  ansible.builtin.shell: echo "WORD $(cat /proc/sys/kernel/random/boot_id)" >> /root/hooks; {{ also | default("true") }}
"""


def server(kernel: str, *packages: str) -> dict[str, Any]:
    names = packages or ("kernel", "kernel-devel", "kernel-headers")
    return {
        "release": f"{kernel}.{MACHINE}",
        "packages": [f"{name}-{kernel}" for name in names],
        "boot_parameters": [PARAMETER],
        "pinned": True,
    }


def desktop(release: str) -> dict[str, Any]:
    packages = [f"linux-{part}-{release}" for part in ("image", "headers")]
    return {"release": release, "packages": packages, "boot_parameters": [PARAMETER], "pinned": True}


PLANS = {"server1": server(NEW), "server2": server(NEW), "desktop": desktop("5.4.18-85-generic")}


class Run:
    """One run of the role: its exit code and its output, without line breaks and blanks of the display."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.rc = done.returncode
        self.full = done.stdout + done.stderr
        self.text = re.sub(r"\s+", " ", self.full.replace("''", "'"))

    def recap(self, host: str, word: str) -> int:
        found = re.search(rf"{host} .* {word}=(\d+)", self.full)
        assert found, self.full
        return int(found[1])


def lab(*argv: str) -> str:
    done = subprocess.run([ROOT / "lab/lab", *argv], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"lab {argv}: {done.stdout}{done.stderr}"
    return done.stdout


def inside(name: str, command: str) -> str:
    return lab("exec", name, "--", "sh", "-c", command).strip()


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Boot the hosts; returns a function that runs an entry point, with variables by host."""
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "play.yml").write_text(PLAYBOOK)
    for word in ("before", "after"):
        (folder / f"{word}.yml").write_text(HOOK.replace("WORD", word))
    lab("down", "--all")
    try:
        lab("up", "--os", "kylin-v10-sp3", "--kernel", OLD, "--machine", MACHINE, "server1", "server2")
        lab("up", "--os", "kylin-v10-desktop", "desktop")

        def run(entry: str, *options: str, **by_host: dict[str, Any]) -> Run:
            hooks = {f"kernel_{word}_reboot": str(folder / f"{word}.yml") for word in ("before", "after")}
            variables = {
                host: {"entry": entry, "kernel_plan": PLANS[host], **hooks, **by_host.get(host, {})} for host in HOSTS
            }
            chosen = {"all": {"hosts": {host: variables[host] for host in by_host or HOSTS}}}
            (folder / "variables.json").write_text(json.dumps(chosen))
            program = Path(sys.executable).with_name("ansible-playbook")
            inventories = ["-i", LAB.inventory, "-i", folder / "variables.json", "--limit", ",".join(by_host or HOSTS)]
            command = [program, *inventories, folder / "play.yml", *options]
            return Run(subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False))

        yield run
    finally:
        lab("down", "--all")


def test_a_preview_changes_nothing_and_tells_what_would(play: Any) -> None:
    preview = play("main", "--check", "--diff")
    assert preview.rc == 0, preview.full
    assert f"-default: {OLD}.{MACHINE} +default: {NEW}.{MACHINE}" in preview.text
    assert "+excludepkgs=kernel kernel-core kernel-devel kernel-headers kernel-modules*" in preview.text
    assert "+linux-image-5.4.18-85-generic" in preview.text
    assert "desktop would install linux-image-5.4.18-85-generic, linux-headers-5.4.18-85-generic" in preview.text
    findings = play("verify", "--check", server1={})
    assert findings.rc == 0 and findings.recap("server1", "changed") == 0, findings.full
    assert f"the running kernel: seen {OLD}.{MACHINE}, needed {NEW}.{MACHINE}" in findings.text
    for host in HOSTS:
        assert preview.recap(host, "changed") == 4
        assert inside(host, "ls -d /var/lib/vllm /etc/default/grub.d/zz-vllm.cfg /root/hooks 2>/dev/null; true") == ""


def test_from_the_first_kernel_to_the_planned_one_while_one_host_does_not_come_back(play: Any) -> None:
    init = LAB.hosts / "server2/root/usr/local/sbin/lab-init"
    right = init.read_text()
    init.write_text("#!/bin/sh\nexec sleep 600\n")
    release = f"{NEW}.{MACHINE}"
    repositories = LAB.store / "repositories"
    files = [
        str(path)
        for name in ("kernel", "kernel-core", "kernel-modules", "kernel-devel", "kernel-headers")
        for path in repositories.glob(f"kylin-v10-sp3-{MACHINE}-{kernel_packages.digest()}/os/{name}-{release}.rpm")
    ]
    assert len(files) == 5
    unlucky = {"kernel_package_files": files, "kernel_gpg_check": False, "kernel_reboot_timeout": 3}
    run = play("main", server1={}, server2=unlucky, desktop={})
    assert (run.recap("server1", "failed"), run.recap("server2", "failed"), run.recap("desktop", "failed")) == (0, 1, 0)
    assert f"server2 has a new kernel {release} and boot parameter {PARAMETER}, but the reboot did not" in run.text
    assert "Timed out waiting for last boot time check (timeout=3) Look at its console." in run.text
    lab("kill", "server2")
    init.write_text(right)
    lab("up", *HOSTS)
    # What is installed needs no repository any more.
    inside("server1", "sed -i s,file:///srv/kylin,http://127.0.0.1:9,  /etc/yum.repos.d/kylin_aarch64.repo")
    again = play("main", "--diff")
    assert again.rc == 0, again.full
    # Server 2 was cut off: it has caught up on the tasks after its reboot, and the note of them is gone.
    assert [again.recap(host, "changed") for host in HOSTS] == [0, 2, 0], again.full
    for host in HOSTS:
        before, after = inside(host, "cat /root/hooks").splitlines()
        assert before.split()[0] == "before" and after.split()[0] == "after" and before.split()[1] != after.split()[1]
        assert inside(host, "uname -r") == PLANS[host]["release"]
        assert inside(host, "find /var/cache/vllm /var/lib/vllm/reboots -type f 2>/dev/null; true") == ""
    for host in ("server1", "desktop"):
        assert PARAMETER in inside(host, "cat /proc/cmdline")
    verified = play("verify")
    assert verified.rc == 0, verified.full
    assert inside("server2", "dnf -q check-update kernel; apt-mark showhold 2>/dev/null; true") == ""
    assert inside("desktop", "apt-mark showhold").split() == sorted(PLANS["desktop"]["packages"])


def test_what_goes_wrong_is_said_with_what_to_do(play: Any) -> None:
    fill = "cp -a /boot /b; mount -t tmpfs -o size=64k tmpfs /boot; cp -a /b/. /boot; dd if=/dev/zero of=/boot/f; true"
    inside("server2", fill + " 2>/dev/null")
    plans = {"server1": server(NEWER), "server2": server(NEWER), "desktop": desktop("5.4.18-99-generic")}
    run = play("main", **{host: {"kernel_plan": plan} for host, plan in plans.items()})
    assert [run.recap(host, "failed") for host in HOSTS] == [1, 1, 1], run.full
    packages = ", ".join(plans["server1"]["packages"])
    assert f"server1 needs {packages}, which could not be installed from the repositories of the host:" in run.text
    assert "Failed to download metadata for repo 'ks10-adv-os'" in run.text
    assert "A repository does not answer: repair it on the host" in run.text
    assert "more space needed on the /boot filesystem. A file system is full: look at" in run.text
    assert "No package matching 'linux-image-5.4.18-99-generic' is available. Where it was looked for" in run.text
    for host in HOSTS:
        assert inside(host, "uname -r") == PLANS[host]["release"]
    inside("server2", "umount /boot; rm -r /b")


def test_a_rerun_after_the_fix_completes_and_a_fall_back_is_noticed(play: Any) -> None:
    newer, release = {"kernel_plan": server(NEWER)}, f"{NEWER}.{MACHINE}"
    url = {"kernel_repository_url": "file:///srv/kylin/os", "kernel_gpg_check": False}
    older = {"kernel_plan": desktop("5.4.18-35-generic"), "kernel_gpg_check": False}
    run = play(
        "main",
        server1={**newer, **url},
        server2={**newer, "also": "grub2-reboot 1"},
        desktop={**older, "kernel_repository_url": "file:/srv/kylin/os ./"},
    )
    assert [run.recap(host, "failed") for host in HOSTS] == [0, 1, 0], run.full
    assert f"it came back with {NEW}.{MACHINE}, which is not kernel {release}." in run.text
    assert "Look at its console" in run.text
    assert inside("server2", "tail -n 1 /root/hooks").split()[0] == "before", "it was put back with a wrong kernel"
    assert inside("server1", "ls /etc/yum.repos.d") == "kylin_aarch64.repo"
    assert inside("desktop", "ls /etc/apt/sources.list.d") == ""
    assert (inside("server1", "uname -r"), inside("desktop", "uname -r")) == (release, "5.4.18-35-generic")
    # As a full /boot leaves a kernel when its initial RAM disk does not fit.
    inside("server2", f"rm /boot/initramfs-{release}.img")
    again = play("main", server1={**newer, **url}, server2=newer, desktop=older)
    assert again.rc == 0, again.full
    assert [again.recap(host, "changed") for host in ("server1", "desktop")] == [0, 0]
    assert inside("server2", f"uname -r; ls /boot/initramfs-{release}.img").split()[0] == release
    assert (
        inside("server2", f"rpm -q kernel-{NEW} kernel-devel-{NEWER} | wc -l; tail -n 1 /root/hooks").split()[1]
        == "after"
    )


def test_pin_and_parameters_can_be_taken_back(play: Any) -> None:
    first, second = play("remove"), play("remove", "--check", server1={}, desktop={})
    assert first.rc == second.rc == 0, first.full + second.full
    assert [first.recap(host, "changed") for host in HOSTS] == [2, 2, 2]
    assert [second.recap(host, "changed") for host in ("server1", "desktop")] == [0, 0]
    kernel = f"/boot/vmlinuz-{NEWER}.{MACHINE}"
    assert (
        PARAMETER not in inside("server1", "grubby --info=ALL")
        and inside("server1", "grubby --default-kernel") == kernel
    )
    assert "excludepkgs" not in inside("server1", "cat /etc/dnf/dnf.conf")
    assert inside("desktop", "apt-mark showhold; ls /etc/default/grub.d 2>/dev/null; true") == ""
