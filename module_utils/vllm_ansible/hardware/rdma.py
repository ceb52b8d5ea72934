# SPDX-License-Identifier: Apache-2.0
"""RDMA devices (InfiniBand and RoCE) and their GIDs from sysfs."""

import re

from ansible.module_utils.vllm_ansible.hardware import pci
from ansible.module_utils.vllm_ansible.hardware.values import count, decimal, word

SYSFS = "/sys/class/infiniband"
_GID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}\Z")
_EMPTY = ":".join(["0000"] * 8)


def parse_state(text):
    """Return the word of ``4: ACTIVE`` or ``5: LinkUp``, or None."""
    return word((text or "").partition(":")[2])


def gather_rdma(host):
    """Return the ``rdma`` facts, one entry per port; [] when there is no such device."""
    ports = []
    for device in host.list_directory(SYSFS):
        address = pci.function_of_link(host.read_link(f"{SYSFS}/{device}"))
        for number in _numbers(host, f"{SYSFS}/{device}/ports"):
            directory = f"{SYSFS}/{device}/ports/{number}"
            gids = _gids(host, directory)
            ports.append(
                {
                    "device": device,
                    "port": number,
                    "state": parse_state(host.read(directory + "/state")),
                    "physical_state": parse_state(host.read(directory + "/phys_state")),
                    "rate_gbps": decimal(host.read(directory + "/rate")),
                    "link_layer": word(host.read(directory + "/link_layer")),
                    "netdev": gids[0]["netdev"] if gids else None,
                    "pci": address,
                    "numa_node": pci.numa_node(host, address),
                    "gids": gids,
                }
            )
    return ports


def _numbers(host, directory):
    numbers = [count(name) for name in host.list_directory(directory)]
    return sorted(number for number in numbers if number is not None)


def _gids(host, directory):
    """Return the GIDs in use. A table has hundreds of places, and reading the type of an empty one fails."""
    gids = []
    for index in _numbers(host, directory + "/gids"):
        gid = word(host.read(f"{directory}/gids/{index}"))
        if gid is not None and _GID.match(gid) and gid != _EMPTY:
            gids.append(
                {
                    "index": index,
                    "gid": gid,
                    "type": word(host.read(f"{directory}/gid_attrs/types/{index}")),
                    "netdev": word(host.read(f"{directory}/gid_attrs/ndevs/{index}")),
                }
            )
    return gids
