# SPDX-License-Identifier: Apache-2.0
"""The stand-ins of vendor packages: genuine archives, documented answers, recorded layouts."""

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.hardware import hccn, npu_smi

from lab.vendor import run_packages
from lab.vendor.run_packages import Package
from tests.support.ascend import KERNEL, Machine

# Builds packages with what `lab/lab deps` installs.
pytestmark = pytest.mark.lab

CAPTURES = Path(__file__).resolve().parents[2] / "fixtures" / "hardware"
# File names as published, by what they are.
NAMES = {
    Package("driver", "25.0.rc1.1"): "Ascend-hdk-910b-npu-driver_25.0.rc1.1_linux-aarch64.run",
    Package("firmware", "7.7.0.1.231"): "Ascend-hdk-910b-npu-firmware_7.7.0.1.231.run",
    Package("driver", "25.0.rc1.3", "A3"): "Atlas-A3-hdk-npu-driver_25.0.rc1.3_linux-aarch64.run",
    Package("driver", "25.0.rc1.3", "A3", "x86_64"): "Atlas-A3-hdk-npu-driver_25.0.rc1.3_linux-x86-64.run",
    Package("driver", "25.3.rc1", "310p"): "Ascend-hdk-310p-npu-driver_25.3.rc1_linux-aarch64.run",
    Package("toolkit", "8.3.RC2"): "Ascend-cann-toolkit_8.3.RC2_linux-aarch64.run",
    Package("toolkit", "9.1.0", "910b", "x86_64"): "Ascend-cann-toolkit_9.1.0_linux-x86_64.run",
    Package("ops", "8.3.RC2"): "Ascend-cann-kernels-910b_8.3.RC2_linux-aarch64.run",
    Package("ops", "8.3.RC2", "A3"): "Atlas-A3-cann-kernels_8.3.RC2_linux-aarch64.run",
    Package("ops", "9.1.0", "A3"): "Ascend-cann-A3-ops_9.1.0_linux-aarch64.run",
    Package("nnal", "9.1.0"): "Ascend-cann-nnal_9.1.0_linux-aarch64.run",
}


@pytest.mark.parametrize(("package", "name"), NAMES.items(), ids=NAMES.values())
def test_names_are_those_that_the_vendor_publishes(package: Package, name: str) -> None:
    assert package.file_name == name


def test_an_archive_is_genuine(ascend: Machine) -> None:
    path = ascend.package("driver")
    assert b"generated using Makeself" in path.read_bytes()[:200]
    assert "./install.sh" in ascend.run(path, "--list").stdout
    assert "SHA256 checksums are OK." in ascend.run(path, "--check").stderr
    target = ascend.root / "extracted"
    assert ascend.run(path, "--noexec", f"--extract={target}").returncode == 0
    assert (target / "package.conf").is_file() and not (ascend.root / "usr/local/Ascend").exists()
    assert "install.sh" in ascend.run(path, "--tar", "tf").stdout
    assert "--list" in ascend.run(path, "--help").stderr


def test_a_damaged_archive_runs_nothing(ascend: Machine) -> None:
    path = ascend.damage(ascend.package("driver"))
    result = ascend.run(path, "--full", "--quiet")
    assert result.returncode == 2 and "Error in SHA256 checksums" in result.stderr
    assert not (ascend.root / "usr/local").exists()


def test_another_makeself_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    header = tmp_path / "makeself-header.sh"
    header.write_text("cat << EOF\n#!/bin/sh\n")
    monkeypatch.setattr(run_packages, "HEADERS", (header,))
    with pytest.raises(run_packages.BuildError, match="--check ends"):
        run_packages.vendor_header(tmp_path)
    monkeypatch.setattr(run_packages, "HEADERS", (tmp_path / "absent",))
    with pytest.raises(run_packages.BuildError, match="lab/lab deps"):
        run_packages.vendor_header(tmp_path)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "Unrecognized parameters"),
        (["--quiet"], "needs to be used with full"),
        (["--full", "--run"], "only support one type"),
        (["--upgrade", "--install-for-all"], "install-for-all param"),
        (["--upgrade", "--install-path=/opt"], "install-path param"),
        (["--uninstall", "--full"], "only support one type|can't use with other"),
        (["--full", "--install-username=x"], "not specified at the same time"),
        (["--full", "--never"], "Unrecognized parameters: --never"),
    ],
)
def test_flags_follow_the_vendors_rules(ascend: Machine, words: list[str], text: str) -> None:
    result = ascend.run(ascend.package("driver"), *words)
    assert result.returncode == 1 and "ERR_NO:0x0004" in result.stdout
    assert re.search(text, result.stdout)


def test_a_host_from_bare_to_answering(ascend: Machine) -> None:
    firmware = ascend.package("firmware")
    assert ascend.run(firmware, "--full", "--quiet").returncode == 1
    assert ascend.run(ascend.package("driver"), "--full", "--install-for-all", "--quiet").returncode == 2
    assert (ascend.npu_smi("info").returncode, ascend.npu_smi("info").stdout) == (
        255,
        (CAPTURES / "captures" / "npu-smi-no-driver.txt").read_text().strip() + "\n",
    )
    ascend.reboot()
    assert "Compatibility                  : NOT OK" in ascend.npu_smi("info", "-t", "board", "-i", "0").stdout
    assert ascend.run(firmware, "--full", "--quiet").returncode == 0
    assert ascend.npu_smi("info").returncode == 255
    ascend.reboot()
    assert "Compatibility                  : OK" in ascend.npu_smi("info", "-t", "board", "-i", "0").stdout
    ascend.machine(uid="1000")
    assert ascend.npu_smi("info").returncode == 255


@pytest.mark.parametrize(
    ("product", "version", "capture"),
    [
        ("a2", "25.0.rc1.1", "atlas-800i-a2/commands/npu-smi.txt"),
        ("a3", "24.1.rc3.7", "captures/a3-24.1.rc3.7-info.partial.txt"),
        ("a3", "26.0.rc2", "captures/a3-26.0.rc2-info.partial.txt"),
        ("310p", "25.2.0", "captures/310p3-duo-25.2.0-info.partial.txt"),
    ],
)
def test_npu_smi_has_the_recorded_layouts(ascend: Machine, product: str, version: str, capture: str) -> None:
    ascend.machine(product=product, pci_ids="")
    assert ascend.run(ascend.package("driver", version), "--full", "--quiet").returncode == 2
    ascend.reboot()
    shown = ascend.npu_smi("info").stdout.splitlines()
    recorded = [line for line in (CAPTURES / capture).read_text().splitlines() if line[:1] in "+|"]
    assert [line.rstrip() for line in shown[:6]] == [line.rstrip() for line in recorded[:6]]
    assert {len(line) for line in shown[:8]} == {len(line) for line in recorded[:8]}
    chips = npu_smi.parse_info("\n".join(shown))["chips"]
    assert len(chips) == {"a2": 8, "a3": 16, "310p": 1}[product]
    assert all(chip["health"] == "OK" and chip["pci"] and chip["memory_bytes"] for chip in chips)
    ascend.machine(lost="6", sick="6:Alarm")
    assert npu_smi.parse_info(ascend.npu_smi("info").stdout)["chips"] == [c for c in chips if c["npu"] != 6]


@pytest.fixture
def installed(ascend: Machine) -> Machine:
    """A2 with driver and firmware, after its reboot."""
    assert ascend.run(ascend.package("driver"), "--full", "--quiet").returncode == 2
    assert ascend.run(ascend.package("firmware"), "--full", "--quiet").returncode == 0
    ascend.reboot()
    return ascend


def test_npu_smi_shows_memory_in_use_and_the_topology(installed: Machine) -> None:
    recorded = CAPTURES / "atlas-800i-a2/commands/npu-smi.txt"
    matrix = recorded.read_text().partition("$ npu-smi info -t topo\n")[2].partition("\n$ ")[0].splitlines()[1:]
    shown = installed.npu_smi("info", "-t", "topo").stdout.splitlines()
    # the last column is the CPUs of this machine
    assert [re.sub(r" [-0-9,]+$", "", line) for line in shown] == [re.sub(r" [-0-9,]+$", "", line) for line in matrix]
    installed.machine(used_mb="3:59891")
    chips = npu_smi.parse_info(installed.npu_smi("info").stdout)["chips"]
    assert [chip["used_bytes"] >> 20 for chip in chips][2:4] == [2654, 59891]
    usages = npu_smi.parse_usages(installed.npu_smi("info", "-t", "usages", "-i", "0").stdout)
    assert usages[0]["memory_bytes"] == 32768 << 20


class TestKernels:
    def test_headers_of_another_kernel_are_none(self, ascend: Machine) -> None:
        (ascend.root / f"usr/src/kernels/{KERNEL}").rename(ascend.root / "usr/src/kernels/4.19.90-17.ky10.aarch64")
        said = ascend.run(ascend.package("driver"), "--full", "--quiet").stdout
        assert "driver install type: Direct" in said
        assert "linux headers is currently not installed" in (
            (ascend.root / "var/log/ascend_seclog/ascend_install.log").read_text()
        )

    @pytest.mark.parametrize(("headers", "code"), [(True, 0), (False, 255)])
    def test_a_changed_kernel_needs_its_headers(self, installed: Machine, headers: bool, code: int) -> None:
        installed.machine(kernel="4.19.90-89.11.v2401.ky10.aarch64")
        if headers:
            (installed.root / "usr/src/kernels/4.19.90-89.11.v2401.ky10.aarch64").mkdir()
        assert installed.npu_smi("info").returncode == code


@pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes")
def test_the_driver_makes_device_nodes_at_its_next_start(installed: Machine) -> None:
    unit = installed.root / "etc/systemd/system/ascend-stand-in-devices.service"
    assert "ExecStart=/bin/bash /usr/local/Ascend/driver/tools/devices.sh" in unit.read_text()
    start = installed.root / "usr/local/Ascend/driver/tools/devices.sh"
    assert not (installed.root / "dev").exists()
    for _ in range(2):
        assert installed.run_tool(start).stderr == ""
    names = {path.name for path in (installed.root / "dev").iterdir()}
    assert names == {"davinci_manager", "devmm_svm", "hisi_hdc", *(f"davinci{n}" for n in range(8))}
    state = (installed.root / "dev/davinci7").stat()
    assert (
        stat.S_ISCHR(state.st_mode) and state.st_mode & 0o777 == 0o660 and (state.st_uid, state.st_gid) == (1000, 1000)
    )
    assert installed.run(installed.package("driver"), "--uninstall").returncode == 0
    assert not unit.exists()


class TestHccnTool:
    TOOL = "usr/local/Ascend/driver/tools/hccn_tool"

    def ask(self, machine: Machine, npu: int, *words: str, status: int = 0) -> str:
        result = machine.run_tool(machine.root / self.TOOL, "-i", str(npu), *words)
        assert result.returncode == status, result.stdout
        return result.stdout

    def configure(self, machine: Machine, npu: int) -> None:
        """As an operator does: address, gateway, detection address."""
        self.ask(machine, npu, "-ip", "-s", "address", f"198.51.100.{11 + npu}", "netmask", "255.255.255.0")
        self.ask(machine, npu, "-gateway", "-s", "gateway", "198.51.100.1")
        self.ask(machine, npu, "-netdetect", "-s", "address", "198.51.100.1")

    def test_answers_as_recorded(self, installed: Machine) -> None:
        self.configure(installed, 7)
        recorded = (CAPTURES / "atlas-800i-a2/commands/hccn_tool.txt").read_text()
        entries = re.findall(r"^\$ \S+hccn_tool -i 7 (.*)\nrc 0\n((?:(?!\$ ).*\n?)*)", recorded, re.MULTILINE)
        assert len(entries) == 6
        for question, answer in entries:
            assert self.ask(installed, 7, *question.split()) == answer.rstrip("\n") + "\n"

    def test_settings_are_kept_in_the_vendors_file(self, installed: Machine) -> None:
        configuration = installed.root / "etc/hccn.conf"
        assert configuration.read_text() == "" and configuration.stat().st_mode & 0o777 == 0o640
        self.configure(installed, 3)
        self.ask(installed, 3, "-tls", "-s", "enable", "1")
        self.ask(installed, 3, "-mtu", "-s", "size", "9000")
        assert hccn.parse_configuration(configuration.read_text())[3] == {
            "address": "198.51.100.14", "netmask": "255.255.255.0", "gateway": "198.51.100.1",
        }  # fmt: skip
        assert "tls switch[1]" in self.ask(installed, 3, "-tls", "-g")
        assert self.ask(installed, 3, "-mtu", "-g") == "mtu:9000\n"

    def test_documented_refusals(self, installed: Machine) -> None:
        assert "no ip was preset" in self.ask(installed, 0, "-ip", "-g", status=1)
        assert "no gateway was preset" in self.ask(installed, 0, "-gateway", "-g", status=1)
        assert self.ask(installed, 0, "-net_health", "-g") == "net health status: Init\n"
        self.configure(installed, 0)
        wrong = self.ask(installed, 0, "-gateway", "-s", "gateway", "203.0.113.1", status=1)
        assert "segment of configured gateway doesn't match" in wrong
        for words in (["-i", "8", "-ip", "-g"], ["-i", "0", "-nothing", "-g"], ["-ip", "-g"]):
            assert installed.run_tool(installed.root / self.TOOL, *words).returncode == 1
        self.ask(installed, 0, "-mtu", "-s", "size", "9703", status=1)

    def test_faults(self, installed: Machine) -> None:
        for npu in (0, 1):
            self.configure(installed, npu)
        installed.machine(hccn_down="1", hccn_tls="0", hccn_no_optical="1", hccn_unreachable="198.51.100.99")
        assert [hccn.parse_link(self.ask(installed, npu, "-link", "-g")) for npu in (0, 1)] == ["UP", "DOWN"]
        assert hccn.parse_health(self.ask(installed, 1, "-net_health", "-g")) == "Fault"
        assert [hccn.parse_tls(self.ask(installed, npu, "-tls", "-g")) for npu in (0, 1)] == [True, False]
        assert self.ask(installed, 1, "-optical", "-g", status=1) == "Optical module is not present.\n"
        assert self.ask(installed, 0, "-ping", "-g", "address", "198.51.100.21", "pkt", "64").endswith(
            "0.00% packet loss\n"
        )
        lost = self.ask(installed, 0, "-ping", "-g", "address", "198.51.100.99", status=1)
        assert "3 packets transmitted, 0 received" in lost

    def test_a_link_that_was_set_down_is_up_after_a_reboot(self, installed: Machine) -> None:
        self.ask(installed, 0, "-link", "-s", "down")
        assert self.ask(installed, 0, "-link", "-g") == "link status: DOWN\n"
        installed.reboot()
        assert self.ask(installed, 0, "-link", "-g") == "link status: UP\n"

    @pytest.mark.parametrize(
        "question", ["lldp", "stat", "link_stat", "arp", "route", "pfc", "shaping", "speed", "fec"]
    )
    def test_further_questions_have_an_answer(self, installed: Machine, question: str) -> None:
        self.configure(installed, 0)
        assert self.ask(installed, 0, f"-{question}", "-g")

    def test_no_driver_no_answer(self, installed: Machine) -> None:
        (installed.root / "run/ascend-stand-in").mkdir()
        (installed.root / "run/ascend-stand-in/reboot-needed").touch()
        assert "DrvMngGetConsoleLogLevel failed" in self.ask(installed, 0, "-link", "-g", status=1)


def test_the_command_line_builds_and_names_the_digest(tmp_path: Path) -> None:
    program = Path(run_packages.__file__)
    result = subprocess.run(
        [program, tmp_path, "nnal", "9.1.0"], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    digest, path = result.stdout.split()
    assert run_packages.sha256(Path(path)) == digest
