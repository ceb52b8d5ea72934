# SPDX-License-Identifier: Apache-2.0
"""PCI functions from sysfs."""

import re

from ansible.module_utils.vllm_ansible.hardware.values import integer

SYSFS = "/sys/bus/pci/devices"
_FUNCTION = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_MODALIAS = re.compile(
    r"pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})sv[0-9A-F]{8}sd[0-9A-F]{8}bc([0-9A-F]{2})sc([0-9A-F]{2})i([0-9A-F]{2})"
)


def parse_modalias(text):
    """Return {"vendor", "device", "class"} as lower-case hex ("19e5", "d802", "1200"), or None."""
    match = _MODALIAS.match(text or "")
    if match is None:
        return None
    vendor, device, base, sub = (part.lower() for part in match.groups()[:4])
    return {"vendor": vendor, "device": device, "class": base + sub}


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
    """Return {address: {"vendor", "device", "class"}} of every PCI function."""
    functions = {}
    for address in host.list_directory(SYSFS):
        function = parse_modalias(host.read(f"{SYSFS}/{address}/modalias"))
        if function is not None:
            functions[address] = function
    return functions


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
