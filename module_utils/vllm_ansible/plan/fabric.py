# SPDX-License-Identifier: Apache-2.0
"""The RoCE fabric: addresses of the NPUs' own ports from a range of the site, and the NICs by which GPUs reach others.

A rank table is not made: vllm-ascend meets by torch's own rendezvous and reads none.
"""

import difflib
import ipaddress
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.hardware.hccn import DEVICES
from ansible.module_utils.vllm_ansible.plan.backends.base import Context
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host
from ansible.module_utils.vllm_ansible.plan.reader import Reader

KEYS = ("devices", "dscp", "gateway", "interfaces", "mtu", "netdetect", "netmask", "priority", "tls")
# NVIDIA's examples for RoCE with ToS 106: DSCP 26, which switches and NICs put into priority 3 (DSCP / 8).
DSCP, NIC_MTU = 26, 9000
# hccn_tool -mtu takes 68 to 9702.
MTU = (68, 9702)


class Fabric(NamedTuple):
    """``engine_fabric`` of a host. `ranges`: first and last address of each, as numbers; `network`: the subnet they
    lie in, None where they lie in several. None elsewhere: the plan decides, or leaves alone."""

    ranges: Tuple[Tuple[int, int], ...] = ()
    network: Any = None
    gateway: Optional[str] = None
    netdetect: Optional[str] = None
    mtu: Optional[int] = None
    tls: Optional[int] = None
    interfaces: Tuple[str, ...] = ()
    priority: Optional[int] = None
    dscp: Optional[int] = None
    named: bool = False  # a range was given, though it may be none

    @property
    def reserved(self) -> Tuple[int, ...]:
        """Addresses in the ranges that are not a device's: those the fabric itself needs."""
        edges = [self.network.network_address, self.network.broadcast_address] if self.network else []
        return tuple(int(a) for a in edges) + tuple(
            int(ipaddress.IPv4Address(a)) for a in (self.gateway, self.netdetect) if a
        )


def read_fabric(raw: Any, complain: Any) -> Fabric:
    """Read ``engine_fabric`` of a host; what is unusable is complained about."""
    entry = Reader(raw, "engine_fabric", complain)
    entry.only(KEYS)
    given = entry.raw.get("devices")
    texts = [given] if isinstance(given, str) else entry.texts("devices")
    mask = _address(entry, "netmask")
    ranges, networks = [], set()
    for text in texts:
        found = _range(text, mask)
        if found is None:
            complain(
                "engine_fabric.devices",
                text,
                'a network such as "10.0.0.0/24", or "10.0.0.11-10.0.0.90" with a netmask',
            )
            continue
        ranges.append(found[:2])
        networks.add(found[2])
    tls = entry.raw.get("tls")
    if tls is not None and tls not in (0, 1):
        complain("engine_fabric.tls", tls, "0 or 1")
        tls = None
    numbers: Dict[str, Optional[int]] = {}
    for key, low, high in (("mtu",) + MTU, ("priority", 0, 7), ("dscp", 0, 63)):
        numbers[key] = entry.integer(key, minimum=low) if entry.raw.get(key) is not None else None
        if (numbers[key] or 0) > high:
            complain(entry.field(key), numbers[key], "a number from {} to {}".format(low, high))
            numbers[key] = None
    return Fabric(
        ranges=tuple(ranges),
        network=networks.pop() if len(networks) == 1 else None,
        gateway=_address(entry, "gateway"),
        netdetect=_address(entry, "netdetect"),
        mtu=numbers["mtu"],
        tls=None if tls is None else int(tls),
        interfaces=tuple(entry.texts("interfaces")),
        priority=numbers["priority"],
        dscp=numbers["dscp"],
        named=bool(texts),
    )


def _address(entry: Reader, key: str) -> Optional[str]:
    text = entry.text(key)
    try:
        return str(ipaddress.IPv4Address(text)) if text else None
    except ValueError:
        entry.complain(entry.field(key), text, "an IPv4 address")
        return None


def _range(text: str, mask: Optional[str]) -> Optional[Tuple[int, int, Any]]:
    """First address, last address and subnet of one range, None when it is none."""
    first, dash, last = text.replace(" ", "").partition("-")
    try:
        if not dash:
            network = ipaddress.IPv4Network(first)
            return int(network.network_address), int(network.broadcast_address), network
        ends = int(ipaddress.IPv4Address(first)), int(ipaddress.IPv4Address(last))
        network = ipaddress.IPv4Network("{}/{}".format(first, mask), strict=False)
    except ValueError:
        return None
    fits = ends[0] <= ends[1] and ipaddress.IPv4Address(last) in network
    return (ends[0], ends[1], network) if mask and fits else None


def plan_fabric(
    order: List[str], hosts: Dict[str, Host], on_host: Dict[str, List[Group]], context: Context
) -> Dict[str, Dict[str, Any]]:
    """Return host -> its slice roce_fabric, for the hosts that need one.

    `order`: the names of all hosts. Addresses are given out in that order, so that a host added at its end moves none.
    """
    findings = context.findings
    planned: Dict[str, Dict[str, Any]] = {}
    pools: Dict[Tuple[Tuple[int, int], ...], List[Host]] = {}
    for host in (hosts[name] for name in order if name in hosts and hosts[name].fabric is not None):
        if host.fabric.ranges and (host.hardware is None or ports_of(host)):
            pools.setdefault(host.fabric.ranges, []).append(host)
    _check_overlap(pools, findings)
    for members in pools.values():
        given = _addresses(members, hosts, findings)
        for host in members:
            if host.name in given and on_host.get(host.name) and host.hardware is not None:
                planned[host.name] = _devices(host, given[host.name], findings)
    for name, groups in on_host.items():
        own = [g for g in groups if not g.failed]
        spans = any(len(g.hosts) > 1 for g in own)
        if any(g.backend == "cuda" for g in own) and (hosts[name].fabric is not None or spans):
            found = _interfaces(hosts[name], spans, findings)
            if found:
                planned[name] = found
                _tell_nccl(hosts[name], own, found)
        elif own and hosts[name].fabric is not None and not (hosts[name].fabric.named and ports_of(hosts[name])):
            _refuse(
                hosts[name],
                "devices",
                "engine_fabric is set for {}, and {}".format(
                    name,
                    "it names no range of addresses"
                    if ports_of(hosts[name])
                    else "it has neither NPUs with ports of their own nor GPUs",
                ),
                "devices: a range of addresses for the NPUs, or no engine_fabric",
                None,
                findings,
            )
    for group in {g.name: g for groups in on_host.values() for g in groups if len(g.hosts) > 1}.values():
        if group.backend == "ascend":
            _check_replica(group, findings)
        elif group.backend == "cuda":
            _check_class(group, planned, findings)
    return planned


def ports_of(host: Host) -> List[int]:
    """Physical numbers of the NPUs of a host that have a RoCE port; in the order of the bus where no tool said them."""
    assert host.hardware is not None
    raw = [d.raw for d in host.hardware.accelerators if d.kind == "npu" and isinstance(d.raw, dict)]
    own = [entry for entry in raw if entry.get("device_id") in DEVICES]
    numbers = [entry.get("phy_id") for entry in own]
    return sorted(n for n in numbers if isinstance(n, int)) if None not in numbers else list(range(len(own)))


def _refuse(host: Host, key: str, message: str, set_to: str, seen: Any, findings: Findings) -> None:
    findings.problem("E_FABRIC", message, set_to, host=host.name, field="engine_fabric." + key, seen=seen)


def _text(number: int) -> str:
    return str(ipaddress.IPv4Address(number))


def _shown(ranges: Tuple[Tuple[int, int], ...]) -> str:
    return ", ".join("{}-{}".format(_text(first), _text(last)) for first, last in ranges)


def _check_overlap(pools: Dict[Tuple[Tuple[int, int], ...], List[Host]], findings: Findings) -> None:
    """Two pools with a common address would give it to two devices."""
    every = [(first, last, members[0]) for ranges, members in pools.items() for first, last in ranges]
    every.sort(key=lambda entry: entry[:2])
    for one, other in zip(every, every[1:]):
        if other[0] <= one[1]:
            _refuse(
                other[2],
                "devices",
                "The range {} of {} and {} of {} have addresses in common".format(
                    _shown(((other[0], other[1]),)), other[2].name, _shown(((one[0], one[1]),)), one[2].name
                ),
                "one range for all hosts of a fabric, or ranges apart",
                _shown((other[:2],)),
                findings,
            )


def _addresses(members: List[Host], hosts: Dict[str, Host], findings: Findings) -> Dict[str, List[str]]:
    """Return host -> the addresses of its devices, or {} after a problem."""
    head = members[0]
    fabric = head.fabric
    if fabric.network is None:
        _refuse(
            head,
            "devices",
            "The ranges for {} lie in several subnets: that is how four ports of a 910A are "
            "set, and the NPUs of A2 and A3 hosts all share one".format(head.name),
            "one network, or ranges of one",
            _shown(fabric.ranges),
            findings,
        )
        return {}
    for key in ("gateway", "netdetect"):
        value = getattr(fabric, key)
        if value and ipaddress.IPv4Address(value) not in fabric.network and key == "gateway":
            _refuse(
                head,
                key,
                "The gateway {} is not in the subnet {} of the NPUs".format(value, fabric.network),
                "a gateway in {}, or none".format(fabric.network),
                value,
                findings,
            )
            return {}
    held = _host_addresses(hosts)
    for address in sorted(held):
        if any(first <= address <= last for first, last in fabric.ranges):
            _refuse(
                head,
                "devices",
                "The range {} of the NPUs holds {}, an address of {}".format(
                    _shown(fabric.ranges), _text(address), held[address]
                ),
                "a network that no host has an address in, or ranges that leave it out",
                _text(address),
                findings,
            )
            return {}
    counts: Dict[str, int] = {}
    known = next((len(ports_of(host)) for host in members if host.hardware is not None), 0)
    for host in members:  # a host that cannot be read keeps its place, as large as the one before it
        known = len(ports_of(host)) if host.hardware is not None else known
        counts[host.name] = known
    free, needed = list(_free(fabric, sum(counts.values()))), sum(counts.values())
    if len(free) < needed:
        _refuse(
            head,
            "devices",
            "{} has {} addresses for devices, and the {} NPUs of {} host(s) need one each".format(
                _shown(fabric.ranges), len(free), needed, len(members)
            ),
            "a range of {} addresses or more".format(needed),
            len(free),
            findings,
        )
        return {}
    given, start = {}, 0
    for host in members:
        given[host.name] = [_text(number) for number in free[start : start + counts[host.name]]]
        start += counts[host.name]
    return given


def _host_addresses(hosts: Dict[str, Host]) -> Dict[int, str]:
    """Every IPv4 address that a host has, as a number, and whose it is."""
    found: Dict[int, str] = {}
    for host in hosts.values():
        nics = host.hardware.raw.get("nics") if host.hardware is not None else None
        lists = [n.get("addresses") for n in (nics if isinstance(nics, list) else []) if isinstance(n, dict)]
        texts = [a for own in lists if isinstance(own, list) for a in own if isinstance(a, str)]
        for text in [host.address] + texts:
            try:
                found.setdefault(int(ipaddress.IPv4Address(text.partition("/")[0])), host.name)
            except ValueError:
                continue
    return found


def _free(fabric: Fabric, most: int) -> Iterator[int]:
    """The first `most` addresses of the ranges that a device may have."""
    reserved = fabric.reserved
    count = 0
    for first, last in fabric.ranges:
        for number in range(first, last + 1):
            if count == most:
                return
            if number not in reserved:
                count += 1
                yield number


def _devices(host: Host, addresses: List[str], findings: Findings) -> Dict[str, Any]:
    fabric = host.fabric
    findings.decide(
        "R_FABRIC_ADDRESSES",
        "roce_fabric.devices",
        "{} to {}".format(addresses[0], addresses[-1]),
        "engine_fabric.devices is {}; its hosts take addresses in the order of the inventory".format(
            _shown(fabric.ranges)
        ),
        host.name,
    )
    return {
        "backend": "ascend",
        "devices": [
            {
                "id": number,
                "address": address,
                "netmask": str(fabric.network.netmask),
                "gateway": fabric.gateway,
                "netdetect": fabric.netdetect or fabric.gateway,
                "mtu": fabric.mtu,
            }
            for number, address in zip(ports_of(host), addresses)
        ],
        "tls": fabric.tls,
    }


def _check_replica(group: Group, findings: Findings) -> None:
    """The hosts of one replica have to be in one subnet and agree about encryption."""
    wishes = [host.fabric or Fabric() for host in group.hosts]
    for key, values, what in (
        ("devices", [str(f.network) for f in wishes], "subnets"),
        ("tls", [str(f.tls) for f in wishes], "wishes for the TLS switch"),
    ):
        if any(f.ranges for f in wishes) and len(set(values)) > 1:
            odd = next(i for i, value in enumerate(values) if value != values[0])
            _refuse(
                group.hosts[odd],
                key,
                "The hosts of {} have different {} for their NPUs: {}".format(
                    group.name, what, ", ".join("{} {}".format(h.name, v) for h, v in zip(group.hosts, values))
                ),
                "the same engine_fabric for all hosts of a replica",
                values[odd],
                findings,
            )


def _check_class(group: Group, planned: Dict[str, Dict[str, Any]], findings: Findings) -> None:
    """The hosts of one replica have to send in one class, with frames of one size."""
    own = [(host, planned[host.name]) for host in group.hosts if host.name in planned]
    for key, values in (
        ("dscp", [part["dscp"] for _host, part in own]),
        ("mtu", [max(i["mtu"] for i in part["interfaces"]) for _host, part in own]),
    ):
        if len(set(values)) > 1:
            odd = next(i for i, value in enumerate(values) if value != values[0])
            _refuse(
                own[odd][0],
                key,
                "The hosts of {} have different values of {}: {}".format(
                    group.name, key, ", ".join("{} {}".format(e[0].name, v) for e, v in zip(own, values))
                ),
                "the same engine_fabric for all hosts of a replica",
                values[odd],
                findings,
            )


def _interfaces(host: Host, spans: bool, findings: Findings) -> Dict[str, Any]:
    """The NICs whose RDMA ports carry the traffic between GPUs, and the class of it."""
    assert host.hardware is not None
    fabric = host.fabric or Fabric()
    raw = host.hardware.raw if isinstance(host.hardware.raw, dict) else {}
    listed = [e for e in raw.get("rdma") or [] if isinstance(e, dict)] if isinstance(raw.get("rdma"), list) else []
    ports = {
        str(e["netdev"]): e
        for e in listed
        if e.get("netdev") and e.get("device") and e.get("link_layer") == "Ethernet" and isinstance(e.get("port"), int)
    }
    others = [name for name in ports if name != host.hardware.interface] or list(ports)
    names = list(fabric.interfaces) or others
    missing = [name for name in names if name not in ports]
    if missing:
        near = difflib.get_close_matches(missing[0], list(ports), n=1)
        _refuse(
            host,
            "interfaces",
            "{} has no RDMA port on an interface {}".format(host.name, missing[0]),
            "interfaces: {}".format(
                near[0] if near else "some of " + ", ".join(sorted(ports)) if ports else "none: no interface has RDMA"
            ),
            missing[0],
            findings,
        )
        return {}
    if not names:
        if host.fabric is not None:
            _refuse(
                host,
                "interfaces",
                "{} has no Ethernet port with RDMA".format(host.name),
                "no engine_fabric for this host, or a driver for its NICs",
                None,
                findings,
            )
        elif spans:
            findings.warning(
                "W_FABRIC_TCP",
                "{} is in a replica over several hosts and has no Ethernet port with "
                "RDMA: NCCL will go over TCP, or over InfiniBand".format(host.name),
                host.name,
                "vllm_hardware.rdma",
            )
        return {}
    dscp = (
        fabric.dscp
        if fabric.dscp is not None
        else (DSCP if fabric.priority in (None, DSCP >> 3) else (fabric.priority or 0) << 3)
    )
    priority = fabric.priority if fabric.priority is not None else dscp >> 3
    if dscp >> 3 != priority:
        _refuse(
            host,
            "priority",
            "DSCP {} belongs to priority {}, and engine_fabric says {}".format(dscp, dscp >> 3, priority),
            "priority: {}, or a dscp from {} to {}".format(dscp >> 3, priority << 3, (priority << 3) + 7),
            priority,
            findings,
        )
        return {}
    findings.decide(
        "R_FABRIC_NICS",
        "roce_fabric.interfaces",
        ", ".join(names),
        "{}; DSCP {} is priority {}, as ToS with the bits of ECN {}".format(
            "engine_fabric names them"
            if fabric.interfaces
            else "the Ethernet ports with RDMA that do not carry the host's own address",
            dscp,
            priority,
            dscp << 2 | 2,
        ),
        host.name,
    )
    return {
        "backend": "nic",
        "interfaces": [
            {
                "name": name,
                "rdma_device": ports[name]["device"],
                "port": ports[name]["port"],
                "mtu": fabric.mtu or NIC_MTU,
                "address": _own_address(raw, name),
            }
            for name in names
        ],
        "priority": priority,
        "dscp": dscp,
        "tos": dscp << 2 | 2,
        "trust": "dscp",
    }


def _own_address(raw: Dict[str, Any], name: str) -> Optional[str]:
    """The first IPv4 address of an interface, without its prefix."""
    nics = raw.get("nics")
    for nic in nics if isinstance(nics, list) else []:
        addresses = nic.get("addresses") if isinstance(nic, dict) and nic.get("name") == name else None
        for text in addresses if isinstance(addresses, list) else []:
            if isinstance(text, str) and ":" not in text:
                return text.partition("/")[0]
    return None


def _tell_nccl(host: Host, groups: List[Group], fabric: Dict[str, Any]) -> None:
    """Let NCCL use these ports and this class; the GID it finds itself, since places in that table move."""
    ports = ",".join("{}:{}".format(i["rdma_device"], i["port"]) for i in fabric["interfaces"])
    for group in groups:
        if group.backend == "cuda" and len(group.hosts) > 1:
            own = group.member_environment.setdefault(host.name, {})
            for name, value in (("NCCL_IB_HCA", "=" + ports), ("NCCL_IB_TC", str(fabric["tos"]))):
                if name not in group.environment:
                    own[name] = value
