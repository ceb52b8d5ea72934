# SPDX-License-Identifier: Apache-2.0
"""The stand-ins of vendor packages: genuine archives, documented answers, recorded layouts."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.hardware import npu_smi

from lab.vendor import run_packages
from lab.vendor.run_packages import Package
from tests.support.ascend import Machine

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


def test_the_command_line_builds_and_names_the_digest(tmp_path: Path) -> None:
    program = Path(run_packages.__file__)
    result = subprocess.run(
        [program, tmp_path, "nnal", "9.1.0"], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    digest, path = result.stdout.split()
    assert run_packages.sha256(Path(path)) == digest
