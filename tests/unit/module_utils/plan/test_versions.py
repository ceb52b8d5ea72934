# SPDX-License-Identifier: Apache-2.0
"""Versions compared by what they mean."""

import itertools

import pytest
from ansible.module_utils.vllm_ansible.plan import versions
from hypothesis import given
from hypothesis import strategies as st

ORDERED = [  # each older than the next
    ("8.2.RC1", "8.3.RC1", "8.3.RC2", "8.3", "8.3.1", "8.5.0", "8.5.1", "9.0.0-beta.2", "9.0.0", "9.1.0", "10.0"),
    ("24.1.rc1", "24.1.rc1.b030", "24.1.rc2", "24.1.rc3", "24.1.rc3.7", "24.1.0", "24.1.0.3", "24.1.1", "25.0.rc1"),
    ("25.0.RC1", "25.0.rc1.1", "25.0.0", "25.2.0", "25.2.1", "25.3.RC1", "25.5.0", "25.5.1", "25.7.RC1", "26.0.RC1"),
    ("0.23.0rc1", "0.23.0", "0.23.0.post1", "0.23.1", "0.32.0"),
    ("2.5.1", "2.5.1.post1.dev20250528", "2.5.1.post1.dev20250619", "2.5.1.post1", "2.7.1.dev20250724", "2.7.1"),
    ("2.9.0", "2.9.0.post1", "2.9.0.post1+git4c901a4", "2.10.0", "2.10.0.post4"),
    ("3.2.0.dev20260322", "3.2.0", "3.2.1"),
    ("450.80.02", "525.60.13", "535.129.03", "550.54.14", "580.65.06", "580.126.09", "610.43.02"),
    ("2.9", "2.17", "2.28", "2.31", "2.36"),
]
VERSIONS = sorted({version for line in ORDERED for version in line})


@pytest.mark.parametrize("line", ORDERED)
def test_versions_are_ordered(line):
    for first, second in itertools.pairwise(line):
        assert versions.compare(first, second) == -1, (first, second)
        assert versions.compare(second, first) == 1, (first, second)
    assert sorted(line, key=versions.key) == list(line)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("8.3", "8.3.0"),
        ("v0.23.0", "0.23.0"),
        ("25.3.RC1", "25.3.rc1"),
        ("26.0.rc1", "26.0.0.RC1"),
        (" 9.1.0\n", "9.1"),
    ],
)
def test_spellings_of_the_same_version(first, second):
    assert versions.compare(first, second) == 0


@pytest.mark.parametrize("text", ["", "N/A", "unknown", "[N/A]", "8.3.beautiful", "-1", "1..2", "1.0 or so", "版本"])
def test_what_is_no_version_is_refused_by_name(text):
    with pytest.raises(ValueError, match="is not a version"):
        versions.compare(text, "1.0")


def test_what_cannot_be_compared_is_not_valid():
    assert versions.valid("25.0.rc1.1")
    assert not versions.valid("[N/A]")
    assert not versions.valid("25.foo")  # a word that has no place in the order of versions


@pytest.mark.parametrize(
    ("version", "ranges", "inside"),
    [
        ("8.3.RC2", "8.3", False),  # the trap this module exists for
        ("8.3", "8.3.RC2", False),
        ("8.3.RC2", ">=8.3", False),
        ("8.3.RC2", "<8.3", True),
        ("8.3.RC2", "8.3.RC2", True),
        ("25.2.1", "25.2.X", True),
        ("25.2.rc1", "25.2.X", True),
        ("25.20.0", "25.2.X", False),
        ("25.3.0", "25.2.X", False),
        ("25.2", "25.2.X", True),
        ("26.0.RC1", "26.0.RC1/25.7.RC1", True),
        ("25.7.rc1", "26.0.RC1/25.7.RC1", True),
        ("26.0.RC2", "26.0.RC1/25.7.RC1", False),
        ("26.0.0", "26.0.RC1/25.7.RC1", False),
        ("26.0.rc1.3", "26.0.RC1", False),
        ("26.0.rc1.3", "26.0.RC1.X/25.7.RC1.X", True),
        ("26.0.rc1", "26.0.RC1.X", True),
        ("26.0.rc2", "26.0.RC1.X", False),
        ("26.0.0", "26.0.RC1.X", False),
        ("24.1.0.3", "24.1.0.X", True),
        ("24.1.0", "24.1.0.X", True),
        ("24.1.rc3", "24.1.0.X", False),
        ("24.1.1", "24.1.0.X", False),
        ("24.1.rc3.7", "24.1.RC3.X", True),
        ("535.129.03", ">=525.60.13", True),
        ("450.80.02", ">=525.60.13", False),
        ("3.12.4", ">=3.10, <3.13", True),
        ("3.13.0", ">=3.10, <3.13", False),
        ("3.9.9", ">=3.10,<3.13", False),
        ("0.32.0+cpu.p6", "0.32.0", True),
        ("0.32.0+cpu.p6", "=0.32.0+cuda", False),
        ("0.32.0.post1", "=0.32.0", False),
        ("2.9.0", "!=2.9.0", False),
        ("25.5.1", ["25.0.X", "25.5.X"], True),
        ("25.5.1", ["25.0.X", "25.2.X"], False),
        ("25.5.1", [], False),
    ],
)
def test_ranges(version, ranges, inside):
    assert versions.matches(version, ranges) is inside


@pytest.mark.parametrize("text", ["", "about 25", ">=", "25.2.X or so", "x.x"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ValueError, match="is not a version"):
        versions.matches("25.2.0", text)


@pytest.mark.parametrize(("version", "early"), [("8.3.RC2", True), ("0.23.0rc1", True), ("3.2.0.dev1", True),
                                                ("2.5.1.post1", False), ("9.1.0", False)])  # fmt: skip
def test_candidates_are_recognised(version, early):
    assert versions.prerelease(version) is early


@given(st.sampled_from(VERSIONS), st.sampled_from(VERSIONS), st.sampled_from(VERSIONS))
def test_the_order_is_an_order(a, b, c):
    assert versions.compare(a, b) == -versions.compare(b, a)
    if versions.compare(a, b) <= 0 and versions.compare(b, c) <= 0:
        assert versions.compare(a, c) <= 0


@given(st.text(max_size=30))
def test_no_text_breaks_it(text):
    try:
        assert versions.compare(text, text) == 0
    except ValueError as error:
        assert "is not a version" in str(error)
