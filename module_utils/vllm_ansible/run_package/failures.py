# SPDX-License-Identifier: Apache-2.0
"""What an installer's messages mean and what a person does about them."""

import re
from typing import List, NamedTuple, Tuple

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STAMP = re.compile(r"\A(?:\[[A-Za-z0-9_]+\]\s*)?\[[0-9][0-9: -]+\]\s*")
# What the installers say when the change takes effect only after a reboot.
REBOOT = re.compile(
    r"Reboot needed for|Reboot now or after driver installation|take effect after (?:the )?reboot", re.I
)


class Failure(NamedTuple):
    """A failure with a name of its own. ``patterns``: any of them tells it, the earlier the more it says. ``hint``
    says what to do; {package} is filled in. ``refused``: the installer checks this before it changes anything."""

    code: str
    patterns: Tuple[str, ...]
    hint: str
    refused: bool = True


# The first that matches any line is the cause: what stands later here is often a consequence of what stands earlier.
FAILURES = (
    Failure(
        "archive_damaged",
        (r"Error in (?:\w+ )?checksums", r"Unexpected archive size", r"Unable to decompress"),
        "{package} is damaged although its digest is the one stated: fetch it again and state the vendor's digest.",
    ),
    Failure(
        "no_room_to_unpack",
        (r"Not enough space left in",),
        "Free space in the folder named, or set work_path to a larger file system.",
    ),
    Failure("not_root", (r"ERR_NO:0x0093",), "Run the task as root (become: true)."),
    Failure(
        "user_missing",
        (r"ERR_NO:0x0091",),
        "Create the user and the group named (by default HwHiAiUser, whose primary group is HwHiAiUser) and run again.",
    ),
    Failure(
        "user_not_in_group", (r"ERR_NO:0x0096",), "Put the user into the group (usermod -aG GROUP USER) and run again."
    ),
    Failure(
        "other_user",
        (r"ERR_NO:0x0095",),
        "The installed package belongs to the user in /etc/ascend_install.info: use that one, or remove it first.",
    ),
    Failure(
        "all_in_one_package",
        (r"An all-in-one RUN package is found",),
        "Remove the old all-in-one package that /etc/HiAI_install.info names and run again.",
    ),
    Failure(
        "installer_running",
        (r"ERR_NO:0x0094",),
        "Another installation runs on this host. Wait until it ends and run again.",
    ),
    Failure(
        "bad_path",
        (r"ERR_NO:0x0003",),
        "Create the parent folder of install_path, open to the package's user, or set another path.",
    ),
    Failure(
        "bad_parameter",
        (r"ERR_NO:0x0004", r"Unrecognized parameters"),
        "Remove from extra_flags what this package does not take.",
    ),
    Failure(
        "no_space",
        (r"free space only", r"disk space .*not enough", r"No space left on device"),
        "Free space below install_path and run again.",
    ),
    Failure(
        "wrong_architecture",
        (r"Arch mismatch", r"No packages to install"),
        "Take the package for this host's architecture.",
    ),
    Failure(
        "wrong_chip",
        (r"installation package and environment is not match",),
        "Take the package for this host's chip: `lspci -nn -d 19e5:` shows d802 for 910b, d803 for A3, d500 for 310p, "
        "d801 for 910.",
    ),
    Failure(
        "missing_tools",
        (r"The list of missing tools:",),
        "Install what brings the tools named (lspci: pciutils, ifconfig: net-tools) and run again.",
    ),
    Failure(
        "device_busy",
        (r"/dev/\S+ has used by", r"davinci nodes are occupied"),
        "Stop what uses the devices (drain and stop the engine, containers, exporters) and run again.",
    ),
    Failure(
        "signature_mode",
        (r"software signature verification failed", r"[Cc]rl[_ ]check failed"),
        "The device accepts packages of another signature mode: take a package signed for it, or change the mode.",
    ),
    Failure(
        "kernel_mismatch",
        (
            r"kernel primary version\(",
            r"driver ko vermagic\(",
            r"vermagic check failed",
            r"Drv_dkms_env_check failed",
        ),
        "The package has no driver for the running kernel and could not build one: install dkms, gcc and the headers "
        "and devel packages of exactly `uname -r`, or boot a kernel that the release supports.",
        refused=False,
    ),
    Failure(
        "dkms_failed",
        (r"Dkms install failed", r"dkms install failed", r"Driver_ko_install failed"),
        "The log holds the compiler's output. Compare the kernel's compiler with gcc --version, remove "
        "/var/lib/dkms/davinci_ascend and run again.",
        refused=False,
    ),
    Failure(
        "older_than_flash",
        (r"earlier than the device flash hardware version",),
        "The device's own flash is newer than this driver: install a newer release.",
    ),
    Failure(
        "step_release_needed",
        (r"install the 23\.0\.RC1 driver package",),
        "Install release 23.0.RC1 first, reboot, then this one.",
    ),
    Failure("driver_missing", (r"[Tt]he driver is not installed",), "Install the driver before the firmware."),
    Failure(
        "toolkit_missing",
        (r"source set_env\.sh", r"toolkit of version \S+ is not installed"),
        "Install the toolkit of the same version first.",
    ),
    Failure("uninstall_failed", (r"ERR_NO:0x0090",), "Stop what uses the devices and run again.", refused=False),
)


class Diagnosis(NamedTuple):
    """The cause as far as it is known. ``code`` is "unknown" when no message was recognised. ``refused``: nothing was
    changed."""

    code: str
    seen: str
    hint: str
    refused: bool


def lines_of(text: str) -> List[str]:
    """The lines a person would see: no colours, no progress figures drawn over each other, no time stamps."""
    plain = _COLOUR.sub("", text).replace("\r", "\n").replace("\x08", "")
    stripped = (_STAMP.sub("", line).strip() for line in plain.splitlines())
    return [line for line in stripped if line]


def diagnose(output: str, log: str) -> Diagnosis:
    """Find the cause in what an installer printed and in what it added to its log."""
    shown, logged = lines_of(output), lines_of(log)
    for failure in FAILURES:
        for pattern in failure.patterns:
            for line in shown + logged:
                if re.search(pattern, line):
                    return Diagnosis(failure.code, line, failure.hint, failure.refused)
    errors = [line for line in shown + logged if "[ERROR]" in line]
    last = (errors or shown or logged or ["nothing was printed"])[-1]
    return Diagnosis("unknown", last, "Read the log.", False)


def archive_refused(output: str) -> bool:
    """Whether the archive itself refused to run; it then leaves with 2, which from a driver means a reboot."""
    return any(re.search(pattern, output) for pattern in FAILURES[0].patterns)
