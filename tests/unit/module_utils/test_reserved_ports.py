# SPDX-License-Identifier: Apache-2.0
import pytest
from ansible.module_utils.vllm_ansible import reserved_ports
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("", set()),
        ("8000", {8000}),
        ("8000-8002,9000\n", {8000, 8001, 8002, 9000}),
        ("8000 9000", {8000, 9000}),
    ],
)
def test_parse(text, ports):
    assert reserved_ports.parse(text) == ports


@pytest.mark.parametrize("text", ["eighty", "0", "70000", "9-8", "8000-", "-5", "1-2-3"])
def test_parse_names_the_wrong_part(text):
    with pytest.raises(ValueError, match=text):
        reserved_ports.parse("8000," + text)


@given(st.sets(st.integers(1, 65535), max_size=200))
def test_compose_loses_nothing(ports):
    assert reserved_ports.parse(reserved_ports.compose(ports)) == ports


def test_compose_joins_neighbours():
    assert reserved_ports.compose({8001, 8000, 9000}) == "8000-8001,9000"


@pytest.mark.parametrize(
    ("ours_before", "ours", "others", "live", "in_file", "in_kernel"),
    [
        # A bare host.
        (set(), {8000}, set(), set(), {8000}, {8000}),
        # Others keep theirs, wherever they asked for it.
        (set(), {8000}, {60000}, {60000, 7}, {8000, 60000}, {7, 8000, 60000}),
        # The port of an instance that left goes, unless somebody else wants it too.
        ({8000, 8001}, {8001}, set(), {8000, 8001, 7}, {8001}, {7, 8001}),
        ({8000}, set(), {8000}, {8000}, set(), {8000}),
        # Converged.
        ({8000}, {8000}, {60000}, {8000, 60000}, {8000, 60000}, {8000, 60000}),
    ],
)
def test_changes(ours_before, ours, others, live, in_file, in_kernel):
    assert reserved_ports.plan_changes(ours_before, ours, others, live) == (in_file, in_kernel)
