# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's nvidia-smi, asked for a table with a header (its ordinary screen is not stable between branches)."""

import re

from ansible.module_utils.vllm_ansible.hardware.pci import normalise_address
from ansible.module_utils.vllm_ansible.hardware.values import count, known

FIELDS = (
    "index",
    "name",
    "uuid",
    "pci.bus_id",
    "memory.total",
    "memory.used",
    "driver_version",
    "mig.mode.current",
    "ecc.errors.uncorrected.volatile.total",
)

# What an answer says of a device that is gone, as a value or as a line of its own.
_LOST = re.compile(r"GPU is lost|GPU requires reset|Unknown Error|ERR!", re.IGNORECASE)
_HANDLE = re.compile(
    r"device handle for GPU\s*(?:\d{1,4}:\s*)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]):\s*(\S.{0,200})"
)


def query(fields=FIELDS):
    """Return the command that asks for these fields."""
    return ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,nounits"]


def parse_query(text):
    """Parse the answer to :func:`query`.

    Returns:
        [{"index", "name", "uuid", "pci", "memory_bytes", "used_bytes", "driver", "mig", "ecc_uncorrected", "lost"}];
        a value the tool does not know ("[N/A]") is None. ``lost`` is what the tool says of a GPU it cannot read any
        more, None otherwise.
    """
    header, gpus = None, []
    # No value of these holds a comma, and nvidia-smi never quotes.
    for line in (text or "").splitlines():
        row = [cell.strip() for cell in line.split(",")]
        names = [re.sub(r"\s*\[.*\]\Z", "", name) for name in row]
        if "pci.bus_id" in names:
            header = names
        elif header and len(row) == len(header):
            values = dict(zip(header, row))
            address = normalise_address(values.get("pci.bus_id"))
            if address is not None:
                gpus.append(_gpu(address, values))
    return gpus


def parse_lost(text):
    """Return {PCI address: reason} of the GPUs that the tool says it cannot open."""
    found = {}
    for match in _HANDLE.finditer(text or ""):
        found[normalise_address(match.group(1))] = match.group(2).strip()
    return found


def parse_unknown_field(text):
    """Return the field that an older tool does not know and therefore answers nothing for, or None."""
    match = re.search(r'Field "([a-z._]+)" is not a valid field', text or "")
    return match.group(1) if match else None


def parse_banner(text):
    """Parse the head of the ordinary screen: {"driver", "cuda"}, each None where not printed.

    ``cuda`` is the newest CUDA that the driver serves, not what is installed. Since R610 the head says
    ``KMD Version`` and ``CUDA UMD Version``.
    """
    driver = re.search(r"\b(?:Driver|KMD) Version:\s*([0-9][0-9.]*)", text or "")
    cuda = re.search(r"\bCUDA (?:UMD )?Version:\s*([0-9][0-9.]*)", text or "")
    return {"driver": driver.group(1) if driver else None, "cuda": cuda.group(1) if cuda else None}


def parse_library_version(text):
    """Return the version of the user-space library in the error of a driver/library mismatch, or None."""
    match = re.search(r"NVML library version:\s*([0-9][0-9.]*)", text or "")
    return match.group(1) if match else None


def _gpu(address, values):
    lost = next((value for value in values.values() if _LOST.search(value)), None)
    total, used = (_bytes(values.get(name)) for name in ("memory.total", "memory.used"))
    mode = known(values.get("mig.mode.current"))
    return {
        "index": count(values.get("index")),
        "name": _usable(values.get("name")),
        "uuid": _usable(values.get("uuid")),
        "pci": address,
        "memory_bytes": total or None,
        "used_bytes": used,
        "driver": _usable(values.get("driver_version")),
        "mig": {"Enabled": True, "Disabled": False}.get(mode),
        "ecc_uncorrected": count(values.get("ecc.errors.uncorrected.volatile.total")),
        "lost": lost.strip("[] ") if lost else None,
    }


def _usable(text):
    return None if _LOST.search(text or "") else known(text)


def _bytes(text):
    mebibytes = count(text)
    return None if mebibytes is None else mebibytes * 1048576
