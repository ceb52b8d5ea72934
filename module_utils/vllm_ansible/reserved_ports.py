# SPDX-License-Identifier: Apache-2.0
"""Sets of TCP ports as net.ipv4.ip_local_reserved_ports writes them: "8000,60000-60031"."""

from typing import List, Set


def parse(text):
    """Return the set of ports of a list such as "8000,60000-60031"; raises ValueError with the part that is wrong."""
    ports: Set[int] = set()
    for part in text.replace(",", " ").split():
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError("{!r} is neither a port nor a range such as 60000-60031".format(part))
        low, high = int(first), int(last or first)
        if not 1 <= low <= high <= 65535:
            raise ValueError("{!r} is not within 1 to 65535".format(part))
        ports.update(range(low, high + 1))
    return ports


def compose(ports):
    """Return the shortest list for a set of ports: {8000, 8001, 9000} → "8000-8001,9000"."""
    runs: List[List[int]] = []
    for port in sorted(ports):
        if runs and port == runs[-1][1] + 1:
            runs[-1][1] = port
        else:
            runs.append([port, port])
    return ",".join(str(low) if low == high else "{}-{}".format(low, high) for low, high in runs)


def plan_changes(ours_before, ours, others, live):
    """Return (ports for our file, ports for the running kernel).

    Args:
        ours_before: what we reserved until now.
        ours: what we want reserved.
        others: what other configuration files of the host reserve.
        live: what the kernel reserves now.

    The kernel keeps one single list and the last file read wins, so our file repeats what others asked for. What
    somebody reserved by hand in the running kernel stays; what only we had asked for and no longer want goes.
    """
    in_file = ours | others if ours else set()
    return in_file, (live - (ours_before - ours - others)) | ours | others
