# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's nvidia-smi, asked for a table with a header (its ordinary screen is not stable between branches)."""

import csv
import re

from ansible.module_utils.vllm_ansible.hardware.pci import normalise_address
from ansible.module_utils.vllm_ansible.hardware.values import integer

FIELDS = ("index", "name", "pci.bus_id", "memory.total", "driver_version")
COMMAND = ("nvidia-smi", "--query-gpu=" + ",".join(FIELDS), "--format=csv,nounits")


def parse_query(text):
    """Parse the answer to :data:`COMMAND`.

    Returns:
        [{"index", "name", "pci", "memory_bytes", "driver"}]; a value the tool does not know ("[N/A]") is None.
    """
    rows = list(csv.reader((text or "").splitlines(), skipinitialspace=True))
    if not rows:
        return []
    names = [re.sub(r"\s*\[.*\]\Z", "", name) for name in rows[0]]
    gpus = []
    for row in rows[1:]:
        if len(row) != len(names):
            continue
        values = {name: None if value.startswith("[") else value for name, value in zip(names, row)}
        address, mebibytes = normalise_address(values.get("pci.bus_id")), integer(values.get("memory.total"))
        if address is not None:
            gpus.append(
                {
                    "index": integer(values.get("index")),
                    "name": values.get("name"),
                    "pci": address,
                    "memory_bytes": mebibytes * 1048576 if mebibytes else None,
                    "driver": values.get("driver_version"),
                }
            )
    return gpus
