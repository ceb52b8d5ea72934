# SPDX-License-Identifier: Apache-2.0
"""Network interfaces from sysfs, their addresses from ``ip -j addr`` or, without it, from /proc/net."""

import ipaddress
import json
import re
from typing import Dict, List

from ansible.module_utils.vllm_ansible.hardware import pci
from ansible.module_utils.vllm_ansible.hardware.values import integer, word

SYSFS = "/sys/class/net"


def parse_ip_json(text):
    """Return {interface: ["address/prefix", …]} of ``ip -j addr``, without link-local ones; None when it is no JSON."""
    try:
        links = json.loads(text)
    except ValueError:
        return None
    if not isinstance(links, list):
        return None
    result: Dict[str, List[str]] = {}
    for link in links:
        if not isinstance(link, dict) or not isinstance(link.get("addr_info"), list):
            continue
        for info in link["addr_info"]:
            if not isinstance(info, dict) or info.get("scope") in ("link", "host"):
                continue
            address = _interface_address(f"{info.get('local')}/{info.get('prefixlen')}")
            if address is not None:
                result.setdefault(str(link.get("ifname")), []).append(address)
    return result


def parse_proc_addresses(fib_trie, route, if_inet6):
    """Return {interface: ["address/prefix", …]} from /proc/net alone.

    The kernel lists its own IPv4 addresses without their interface (``fib_trie``): an address belongs to the
    interface whose on-link network (``route``) holds it. An address with no such network, a /32, is not found.
    """
    networks = [(entry["interface"], entry["network"]) for entry in parse_route(route) if not entry["gateway"]]
    result: Dict[str, List[str]] = {}
    candidate = None
    for line in (fib_trie or "").splitlines():
        match = re.search(r"\|-- (\S+)", line)
        if match:
            candidate = match.group(1)
        elif "/32 host LOCAL" in line and candidate:
            for interface, network in networks:
                address = _interface_address(f"{candidate}/{network.prefixlen}")
                if address and ipaddress.ip_interface(address).network == network:
                    result.setdefault(interface, []).append(address)
    for line in (if_inet6 or "").splitlines():
        fields = line.split()
        if len(fields) == 6 and fields[3] == "00":
            groups = ":".join(fields[0][start : start + 4] for start in range(0, 32, 4))
            address = _interface_address(f"{groups}/{integer(fields[2], 16)}")
            if address is not None:
                result.setdefault(fields[5], []).append(address)
    return {interface: sorted(set(found)) for interface, found in result.items()}


def parse_route(text):
    """Return the IPv4 routes of a /proc/net/route: interface, network, gateway (None on-link), metric."""
    routes = []
    for line in (text or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8:
            continue
        try:
            network, gateway, mask = (_little_endian_address(fields[column]) for column in (1, 2, 7))
            routes.append(
                {
                    "interface": fields[0],
                    "network": ipaddress.ip_network(f"{network}/{mask}"),
                    "gateway": None if gateway == "0.0.0.0" else gateway,
                    "metric": int(fields[6]),
                }
            )
        except ValueError:
            continue
    return routes


def gather_network(host, warn):
    """Return (``nics`` facts, ``default_address``).

    Listed are interfaces that are hardware or have an address; a container host's bare veth ends are neither.
    """
    answer = host.run(["ip", "-j", "addr"])
    addresses = parse_ip_json(answer[1]) if answer is not None and answer[0] == 0 else None
    if addresses is None:
        warn("W_IP_TOOL", "no usable `ip -j addr`: addresses were read from /proc/net, a /32 may be missing")
        addresses = parse_proc_addresses(
            host.read("/proc/net/fib_trie"), host.read("/proc/net/route"), host.read("/proc/net/if_inet6")
        )
    nics = []
    for name in host.list_directory(SYSFS):
        directory = f"{SYSFS}/{name}"
        function = pci.function_of_link(host.read_link(directory))
        driver = host.read_link(directory + "/device/driver")
        if name == "lo" or not (driver or function or addresses.get(name)):
            continue
        nics.append(
            {
                "name": name,
                "mac": word(host.read(directory + "/address")),
                "state": word(host.read(directory + "/operstate")),
                "mtu": _positive(host.read(directory + "/mtu")),
                # The kernel answers -1 or an error while the link is down, and for links that have no speed.
                "speed_mbps": _positive(host.read(directory + "/speed")),
                "driver": driver.rsplit("/", 1)[-1] if driver else None,
                "numa_node": pci.numa_node(host, function),
                "addresses": sorted(addresses.get(name, [])),
                "pci": function,
                "device_id": pci.device_id(host, function),
                "link": pci.link(host, function),
            }
        )
    return nics, _default_address(host, addresses, warn)


def _default_address(host, addresses, warn):
    defaults = [route for route in parse_route(host.read("/proc/net/route")) if route["network"].prefixlen == 0]
    for route in sorted(defaults, key=lambda entry: entry["metric"]):
        for address in addresses.get(route["interface"], []):
            if ":" not in address:
                return address.split("/")[0]
    warn("W_NO_DEFAULT_ADDRESS", "no IPv4 default route: name the service address in the request")
    return None


def _interface_address(text):
    """Return "address/prefix" in canonical form, or None for what is unusable as a service address."""
    try:
        interface = ipaddress.ip_interface(text)
    except ValueError:
        return None
    if interface.ip.is_link_local or interface.ip.is_loopback or interface.ip.is_unspecified:
        return None
    return str(interface)


def _little_endian_address(text):
    return str(ipaddress.IPv4Address(bytes(reversed(bytes.fromhex(text)))))


def _positive(value):
    number = integer(value)
    return number if number is not None and number > 0 else None
