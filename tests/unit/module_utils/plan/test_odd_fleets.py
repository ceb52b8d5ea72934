# SPDX-License-Identifier: Apache-2.0
"""Fleets and requests that are odd: refused with a way out that works, or planned without contradicting themselves."""

from typing import Any

from ansible.module_utils.vllm_ansible.plan import findings
from ansible.module_utils.vllm_ansible.plan.fleet import check_requests

from tests.unit.module_utils.plan.test_accelerators import MACHINES, codes, host

SMOL = {"model": "smollm2-135m-instruct"}


def build(machine: str = "epyc-virtual") -> dict[str, Any]:
    return {"groups": ["build"], "hardware": MACHINES[machine]}


def small(number: int = 1, **request: Any) -> dict[str, Any]:
    return host("epyc-virtual", number, {**SMOL, **request})


def only(planned: dict[str, Any], code: str) -> dict[str, Any]:
    assert codes(planned) == [code]
    return planned["problems"][0]


def test_distinct_mistakes_are_not_sorted_again_for_each(monkeypatch):
    sorts = []
    ordered = findings._ordered
    monkeypatch.setattr(findings, "_ordered", lambda entries: sorts.append(len(entries)) or ordered(entries))
    hosts = {f"host{n}": small(n, mdoel=f"mistake {n}") for n in range(40)}
    assert len(check_requests(hosts, {}).problems) == 40
    assert len(sorts) < 10
