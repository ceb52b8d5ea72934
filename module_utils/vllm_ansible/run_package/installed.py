# SPDX-License-Identifier: Apache-2.0
"""What is installed, from the vendor's own records, and what an interrupted installation left."""

import json
import os
import re
from typing import Dict, List, NamedTuple, Optional

from ansible.module_utils.vllm_ansible.run_package.packages import COMPONENTS

INSTALL_INFO = "/etc/ascend_install.info"
# Written before an installer starts and removed when it succeeded: a power cut leaves it behind.
JOURNAL = "/var/lib/vllm/run-packages"
# Emptied by a reboot, which is the point.
PENDING = "/run/vllm-reboot-required"


class Installed(NamedTuple):
    """One component on a host.

    ``version`` is None when it is not there; ``home`` is its directory; ``root`` the path it was installed to;
    ``chip`` what an operator package is for; ``problems`` say why it is not whole, [] when it is or is not there.
    """

    version: Optional[str]
    home: Optional[str]
    root: Optional[str]
    chip: Optional[str]
    problems: List[str]


def values(text: Optional[str], separator: str = "=") -> Dict[str, str]:
    """Lines of ``name=value``; the last of equal names wins."""
    found = {}
    for line in (text or "").splitlines():
        name, mark, value = line.partition(separator)
        if mark and value.strip():
            found[name.strip()] = value.strip()
    return found


def read(host, component: str, install_path: str, chip: Optional[str] = None) -> Installed:
    """Read what the vendor's files say about one component.

    host: a :class:`ansible.module_utils.vllm_ansible.host.Host`. chip: which of several operator packages is meant.
    """
    if component in ("driver", "firmware"):
        found = _hardware_package(host, component, install_path)
    elif component == "toolkit":
        found = _toolkit(host, install_path)
    elif component == "ops":
        found = _operators(host, install_path, chip)
    else:
        found = _nnal(host, install_path)
    entry = read_journal(host, component)
    if entry is not None:
        sentence = "An installation of {0} {1} did not end with success.".format(component, entry.get("version"))
        found = found._replace(problems=found.problems + [sentence])
    return found


def _hardware_package(host, component, install_path):
    title = COMPONENTS[component].title
    recorded = values(host.read(INSTALL_INFO))
    root = recorded.get(title + "_Install_Path_Param")
    home = "{0}/{1}".format((root or install_path).rstrip("/"), component)
    version = values(host.read(home + "/version.info")).get("Version")
    problems = []
    if root and version is None:
        problems.append(
            "{0} names a {1} in {2}, but {3}/version.info has no version.".format(INSTALL_INFO, component, root, home)
        )
    status = recorded.get(title + "_Install_Status")
    # Older installers never write this line, so only a line that says something else tells anything.
    if status not in (None, "complete"):
        problems.append("{0} says {1}_Install_Status={2}.".format(INSTALL_INFO, title, status))
    there = version is not None or bool(root)
    return Installed(version, home if there else None, root or (install_path if there else None), None, problems)


def toolkit_home(host, install_path: str) -> Optional[str]:
    """The directory of the current toolkit: the links that set_env.sh uses, in the vendor's own order."""
    for link in ("ascend-toolkit/latest", "cann"):
        path = "{0}/{1}".format(install_path.rstrip("/"), link)
        if host.read_link(path) is not None and host.exists(path):
            return path
    return None


def set_env(host, install_path: str) -> Optional[str]:
    """The current toolkit's set_env.sh, or None."""
    for name in ("ascend-toolkit/set_env.sh", "cann/set_env.sh"):
        path = "{0}/{1}".format(install_path.rstrip("/"), name)
        if host.exists(path):
            return path
    return None


def _records(host, home):
    """[(file name, values)] of the installation records of a toolkit's directory."""
    folder = "{0}/{1}-linux".format(home, host.system()["machine"])
    names = [name for name in host.list_directory(folder) if re.match(r"ascend_\w+_install\.info\Z", name)]
    return [(name, values(host.read("{0}/{1}".format(folder, name)))) for name in names]


def _toolkit(host, install_path):
    home = toolkit_home(host, install_path)
    if home is None:
        return Installed(None, None, None, None, [])
    for name, record in _records(host, home):
        if name == "ascend_toolkit_install.info" and record.get("version"):
            return Installed(record["version"], home, install_path, None, [])
    problem = "{0} leads to a toolkit without a record of its version for {1}.".format(home, host.system()["machine"])
    return Installed(None, home, install_path, None, [problem])


def operator_chip(package_name: str) -> Optional[str]:
    """The chip in the name of an operator package (Ascend-cann-910b-ops), else None."""
    match = re.match(r"Ascend-cann-([0-9A-Za-z]+)-ops\Z", package_name)
    return match.group(1) if match else None


def _operators(host, install_path, chip):
    home = toolkit_home(host, install_path)
    if home is None:
        return Installed(None, None, None, None, [])
    found = []
    for _name, record in _records(host, home):
        package = record.get("package_name", "")
        if record.get("version") and package.endswith("-ops"):
            found.append(Installed(record["version"], home, install_path, operator_chip(package), []))
    # Up to 8.3 they were called kernels; their record does not say for which chip.
    old = values(host.read(home + "/opp_kernel/version.info")).get("version_dir")
    if old and not found:
        found.append(Installed(old, home, install_path, None, []))
    for entry in found:
        if chip is None or (entry.chip or "").lower() == chip.lower():
            return entry
    return found[0] if found else Installed(None, None, None, None, [])


def _nnal(host, install_path):
    home = install_path.rstrip("/") + "/nnal/atb/latest"
    if host.read_link(home) is None or not host.exists(home):
        return Installed(None, None, None, None, [])
    version = values(host.read(home + "/version.info"), ":").get("Ascend-cann-atb")
    problems = [] if version else ["{0} leads to no version.info that names a version.".format(home)]
    return Installed(version, home, install_path, None, problems)


def _journal_path(component):
    return "{0}/{1}.json".format(JOURNAL, component)


def read_journal(host, component: str) -> Optional[Dict[str, str]]:
    """What was being installed when the last installation did not succeed, or None."""
    text = host.read(_journal_path(component))
    if text is None:
        return None
    try:
        entry = json.loads(text)
    except ValueError:
        entry = {}
    return entry if isinstance(entry, dict) else {}


def open_journal(host, component: str, version: str) -> None:
    """Note that an installation begins."""
    entry = {"component": component, "version": version}
    host.write_atomically(_journal_path(component), json.dumps(entry, sort_keys=True) + "\n")


def close_journal(host, component: str) -> None:
    """Note that it succeeded."""
    if host.read(_journal_path(component)) is not None:
        host.remove(_journal_path(component))


def pending_reboot(host, component: str) -> bool:
    """Whether a change of this component since the last boot waits for a reboot."""
    return host.exists(os.path.join(PENDING, component))


def note_reboot(host, component: str, reason: str) -> None:
    """Remember until the next boot that a reboot is needed."""
    host.write_atomically(os.path.join(PENDING, component), reason + "\n")
