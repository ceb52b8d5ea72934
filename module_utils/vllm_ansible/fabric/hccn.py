# SPDX-License-Identifier: Apache-2.0
"""The settings of the RoCE ports inside NPUs: what /etc/hccn.conf says and what the ports have.

One ``key_N=value`` per line, N the physical number of the NPU. The vendor's tool compares the name exactly, takes the
first line of a name and skips lines that start with ``#`` (github hicann/driver, hccn_tool/cfg.c). A key is
(name, number) here, such as ("address", 3).
"""

import ipaddress
import re
from typing import Dict, List, Optional, Tuple

from ansible.module_utils.vllm_ansible.hardware import hccn
from ansible.module_utils.vllm_ansible.hardware.values import named_values

Key = Tuple[str, int]
Settings = Dict[Key, str]

NAMES = ("address", "netmask", "netdetect", "gateway", "mtu", "tls_enable")
# What asks for each setting; the address answers with its netmask.
QUESTIONS = {"address": "ip", "netmask": "ip", "netdetect": "netdetect", "gateway": "gateway", "mtu": "mtu"}
QUESTIONS["tls_enable"] = "tls"
NOT_SET = "was preset there"

_LINE = re.compile(r"([A-Za-z]\w*?)_([0-9]{1,3})=(.*)\Z")


def library_path(install_path):
    """Return the LD_LIBRARY_PATH with which the driver's tools find its libraries."""
    return ":".join(install_path + "/driver/lib64" + part for part in ("/common", "/driver", ""))


def tool_of(install_path):
    """Return the path of hccn_tool."""
    return install_path + "/driver/tools/hccn_tool"


def wanted_settings(devices, tls):
    """Return the settings of a slice.

    Args:
        devices: [{"id", "address", "netmask", "gateway", "netdetect", "mtu"}, …]; None leaves a setting alone.
        tls: 0, 1 or None for all of them.
    """
    settings: Settings = {}
    for device in sorted(devices, key=lambda entry: entry["id"]):
        for name in NAMES:
            value = tls if name == "tls_enable" else device.get(name)
            if value is not None:
                settings[(name, device["id"])] = str(value)
    return settings


def problems_of(devices):
    """Return what is wrong with the devices of a slice, as sentences; empty when nothing is."""
    problems: List[str] = []
    owners: Dict[str, int] = {}
    for device in devices:
        who = "NPU {0}".format(device["id"])
        try:
            network = ipaddress.IPv4Network("{0}/{1}".format(device["address"], device["netmask"]), strict=False)
        except ValueError:
            problems.append("{0}: {1}/{2} is no address.".format(who, device["address"], device["netmask"]))
            continue
        if device["address"] in owners:
            problems.append("{0} and NPU {1} both have {2}.".format(who, owners[device["address"]], device["address"]))
        owners[device["address"]] = device["id"]
        for name in ("gateway", "netdetect"):
            try:
                inside = device.get(name) is None or ipaddress.IPv4Address(device[name]) in network
            except ValueError:
                problems.append("{0}: {1} {2} is no address.".format(who, name, device[name]))
                continue
            # The tool refuses such a gateway; a detection address behind it may be meant.
            if not inside and name == "gateway":
                problems.append("{0}: the gateway {1} is not in {2}.".format(who, device[name], network))
    return problems


def parse(text):
    """Return the settings the tool reads from the file."""
    settings: Settings = {}
    for line in (text or "").splitlines():
        match = _LINE.match(line)
        if match:
            settings.setdefault((match.group(1), int(match.group(2))), match.group(3))
    return settings


def render(text, wanted):
    """Return the file with the wanted settings: each at its first line, new ones at the end, every other line kept.

    Further lines of a wanted name, which the tool never reads, go.
    """
    left = dict(wanted)
    lines = []
    for line in (text or "").splitlines():
        key = _key(line)
        if key is not None and key in left:
            lines.append("{0}_{1}={2}".format(key[0], key[1], left.pop(key)))
        elif key not in wanted:
            lines.append(line)
    lines += ["{0}_{1}={2}".format(name, number, value) for (name, number), value in left.items()]
    return "".join(line + "\n" for line in lines)


def kept_lines(text, wanted):
    """Return the lines that are no wanted setting and no comment: what others put there."""
    lines = [line.strip() for line in (text or "").splitlines()]
    return [line for line in lines if line and not line.startswith("#") and _key(line) not in wanted]


def unread_lines(text):
    """Return the lines that the tool passes over although they look meant, such as ``address_0 = …``."""
    lines = (text or "").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#") and not _LINE.match(line)]


def parse_answer(name, output):
    """Return what a port has, as the file would write it, from the answer to its question; None when nothing is set."""
    if name in ("address", "netmask"):
        return hccn.parse_address(output)[name]
    if name == "gateway":
        return hccn.parse_gateway(output)
    if name == "tls_enable":
        tls = hccn.parse_tls(output)
        return None if tls is None else str(int(tls))
    values = named_values(output)
    return values.get("netdetect addr" if name == "netdetect" else "mtu")


def differences(wanted, seen):
    """Return [{"device", "name", "wanted", "seen"}, …] of the settings that differ, in the order of the wanted ones."""
    return [
        {"device": number, "name": name, "wanted": value, "seen": seen.get((name, number))}
        for (name, number), value in wanted.items()
        if seen.get((name, number)) != value
    ]


def describe(settings):
    """Return settings as text, one device a line, for a difference a person reads."""
    numbers = sorted({number for _name, number in settings})
    rows = []
    for number in numbers:
        values = [name + "=" + (settings.get((name, number)) or "-") for name in NAMES if (name, number) in settings]
        rows.append("NPU {0}: {1}\n".format(number, " ".join(values)))
    return "".join(rows)


def _key(line) -> Optional[Key]:
    match = _LINE.match(line)
    return (match.group(1), int(match.group(2))) if match else None
