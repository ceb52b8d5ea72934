# SPDX-License-Identifier: Apache-2.0
"""Stand-ins of Kylin V10 for real: three hosts, what Ansible sees of them, and a kernel from repository to reboot."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.labtool.common import Lab
from lab.vendor import run_packages
from lab.vendor.run_packages import Package

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
LAB_ID = os.environ.get("LAB_TEST_KYLIN_ID", "68")
LAB = Lab(int(LAB_ID), ROOT / ".cache/lab")
ENVIRONMENT = os.environ | {
    "LAB_ID": LAB_ID,
    "LAB_STORE": str(LAB.store),
    "ANSIBLE_MODULE_UTILS": str(ROOT / "module_utils"),
    "ANSIBLE_LIBRARY": str(ROOT / "library"),
}
SERVER, TRAPPED, DESKTOP = "lance", "tercel", "desktop"
OLD, NEW = "4.19.90-52.15.v2207.ky10", "4.19.90-52.22.v2207.ky10"


def lab(*argv: str, status: int = 0) -> str:
    result = subprocess.run(
        [ROOT / "lab/lab", *argv], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == status, f"lab {argv}: {result.stdout}{result.stderr}"
    return result.stdout + result.stderr


def inside(name: str, command: str, status: int = 0) -> str:
    return lab("exec", name, "--", "sh", "-c", command, status=status).strip()


def ansible(tmp_path: Path, hosts: str, *tasks: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Run tasks on hosts; return each host's results in the order of the tasks."""
    steps = [task | {"register": f"result{number}"} for number, task in enumerate(tasks)]
    content = "{{{{ [{}] | to_json }}}}".format(", ".join(step["register"] for step in steps))
    target = {"content": content, "dest": f"{tmp_path}/{{{{ inventory_hostname }}}}.json"}
    steps.append({"copy": target, "delegate_to": "localhost", "vars": {"ansible_connection": "local"}})
    play = [{"hosts": hosts, "gather_facts": False, "ignore_errors": True, "tasks": steps}]
    (tmp_path / "play.yml").write_text(json.dumps(play))
    run = subprocess.run(
        ["ansible-playbook", "-i", LAB.inventory, tmp_path / "play.yml"],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}


@pytest.fixture(scope="module")
def hosts() -> Iterator[None]:
    lab("deps")
    lab("down", "--all")
    lab("up", "--os", "kylin-v10-sp3", "--kernel", OLD, "--npu", "a2", SERVER)
    lab("up", "--os", "kylin-v10-sp1", "--machine", "aarch64", TRAPPED,
        *(f"--trap={trap}" for trap in ("redhat-release", "podman", "repository-unreachable")))  # fmt: skip
    lab("up", "--os", "kylin-v10-desktop", "--trap", "no-tuned", DESKTOP)
    yield
    lab("down", "--all")


FACTS = {
    # name, family, package manager, code name, kernel; with redhat-release present the first two change
    SERVER: ["Kylin Linux Advanced Server", "RedHat", "dnf", "Lance", f"{OLD}.x86_64"],
    TRAPPED: ["Kylin", "Kylin", "dnf", "Tercel", "4.19.90-17.ky10.aarch64"],
    DESKTOP: ["Kylin", "Kylin", "apt", "kylin", "5.4.18-35-generic"],
}


def test_what_ansible_sees(hosts: None, tmp_path: Path) -> None:
    seen = ansible(tmp_path, "all", {"setup": {"gather_subset": "!all,min,pkg_mgr"}}, {"vllm_hardware_facts": {}})
    for name, expected in FACTS.items():
        facts, hardware = (result["ansible_facts"] for result in seen[name])
        words = ("distribution", "os_family", "pkg_mgr", "distribution_release", "kernel")
        assert [facts[f"ansible_{word}"] for word in words] == expected
        system = hardware["vllm_hardware"]["os"]
        assert [system["id"], system["kernel"]] == ["kylin", expected[-1]]
        page = 65536 if expected[-1].endswith("aarch64") else 4096
        assert hardware["vllm_hardware"]["memory"]["page_size_bytes"] == page
    server, trapped = (seen[name][1]["ansible_facts"]["vllm_hardware"] for name in (SERVER, TRAPPED))
    assert [server["os"]["version"], server["os"]["version_id"]] == ["V10 (Lance)", "V10"]
    if "python3.7" in lab("status"):  # where this machine has one
        assert server["os"]["python"].startswith("3.7.")
    assert [entry["device_id"] for entry in server["accelerators"]] == ["19e5:d802"] * 8
    assert trapped["accelerators"] == [] and trapped["architecture"] == "aarch64"
    # the memory is the machine's: only what counts pages is told of larger ones
    assert inside(TRAPPED, "expr $(getconf _PHYS_PAGES) \\* $(getconf PAGESIZE) / 1073741824") == inside(
        TRAPPED, "awk '/MemTotal/ {print int($2 / 1048576)}' /proc/meminfo"
    )


def test_the_traps_show(hosts: None, tmp_path: Path) -> None:
    assert inside(TRAPPED, "rpm -q podman containers-common runc | wc -l") == "3"
    results = ansible(
        tmp_path, f"{TRAPPED},{DESKTOP}",
        {"package": {"name": "dkms"}, "when": f"inventory_hostname == '{TRAPPED}'"},
        {"apt": {"name": "tuned", "update_cache": True}, "when": f"inventory_hostname == '{DESKTOP}'"},
    )  # fmt: skip
    assert "Failed to download metadata for repo 'ks10-adv-os'" in results[TRAPPED][0]["msg"]
    assert "No package matching 'tuned' is available" in results[DESKTOP][1]["msg"]
    for trap in ("podman", "repository-unreachable", "redhat-release"):
        assert f"trap:{trap}" in lab("status")
    assert (
        inside(SERVER, "ls /etc/redhat-release /etc/debian_version /etc/lsb-release /usr/bin/apt* 2>/dev/null", 2) == ""
    )


def test_a_kernel_from_the_repository_to_the_reboot(hosts: None, tmp_path: Path) -> None:
    install = {"name": [f"{package}-{NEW}" for package in ("kernel", "kernel-devel", "kernel-headers")]}
    deb = {"name": ["linux-image-5.4.18-85-generic", "linux-headers-5.4.18-85-generic"], "update_cache": True}
    on_server = f"inventory_hostname == '{SERVER}'"
    results = ansible(
        tmp_path, f"{SERVER},{DESKTOP}",
        {"dnf": install, "when": on_server},
        {"dnf": install, "when": on_server},
        {"apt": deb, "when": f"inventory_hostname == '{DESKTOP}'"},
        {"command": "uname -r"},
        {"command": "grubby --default-kernel", "when": on_server},
        {"command": "grubby --update-kernel=ALL --args=iommu.passthrough=1", "when": on_server},
        {"reboot": {"reboot_timeout": 60}},
        {"command": "cat /proc/sys/kernel/osrelease /proc/cmdline"},
        {"setup": {"gather_subset": "!all,min"}},
    )  # fmt: skip
    server, desktop = results[SERVER], results[DESKTOP]
    assert server[0]["changed"] and not server[1]["changed"] and desktop[2]["changed"], results
    # until the reboot the old kernel runs
    assert [server[3]["stdout"], desktop[3]["stdout"]] == [f"{OLD}.x86_64", "5.4.18-35-generic"]
    assert server[4]["stdout"] == f"/boot/vmlinuz-{NEW}.x86_64"
    assert server[6]["rebooted"] and desktop[6]["rebooted"]
    release, command_line = server[7]["stdout_lines"]
    assert release == server[8]["ansible_facts"]["ansible_kernel"] == f"{NEW}.x86_64"
    assert command_line.startswith(f"BOOT_IMAGE=/vmlinuz-{NEW}.x86_64 root=") and " iommu.passthrough=1" in command_line
    assert desktop[7]["stdout_lines"][0] == desktop[8]["ansible_facts"]["ansible_kernel"] == "5.4.18-85-generic"
    assert inside(SERVER, f"test -d /usr/src/kernels/{NEW}.x86_64/include && ls /lib/modules | wc -l") == "2"


def test_the_driver_has_its_devices_after_the_reboot(hosts: None, tmp_path: Path) -> None:
    arch = "x86_64"
    for component, version in (("driver", "25.5.0"), ("firmware", "7.8.0.5.201")):
        path = run_packages.build(Package(component, version, arch=arch, package_version="25.5.0"), tmp_path)
        subprocess.run(["scp", "-q", "-F", LAB.ssh_config, path, f"{SERVER}:/root/"], check=True)
    inside(SERVER, "groupadd HwHiAiUser && useradd -g HwHiAiUser -m HwHiAiUser && dnf -qy install dkms")
    said = inside(SERVER, "cd /root; bash ./*driver*.run --full --quiet --install-for-all", status=2)
    # headers and devel package of exactly the running kernel came with it
    assert "driver install type: DKMS" in said
    inside(SERVER, "cd /root; bash ./*firmware*.run --full --quiet")
    assert inside(SERVER, "ls /dev | grep -c davinci; npu-smi info >/dev/null; echo $?") == "0\n255"
    lab("reboot", SERVER)
    hardware = ansible(tmp_path, SERVER, {"vllm_hardware_facts": {}})[SERVER][0]["ansible_facts"]["vllm_hardware"]
    assert [entry["health"] for entry in hardware["accelerators"]] == ["OK"] * 8
    assert hardware["warnings"] == [] and len(hardware["hccn"]) == 8
    nodes = inside(SERVER, "stat -c '%F %a %U %G' /dev/davinci0 /dev/davinci7 /dev/davinci_manager | sort -u")
    assert nodes == "character special file 660 HwHiAiUser HwHiAiUser"


def test_a_host_whose_kernel_is_gone_does_not_come_back(hosts: None) -> None:
    inside(DESKTOP, "rm /boot/vmlinuz-*")
    assert "went off while booting" in lab("reboot", DESKTOP, status=1)
    assert "not found" in lab("console", DESKTOP)
