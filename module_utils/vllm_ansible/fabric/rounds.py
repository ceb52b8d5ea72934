# SPDX-License-Identifier: Apache-2.0
"""Who meets whom when: every pair of hosts once, each host in at most one pair at a time (circle method)."""


def rounds(hosts):
    """Return the rounds, each a list of pairs of hosts; one round fewer than hosts, or as many when they are odd."""
    ring = sorted(hosts)
    if len(ring) % 2:
        ring.append(None)
    result = []
    for _round in range(len(ring) - 1 if len(hosts) > 1 else 0):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]))
        result.append([pair for pair in pairs if None not in pair])
        ring = ring[:1] + ring[-1:] + ring[1:-1]
    return result


def peers(hosts, host):
    """Return the hosts that a host meets, in the order of the rounds."""
    found = []
    for pairs in rounds(hosts):
        for one, other in pairs:
            if host in (one, other):
                found.append(other if host == one else one)
    return found
