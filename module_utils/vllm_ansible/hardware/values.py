# SPDX-License-Identifier: Apache-2.0
"""Reading single values out of text that may be missing or not what it should be."""

import re
from typing import Dict

# No size, count or id of a host has more digits; a longer one is damage, and costs time and memory.
_LONGEST = 20


def integer(text, base=10):
    """Return the number in a text, or None for anything else (None and absurdly long numbers included)."""
    try:
        return int(text, base) if len(text) <= _LONGEST else None
    except (TypeError, ValueError):
        return None


def count(text):
    """Return the number in a text when it can be a size, a count or an id (not below zero), or None."""
    number = integer(text)
    return number if number is not None and number >= 0 else None


def decimal(text):
    """Return the number that a text starts with (``16.0 GT/s PCIe``, ``100 Gb/sec (4X EDR)``), or None."""
    match = re.match(r"\s*(\d{1,9}(?:\.\d{1,9})?)(?![\d.])", text or "", re.ASCII)
    return float(match.group(1)) if match else None


def word(text):
    """Return a text without the blanks around it, or None when nothing is left."""
    return (text or "").strip() or None


def named_values(text, separator=":"):
    """Return {name: value} of lines such as ``Firmware Version : 7.7.0``; the first line of a name counts."""
    values: Dict[str, str] = {}
    for line in (text or "").splitlines():
        name, found, value = line.partition(separator)
        if found and name.strip():
            values.setdefault(name.strip(), value.strip())
    return values


def known(text):
    """Return a tool's value, or None for what tools print instead of one (``NA``, ``-``, ``[N/A]``, ``[Not …]``)."""
    text = word(text)
    return None if text is None or text.startswith("[") or text.upper() in ("NA", "N/A", "-", "UNKNOWN!") else text
