# SPDX-License-Identifier: Apache-2.0
"""The matrix that ``npu-smi info -t topo`` and ``nvidia-smi topo -m`` print: who reaches whom, and by what."""

import re
from typing import Dict, List, Tuple

_DEVICE = re.compile(r"(NPU|Phy-ID|GPU)([0-9]{1,4})\Z")
# HCCS, HCCS_SW, SIO, UB, NV18, PIX, PXB, PHB, NODE, SYS
_LINK = re.compile(r"[A-Z][A-Z0-9_]{1,11}\Z")
_TITLE = re.compile(r"(?:NPU|Phy-ID|GPU|NIC)[0-9]|mlx|(?:CPU|NUMA)_Affinity")
_CPUS = re.compile(r"[0-9][0-9,-]*\Z")
_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


def parse_matrix(text):
    """Parse a topology matrix.

    Returns:
        {"links": {(name, other name): link}, "cpus": {name: CPU list}} with names such as ``NPU0``, ``Phy-ID12``,
        ``GPU3``; each pair once, in the order of the columns. Rows and columns of anything else (``NIC0``) are passed
        over, as are the relations X (itself) and NA (unknown). The last row of a device may lack cells.
    """
    header: List[str] = []
    links: Dict[Tuple[str, str], str] = {}
    cpus: Dict[str, str] = {}
    for line in (text or "").splitlines():
        for title in _TITLES:
            line = line.replace(title, title.replace(" ", "_"))
        cells = line.split()
        if not cells or not _DEVICE.match(cells[0]):
            continue
        # The line of column titles goes on with a title, a row with a relation.
        if len(cells) == 1 or _TITLE.match(cells[1]):
            header = cells
            continue
        name, row = cells[0], dict(zip(header, cells[1:]))
        for other in header:
            relation = row.get(other, "NA")
            known = relation not in ("X", "NA") and _LINK.match(relation)
            if known and _DEVICE.match(other) and other != name and (other, name) not in links:
                links.setdefault((name, other), relation)
        if _CPUS.match(row.get("CPU_Affinity", "")):
            cpus.setdefault(name, row["CPU_Affinity"])
    return {"links": links, "cpus": cpus}


def device_number(name):
    """Return ("NPU" | "Phy-ID" | "GPU", number) of a name in the matrix."""
    prefix, number = _DEVICE.findall(name)[0]
    return prefix, int(number)
