# SPDX-License-Identifier: Apache-2.0
"""Hardware specifications of the catalogue: what a host of one kind has when nothing is missing or badly seated."""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.plan.devices import FAMILIES, LINKS, Device
from ansible.module_utils.vllm_ansible.plan.reader import Reader


class Specification(NamedTuple):
    """Needed values of one kind of host; 0 or empty where nothing is asked.

    It is for hosts with devices of `families` (joined by `link`, when given), or whose CPU matches one of the patterns
    `cpu_models`; of `architectures` only, when given. `device_counts`: chips in all; `pcie_width` in lanes,
    `pcie_speed_gts` in giga-transfers per second; `device_links`: patterns of the words of the topology tool, one of
    which joins every two devices; `fabric_mbps`: the RoCE port of an NPU, `nic_mbps`: the interface of the host's own
    address, in Mbit/s; `cores` and `numa_nodes` of the machine; `disk_bytes`: path -> size of its file system;
    `weights_disks`: kinds of disk that weights should lie on.
    """

    name: str
    families: Tuple[str, ...] = ()
    link: str = ""
    cpu_models: Tuple[str, ...] = ()
    architectures: Tuple[str, ...] = ()
    device_counts: Tuple[int, ...] = ()
    pcie_width: int = 0
    pcie_speed_gts: float = 0.0
    device_links: Tuple[str, ...] = ()
    fabric_mbps: int = 0
    nic_mbps: int = 0
    cores: int = 0
    numa_nodes: int = 0
    channels_per_socket: int = 0
    disk_bytes: Dict[str, int] = {}
    weights_disks: Tuple[str, ...] = ()
    unverified: Dict[str, str] = {}

    def is_for(self, device: Optional[Device], architecture: str, cpu_model: str) -> bool:
        """Whether a host with these devices (None: a CPU host) and this CPU is of the kind."""
        if self.architectures and architecture not in self.architectures:
            return False
        if self.families:
            return device is not None and device.family in self.families and self.link in ("", device.link)
        return any(re.match(pattern + r"\Z", cpu_model) for pattern in self.cpu_models)


SPECIFICATION_KEYS = frozenset(Specification._fields) - {"name"} | {"sources"}
DISKS = ("nvme", "ssd", "hdd")


def read_specification(name: str, entry: Reader) -> Specification:
    """Read one specification; what is unusable is complained about through `entry`."""
    entry.only(SPECIFICATION_KEYS)
    entry.sources()
    disks = entry.mapping("disk_bytes")
    specification = Specification(
        name=name,
        families=tuple(entry.choices("families", FAMILIES)),
        link=entry.choice("link", LINKS) if "link" in entry.raw else "",
        cpu_models=tuple(entry.texts("cpu_models")),
        architectures=tuple(entry.texts("architectures")),
        device_counts=tuple(sorted(n for n in entry.list("device_counts") if isinstance(n, int))),
        pcie_width=entry.integer("pcie_width"),
        pcie_speed_gts=entry.number("pcie_speed_gts"),
        device_links=tuple(entry.texts("device_links")),
        fabric_mbps=entry.integer("fabric_mbps"),
        nic_mbps=entry.integer("nic_mbps"),
        cores=entry.integer("cores"),
        numa_nodes=entry.integer("numa_nodes"),
        channels_per_socket=entry.integer("channels_per_socket"),
        disk_bytes={path: disks.integer(path, minimum=1) for path in sorted(str(p) for p in disks.raw)},
        weights_disks=tuple(entry.choices("weights_disks", DISKS)),
        unverified=entry.text_map("unverified"),
    )
    for field in ("cpu_models", "device_links"):
        for pattern in getattr(specification, field):
            try:
                re.compile(pattern)
            except re.error:
                entry.complain(entry.field(field), pattern, "regular expressions")
    if bool(specification.families) == bool(specification.cpu_models):
        entry.complain(entry.field("families"), list(specification.families), "either families or cpu_models")
    return specification


def choose(specifications: Any, device: Optional[Device], architecture: str, cpu_model: str) -> List[Specification]:
    """Return every specification for such a host, by name."""
    return [s for s in specifications if s.is_for(device, architecture, cpu_model)]
