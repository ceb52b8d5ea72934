# SPDX-License-Identifier: Apache-2.0
"""Which hosts make a replica, when the request says how many and when it does not."""

from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import NEVER, Host, Sizing, form_groups
from ansible.module_utils.vllm_ansible.plan.requests import Claim, Request


def form(
    hosts: dict[str, str], sizes: dict[str, int], nodes: int | None = None, **options: Any
) -> tuple[Any, Findings]:
    """`hosts`: name -> kind, or ``-`` (no facts) and ``out`` (outside --limit). `sizes`: kind -> hosts per replica."""
    known = {}
    for name, kind in hosts.items():
        known[name] = Host(name, ["engines", "pool_a"], None, kind == "out", {})
        if kind not in ("-", "out"):
            known[name].hardware = kind  # type: ignore[assignment]
    findings = Findings()
    claim = Claim("pool_a", Request("m", name="a", nodes=nodes, **options), tuple(hosts))
    sizing = Sizing(
        lambda _claim, host: host.hardware,
        lambda _claim, alike: sizes[alike[0].hardware] if len(alike) >= sizes[alike[0].hardware] else 0,
    )
    groups = form_groups([claim], known, sizing, findings)
    return [([h.name for h in g.hosts], g.also) for g in groups], findings


def codes(findings: Findings) -> list[str]:
    return sorted(f["code"] for f in findings.problems + findings.warnings)


@pytest.mark.parametrize(
    ("hosts", "sizes", "expected", "said"),
    [
        ({"a1": "A2", "a2": "A2"}, {"A2": 1}, [["a1"], ["a2"]], []),
        ({"a1": "A2", "a2": "A2", "a3": "A2", "a4": "A2"}, {"A2": 2}, [["a1", "a2"], ["a3", "a4"]], []),
        ({"a1": "A2", "a2": "A2", "a3": "A2"}, {"A2": 2}, [["a1", "a2"]], ["W_HOST_SPARE"]),
        # kinds are not mixed, and each keeps the order of the inventory
        ({"a1": "A2", "a2": "A3", "a3": "A2"}, {"A2": 2, "A3": 1}, [["a1", "a3"], ["a2"]], []),
        ({"a1": "A2", "a2": "A2", "a3": "old"}, {"A2": 2, "old": 2}, [["a1", "a2"]], ["W_HOST_SPARE"]),
        # nothing fits: one host speaks for all of its kind
        ({"a1": "A2", "a2": "A2"}, {"A2": 3}, [["a1"]], []),
        ({"a1": "A2", "a2": "B", "a3": "A2", "a4": "A2"}, {"A2": 1, "B": NEVER}, [["a2"], ["a1"], ["a3"], ["a4"]], []),
        # two kinds that would do together: a group that its planning refuses, naming the difference
        ({"a1": "A2", "a2": "old"}, {"A2": 2, "old": 2}, [["a1", "a2"]], []),
        # --limit regroups nothing
        ({"a1": "out", "a2": "out", "a3": "A2", "a4": "A2"}, {"A2": 2}, [["a3", "a4"]], ["W_LEFT_OUT"]),
        ({"a1": "A2", "a2": "out", "a3": "A2", "a4": "A2"}, {"A2": 2}, [["a3", "a4"]], ["E_GROUP_INCOMPLETE"]),
        ({"a1": "A2", "a2": "-"}, {"A2": 2}, [], ["E_GROUP_INCOMPLETE"]),
        ({"a1": "A2", "a2": "out"}, {"A2": 2}, [], ["E_GROUP_INCOMPLETE"]),
        ({"a1": "out", "a2": "A2"}, {"A2": 1}, [["a2"]], ["W_LEFT_OUT"]),
    ],
)
def test_without_nodes_a_pool_is_divided_by_what_carries_the_model(hosts, sizes, expected, said):
    groups, findings = form(hosts, sizes)
    assert [names for names, _also in groups] == expected
    assert codes(findings) == said


def test_the_host_that_speaks_counts_the_others():
    groups, _findings = form({"a1": "A2", "a2": "A2", "a3": "A2"}, {"A2": NEVER})
    assert groups == [(["a1"], 2)]


def test_nodes_and_replicas_per_host_are_taken_as_they_are():
    groups, findings = form({"a1": "A2", "a2": "B"}, {}, nodes=2)
    assert [names for names, _also in groups] == [["a1", "a2"]]
    groups, findings = form({"a1": "A2", "a2": "A2", "a3": "A2"}, {}, nodes=2)
    assert codes(findings) == ["E_POOL_SIZE"]
    groups, _findings = form({"a1": "A2"}, {}, replicas_per_host=3)
    assert [names for names, _also in groups] == [["a1"]] * 3
