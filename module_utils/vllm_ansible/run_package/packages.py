# SPDX-License-Identifier: Apache-2.0
"""The kinds of packages: their file names, flags, logs, exit codes and time limits."""

import re
from typing import List, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.plan import versions

ASCEND_ROOT = "/usr/local/Ascend"
LOGS = "/var/log/ascend_seclog"


class PackageError(Exception):
    """What went wrong, for a person: package, what was seen, what to do. ``details`` go into the module's result."""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details


class Component(NamedTuple):
    """One kind of package.

    ``title`` is its name in /etc/ascend_install.info, "" for CANN's. ``installed`` are the exit codes that mean it is
    there, ``reboot`` those that also mean that a reboot is needed. ``timeout_seconds`` is a limit, not a measurement:
    a driver for eight cards takes about a minute, an installer that waits for a dead device never ends.
    """

    name: str
    title: str
    log: str
    installed: Tuple[int, ...]
    reboot: Tuple[int, ...]
    timeout_seconds: int


COMPONENTS = {
    # 2: installed, the hot reset of the devices failed.
    "driver": Component("driver", "Driver", LOGS + "/ascend_install.log", (0, 2), (2,), 1800),
    "firmware": Component("firmware", "Firmware", LOGS + "/ascend_install.log", (0, 2), (2,), 1800),
    "toolkit": Component("toolkit", "", LOGS + "/ascend_toolkit_install.log", (0,), (), 3600),
    # No source shows the name of this log; what the failures name is the log that grew.
    "ops": Component("ops", "", LOGS + "/ascend_ops_install.log", (0,), (), 3600),
    "nnal": Component("nnal", "", LOGS + "/ascend_nnal_install.log", (0,), (), 1800),
}

_HDK = re.compile(
    r"(?:Ascend-hdk-(?P<chip>[0-9a-z]+)|Atlas-(?P<a3>A3)-hdk)-npu-(?P<component>driver|firmware)_"
    r"(?P<version>[0-9A-Za-z.]+?)(?:_linux-(?P<arch>aarch64|x86-64))?\.run\Z"
)
_CANN = re.compile(
    r"(?:Ascend|Atlas-(?P<a3>A3))-cann-(?:(?P<component>toolkit|nnal)|kernels(?:-(?P<old>[0-9a-z]+))?|(?P<new>[0-9A-Za-z]+)-ops)"
    r"_(?P<version>[0-9A-Za-z.\-]+)_linux-(?P<arch>aarch64|x86_64)\.run\Z"
)


class Name(NamedTuple):
    """What a package's file name says. ``chip`` and ``arch`` are None where it does not say."""

    component: str
    version: str
    chip: Optional[str]
    arch: Optional[str]


def parse_name(name: str) -> Optional[Name]:
    """Read a file name of the vendor's; None for any other name."""
    match = _HDK.match(name)
    if match:
        arch = match.group("arch")
        chip = match.group("chip") or match.group("a3")
        return Name(match.group("component"), match.group("version"), chip, arch and arch.replace("-", "_"))
    match = _CANN.match(name)
    if match:
        chip = match.group("old") or match.group("new") or match.group("a3")
        return Name(match.group("component") or "ops", match.group("version"), chip, match.group("arch"))
    return None


def same_version(one: Optional[str], other: Optional[str]) -> bool:
    """Whether two spellings mean the same version; what cannot be compared is the same only when written alike."""
    if one is None or other is None:
        return one == other
    try:
        return versions.compare(one, other) == 0
    except ValueError:
        return one.strip().lower() == other.strip().lower()


def older(one: str, other: str) -> bool:
    """Whether `one` is older than `other`; False when they cannot be compared."""
    try:
        return versions.compare(one, other) < 0
    except ValueError:
        return False


def name_problems(name: str, component: str, version: str, chip: Optional[str], arch: str) -> List[str]:
    """What a file name says that is not what is wanted; [] for a name that is not the vendor's."""
    said = parse_name(name)
    if said is None:
        return []
    problems = []
    if said.component != component:
        problems.append("it is a package of {0}, not of {1}".format(said.component, component))
    if not same_version(said.version, version):
        problems.append("its version is {0}, not {1}".format(said.version, version))
    if chip and said.chip and said.chip.lower() != chip.lower():
        problems.append("it is for the chip {0}, this host has {1}".format(said.chip, chip))
    if said.arch and said.arch != arch:
        problems.append("it is for {0}, this host is {1}".format(said.arch, arch))
    return problems


def install_flags(component: str, upgrade: bool, install_path: str, for_all: bool) -> List[str]:
    """Flags of an installation without questions. ``--quiet`` of a CANN package accepts the vendor's licence.

    A driver's ``--upgrade`` takes neither a path nor ``--install-for-all``: both stay as they were. A CANN version is
    installed beside the others and becomes the current one.
    """
    if upgrade and component in ("driver", "firmware"):
        return ["--upgrade", "--quiet"]
    flags = ["--full" if component in ("driver", "firmware") else "--install", "--quiet"]
    if component == "firmware":
        return flags
    if for_all:
        flags.append("--install-for-all")
    if install_path != ASCEND_ROOT:
        flags.append("--install-path=" + install_path)
    return flags
