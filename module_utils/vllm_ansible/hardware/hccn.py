# SPDX-License-Identifier: Apache-2.0
"""The RoCE ports inside NPUs, which the host's network does not show: hccn_tool, or else /etc/hccn.conf."""

import ipaddress
import re
from typing import Dict, Optional

from ansible.module_utils.vllm_ansible.hardware.values import named_values, word

TOOL = "/usr/local/Ascend/driver/tools/hccn_tool"
CONFIGURATION = "/etc/hccn.conf"
QUESTIONS = ("ip", "gateway", "link", "net_health", "tls", "speed")

# PCI device ids of the NPUs that have such ports: A1, A2, A3.
DEVICES = frozenset(("19e5:d801", "19e5:d802", "19e5:d803"))


def parse_address(text):
    """Parse ``-ip -g``: {"address", "netmask"}, each None when not set."""
    values = named_values(text)
    return {"address": _ipv4(values.get("ipaddr")), "netmask": _ipv4(values.get("netmask"))}


def parse_gateway(text):
    """Parse ``-gateway -g``: the address, or None when not set."""
    match = re.search(r"default gateway:\s*([0-9.]+)", text or "")
    return _ipv4(match.group(1)) if match else None


def parse_link(text):
    """Parse ``-link -g``: "UP", "DOWN", or None."""
    match = re.search(r"link status:\s*(UP|DOWN)\b", text or "")
    return match.group(1) if match else None


def parse_health(text):
    """Parse ``-net_health -g``: "Success", "Init", "Unreachable" …, or None. Only Success is good."""
    match = re.search(r"net health status:[ \t]*([A-Za-z][A-Za-z ]{0,40})", text or "")
    return word(match.group(1)) if match else None


def parse_tls(text):
    """Parse ``-tls -g``: whether connections are encrypted, or None."""
    match = re.search(r"tls switch\[([01])\]", text or "")
    return match.group(1) == "1" if match else None


def parse_speed(text):
    """Parse ``-speed -g``: megabits per second, or None."""
    match = re.search(r"Speed:[ \t]*([0-9]{1,9})[ \t]*Mb/s", text or "")
    return int(match.group(1)) if match else None


def parse_configuration(text):
    """Parse /etc/hccn.conf: {device number: {"address", "netmask", "gateway"}}; other keys are passed over."""
    devices: Dict[int, Dict[str, Optional[str]]] = {}
    for name, value in named_values(text, "=").items():
        match = re.match(r"(address|netmask|gateway)_([0-9]{1,3})\Z", name)
        if match:
            device = devices.setdefault(int(match.group(2)), {"address": None, "netmask": None, "gateway": None})
            device[match.group(1)] = _ipv4(value)
    return devices


def gather_hccn(host, accelerators, environment, warn):
    """Return the ``hccn`` facts, one entry per NPU that has a port; [] when there is none.

    Args:
        accelerators: the ``accelerators`` facts; ``phy_id`` is the number hccn_tool and hccn.conf use.
        environment: variables that let the driver's tools find its libraries.
    """
    npus = [npu for npu in accelerators if npu["device_id"] in DEVICES and npu["phy_id"] is not None]
    configured = parse_configuration(host.read(CONFIGURATION)) if npus else {}
    ports = []
    for npu in sorted(npus, key=lambda entry: entry["phy_id"]):
        answers = {}
        for question in QUESTIONS:
            command = [TOOL, "-i", str(npu["phy_id"]), "-" + question, "-g"]
            answer = host.run(command, environment=environment)
            if answer is None:
                warn("W_HCCN_TOOL", f"{TOOL} is missing: the NPUs' own network is known from {CONFIGURATION} only")
                break
            answers[question] = answer[1] + "\n" + answer[2]
        port = {"index": npu["index"], "device": npu["phy_id"], "address": None, "netmask": None, "gateway": None}
        port.update(configured.get(npu["phy_id"], {}))
        port.update({name: value for name, value in parse_address(answers.get("ip")).items() if value is not None})
        port["gateway"] = parse_gateway(answers.get("gateway")) or port["gateway"]
        port["link"] = parse_link(answers.get("link"))
        port["health"] = parse_health(answers.get("net_health"))
        port["tls"] = parse_tls(answers.get("tls"))
        port["speed_mbps"] = parse_speed(answers.get("speed"))
        ports.append(port)
    return ports


def _ipv4(text):
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        return None
