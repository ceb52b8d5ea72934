# SPDX-License-Identifier: Apache-2.0
"""Device files of NPUs: which are there, who may open them, and whom the driver was installed for."""

import re

from ansible.module_utils.vllm_ansible.hardware.software import ASCEND_INSTALL_INFO
from ansible.module_utils.vllm_ansible.hardware.values import known, named_values

MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


def gather_davinci(host, accelerators):
    """Return the ``davinci`` facts.

    Args:
        accelerators: the ``accelerators`` facts, for the number of PCI functions.
    """
    numbers = [re.match(r"davinci([0-9]{1,4})\Z", name) for name in host.list_directory("/dev")]
    devices = [f"/dev/davinci{number}" for number in sorted(int(match.group(1)) for match in numbers if match)]
    values = named_values(host.read(ASCEND_INSTALL_INFO), "=")
    access = []
    for path in devices:
        entry = host.access(path)
        if entry is not None and entry not in access:
            access.append(entry)
    for_all = known(values.get("Driver_Install_For_All"))
    nobody = {"owner": None, "group": None, "mode": None}
    return {
        "managers": [
            dict(host.access(path) or nobody, path=path, present=host.access(path) is not None) for path in MANAGERS
        ],
        "devices": devices,
        "access": access,
        "ascend_user": known(values.get("UserName")),
        "ascend_group": known(values.get("UserGroup")),
        "for_all": for_all.lower() in ("y", "yes", "true") if for_all else None,
        "pci_count": len({entry["pci"] for entry in accelerators if entry["kind"] == "npu"}),
    }
