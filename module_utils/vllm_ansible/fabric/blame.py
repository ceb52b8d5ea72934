# SPDX-License-Identifier: Apache-2.0
"""From many failed pairs to the few things that explain them.

An end is (host, port). A pair is a tuple of two ends, the smaller first. One broken cable fails every pair of its port:
what is blamed is the largest thing all of whose pairs failed, and only what is left over is blamed on a single pair.
"""

from typing import Dict, List, Set, Tuple

End = Tuple[str, str]
Pair = Tuple[End, End]

# A port whose pairs fail from time to time: this share of them is enough to blame it.
PORT_SHARE = 0.8


def blame(tested, bad, known=()):
    """Explain failed pairs.

    Args:
        tested: every pair that was tried, between ports of different hosts.
        bad: those of them that failed.
        known: ends with a cause of their own, which explains their pairs.
    Returns:
        [{"kind", "items", "pairs"}, …]; kind is "known" (items: the end), "everywhere" (no items), "apart" (items: the
        groups of hosts), "rails" (no items), "host", "hosts" (items: two hosts), "port" (items: the end), "pair"
        (items: its two ends). ``pairs`` is how many failed pairs it explains; known ends come first.
    """
    work = _Work(tested, bad)
    for end in sorted(known):
        work.take("known", [end], lambda pair, end=end: end in pair, always=True)
    for step in (_everywhere, _apart, _rails, _whole_hosts, _host_pairs, _ports):
        step(work)
    for pair in sorted(work.left):
        work.take("pair", list(pair), lambda other, pair=pair: other == pair)
    return work.found


class _Work:
    """Pairs that still need an explanation, and those that still count."""

    def __init__(self, tested, bad):
        self.tested: Set[Pair] = set(tested)
        self.left: Set[Pair] = set(bad) & self.tested
        self.found: List[Dict] = []

    def take(self, kind, items, covers, always=False):
        """Blame something: what it covers is explained and says nothing about the rest any more."""
        covered = {pair for pair in self.tested if covers(pair)}
        explained = covered & self.left
        if explained or always:
            self.found.append({"kind": kind, "items": items, "pairs": len(explained)})
        self.left -= covered
        self.tested -= covered

    def share(self, pairs):
        """Return (how many of these pairs failed, their share)."""
        failed = len(pairs & self.left)
        return failed, failed / len(pairs) if pairs else 0.0


def _hosts(pair):
    return tuple(sorted((pair[0][0], pair[1][0])))


def _group(pairs, keys):
    """Return {key: pairs} for a function that gives the keys of a pair."""
    groups: Dict = {}
    for pair in pairs:
        for key in keys(pair):
            groups.setdefault(key, set()).add(pair)
    return groups


def _everywhere(work):
    if len(work.tested) > 1 and work.left == work.tested and len({_hosts(pair) for pair in work.tested}) > 1:
        work.take("everywhere", [], lambda pair: True)


def _apart(work):
    """Two or more groups of hosts, each of several, between which nothing passes."""
    groups: Dict[str, Set[str]] = {}
    for one, other in {_hosts(pair) for pair in work.tested - work.left}:
        merged = groups.get(one, {one}) | groups.get(other, {other})
        for host in merged:
            groups[host] = merged
    found = sorted({tuple(sorted(group)) for group in groups.values()})
    if len(found) > 1:
        place = {host: number for number, group in enumerate(found) for host in group}
        none = object()

        def between(pair):
            ends = [place.get(host, none) for host in _hosts(pair)]
            return none not in ends and ends[0] != ends[1]

        work.take("apart", [list(group) for group in found], between)


def _rails(work):
    """Ports of one number reach each other, and no others: every number is a network of its own."""
    other = {pair for pair in work.tested if pair[0][1] != pair[1][1]}
    same = work.tested - other
    if len(other) > 1 and other <= work.left and same and len(same & work.left) * 2 < len(same):
        work.take("rails", [], lambda pair: pair in other)


def _whole_hosts(work):
    while True:
        candidates = []
        for host, pairs in _group(work.tested, _hosts).items():
            failed, share = work.share(pairs)
            ports = {end for pair in pairs for end in pair if end[0] == host}
            peers = {name for pair in pairs for name in _hosts(pair)} - {host}
            if share == 1 and len(ports) > 1 and len(peers) > 1:
                candidates.append((-failed, host))
        if not candidates:
            return
        host = min(candidates)[1]
        work.take("host", [host], lambda pair, host=host: host in _hosts(pair))


def _host_pairs(work):
    groups = _group(work.tested, lambda pair: [_hosts(pair)])
    for hosts, pairs in sorted(groups.items()):
        rows = {end for pair in pairs for end in pair}
        if work.share(pairs)[1] == 1 and len(pairs) > 1 and len(rows) > 3:
            work.take("hosts", list(hosts), lambda pair, hosts=hosts: _hosts(pair) == hosts)


def _ports(work):
    while True:
        candidates = []
        left = _group(work.left, lambda pair: pair)
        every = _group(work.tested, lambda pair: pair) if left else {}
        for end, pairs in left.items():
            share = len(pairs) / len(every[end])
            # Every pair has another port at its other end.
            if share >= PORT_SHARE and len(pairs) > 1:
                candidates.append((-share, -len(pairs), end))
        if not candidates:
            return
        end = min(candidates)[2]
        work.take("port", [end], lambda pair, end=end: end in pair)
