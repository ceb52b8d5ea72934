# SPDX-License-Identifier: Apache-2.0
"""The kernel's list format."""

import pytest
from ansible.module_utils.vllm_ansible.cpulist import format_cpulist, parse_cpulist, read_cpulist
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0", [0]), ("0-3", [0, 1, 2, 3]), ("8,0-1", [0, 1, 8]), ("0-1 3\n", [0, 1, 3]), ("", []), ("2-2,2", [2])],
)
def test_parse(text, numbers):
    assert parse_cpulist(text) == numbers


@pytest.mark.parametrize("text", ["3-1", "a", "0-", "-1", "0-99999999", "0x1", "1.5", "0-1-2", "70000"])
def test_what_is_no_list_is_named(text):
    with pytest.raises(ValueError, match="is not a number or a range"):
        parse_cpulist(text)
    assert read_cpulist(text) is None


@given(st.sets(st.integers(0, 65535), max_size=200))
def test_format_and_parse_are_inverse(numbers):
    assert parse_cpulist(format_cpulist(numbers)) == sorted(numbers)


@given(st.sets(st.integers(0, 300)))
def test_format_joins_every_run(numbers):
    ends = [int(number) for item in format_cpulist(numbers).split(",") if item for number in item.split("-")]
    assert not any(end + 1 == start for end, start in zip(ends[1::2], ends[2::2], strict=False) if "-" in str(ends))
    assert format_cpulist({0, 1, 2, 4}) == "0-2,4"
