# SPDX-License-Identifier: Apache-2.0
"""PCI functions from sysfs."""

import re

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist, read_cpulist
from ansible.module_utils.vllm_ansible.hardware.values import decimal, integer

SYSFS = "/sys/bus/pci/devices"
_FUNCTION = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_MODALIAS = re.compile(
    r"pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})sv0000([0-9A-F]{4})sd0000([0-9A-F]{4})"
    r"bc([0-9A-F]{2})sc([0-9A-F]{2})i([0-9A-F]{2})"
)


def parse_modalias(text):
    """Return {"vendor", "device", "class", "subsystem"} in lower-case hex, or None.

    For example "19e5", "d802", "1200", "0200:0100".
    """
    match = _MODALIAS.match(text or "")
    if match is None:
        return None
    vendor, device, sub_vendor, sub_device, base, sub = (part.lower() for part in match.groups()[:6])
    return {"vendor": vendor, "device": device, "class": base + sub, "subsystem": f"{sub_vendor}:{sub_device}"}


def normalise_address(text):
    """Return a PCI address as sysfs writes it (``0000:c1:00.0``) from a tool's spelling, or None.

    npu-smi prints upper case, nvidia-smi a domain of eight digits.
    """
    match = re.match(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])\Z", (text or "").strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.{function}"


def gather_functions(host):
    """Return {address: {"vendor", "device", "class", "subsystem"}} of every PCI function."""
    functions = {}
    for address in host.list_directory(SYSFS):
        function = parse_modalias(host.read(f"{SYSFS}/{address}/modalias"))
        if function is not None:
            functions[address] = function
    return functions


def device_id(host, address):
    """Return vendor and device of a PCI function ("15b3:1021"), or None."""
    function = parse_modalias(host.read(f"{SYSFS}/{address}/modalias")) if address is not None else None
    return f"{function['vendor']}:{function['device']}" if function is not None else None


def function_of_link(link):
    """Return the innermost PCI address in a sysfs link such as ``../../devices/pci…/0000:3d:00.0/net/eth0``."""
    found = re.findall(r"(?<=/)" + _FUNCTION + r"(?=/)", link or "")
    return found[-1] if found else None


def numa_node(host, address):
    """Return the NUMA node of a PCI function; None when there is none or the firmware does not say (-1)."""
    if address is None:
        return None
    node = integer(host.read(f"{SYSFS}/{address}/numa_node"))
    return node if node is not None and node >= 0 else None


def near_cpus(host, address):
    """Return the CPUs near a PCI function as a list such as ``0-23``, or None."""
    return format_cpulist(read_cpulist(host.read(f"{SYSFS}/{address}/local_cpulist")) or ()) or None


def slot(host, address):
    """Return {"max_speed_gts", "max_width"} of the port that a PCI function is plugged into, or None when unknown."""
    found = re.findall(r"(?<=/)" + _FUNCTION + r"(?=/|\Z)", host.read_link(f"{SYSFS}/{address}") or "")
    values = link(host, found[-2]) if len(found) > 1 else None
    return {name: values[name] for name in ("max_speed_gts", "max_width")} if values is not None else None


def link(host, address):
    """Return {"speed_gts", "width", "max_speed_gts", "max_width"} of a PCI function's link, or None without a link.

    Giga-transfers per second and lanes. An idle GPU runs its link slower than it can.
    """
    if address is None:
        return None
    values = {}
    for prefix, directory in (("", "current"), ("max_", "max")):
        values[prefix + "speed_gts"] = decimal(host.read(f"{SYSFS}/{address}/{directory}_link_speed"))
        width = integer(host.read(f"{SYSFS}/{address}/{directory}_link_width"))
        # The kernel writes 255 lanes for "unknown".
        values[prefix + "width"] = width if width is not None and 0 < width < 255 else None
    return values if any(value is not None for value in values.values()) else None
