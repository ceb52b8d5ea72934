# SPDX-License-Identifier: Apache-2.0
"""Huawei's npu-smi, read by its header lines: the columns differ between products and driver branches."""

import re
from typing import Dict, Optional

from ansible.module_utils.vllm_ansible.hardware.pci import normalise_address
from ansible.module_utils.vllm_ansible.hardware.values import count, known, named_values, word

# What every npu-smi says when it cannot talk to the driver, also to an ordinary user of a healthy machine.
NO_DRIVER = "dcmi module initialize failed"

_MIB = 1048576


def parse_info(text):
    """Parse ``npu-smi info``.

    Returns:
        {"version": "25.0.rc1.1" or None, "chips": [{"npu", "name", "health", "chip", "phy_id", "pci",
        "memory_bytes", "used_bytes"}]}, one entry per chip, each chip once. The memory is the one that models live
        in: HBM, or DDR on products without HBM; None when not printed. Lines that are none of this are passed over.
    """
    version = re.search(r"npu-smi\s+(\S+)\s+Version:", text or "")
    chips, seen, device = [], set(), None
    npu_header, chip_header = None, None
    for line in (text or "").splitlines():
        cells = [cell.strip() for cell in line.strip()[1:].rstrip("|").split("|")]
        if not line.startswith("|") or len(cells) < 3:
            continue
        if "Process id" in cells:
            npu_header, chip_header, device = None, None, None
        elif "Health" in cells:
            npu_header, chip_header, device = _titles(cells), None, None
        elif "Bus-Id" in cells:
            chip_header = _titles(cells)
        elif npu_header and chip_header and len(cells) == len(npu_header) == len(chip_header):
            chip = _row(chip_header, cells)
            address = normalise_address(chip.get("Bus-Id"))
            if address is None and chip.get("Bus-Id") != "NA":
                device = _row(npu_header, cells)
                continue
            entry = _chip(device, chip, address)
            device = None
            if entry is not None and (entry["npu"], entry["chip"]) not in seen:
                seen.add((entry["npu"], entry["chip"]))
                chips.append(entry)
    return {"version": version.group(1) if version else None, "chips": chips}


def parse_processes(text):
    """Parse the table of processes below ``npu-smi info``.

    Returns:
        [{"npu", "chip", "pid", "name", "memory_bytes"}], or None when there is no such table.
    """
    processes, header = [], None
    for line in (text or "").splitlines():
        cells = [cell.strip() for cell in line.strip()[1:].rstrip("|").split("|")]
        if not line.startswith("|"):
            continue
        if "Process id" in cells:
            header = cells
        elif header and len(cells) == len(header):
            row = dict(zip(header, cells), **_row([_titles(header[:1])[0]], cells[:1]))
            npu, chip = count(row.get("NPU", row.get("NPU ID"))), count(row.get("Chip", "0"))
            pid, mebibytes = count(row.get("Process id")), count(row.get("Process memory(MB)"))
            if npu is not None and chip is not None and pid is not None:
                memory = mebibytes * _MIB if mebibytes is not None else None
                name = word(row.get("Process name"))
                processes.append({"npu": npu, "chip": chip, "pid": pid, "name": name, "memory_bytes": memory})
    return processes if header else None


def parse_mapping(text):
    """Parse ``npu-smi info -m``.

    Returns:
        [{"npu", "chip", "logic_id", "phy_id", "name"}] without the management controllers (``Mcu``). ``logic_id`` is
        the number that ASCEND_RT_VISIBLE_DEVICES uses; ``phy_id`` the N of /dev/davinciN, None where not printed.
    """
    header, chips = [], []
    for line in (text or "").splitlines():
        fields = re.split(r"\s{2,}", line.strip())
        if fields[0] == "NPU ID":
            header = fields
        elif header and len(fields) == len(header):
            row = dict(zip(header, fields))
            npu, chip = count(row["NPU ID"]), count(row.get("Chip ID"))
            if row.get("Chip Name", "Mcu") != "Mcu" and npu is not None and chip is not None:
                physical = count(row.get("Chip Phy-ID"))
                logic = count(row["Chip Logic ID"]) if "Chip Logic ID" in row else physical
                name = re.sub(r"^Ascend\s+", "", row["Chip Name"])
                chips.append({"npu": npu, "chip": chip, "logic_id": logic, "phy_id": physical, "name": name})
    return chips


def parse_list(text):
    """Parse ``npu-smi info -l``: {"total": count or None, "npus": {NPU id: number of chips or None}}."""
    npus: Dict[int, Optional[int]] = {}
    total, last = None, None
    for line in (text or "").splitlines():
        name, colon, value = (part.strip() for part in line.partition(":"))
        number = count(value)
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


def parse_board(text):
    """Parse ``npu-smi info -t board -i N``: {"driver", "firmware", "compatibility", "pci"}, None where not printed.

    ``driver`` is the one that runs; after an upgrade without a reboot, npu-smi itself is newer.
    """
    values = named_values(text)
    return {
        "driver": known(values.get("Software Version")),
        "firmware": known(values.get("Firmware Version")),
        "compatibility": known(values.get("Compatibility")),
        "pci": normalise_address(values.get("PCIe Bus Info")),
    }


def parse_health(text):
    """Parse ``npu-smi info -t health -i N -c C``: {"status", "code", "information"}, each None where not printed."""
    values = named_values(text)
    return {
        "status": known(values.get("Health Status", values.get("Health"))),
        "code": known(values.get("Error Code")),
        "information": known(values.get("Error Information")),
    }


def parse_usages(text):
    """Parse ``npu-smi info -t usages -i N``: {chip: {"memory_bytes", "used_bytes"}}, the HBM or, without it, the DDR.

    The block of a chip ends with its ``Chip ID``; a tool for boards of one chip prints none.
    """
    chips, block = {}, []
    for line in (text or "").splitlines() + ["Chip ID : 0"]:
        block.append(line)
        name, _colon, value = line.partition(":")
        number = count(value.strip())
        if name.strip() != "Chip ID" or number is None:
            continue
        values, block = named_values("\n".join(block)), []
        for kind in ("HBM", "DDR"):
            mebibytes = count(values.get(f"{kind} Capacity(MB)"))
            percent = count(values.get(f"{kind} Usage Rate(%)"))
            if mebibytes and number not in chips:
                total = mebibytes * _MIB
                used = total * percent // 100 if percent is not None and percent <= 100 else None
                chips[number] = {"memory_bytes": total, "used_bytes": used}
    return chips


def parse_version_info(text):
    """Return the version in a ``version.info`` of the driver or the firmware, or None."""
    match = re.search(r"^Version=(\S+)", text or "", re.MULTILINE)
    return match.group(1) if match else None


def _titles(cells):
    # Titles hold single blanks ("NPU Util(%)"), and a unit may be followed by only one.
    return [re.split(r"\s{2,}|(?<=\))\s", cell) for cell in cells]


def _row(header, cells):
    """Match the words of a row to the names of its header, cell by cell; a cell with too few words is unreadable."""
    row: Dict[str, str] = {}
    for names, cell in zip(header, cells):
        words = re.sub(r"\s*/\s*", "/", cell).split()
        if len(words) >= len(names):
            words[len(names) - 1 :] = [" ".join(words[len(names) - 1 :])]
            row.update(zip(names, words))
    return row


def _chip(device, row, address):
    """Return the entry of a chip from its two rows, or None when they are no such rows."""
    if device is None:
        return None
    # The 950 has one chip per NPU and no column for it.
    npu, chip = count(device.get("NPU", device.get("NPU ID"))), count(row.get("Chip", "0"))
    if npu is None or chip is None or not device.get("Name"):
        return None
    used, total = _usage(row.get("HBM-Usage(MB)"))
    if total is None:
        used, total = _usage(row.get("Memory-Usage(MB)"))
    return {
        "npu": npu,
        "name": device["Name"],
        "health": device.get("Health"),
        "chip": chip,
        "phy_id": count(row.get("Phy-ID", row.get("Device"))),
        "pci": address,
        "memory_bytes": total,
        "used_bytes": used,
    }


def _usage(usage):
    """Return (used, total) bytes of ``2654/32768`` (MiB); (None, None) for no memory or no such text."""
    used, _slash, total = (usage or "").partition("/")
    used, total = count(used), count(total)
    return (None if used is None else used * _MIB, total * _MIB) if total else (None, None)
