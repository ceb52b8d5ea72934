# SPDX-License-Identifier: Apache-2.0
"""Reading single values out of text that may be missing or not what it should be."""


def integer(text, base=10):
    """Return the number in a text, or None for anything else (None included)."""
    try:
        return int(text, base)
    except (TypeError, ValueError):
        return None


def word(text):
    """Return a text without the blanks around it, or None when nothing is left."""
    return (text or "").strip() or None
