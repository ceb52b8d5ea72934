# SPDX-License-Identifier: Apache-2.0
"""Huawei's npu-smi, read by its header lines: the columns differ between products and driver branches."""

import re
from typing import Dict, Optional

from ansible.module_utils.vllm_ansible.hardware.pci import normalise_address
from ansible.module_utils.vllm_ansible.hardware.values import integer

# What every npu-smi says when it cannot talk to the driver, also to an ordinary user of a healthy machine.
NO_DRIVER = "dcmi module initialize failed"


def parse_info(text):
    """Parse ``npu-smi info``.

    Returns:
        {"version": "25.0.rc1.1" or None, "chips": [{"npu", "name", "health", "chip", "phy_id", "pci",
        "memory_bytes"}]}, one entry per chip. ``memory_bytes`` is the size of the memory that models live in: HBM,
        or DDR on products without HBM; None when not printed. Lines that are none of this are passed over.
    """
    version = re.search(r"npu-smi\s+(\S+)\s+Version:", text or "")
    chips, headers, device = [], {}, None
    for line in (text or "").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 3:
            continue
        kind = cells[0].split(None, 1)[0] if cells[0] else ""
        if kind in ("NPU", "Chip"):
            headers[kind] = [re.split(r"\s{2,}", cell) for cell in cells]
            continue
        values = [re.sub(r"\s*/\s*", "/", cell).split() for cell in cells]
        if device is None:
            device = _row(headers.get("NPU"), values)
            if integer(device.get("NPU")) is None or "Name" not in device:
                device = None
            continue
        row = _row(headers.get("Chip"), values)
        if integer(row.get("Chip")) is not None and "Bus-Id" in row:
            chips.append(
                {
                    "npu": integer(device["NPU"]),
                    "name": device["Name"],
                    "health": device.get("Health"),
                    "chip": integer(row["Chip"]),
                    "phy_id": integer(row.get("Phy-ID", row.get("Device"))),
                    "pci": normalise_address(row["Bus-Id"]),
                    "memory_bytes": _total(row.get("HBM-Usage(MB)")) or _total(row.get("Memory-Usage(MB)")),
                }
            )
        device = None
    return {"version": version.group(1) if version else None, "chips": chips}


def parse_mapping(text):
    """Parse ``npu-smi info -m``.

    Returns:
        [{"npu", "chip", "logic_id", "name"}] without the management controllers (``Mcu``). ``logic_id`` is the number
        that ASCEND_RT_VISIBLE_DEVICES uses.
    """
    header, chips = [], []
    for line in (text or "").splitlines():
        fields = re.split(r"\s{2,}", line.strip())
        if fields[0] == "NPU ID":
            header = fields
        elif header and len(fields) == len(header):
            row = dict(zip(header, fields))
            logic = integer(row.get("Chip Logic ID", row.get("Chip Phy-ID")))
            npu, chip = integer(row["NPU ID"]), integer(row.get("Chip ID"))
            if row.get("Chip Name", "Mcu") != "Mcu" and npu is not None and chip is not None:
                name = re.sub(r"^Ascend\s+", "", row["Chip Name"])
                chips.append({"npu": npu, "chip": chip, "logic_id": logic, "name": name})
    return chips


def parse_list(text):
    """Parse ``npu-smi info -l``: {"total": count or None, "npus": {NPU id: number of chips or None}}."""
    npus: Dict[int, Optional[int]] = {}
    total, last = None, None
    for line in (text or "").splitlines():
        name, colon, value = (part.strip() for part in line.partition(":"))
        number = integer(value)
        if not colon or number is None:
            continue
        if name == "Total Count":
            total = number
        elif name == "NPU ID":
            last = number
            npus[last] = None
        elif name == "Chip Count" and last is not None:
            npus[last] = number
    return {"total": total, "npus": npus}


def parse_version_info(text):
    """Return the version in ``/usr/local/Ascend/driver/version.info``, or None."""
    match = re.search(r"^Version=(\S+)", text or "", re.MULTILINE)
    return match.group(1) if match else None


def _row(header, values):
    """Match the words of a row to the names of its header, cell by cell."""
    row: Dict[str, str] = {}
    for names, words in zip(header or [], values):
        row.update(zip(names, words))
    return row


def _total(usage):
    """Return the bytes after the slash of ``2654/32768`` (MiB), or None for none or zero."""
    total = integer((usage or "").partition("/")[2])
    return total * 1048576 if total and total > 0 else None
