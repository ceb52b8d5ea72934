# SPDX-License-Identifier: Apache-2.0
"""The module around run packages, on stand-ins of the vendor's packages: every failure, one at a time."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vllm_run_package
from ansible.module_utils.vllm_ansible.run_package import failures

from tests.support.ascend import KERNEL, Machine

# Builds packages with what `lab/lab deps` installs.
pytestmark = pytest.mark.lab

Run = Callable[..., dict[str, Any]]
ASCEND = "usr/local/Ascend"


@pytest.fixture
def run(ascend: Machine, monkeypatch: pytest.MonkeyPatch, run_module: Run) -> Run:
    """Run the module on the pretended machine."""
    return ascend.use(monkeypatch, vllm_run_package, run_module)


def leftovers(ascend: Machine) -> list[str]:
    return [path.name for path in (ascend.root / "tmp").iterdir() if path.is_dir()]


class TestOneComponent:
    def test_the_driver_is_installed_once(self, ascend: Machine, run: Run) -> None:
        planned = run("driver", check_mode=True, diff=True)
        assert planned["changed"] and planned["action"] == "install" and planned["version"] == "25.5.0"
        assert planned["diff"]["before"] == "driver: absent\n" and planned["diff"]["after"] == "driver: 25.5.0\n"
        assert not (ascend.root / ASCEND).exists() and planned["exit_code"] is None

        first = run("driver")
        # For a result named rc Ansible would fail the task, as for any but 0.
        assert "rc" not in first and "failed" not in first
        assert first["changed"] and first["exit_code"] == 2 and first["reboot_required"]
        assert (first["version_before"], first["version"]) == (None, "25.5.0")
        assert first["home"] == "/usr/local/Ascend/driver" and leftovers(ascend) == []
        # A run that ended between the installation and the reboot does not lose it.
        again = run("driver", src=None)
        assert not again["changed"] and again["reboot_required"] and again["exit_code"] is None
        ascend.reboot()
        assert not run("driver", src=None)["reboot_required"]
        assert not run("driver", src=None, check_mode=True)["changed"]

    def test_a_hot_reset_needs_no_reboot(self, ascend: Machine, run: Run) -> None:
        ascend.machine(hot_reset="success")
        result = run("driver")
        assert result["exit_code"] == 0 and not result["reboot_required"]

    def test_the_firmware_asks_for_a_reboot_although_it_leaves_with_0(self, ascend: Machine, run: Run) -> None:
        run("driver")
        ascend.reboot()
        result = run("firmware")
        assert result["exit_code"] == 0 and result["reboot_required"] and result["version"] == "7.8.0.5.201"
        assert not run("driver", src=None)["reboot_required"]

    def test_an_upgrade_and_the_way_back(self, ascend: Machine, run: Run) -> None:
        run("driver", version="25.0.rc1.1")
        run("firmware", version="7.7.0.1.231")
        for component, old, new in (("firmware", "7.7.0.1.231", "7.8.0.5.201"), ("driver", "25.0.rc1.1", "25.5.0")):
            up = run(component, version=new)
            assert (up["action"], up["version_before"], up["version"]) == ("upgrade", old, new)
        for component, old in (("firmware", "7.7.0.1.231"), ("driver", "25.0.rc1.1")):
            down = run(component, version=old)
            assert (down["action"], down["version"]) == ("downgrade", old)
        operations = (ascend.root / "var/log/ascend_seclog/operation.log").read_text()
        assert operations.count("cmdlist=--quiet --upgrade") == 4
        assert operations.count("cmdlist=--quiet --full --install-for-all") == 1

    def test_versions_are_compared_by_meaning(self, run: Run) -> None:
        run("driver", version="25.0.rc1.1")
        assert not run("driver", version="25.0.RC1.1", src=None)["changed"]
        run("toolkit", version="8.3.RC2")
        assert not run("toolkit", version="8.3.rc2", src=None)["changed"]
        assert run("toolkit", version="8.3", src=None, check_mode=True)["action"] == "upgrade"

    @pytest.mark.parametrize("version", ["8.3.RC2", "9.1.0"])
    def test_cann_from_toolkit_to_nnal_and_back(self, ascend: Machine, run: Run, version: str) -> None:
        for component in ("toolkit", "ops", "nnal"):
            result = run(component, version=version, chip="910b")
            assert result["changed"] and result["version"] == version and not result["reboot_required"], result
            assert not run(component, version=version, src=None, chip="910b")["changed"]
        assert (ascend.root / ASCEND / "ascend-toolkit/set_env.sh").is_file()
        for component in ("nnal", "ops", "toolkit"):
            removed = run(component, state="absent")
            assert removed["changed"] and removed["version"] is None, removed
            assert not run(component, state="absent")["changed"]
        assert not (ascend.root / ASCEND / "ascend-toolkit" / version).exists()

    def test_another_cann_version_becomes_the_current_one(self, ascend: Machine, run: Run) -> None:
        run("toolkit", version="8.3.RC2")
        result = run("toolkit", version="9.1.0")
        assert (result["action"], result["version"]) == ("upgrade", "9.1.0")
        assert (ascend.root / ASCEND / "ascend-toolkit/8.3.RC2").is_dir()
        back = run("toolkit", version="8.3.RC2")
        assert (back["action"], back["version"]) == ("downgrade", "8.3.RC2")
        assert not run("toolkit", state="absent", version="9.1.0")["changed"], "only the current one is seen"

    def test_operators_of_another_chip_are_replaced(self, ascend: Machine, run: Run) -> None:
        run("toolkit", version="9.1.0")
        run("ops", version="9.1.0", src=str(ascend.package("ops", "9.1.0", chip="310p")), chip="310p")
        result = run("ops", version="9.1.0", chip="910b", check_mode=True)
        assert result["action"] == "replace" and result["changed"]

    def test_removal_uses_the_vendors_uninstaller(self, ascend: Machine, run: Run) -> None:
        run("driver")
        run("firmware")
        ascend.reboot()
        assert run("driver", state="absent", check_mode=True)["action"] == "remove"
        assert (ascend.root / ASCEND / "driver").is_dir()
        assert run("driver", state="absent", version="25.3.rc1")["action"] == "none"
        for component in ("firmware", "driver"):
            result = run(component, state="absent", diff=True)
            assert result["changed"] and result["version"] is None and result["reboot_required"]
            assert result["diff"]["after"] == f"{component}: absent\n"
            assert not run(component, state="absent")["changed"]
        assert not (ascend.root / "etc/ascend_install.info").exists()

    def test_another_path_and_further_flags_are_handed_on(self, ascend: Machine, run: Run) -> None:
        (ascend.root / "opt").mkdir()
        flags = ["--install-username=HwHiAiUser", "--install-usergroup=HwHiAiUser"]
        first = run("driver", install_path="/opt/ascend", install_for_all=False, extra_flags=flags)
        assert first["home"] == "/opt/ascend/driver"
        info = (ascend.root / "etc/ascend_install.info").read_text()
        assert "Driver_Install_Path_Param=/opt/ascend\n" in info and "Driver_Install_For_All=no" in info
        elsewhere = run("driver", version="25.0.rc1.1")
        assert elsewhere["failed"] and "Set install_path to /opt/ascend" in elsewhere["msg"]

    def test_progress_is_told(self, ascend: Machine, run: Run) -> None:
        path = ascend.root / "progress"
        run("driver", progress_path=str(path))
        progress = json.loads(path.read_text())
        assert progress["stage"] == "install" and progress["percent"] == 100


class TestBeforeAnythingRuns:
    """Each of these leaves the host as it was."""

    @pytest.fixture(autouse=True)
    def _untouched(self, ascend: Machine) -> Any:
        yield
        assert not (ascend.root / ASCEND / "driver/version.info").exists() and leftovers(ascend) == []

    def test_a_wrong_digest(self, ascend: Machine, run: Run) -> None:
        result = run("driver", sha256="0" * 64)
        assert result["code"] == "wrong_digest" and "Nothing was run" in result["msg"]
        assert run("driver", src=None)["code"] == "no_file"
        assert run("driver", src=str(ascend.root / "absent.run"), sha256="0" * 64)["code"] == "no_file"

    def test_a_package_of_something_else(self, ascend: Machine, run: Run) -> None:
        for source, words in (
            (ascend.package("firmware"), "it is a package of firmware, not of driver"),
            (ascend.package("driver", "25.3.rc1"), "its version is 25.3.rc1, not 25.5.0"),
            (ascend.package("driver", chip="310p"), "it is for the chip 310p, this host has 910b"),
            (ascend.package("driver", arch="x86_64"), "it is for x86_64, this host is aarch64"),
        ):
            result = run("driver", src=str(source), chip="910b")
            assert result["code"] == "wrong_package" and words in result["msg"], result["msg"]
            assert run("driver", src=str(source), chip="910b", check_mode=True)["failed"], "check mode tells it as well"

    def test_firmware_before_the_driver(self, run: Run) -> None:
        result = run("firmware")
        assert result["code"] == "wrong_order" and "the driver comes first" in result["msg"]
        assert run("firmware", check_mode=True)["changed"], "an earlier task would have brought the driver"

    @pytest.mark.parametrize("component", ["ops", "nnal"])
    def test_cann_without_its_toolkit(self, run: Run, component: str) -> None:
        result = run(component)
        assert result["code"] == "wrong_order" and "Install the toolkit 8.3.RC2 first" in result["msg"]
        run("toolkit", version="9.1.0")
        result = run(component)
        assert result["code"] == "wrong_order" and "the toolkit is 9.1.0" in result["msg"]

    def test_an_unaccepted_licence(self, run: Run) -> None:
        result = run("toolkit", accept_eula=False, check_mode=True)
        assert result["code"] == "eula" and "set accept_eula" in result["msg"]


# code: (component, what the machine is like, words of the line that was seen, words of the advice)
FAILURES: dict[str, tuple[str, dict[str, str], str, str]] = {
    "not_root": ("driver", {"uid": "1000"}, "do not have root permission", "become: true"),
    "installer_running": ("driver", {"installer_running": "y"}, "already a process", "Wait until it ends"),
    "no_space": ("driver", {"free_mb": "299"}, "free space only 299M", "Free space below"),
    "wrong_architecture": ("driver", {"machine": "x86_64"}, "cur os is x86_64", "this host's architecture"),
    "wrong_chip": ("driver", {"pci_ids": "19e5:d803"}, "is not match", "d803 for A3"),
    "missing_tools": ("driver", {"missing_tools": "lspci,ifconfig,"}, "lspci,ifconfig,", "pciutils"),
    "device_busy": ("driver", {"holders": "docker"}, "/dev/davinci_manager has used by docker", "Stop what uses"),
    "signature_mode": ("driver", {"crl_mode": "mode2"}, "Currently configured is [mode2]", "change the mode"),
    "kernel_mismatch": ("driver", {"kernel": "5.10.0-60"}, "kernel primary version(5.10.0-60)", "exactly `uname -r`"),
    "dkms_failed": ("driver", {"dkms_fails": "y"}, "Dkms install failed", "/var/lib/dkms/davinci_ascend"),
}


class TestFailuresOfTheInstaller:
    @pytest.mark.parametrize("code", FAILURES)
    def test_each_has_its_message_and_a_rerun_completes(self, ascend: Machine, run: Run, code: str) -> None:
        component, settings, seen, hint = FAILURES[code]
        healthy = {"uid": "0", "machine": "aarch64", "kernel": KERNEL, "pci_ids": "19e5:d802", "free_mb": "50000"}
        ascend.machine(**settings)
        result = run(component)
        assert result["failed"] and result["code"] == code and result["exit_code"] == 1
        assert seen in result["seen"] and hint in result["hint"]
        for words in ("Ascend-hdk-910b-npu-driver_25.5.0", "exit code 1", result["seen"], result["hint"]):
            assert words in result["msg"]
        assert "/var/log/ascend_seclog/ascend_install.log" in result["msg"] and "\x1b" not in result["msg"]
        assert leftovers(ascend) == [] and result["log_tail"]
        ascend.machine(**{name: healthy.get(name, "") for name in settings})
        fixed = run(component)
        assert fixed["changed"] and fixed["version"] == "25.5.0" and fixed["action"] in ("install", "complete")
        assert not run(component, src=None)["changed"]

    @pytest.mark.parametrize(
        ("group", "passwd", "code", "seen"),
        [
            ("HwHiAiUser:x:1000:\n", "", "user_missing", "HwHiAiUser not exists"),
            ("", "HwHiAiUser:x:1000:1000::/:/bin/sh\n", "user_missing", "HwHiAiUser group not exists"),
            ("HwHiAiUser:x:7:\n", "HwHiAiUser:x:1000:1000::/:/bin/sh\n", "user_not_in_group", "not right"),
        ],
    )
    def test_users(self, ascend: Machine, run: Run, group: str, passwd: str, code: str, seen: str) -> None:
        (ascend.root / "etc/group").write_text(group)
        (ascend.root / "etc/passwd").write_text(passwd)
        result = run("driver")
        assert result["code"] == code and seen in result["seen"]
        (ascend.root / "etc/group").write_text("HwHiAiUser:x:7:HwHiAiUser\n")
        (ascend.root / "etc/passwd").write_text("HwHiAiUser:x:1000:1000::/:/bin/sh\n")
        assert run("driver")["action"] == "install"

    def test_another_user_than_last_time(self, ascend: Machine, run: Run) -> None:
        run("driver", version="25.0.rc1.1")
        (ascend.root / "etc/ascend_install.info").open("a").write("Driver_Install_Status=broken\n")
        flags = ["--install-username=root", "--install-usergroup=root"]
        assert run("driver", extra_flags=flags)["code"] == "other_user"

    def test_a_path_without_its_parent(self, run: Run) -> None:
        result = run("driver", install_path="/data/ascend")
        assert result["code"] == "bad_path" and "need create /data" in result["seen"]

    def test_a_flag_that_the_package_does_not_take(self, run: Run) -> None:
        assert run("driver", extra_flags=["--never"])["code"] == "bad_parameter"
        assert run("toolkit", extra_flags=["--never"])["code"] == "bad_parameter"

    def test_a_damaged_archive_is_no_reboot(self, ascend: Machine, run: Run) -> None:
        """makeself leaves with 2 then, which from a driver means that it is installed."""
        source = ascend.damage(ascend.package("driver"))
        result = run("driver", src=str(source))
        assert result["code"] == "archive_damaged" and result["exit_code"] == 2
        assert not run("driver", src=None, check_mode=True)["reboot_required"]

    def test_cann_for_another_machine(self, ascend: Machine, run: Run) -> None:
        ascend.machine(machine="x86_64")
        result = run("toolkit")
        assert result["code"] == "wrong_architecture" and "No packages to install" in result["seen"]
        assert "/var/log/ascend_seclog/ascend_toolkit_install.log" in result["msg"]

    def test_no_room_for_cann(self, ascend: Machine, run: Run) -> None:
        ascend.machine(free_mb="500")
        assert run("toolkit")["code"] == "no_space"

    def test_what_is_not_recognised_is_shown(self) -> None:
        cause = failures.diagnose("[Driver] [2026-11-30 10:00:00] [ERROR]Drv_file_copy failed\nbye\n", "")
        assert (cause.code, cause.seen) == ("unknown", "[ERROR]Drv_file_copy failed")
        assert failures.diagnose("", "").seen == "nothing was printed"

    def test_busy_devices_stop_a_removal(self, ascend: Machine, run: Run) -> None:
        run("driver")
        ascend.machine(holders="python")
        result = run("driver", state="absent")
        assert result["code"] == "device_busy" and "was not removed" in result["msg"]
        ascend.machine(holders="")
        assert run("driver", state="absent")["version"] is None

    def test_every_failure_says_what_to_do(self) -> None:
        codes = [failure.code for failure in failures.FAILURES]
        assert len(codes) == len(set(codes)) == 23
        assert all(failure.hint.endswith(".") for failure in failures.FAILURES)

    # Documented messages of situations that the stand-ins do not bring about.
    @pytest.mark.parametrize(
        ("line", "code"),
        [
            ("[ERROR]Installation failed, 3 is earlier than the device flash hardware version=5.", "older_than_flash"),
            ("[WARNING]Download and install the 23.0.RC1 driver package. Then upgrade", "step_release_needed"),
            ("[ERROR]ERR_NO:0x0094;ERR_DES:Operation failed, An all-in-one RUN package is found", "all_in_one_package"),
            ("[ERROR]ERR_NO:0x0090;ERR_DES:uninstall driver failed, details in : /var/log/x", "uninstall_failed"),
            ("Not enough space left in /tmp (10 KB) to decompress ./x.run (900 KB)", "no_room_to_unpack"),
            ("[ERROR]driver ko vermagic(5.10) is different from the os(4.19), need rebuild driver", "kernel_mismatch"),
        ],
    )
    def test_documented_messages(self, line: str, code: str) -> None:
        assert failures.diagnose(f"[Driver] [2026-11-30 10:00:00] {line}\n", "").code == code


class TestHalfInstalled:
    @pytest.mark.parametrize("component", ["driver", "firmware", "toolkit", "ops", "nnal"])
    def test_a_power_cut_is_seen_and_completed(self, ascend: Machine, run: Run, component: str) -> None:
        for earlier in {"firmware": ["driver"], "ops": ["toolkit"], "nnal": ["toolkit"]}.get(component, []):
            run(earlier)
        ascend.machine(power_cut="files")
        result = run(component)
        assert result["failed"] and result["code"] == "unknown" and result["exit_code"] != 0
        ascend.machine(power_cut="")
        ascend.reboot()
        planned = run(component, check_mode=True, diff=True)
        assert planned["action"] == "complete" and planned["problems"] and "problem: " in planned["diff"]["before"]
        assert "has to be installed" in run(component, src=None)["msg"]
        result = run(component)
        assert result["changed"] and not result.get("failed") and result["problems"]
        assert not run(component, src=None)["changed"]

    def test_a_power_cut_in_an_upgrade(self, ascend: Machine, run: Run) -> None:
        run("driver", version="25.0.rc1.1")
        ascend.machine(power_cut="files")
        run("driver")
        ascend.machine(power_cut="")
        ascend.reboot()
        result = run("driver")
        assert result["action"] == "complete" and result["version_before"] is None and result["version"] == "25.5.0"

    def test_the_vendors_own_records_tell_it_too(self, ascend: Machine, run: Run) -> None:
        run("driver")
        (ascend.root / ASCEND / "driver/version.info").unlink()
        result = run("driver", check_mode=True)
        assert result["action"] == "complete" and "version.info has no version" in result["problems"][0]
        run("driver")
        info = ascend.root / "etc/ascend_install.info"
        info.write_text(info.read_text().replace("Status=complete", "Status=installing"))
        assert "Driver_Install_Status=installing" in run("driver", check_mode=True)["problems"][0]

    def test_a_refusal_at_the_door_keeps_what_was_known(self, ascend: Machine, run: Run) -> None:
        ascend.machine(holders="python")
        assert run("driver")["code"] == "device_busy"
        assert run("driver", check_mode=True)["action"] == "install", "nothing was changed"
        ascend.machine(holders="", power_cut="files")
        run("driver")
        ascend.machine(holders="python", power_cut="")
        assert run("driver")["code"] == "device_busy"
        assert run("driver", check_mode=True)["action"] == "complete"

    def test_a_failed_build_of_an_upgrade_has_taken_the_old_driver(self, ascend: Machine, run: Run) -> None:
        run("driver", version="25.0.rc1.1")
        ascend.machine(dkms_fails="y")
        assert run("driver")["code"] == "dkms_failed"
        assert run("driver", version="25.0.rc1.1", check_mode=True)["action"] == "complete"

    def test_an_installer_that_claims_success(self, ascend: Machine, run: Run) -> None:
        """Its records, not its exit code, say what is installed."""
        liar = ascend.root / "tmp" / "liar.run"
        liar.write_text("exit 0\n")
        result = run("driver", src=str(liar))
        assert result["code"] == "half_installed" and "but nothing is what its records say now" in result["msg"]

    def test_the_note_of_an_installation_that_never_began_goes_with_a_removal(self, ascend: Machine, run: Run) -> None:
        liar = ascend.root / "tmp" / "liar.run"
        liar.write_text("exit 1\n")
        assert run("toolkit", src=str(liar))["failed"]
        assert run("toolkit", state="absent")["changed"] and not run("toolkit", state="absent")["changed"]

    def test_a_half_installed_driver_can_be_removed(self, ascend: Machine, run: Run) -> None:
        ascend.machine(power_cut="files")
        run("driver")
        ascend.machine(power_cut="")
        result = run("driver", state="absent")
        assert result["code"] == "no_uninstaller" and "Set src and sha256" in result["msg"]
        assert run("driver", state="absent", src=str(ascend.package("driver")))["changed"]
        assert not run("driver", state="absent")["changed"]


class TestTimeAndTraces:
    @pytest.mark.parametrize(("stage", "words"), [("startup", "Above 4G Decoding"), ("files", "dmesg")])
    def test_an_installer_that_hangs_is_ended(self, ascend: Machine, run: Run, stage: str, words: str) -> None:
        component = "driver" if stage == "startup" else "toolkit"
        ascend.machine(hang=stage)
        start = time.monotonic()
        result = run(component, timeout_seconds=2)
        assert result["code"] == "timeout" and words in result["msg"] and time.monotonic() - start < 20
        assert leftovers(ascend) == []
        ascend.machine(hang="")
        assert run(component)["action"] == "complete"

    def test_folders_of_killed_runs_go(self, ascend: Machine, run: Run) -> None:
        (ascend.root / "tmp" / ".vllm-run-package-dead" / "selfgz1").mkdir(parents=True)
        run("driver", check_mode=True)
        assert len(leftovers(ascend)) == 1
        result = run("driver")
        assert len(result["leftovers"]) == 1 and leftovers(ascend) == []

    def test_one_installer_at_a_time(self, ascend: Machine, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vllm_run_package.locks, "WAIT_SECONDS", 0)
        with vllm_run_package.locks.exclusive(str(ascend.root / "run/vllm-run-package.lock")):
            result = run("driver")
        assert result["code"] == "installer_running"


class Authority:
    """A certificate authority of the test's own, and what it signed."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.certificate = folder / f"{name}.pem"
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "9",
                     "-subj", f"/CN={name}", "-keyout", self.key, "-out", self.certificate)  # fmt: skip

    @property
    def key(self) -> Path:
        return self.folder / f"{self.name}.key"

    def openssl(self, *words: Any) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=self.folder)

    def sign(self, path: Path, form: str = "DER") -> Path:
        target = self.folder / f"{path.name}.{form}.cms"
        self.openssl("cms", "-sign", "-binary", "-in", path, "-signer", self.certificate, "-inkey", self.key,
                     "-outform", form, "-out", target)  # fmt: skip
        return target


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
class TestSignature:
    @pytest.mark.parametrize("form", ["DER", "PEM"])
    def test_a_signature_that_holds(self, ascend: Machine, run: Run, tmp_path: Path, form: str) -> None:
        vendor = Authority(tmp_path, "vendor")
        signature = vendor.sign(ascend.package("driver"), form)
        assert run("driver", signature_path=str(signature), ca_path=str(vendor.certificate))["changed"]

    def test_a_signature_that_does_not_hold(self, ascend: Machine, run: Run, tmp_path: Path) -> None:
        vendor, stranger = Authority(tmp_path, "vendor"), Authority(tmp_path, "stranger")
        package = ascend.package("driver")
        of_another_file = vendor.sign(ascend.package("firmware"))
        for signature in (stranger.sign(package), of_another_file):
            result = run("driver", signature_path=str(signature), ca_path=str(vendor.certificate))
            assert result["code"] == "bad_signature" and "Nothing was run" in result["msg"]
        garbage = tmp_path / "garbage.cms"
        garbage.write_text("no signature")
        assert run("driver", signature_path=str(garbage), ca_path=str(vendor.certificate))["code"] == "bad_signature"
        absent = run("driver", signature_path=str(tmp_path / "absent"), ca_path=str(vendor.certificate))
        assert absent["code"] == "no_signature"
        # Without the list of revoked certificates that was asked for, nothing is trusted.
        signature = vendor.sign(package)
        empty = tmp_path / "empty.crl"
        empty.write_text("")
        unlisted = run("driver", signature_path=str(signature), ca_path=str(vendor.certificate), crl_path=str(empty))
        assert unlisted["code"] == "bad_signature" and "CRL" in unlisted["msg"]
        assert not (ascend.root / ASCEND).exists()

    def test_no_openssl(self, ascend: Machine, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        vendor = Authority(tmp_path, "vendor")
        signature = vendor.sign(ascend.package("driver"))
        monkeypatch.setattr(shutil, "which", lambda _name: None)
        result = run("driver", signature_path=str(signature), ca_path=str(vendor.certificate))
        assert result["code"] == "no_openssl"
