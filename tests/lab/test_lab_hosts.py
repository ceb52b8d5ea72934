# SPDX-License-Identifier: Apache-2.0
"""The lab for real: boots hosts on this machine (root, Debian packages from `lab/lab deps`)."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.labtool import cgroup
from lab.labtool.common import Lab

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
# not the demo's: a demo may be up while these run
LAB_ID = os.environ.get("LAB_TEST_ID", "70")
LAB = Lab(int(LAB_ID), ROOT / ".cache/lab")
ENVIRONMENT = os.environ | {"LAB_ID": LAB_ID, "LAB_STORE": str(LAB.store)}


def lab(*argv: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [ROOT / "lab/lab", *argv], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == status, f"lab {argv}: {result.stdout}{result.stderr}"
    return result


def inside(name: str, command: str, status: int = 0) -> str:
    return lab("exec", name, "--", "sh", "-c", command, status=status).stdout.strip()


def firewall_and_forwarding() -> tuple[str, str]:
    rules = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout
    return rules, Path("/proc/sys/net/ipv4/ip_forward").read_text()


def traces() -> list[str]:
    """Whatever of this lab still is on the machine."""
    found = [str(p) for p in [LAB.state, LAB.lock] if p.exists()]
    found += [p.name for p in Path("/sys/class/net").iterdir() if p.name.startswith((LAB.tag, f"vb-{LAB.tag[1:]}-"))]
    found += [str(p) for p in cgroup.folders(LAB.tag)]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{LAB.state}/" in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            groups = (process / "cgroup").read_text()
            if "\nState:\tZ" in (process / "status").read_text():
                continue  # ended; only this machine's process 1 can take it off the list
        except OSError:  # it ended meanwhile
            continue
        if f"/{LAB.tag}/" in groups or f"--directory={LAB.hosts}" in " ".join(words):
            found.append(f"process {process.name} {words}")
    return found


@pytest.fixture(scope="module")
def machine() -> Iterator[tuple[str, str]]:
    """This machine with none of our hosts on it; afterwards as it was before."""
    lab("deps")
    lab("down", "--all")
    before = firewall_and_forwarding()
    yield before
    lab("down", "--all")
    assert traces() == []
    assert firewall_and_forwarding() == before


@pytest.fixture(scope="module")
def hosts(machine: tuple[str, str]) -> list[str]:
    names = ["one", "two"]
    lab("up", *names)
    return names


def test_hosts_are_systemd_machines_that_see_each_other(hosts: list[str]) -> None:
    for name in hosts:
        assert inside(name, "cat /proc/1/comm; hostname; systemctl is-system-running").split() == [
            "systemd", name, "running",
        ]  # fmt: skip
    assert inside("one", "ping -c1 -W2 two >/dev/null && echo reached") == "reached"
    assert inside("one", "cat /sys/class/net/host0/address") != inside("two", "cat /sys/class/net/host0/address")


def test_limits_are_real_and_each_host_has_its_own(hosts: list[str]) -> None:
    take = "systemd-run --quiet --collect --wait -p MemoryMax={} python3 -c 'bytearray(96 << 20)'"
    inside("one", take.format("32M"), status=255)
    inside("two", take.format("256M"))


def test_a_host_has_no_package_index(hosts: list[str]) -> None:
    assert inside("one", "cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | wc -l") == "0"
    inside("one", "apt-get install --yes hello", status=100)


def test_machine_wide_sysctls_are_closed_until_opened(hosts: list[str]) -> None:
    value = Path("/proc/sys/vm/swappiness").read_text().strip()
    inside("two", f"sysctl -w vm.swappiness={value}", status=1)
    lab("open", "two")
    inside("two", f"sysctl -w vm.swappiness={value}")
    inside("one", f"sysctl -w vm.swappiness={value}", status=1)
    lab("reboot", "two")
    inside("two", f"sysctl -w vm.swappiness={value}")


def test_ansible_reboots_a_host(hosts: list[str]) -> None:
    boot = inside("one", "cat /proc/sys/kernel/random/boot_id")
    subprocess.run(
        ["ansible", "-i", LAB.inventory, "one", "-m", "ansible.builtin.reboot"],
        cwd=ROOT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert inside("one", "cat /proc/sys/kernel/random/boot_id") != boot


def test_power_cut_loses_memory_and_keeps_the_disk(hosts: list[str]) -> None:
    inside("two", "echo kept > /root/disk; echo lost > /run/memory; systemd-run --quiet --unit=busy sleep 1000")
    boot = inside("two", "cat /proc/sys/kernel/random/boot_id")
    lab("kill", "two")
    assert cgroup.processes(LAB.tag, "two") == set()
    assert {line.split()[0]: line.split()[2] for line in lab("status").stdout.splitlines()} == {
        "one": "on", "two": "off",
    }  # fmt: skip
    assert "1 booted, 1 already up" in lab("up", "one", "two").stdout
    assert inside("two", "cat /root/disk; ls /run/memory 2>/dev/null; systemctl is-active busy", status=3) == (
        "kept\ninactive"
    )
    assert inside("two", "cat /proc/sys/kernel/random/boot_id") != boot


def test_host_keys_are_checked(hosts: list[str]) -> None:
    known = LAB.state / "known_hosts"
    right = known.read_text()
    one, two = right.splitlines()
    known.write_text(f"{one.split()[0]} {' '.join(two.split()[1:])}\n")
    try:
        said = lab("exec", "one", "--", "true", status=255).stderr
        assert "Host key verification failed" in said
    finally:
        known.write_text(right)


def test_a_host_that_cannot_boot_shows_its_console_and_keeps_its_disk(hosts: list[str]) -> None:
    lab("kill", "two")
    init = LAB.hosts / "two/root/usr/local/sbin/lab-init"
    right = init.read_text()
    init.write_text("#!/bin/sh\necho the disk is on fire\nexit 7\n")
    try:
        failed = lab("up", "one", "two", status=1)
        assert "console of two" in failed.stderr and "the disk is on fire" in failed.stderr
        assert cgroup.processes(LAB.tag, "two") == set()
        assert inside("one", "echo untouched") == "untouched"
    finally:
        init.write_text(right)
        lab("up", "two")
    assert inside("two", "cat /root/disk") == "kept"


def test_a_new_host_that_fails_leaves_nothing(hosts: list[str]) -> None:
    lab("up", "three", "--timeout", "0.01", status=1)
    assert set(yaml.safe_load(LAB.inventory.read_text())["all"]["hosts"]) == set(hosts)
    assert not (LAB.hosts / "three").exists()
    assert cgroup.folders(LAB.tag, "three") == []


def test_a_way_out_is_only_for_those_who_asked(hosts: list[str]) -> None:
    before = firewall_and_forwarding()
    lab("up", "registry", "--registry")
    assert inside("registry", "ls -A /etc/apt/sources.list.d /etc/apt/sources.list 2>/dev/null | wc -l") != "0"
    assert "masquerade" in firewall_and_forwarding()[0]
    assert inside("registry", "apt-get -qq update && apt-cache policy hello | grep -c Candidate") == "1"
    lab("down", "registry")
    assert firewall_and_forwarding() == before


def test_an_old_python_is_the_only_one(hosts: list[str]) -> None:
    result = subprocess.run([ROOT / "lab/lab", "up", "kylin", "--python", "3.7=kylin"], env=ENVIRONMENT,
                            capture_output=True, text=True, check=False, timeout=120)  # fmt: skip
    if result.returncode == 3:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    assert inside("kylin", "ls /usr/bin/python*") == "/usr/bin/python3.7"
    as_nobody = "su -s /usr/bin/python3.7 nobody -c 'import ssl, sys; print(sys.version_info[:2])'"
    assert inside("kylin", as_nobody) == "(3, 7)"
    asked = subprocess.run(
        ["ansible", "-i", LAB.inventory, "kylin", "-m", "ansible.builtin.setup", "-a", "filter=ansible_python_version"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "3.7." in asked.stdout
    lab("down", "kylin")


@pytest.mark.parametrize("moment", [0.15, 0.4, 0.8])
def test_down_cleans_up_after_a_killed_up(machine: tuple[str, str], moment: float) -> None:
    lab("down", "--all")
    crashed = subprocess.Popen([ROOT / "lab/lab", "up", "one", "two", "three", "--registry"], env=ENVIRONMENT,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    time.sleep(moment)
    crashed.send_signal(signal.SIGKILL)
    crashed.wait()
    lab("down", "--all")
    assert traces() == []
    assert firewall_and_forwarding() == machine
    lab("down", "--all")


def test_up_goes_on_after_a_killed_up(machine: tuple[str, str]) -> None:
    crashed = subprocess.Popen([ROOT / "lab/lab", "up", "one", "two"], env=ENVIRONMENT,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    time.sleep(0.3)
    crashed.send_signal(signal.SIGKILL)
    crashed.wait()
    lab("up", "one", "two")
    assert inside("one", "systemctl is-system-running") == "running"
