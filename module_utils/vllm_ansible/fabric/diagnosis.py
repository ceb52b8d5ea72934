# SPDX-License-Identifier: Apache-2.0
"""What the results of a fleet mean: findings that name a cable, a port or a host, and the tables around them.

Results of a host: {"ports": [port, …], "pings": [ping, …], "measures": [measure, …]}
    port: {"id": str, "label": str, "address", "netmask", "gateway", "link", "health", "tls", "mtu", "switch_port",
        "planned": address or None, "error": None or what its tool said}; None for what is unknown or does not apply.
    ping: {"port", "peer", "peer_port", "sent", "received", "milliseconds": [...]}
    measure: {"port", "peer", "peer_port", "latency_us", "bandwidth_gbps", "error"}
A host without results is None. A finding is {"code", "level": "error" or "warning", "what", "todo", "hosts", "ends",
"pairs"}; ends are [host, port id], pairs is how many failed pairs it explains.
"""

import ipaddress
from collections import Counter
from typing import Dict, List, Tuple

from ansible.module_utils.vllm_ansible.fabric.blame import End, blame

# Lines of single pairs that a person still reads.
PAIR_LINES = 20
# Hosts whose matrix fits a terminal.
MATRIX_HOSTS = 16


class Fleet:
    """The results of all hosts, with names for people."""

    def __init__(self, results):
        self.results = results
        self.ports = {
            (host, port["id"]): port for host, result in results.items() if result for port in result["ports"]
        }

    def name(self, end):
        """Name an end, with its address and the port of the switch: enough to find the cable."""
        port = self.ports.get(end)
        if port is None:
            return "{0} {1}".format(*end)
        extra = [port["planned"] or port["address"] or "no address"]
        extra += ["switch port " + port["switch_port"]] if port.get("switch_port") else []
        return "{0} {1} ({2})".format(end[0], port["label"], ", ".join(extra))

    def names(self, ends):
        ends = sorted(ends)
        more = " and {0} more".format(len(ends) - 6) if len(ends) > 6 else ""
        return ", ".join(self.name(end) for end in ends[:6]) + more


def finding(code, what, todo, ends=(), hosts=(), pairs=0, level="error"):
    """Return a finding; hosts are those of its ends unless they are given."""
    hosts = sorted(hosts or {host for host, _port in ends})
    return {
        "code": code, "level": level, "what": what, "todo": todo, "hosts": hosts,
        "ends": [list(end) for end in sorted(ends)], "pairs": pairs,
    }  # fmt: skip


def diagnose(results, bounds):
    """Return the findings of a fleet, those with a cause of their own first.

    Args:
        results: {host: results or None}.
        bounds: {"latency_us": most, "bandwidth_gbps": least}; None for what is not held to a bound.
    """
    fleet = Fleet(results)
    silent = sorted(host for host, result in results.items() if result is None)
    found = [
        finding(
            "host", "{0} gave no results".format(host), "Look at what the run said about this host and run again.",
            hosts=[host],
        )
        for host in silent
    ]  # fmt: skip
    own = _own_causes(fleet)
    tested, lost, some, one_way, unasked = _pings(results)
    known = {tuple(end) for entry in own if entry["level"] == "error" and entry["known"] for end in entry["ends"]}
    known |= {end for pair in tested for end in pair if end[0] in silent}
    explained = {}
    for entry in blame(tested, lost, known):
        if entry["kind"] == "known":
            explained[entry["items"][0]] = entry["pairs"]
        else:
            found.append(_ping_finding(fleet, entry, one_way))
    for entry in found[: len(silent)]:
        entry["pairs"] = sum(pairs for end, pairs in explained.items() if end[0] in entry["hosts"])
    for entry in own:
        if entry.pop("known"):
            entry["pairs"] = sum(explained.get(tuple(end), 0) for end in entry["ends"])
    found = own + found
    blamed = {tuple(end) for entry in found for end in entry["ends"] if len(entry["ends"]) == 1}
    lossy = {pair for pair in some if not set(pair) & blamed}
    found += [_loss_finding(fleet, entry) for entry in blame(tested - lost, lossy - lost)]
    if unasked:
        text = "{0} pairs were not tried: the time for pings was used up".format(unasked)
        found.append(finding("unfinished", text, "Raise the limit, or test pairs of one number only."))
    found += _measures(fleet, bounds)
    return found


def _own_causes(fleet):
    """Findings that a port's own state gives. ``known``: whether it explains that nothing reaches the port."""
    found = []

    def add(code, end, what, todo, known=True, level="error"):
        text = "{0}: {1}".format(fleet.name(end), what)
        found.append(dict(finding(code, text, todo, [end], level=level), known=known))

    for end, port in sorted(fleet.ports.items()):
        if port["error"]:
            add("tool", end, port["error"], "Ask the driver by hand, as root.")
        elif port["link"] == "DOWN":
            add("link", end, "the link is down", "Check cable, optical module and the switch's port.")
        elif not port["address"]:
            add("address", end, "it has no address", "Run the role roce_fabric.")
        elif port["planned"] and port["planned"] != port["address"]:
            what = "it has {0} instead of {1}".format(port["address"], port["planned"])
            add("address", end, what, "Run the role roce_fabric, or correct the plan.")
        elif port["health"] == "Init":
            what = "net health is Init: no address to detect is set"
            add("health", end, what, "Plan one that always answers.", known=False, level="warning")
        elif port["health"] not in (None, "Success"):
            what = "net health is {0} while the link is up".format(port["health"])
            add("health", end, what, "Check cable, switch port and its VLAN, then the detection address.")
    found += _duplicates(fleet) + _subnets(fleet)
    found += _unequal(fleet, "tls", "TLS switch", {0: "off", 1: "on"}, "HCCL connects only where it is equal.")
    found += _unequal(fleet, "mtu", "MTU", {}, "Set one MTU on all ports and on the switch.")
    return found


def _duplicates(fleet):
    owners: Dict[str, List[End]] = {}
    for end, port in fleet.ports.items():
        if port["address"]:
            owners.setdefault(port["address"], []).append(end)
    return [
        dict(
            finding(
                "duplicate", "{0} is the address of several ports: {1}".format(address, fleet.names(ends)),
                "Give each port an address of its own.", ends,
            ),
            known=True,
        )
        for address, ends in sorted(owners.items())
        if len(ends) > 1
    ]  # fmt: skip


def _network(port):
    try:
        return str(ipaddress.IPv4Network("{0}/{1}".format(port["address"], port["netmask"]), strict=False))
    except ValueError:
        return None


def _subnets(fleet):
    """Ports of one number that are not in the network of the others. With a gateway that may be meant."""
    found = []
    networks = {end: _network(port) for end, port in fleet.ports.items() if port["address"] and port["netmask"]}
    for number in sorted({end[1] for end in networks}):
        mine = {end: network for end, network in networks.items() if end[1] == number and network}
        counts = Counter(mine.values()).most_common()
        if len(counts) < 2:
            continue
        tied = counts[0][1] == counts[1][1]
        for end, network in sorted(mine.items()):
            if tied or network != counts[0][0]:
                what = "{0}: its network is {1}, that of {2} other ports of this number is {3}".format(
                    fleet.name(end), network, counts[0][1], counts[0][0] if network != counts[0][0] else counts[1][0]
                )
                routed = bool(fleet.ports[end]["gateway"])
                todo = "Correct address or netmask." if not routed else "Correct it unless this network is routed."
                level = "warning" if routed else "error"
                found.append(dict(finding("subnet", what, todo, [end], level=level), known=not routed))
    return found


def _unequal(fleet, field, title, words, todo):
    """The ports whose setting is not that of most."""
    values = {end: port[field] for end, port in fleet.ports.items() if port[field] is not None}
    counts = Counter(values.values()).most_common()
    found = []
    for value, _count in counts[1:]:
        ends = [end for end, seen in values.items() if seen == value]
        what = "{0}: the {1} is {2}, on {4} other ports it is {3}".format(
            fleet.names(ends), title, words.get(value, value), words.get(counts[0][0], counts[0][0]), counts[0][1]
        )
        found.append(dict(finding(field, what, todo, ends), known=False))
    return found


def _pair(host, entry):
    ends = ((host, entry["port"]), (entry["peer"], entry["peer_port"]))
    return (min(ends), max(ends))


def _pings(results):
    """Return (tested, all lost, some lost, {pair: the end whose pings get no answer}, how many were not tried)."""
    lost: Dict[Tuple[End, End], List[End]] = {}
    tested, some, answered, unasked = set(), set(), set(), 0
    for host, result in results.items():
        unasked += (result or {}).get("unasked", 0)
        for ping in (result or {}).get("pings", ()):
            pair = _pair(host, ping)
            tested.add(pair)
            if not ping["received"]:
                lost.setdefault(pair, []).append((host, ping["port"]))
            else:
                answered.add((pair, host))
                if ping["received"] < ping["sent"]:
                    some.add(pair)
    one_way = {
        pair: ends[0]
        for pair, ends in lost.items()
        if len(ends) == 1 and any((pair, host) in answered for host, _port in pair if host != ends[0][0])
    }
    return tested, set(lost), some, one_way, unasked


def _ping_finding(fleet, entry, one_way):
    kind, items, pairs = entry["kind"], entry["items"], entry["pairs"]
    if kind == "everywhere":
        what, todo = "No port reaches a port of another host", "Check VLAN, switch and addresses of the whole network."
        return finding("everywhere", what, todo, hosts=fleet.results, pairs=pairs)
    if kind == "apart":
        groups = ["{" + ", ".join(group) + "}" for group in items]
        what = "Nothing passes between these groups of hosts: {0}".format(" | ".join(groups))
        todo = "Check what joins their switches: uplinks, VLAN, routes."
        return finding("apart", what, todo, hosts=[host for group in items for host in group], pairs=pairs)
    if kind == "rails":
        what = "Only ports of one number reach each other: each number is a network of its own"
        todo = "Join them on the switches. If it is meant to be so, test pairs of one number only."
        return finding("rails", what, todo, hosts=fleet.results, pairs=pairs)
    if kind == "host":
        what = "No port of {0} reaches another host, although its own links are up".format(items[0])
        return finding(
            "host", what, "Check the switch this host hangs on, its VLAN and uplink.", hosts=items, pairs=pairs
        )
    if kind == "hosts":
        what = "Nothing passes between {0} and {1}; both reach the others".format(*items)
        if len(fleet.results) == 2:
            what = "Nothing passes between {0} and {1}".format(*items)
        return finding("hosts", what, "Check the path between their switches.", hosts=items, pairs=pairs)
    if kind == "port":
        what = "{0} does not reach the ports of other hosts, which reach each other".format(fleet.name(items[0]))
        only = [pair for pair in one_way if items[0] in pair]
        todo = "Check this cable, its optical modules and the switch's port."
        if len(only) == pairs:
            own = all(one_way[pair] == items[0] for pair in only)
            what += ": its own pings get no answer, those of the others do" if own else ": pings to it get no answer"
            todo = "Check its netmask, gateway and ARP: the cable carries packets."
        return finding("port", what, todo, items, pairs=pairs)
    what = "{0} and {1} do not reach each other; both reach others".format(*[fleet.name(end) for end in items])
    todo = "Check the path between these two ports."
    pair = tuple(items)
    alone = {end for end in pair if _partners(fleet, end) < 2}
    if alone == set(pair):
        what = "{0} and {1} do not reach each other, and no other pair tells which of them it is".format(
            *[fleet.name(end) for end in items]
        )
        todo = "Check both cables, or test all pairs."
    if pair in one_way:
        what += " (only pings of {0} get no answer)".format(fleet.name(one_way[pair]))
    return finding("pair", what, todo, items, pairs=pairs)


def _partners(fleet, end):
    pings = (fleet.results[end[0]] or {}).get("pings", ())
    return len({(ping["peer"], ping["peer_port"]) for ping in pings if ping["port"] == end[1]})


def _loss_finding(fleet, entry):
    where = _where(fleet, entry)
    what = "Some packets are lost on {0} pairs of {1}".format(entry["pairs"], where)
    todo = "Look at error counters and optical power of this port, then at the switch's."
    ends = [tuple(end) for end in entry["items"]] if entry["kind"] in ("port", "pair") else []
    return finding("loss", what, todo, ends, hosts=_hosts_of(fleet, entry), pairs=entry["pairs"])


def _where(fleet, entry):
    kind, items = entry["kind"], entry["items"]
    if kind in ("port", "pair"):
        return " and ".join(fleet.name(end) for end in items)
    if kind == "host":
        return items[0]
    if kind == "hosts":
        return " and ".join(items)
    return {"rails": "ports of different numbers", "apart": "hosts of different groups"}.get(kind, "the whole network")


def _hosts_of(fleet, entry):
    if entry["kind"] == "host" or entry["kind"] == "hosts":
        return entry["items"]
    return () if entry["kind"] in ("port", "pair") else fleet.results


def _measures(fleet, bounds):
    """Findings about latency, bandwidth and measurements that gave no figure."""
    rows = {}
    for host, result in fleet.results.items():
        for row in (result or {}).get("measures", ()):
            rows[_pair(host, row)] = row
    found = []
    failed = {pair for pair, row in rows.items() if row.get("error")}
    for entry in blame(rows, failed):
        said = next(row["error"] for pair, row in sorted(rows.items()) if pair in failed and _covers(entry, pair))
        what = "RDMA does not work on {0} pairs of {1}: {2}".format(entry["pairs"], _where(fleet, entry), said)
        found.append(_measure_finding("rdma", fleet, entry, what, "Check the GID index, link layer and memlock limit."))
    good = {pair: row for pair, row in rows.items() if pair not in failed}
    for field, code, title, unit, worse in (
        ("latency_us", "latency", "latency", "µs", max),
        ("bandwidth_gbps", "bandwidth", "bandwidth", "Gb/s", min),
    ):
        bound = bounds.get(field)
        if bound is None:
            continue
        values = {pair: row[field] for pair, row in good.items() if row.get(field) is not None}
        bad = {pair for pair, value in values.items() if worse(value, bound) == value and value != bound}
        for entry in blame(values, bad):
            worst = worse(values[pair] for pair in bad if _covers(entry, pair))
            what = "The {0} of {1} pairs of {2} is not within {3} {5}: {4} {5} at worst".format(
                title, entry["pairs"], _where(fleet, entry), bound, worst, unit
            )
            todo = "Compare the link's rate and width, NUMA node, MTU and pause counters with a good port."
            found.append(_measure_finding(code, fleet, entry, what, todo))
    return found


def _measure_finding(code, fleet, entry, what, todo):
    ends = [tuple(end) for end in entry["items"]] if entry["kind"] in ("port", "pair") else []
    return finding(code, what, todo, ends, hosts=_hosts_of(fleet, entry), pairs=entry["pairs"])


def _covers(entry, pair):
    """Tell whether what was blamed explains a pair."""
    kind, items = entry["kind"], entry["items"]
    if kind == "port":
        return tuple(items[0]) in pair
    if kind == "pair":
        return tuple(items) == pair
    if kind == "host":
        return items[0] in (pair[0][0], pair[1][0])
    if kind == "hosts":
        return sorted(items) == sorted((pair[0][0], pair[1][0]))
    return True


def pairs_of(results):
    """Return every ping and measurement as one row, for the report a machine reads."""
    fleet = Fleet(results)
    rows = []
    for host in sorted(results):
        for kind in ("pings", "measures"):
            for entry in (results[host] or {}).get(kind, ()):
                source, target = (host, entry["port"]), (entry["peer"], entry["peer_port"])
                rest = {k: v for k, v in entry.items() if k not in ("port", "peer", "peer_port")}
                ends = {"from": fleet.name(source), "to": fleet.name(target)}
                rows.append(dict(rest, kind=kind[:-1], host=host, port=entry["port"], peer=entry["peer"],
                                 peer_port=entry["peer_port"], **ends))  # fmt: skip
    return rows


def table(results, findings, seconds=None):
    """Return the text a person reads: the matrix of hosts, pairs that stand alone, measurements, findings."""
    fleet = Fleet(results)
    hosts = sorted(results)
    rows = pairs_of(results)
    pings = [row for row in rows if row["kind"] == "ping"]
    lines = ["Fabric: {0} hosts, {1} ports, {2} pings of pairs{3}".format(
        len(hosts), len(fleet.ports), len(pings), "" if seconds is None else ", {0:.0f} s".format(seconds)
    )]  # fmt: skip
    counts: Dict[Tuple[str, str], List[int]] = {}
    for row in pings:
        total = counts.setdefault((row["host"], row["peer"]), [0, 0])
        total[0] += row["received"] == row["sent"]
        total[1] += 1
    shown = hosts
    if len(hosts) > MATRIX_HOSTS:
        shown = sorted({host for cell, (good, all_) in counts.items() if good < all_ for host in cell})[:MATRIX_HOSTS]
        lines.append("The matrix shows hosts with a pair that failed ({0}).".format(len(shown)))
    if counts and shown:
        width = max(len(host) for host in shown) + 1
        cells = {cell: "{0}/{1}".format(*total) for cell, total in counts.items()}
        wide = max([width] + [len(cell) + 1 for cell in cells.values()])
        lines.append("Pairs without loss, from row to column:")
        lines.append(" " * width + "".join(host.rjust(wide) for host in shown))
        for host in shown:
            lines.append(host.ljust(width) + "".join(cells.get((host, peer), "-").rjust(wide) for peer in shown))
    lines += _measure_lines(fleet, rows)
    lines.append("")
    lines += findings_lines(findings) or ["No fault found."]
    return "\n".join(lines) + "\n"


def _measure_lines(fleet, rows):
    measures = [row for row in rows if row["kind"] == "measure"]
    lines = ["RDMA per pair (µs, Gb/s):"] if measures else []
    for row in measures[: PAIR_LINES * 10]:
        figures = [row.get("latency_us"), row.get("bandwidth_gbps")]
        text = row["error"] if row.get("error") else "  ".join("-" if v is None else str(v) for v in figures)
        lines.append("  {0} -> {1}: {2}".format(row["from"], row["to"], text))
    return lines


def findings_lines(findings):
    """Return the findings as lines; single pairs beyond the first twenty are counted only."""
    lines, left_out = [], 0
    singles = 0
    for entry in findings:
        if entry["code"] == "pair":
            singles += 1
            if singles > PAIR_LINES:
                left_out += 1
                continue
        explains = " [{0} failed pairs]".format(entry["pairs"]) if entry["pairs"] > 1 else ""
        lines.append("{0}: {1}{2}. {3}".format(entry["level"].upper(), entry["what"], explains, entry["todo"]))
    if left_out:
        lines.append("… and {0} more single pairs; the report lists them.".format(left_out))
    return lines
