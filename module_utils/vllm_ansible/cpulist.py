# SPDX-License-Identifier: Apache-2.0
"""The kernel's list format for CPUs and NUMA nodes: ``0-3,8,10-11``."""

import re
from typing import List, Set

# The kernel's own ceiling is 8192 (NR_CPUS); the limit keeps a mistyped "0-99999999999" from eating the memory.
_LARGEST = 65535
_ITEM = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?\Z")


def parse_cpulist(text):
    """Return the sorted list of numbers in a list such as ``0-3,8``.

    Commas, blanks or both separate the items (systemd prints blanks); "" is the empty list.

    Raises:
        ValueError: the text is no such list; the message names the item.
    """
    numbers: Set[int] = set()
    for item in str(text).replace(",", " ").split():
        match = _ITEM.match(item)
        first = int(match.group(1)) if match else 0
        last = int(match.group(2) or first) if match else -1
        if not first <= last <= _LARGEST:
            raise ValueError(f"{item!r} in {text!r} is not a number or a range of numbers such as 0-3")
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def format_cpulist(numbers):
    """Return numbers in the shortest list form, for example [0, 1, 2, 8] as ``0-2,8``."""
    ranges: List[List[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def read_cpulist(text):
    """Return the numbers of a list the kernel printed, or None when there is no text or it is no list."""
    if text is None:
        return None
    try:
        return parse_cpulist(text)
    except ValueError:
        return None
