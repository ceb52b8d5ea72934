# SPDX-License-Identifier: Apache-2.0
"""What is said of NVIDIA's driver: each state of a host, what was seen and what to do."""

import pytest
from ansible.module_utils.vllm_ansible.hardware import nvidia_driver

KERNEL, VERSION = "6.8.0-60-generic", "580.126.09"
QUERY = "nvidia-smi --query-gpu=index,uuid,pci.bus_id,driver_version,persistence_mode --format=csv,nounits"
SHOW = "systemctl show nvidia-fabricmanager --property=ActiveState,UnitFileState"
DPKG = "dpkg-query --show --showformat=${db:Status-Status} ${Package} ${Version}\\n"
MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {0}  Release Build  (builder)  Fri Dec 12 2025\n"
ROWS = "index, uuid, pci.bus_id, driver_version, persistence_mode\n"
NOT_THERE = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest ..."
)
WANTED = nvidia_driver.Wanted(
    version=VERSION, flavour="open", manager="apt", packages=["nvidia-open-580", "nvidia-fabricmanager"], gpus=2,
    nvswitch=True, modules_signed=False,
)  # fmt: skip


class Host:
    """A healthy host of two GPUs; tests change files and answers. An answer is (rc, output)."""

    def __init__(self):
        self.release = KERNEL
        self.files = {
            "/proc/driver/nvidia/version": MODULE.format(VERSION),
            f"/lib/modules/{KERNEL}/build/include/generated/utsrelease.h": f'#define UTS_RELEASE "{KERNEL}"\n',
        }
        self.present = {f"/lib/modules/{KERNEL}/build"}
        self.folders = {"/usr/src": [f"linux-headers-{KERNEL}"], "/sys/bus/pci/devices": []}
        for bus in ("17", "65"):
            address = f"0000:{bus}:00.0"
            self.folders["/sys/bus/pci/devices"].append(address)
            self.files[f"/sys/bus/pci/devices/{address}/modalias"] = (
                "pci:v000010DEd00002335sv000010DEsd000018BEbc03sc02i00"
            )
        packages = ["nvidia-open-580", "libnvidia-compute-580", "nvidia-fabricmanager", "nvidia-dkms-580-open"]
        lines = [f"installed {name} {VERSION}-1ubuntu1" for name in packages]
        lines += [
            "installed nvidia-container-toolkit 1.18.0-1",
            "installed nvidia-settings 595.45.04-1",
            "installed bash 5",
        ]
        self.installed = lines
        gpus = [f"{n}, GPU-{n}, 00000000:{bus}:00.0, {VERSION}, Enabled\n" for n, bus in enumerate(("17", "65"))]
        self.answers = {
            "modinfo --field version nvidia": (0, VERSION + "\n"),
            QUERY: (0, ROWS + "".join(gpus)),
            SHOW: (0, "ActiveState=active\nUnitFileState=enabled\n"),
        }

    def system(self):
        return {"kernel": self.release}

    def read(self, path):
        return self.files.get(path)

    def exists(self, path):
        return path in self.present

    def list_directory(self, path):
        return self.folders.get(path, [])

    def run(self, argv, timeout_seconds=None):
        if argv[0] == "dpkg-query":
            assert " ".join(argv) == DPKG
            return 0, "\n".join(self.installed), ""
        answer = self.answers.get(" ".join(argv))
        return None if answer is None else (answer[0], answer[1], "")


def findings(host, **changes):
    wanted = WANTED._replace(**changes)
    return {one["code"]: one for one in nvidia_driver.verify(host, nvidia_driver.ask(host, wanted), wanted)}


def test_a_host_as_planned_has_no_finding():
    host = Host()
    seen = nvidia_driver.ask(host, WANTED)
    assert nvidia_driver.is_right(seen, WANTED) and nvidia_driver.pending(seen, WANTED) == []
    assert nvidia_driver.before(host, seen, WANTED) == ([], None)
    assert findings(host) == {}
    assert set(seen["installed"]) == {
        "nvidia-open-580", "libnvidia-compute-580", "nvidia-fabricmanager", "nvidia-dkms-580-open", "nvidia-settings"
    }  # fmt: skip


def test_rpm_names_their_versions_without_epoch():
    text = "installed nvidia-driver-cuda 580.65.06-1.el9\ninstalled kmod-nvidia-open-dkms 3:575.51-1.fc41\n"
    assert nvidia_driver.parse_installed(text) == {"nvidia-driver-cuda": "580.65.06", "kmod-nvidia-open-dkms": "575.51"}


def kernel_without_headers(host):
    host.release = "6.8.0-71-generic"
    host.files.pop("/proc/driver/nvidia/version")
    host.answers["modinfo --field version nvidia"] = (1, "")
    host.answers[QUERY] = (9, NOT_THERE)


def lost(host):
    host.answers[QUERY] = (15, "Unable to determine the device handle for GPU0000:65:00.0: Unknown Error\n")


def missing(host):
    host.answers[QUERY] = (0, "\n".join(host.answers[QUERY][1].splitlines()[:2]))


def mismatch(host):
    host.files["/proc/driver/nvidia/version"] = MODULE.format("570.172.08")
    text = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126\n"
    host.answers[QUERY] = (18, text)


def other_fabric_manager(host):
    host.installed = [line.replace(f"manager {VERSION}", "manager 580.65.06") for line in host.installed]


def idle_fabric_manager(host):
    host.answers[SHOW] = (0, "ActiveState=failed\nUnitFileState=enabled\n")


def nouveau(host):
    host.present.add("/sys/module/nouveau")
    host.files.pop("/proc/driver/nvidia/version")
    host.answers[QUERY] = (9, NOT_THERE)


def unsigned(host):
    host.files[nvidia_driver.SECURE_BOOT] = "\x06\0\0\0\x01"
    host.files.pop("/proc/driver/nvidia/version")
    host.answers[QUERY] = (9, NOT_THERE)


def no_devices(host):
    host.answers[QUERY] = (6, "No devices were found\n")


def hung(host):
    host.answers[QUERY] = (124, "")


def older_is_loaded(host):
    host.files["/proc/driver/nvidia/version"] = MODULE.format("580.65.06")
    host.answers[QUERY] = (0, host.answers[QUERY][1].replace(VERSION, "580.65.06"))


def no_persistence(host):
    host.answers[QUERY] = (0, host.answers[QUERY][1].replace("Enabled", "Disabled"))


def stray(host):
    host.installed.append("installed libnvidia-compute-535 535.129.03-1")


@pytest.mark.parametrize(
    ("change", "code", "seen", "todo"),
    [
        (kernel_without_headers, "silent", "exit code 9", f"for {KERNEL}): the kernel was updated without them."),
        (lost, "lost", "0000:65:00.0 does not answer: Unknown Error", "Xid 79"),
        (missing, "missing", "lists 1 GPUs, the plan has 2; PCI also lists 0000:65:00.0", "dmesg for NVRM"),
        (mismatch, "mismatch", "library is 580.126, the loaded kernel module 570.172.08", "reboot"),
        (other_fabric_manager, "fabric_manager", "is 580.65.06, the driver of the plan 580.126.09", "error 802"),
        (idle_fabric_manager, "fabric_manager", "is failed and enabled", "journalctl -u nvidia-fabricmanager"),
        (nouveau, "silent", "exit code 9", "Nouveau holds the GPUs: reboot."),
        (unsigned, "silent", "exit code 9", "Secure Boot is on"),
        (no_devices, "no_devices", "none of the 2 GPUs on the bus (exit code 6", "Turing or newer"),
        (hung, "hung", "does not return", "Reboot"),
        (older_is_loaded, "loaded", "the loaded driver is 580.65.06 (open)", "Reboot the host"),
        (no_persistence, "persistence", "persistence mode is off", "nvidia-persistenced"),
        (stray, "strays", "libnvidia-compute-535 535.129.03", "of one version"),
    ],
)  # fmt: skip
def test_each_failure_is_named_with_what_to_do(change, code, seen, todo):
    host = Host()
    change(host)
    found = findings(host)
    assert seen in found[code]["seen"] and todo in found[code]["todo"], found
    allowed = {"packages", "strays"} if change is other_fabric_manager else set()
    assert set(found) - {code} <= allowed, found


def test_the_fabric_manager_must_not_run_without_nvswitch():
    host = Host()
    found = findings(host, nvswitch=False, packages=["nvidia-open-580"])
    assert "runs on a host without NVSwitch" in found["fabric_manager"]["seen"]
    host.answers[SHOW] = (0, "ActiveState=inactive\nUnitFileState=disabled\n")
    assert findings(host, nvswitch=False, packages=["nvidia-open-580"]) == {}


def test_what_forbids_an_installation():
    host = Host()
    host.installed, host.release = [], "6.8.0-71-generic"
    host.files[nvidia_driver.SECURE_BOOT] = "\x06\0\0\0\x01"
    seen = nvidia_driver.ask(host, WANTED)
    blockers, headers = nvidia_driver.before(host, seen, WANTED)
    assert [one["code"] for one in blockers] == ["secure_boot", "headers"] and headers is None
    assert f"headers are there for {KERNEL}" in blockers[1]["seen"]
    host.answers["apt-cache show --no-all-versions linux-headers-6.8.0-71-generic"] = (0, "Package: …")
    signed = WANTED._replace(modules_signed=True)
    assert nvidia_driver.before(host, seen, signed) == ([], "linux-headers-6.8.0-71-generic")


def test_headers_of_another_kernel_behind_the_link_count_as_none():
    host = Host()
    name = f"/lib/modules/{KERNEL}/build/include/generated/utsrelease.h"
    host.files[name] = '#define UTS_RELEASE "6.8.0-1-generic"\n'
    assert nvidia_driver.ask(host, WANTED)["headers"] == [KERNEL]


@pytest.mark.parametrize(
    ("change", "reason"),
    [(nouveau, "nouveau is loaded"), (older_is_loaded, "580.65.06 is loaded"), (unsigned, "none is loaded")],
)
def test_what_waits_for_a_reboot(change, reason):
    host = Host()
    change(host)
    assert nvidia_driver.pending(nvidia_driver.ask(host, WANTED), WANTED) == [f"NVIDIA driver ({reason})"]


def test_the_other_flavour_waits_for_a_reboot_too():
    host = Host()
    wanted = WANTED._replace(flavour="proprietary")
    assert nvidia_driver.pending(nvidia_driver.ask(host, wanted), wanted) == [f"NVIDIA driver ({VERSION} is loaded)"]
