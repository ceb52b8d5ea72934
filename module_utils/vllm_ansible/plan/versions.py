# SPDX-License-Identifier: Apache-2.0
"""Versions of drivers, toolkits and packages, compared by what they mean and never as texts.

Understood spellings: ``8.3.RC2``, ``25.0.rc1.1``, ``24.1.rc1.b030``, ``2.9.0.post1+git4c901a4``, ``3.2.0.dev20260322``,
``v0.23.0``, ``535.129.03``. A release candidate comes before its release, a post release after it, a local part
(``+…``) after none.
"""

import re
from functools import lru_cache
from typing import Iterable, Tuple, Union

_TOKEN = re.compile(r"[0-9]+|[a-z]+")
_VALID = re.compile(r"v?[0-9]+(?:[._-]?[0-9a-z]+)*(?:\+[0-9a-z._-]+)?\Z")
_RANKS = {"dev": -4, "a": -3, "alpha": -3, "b": -2, "beta": -2, "c": -1, "rc": -1, "post": 1, "p": 1, "sp": 1}
_COMPARATOR = re.compile(r"(>=|<=|==|!=|=|>|<)?\s*(\S+)\Z")
_FAMILY = re.compile(r"([0-9]+(?:\.[0-9a-z]+)*)\.[x*]\Z")

Key = Tuple[Tuple[int, ...], Tuple[Tuple[int, int], ...], Tuple[Tuple[int, int, str], ...]]


def valid(version: str) -> bool:
    """Whether `version` can be compared at all."""
    try:
        key(version)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=4096)
def key(version: str) -> Key:
    """Return a sort key of `version`; ValueError when it is none."""
    text = version.strip().lower()
    if not _VALID.match(text):
        raise ValueError("{!r} is not a version".format(version))
    public, _plus, local = text.partition("+")
    release, suffix = [], []
    tokens = _TOKEN.findall(public.lstrip("v"))
    while tokens and tokens[0].isdigit():
        release.append(int(tokens.pop(0)))
    while release and release[-1] == 0:
        release.pop()
    while tokens:
        word = tokens.pop(0)
        if word.isdigit():  # 25.0.rc1.1: the first correction of that candidate
            suffix.append((2, int(word)))
            continue
        number = int(tokens.pop(0)) if tokens and tokens[0].isdigit() else 0
        if word in ("b", "beta") and suffix:  # 24.1.rc1.b030: a build of that candidate
            suffix.append((2, number))
        elif word in _RANKS:
            suffix.append((_RANKS[word], number))
        else:
            raise ValueError("{!r} is not a version: unknown part {!r}".format(version, word))
    # The end of the version ranks between a candidate and a correction.
    return (
        tuple(release),
        tuple(suffix) + ((0, 0),),
        tuple((1, int(t), "") if t.isdigit() else (0, 0, t) for t in _TOKEN.findall(local)),
    )


def compare(a: str, b: str) -> int:
    """Return -1, 0 or 1 as `a` is older than, the same as or newer than `b`; ValueError when either is no version."""
    first, second = key(a), key(b)
    return (first > second) - (first < second)


def prerelease(version: str) -> bool:
    """Whether `version` is a candidate, a beta or a development build."""
    return any(rank < 0 for rank, _number in key(version)[1])


def matches(version: str, ranges: Union[str, Iterable[str]]) -> bool:
    """Whether `version` lies in one of `ranges`; ValueError when it, or a bound, is no version.

    A range is a family, an exact version, or bounds that all have to hold (``>=3.10, <3.13``); ``/`` separates two
    names of the same (``26.0.RC1/25.7.RC1``). Families: ``25.2.X`` is everything of that release with its candidates,
    ``24.1.0.X`` a release with its corrections, ``25.0.RC1.X`` a candidate with its corrections. A bound without a
    local part does not look at the version's.
    """
    found = key(version)
    listed = (ranges,) if isinstance(ranges, str) else ranges
    return any(_in_range(found, part) for part in listed)


def _in_range(found: Key, text: str) -> bool:
    return all(any(_holds(found, alias.strip()) for alias in bound.split("/")) for bound in text.split(","))


def _in_family(found: Key, name: str) -> bool:
    wanted = key(name)
    if len(wanted[1]) > 1:  # a candidate: the same one, or a correction of it
        return found[0] == wanted[0] and found[1][: len(wanted[1]) - 1] == wanted[1][:-1]
    numbers = tuple(int(part) for part in name.split("."))
    release = (found[0] + (0,) * len(numbers))[: len(numbers)]
    return release == numbers and (len(numbers) < 3 or found[1][0][0] >= 0)


def _holds(found: Key, bound: str) -> bool:
    family = _FAMILY.match(bound.lower())
    if family:
        return _in_family(found, family.group(1))
    match = _COMPARATOR.match(bound)
    if match is None:
        raise ValueError("{!r} is not a version range".format(bound))
    operator, limit = match.group(1) or "=", key(match.group(2))
    seen = found if limit[2] else found[:2] + ((),)
    return {
        "=": seen == limit,
        "==": seen == limit,
        "!=": seen != limit,
        ">=": seen >= limit,
        "<=": seen <= limit,
        ">": seen > limit,
        "<": seen < limit,
    }[operator]
