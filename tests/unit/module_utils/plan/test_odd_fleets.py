# SPDX-License-Identifier: Apache-2.0
"""Fleets and requests that are odd: refused with a way out that works, or planned without contradicting themselves."""

import copy
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan import findings
from ansible.module_utils.vllm_ansible.plan.fleet import check_requests

from tests.unit.module_utils.plan.test_accelerators import MACHINES, codes, host, instances, plan, several
from tools import golden

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


@pytest.mark.parametrize("share", [1.5, "1.5", 0, -0.5, True, "nan"])
def test_a_share_of_the_device_that_cannot_be_is_refused(share):
    request = {"model": "qwen3-8b", "extra_args": {"gpu_memory_utilization": share}}
    problem = only(plan(several("a100-4", 1, request)), "E_ARG_VALUE")
    assert problem["field"].startswith("engine_request.extra_args.gpu")


def test_a_flag_is_never_given_with_its_negation():
    hosts = {"host1": small(extra_args={"enforce-eager": False}), "build1": build()}
    flags = instances(plan(hosts), "host1")[0]["flags"]
    assert flags["no-enforce-eager"] is True
    assert "enforce-eager" not in flags


def test_how_experts_are_divided_is_the_plans_business():
    request = {"model": "qwen3-30b-a3b", "extra_args": {"enable-expert-parallel": False}}
    assert codes(plan(several("a100-4", 1, request))) == ["E_ARG_OWNED"]


def test_a_model_with_more_heads_than_dimensions_is_planned_or_refused():
    model = copy.deepcopy(golden.catalogue()["models"]["smollm2-135m-instruct"])
    model["config"].update(num_attention_heads=100000, num_key_value_heads=100000)
    planned = plan({"host1": small(model="mine"), "build1": build()}, models={"mine": model})
    assert planned["ok"] or planned["problems"]


def test_weights_in_groups_are_divided_by_whole_groups():
    padded = {"model": "qwen2.5-72b-instruct-awq", "tensor_parallel_size": 4}
    assert plan(several("a100-4", 1, padded))["ok"]
    model = copy.deepcopy(golden.catalogue()["models"]["qwen2.5-72b-instruct-awq"])
    model["config"]["intermediate_size"] = 29568  # 231 groups of 128: no half, no quarter
    planned = plan(several("a100-4", 1, {**padded, "model": "mine"}), models={"mine": model})
    assert codes(planned) == ["E_LAYOUT"]


def test_two_devices_with_one_number_are_no_machine_we_know():
    devices = copy.deepcopy(MACHINES["a100-4"]["accelerators"])
    devices[1]["index"] = devices[0]["index"]
    planned = plan(several("a100-4", 1, {"model": "qwen3-8b"}, accelerators=devices))
    assert only(planned, "E_FACTS_INVALID")["field"] == "vllm_hardware.accelerators.index"


def test_a_device_without_a_number_beside_numbered_ones_is_left_out():
    devices = copy.deepcopy(MACHINES["a100-4"]["accelerators"])
    del devices[0]["index"]
    planned = plan(several("a100-4", 1, {"model": "qwen3-8b"}, accelerators=devices))
    assert planned["groups"][0]["devices"] == {"host1": [1, 2, 3]}
    assert "W_DEVICE_SICK" in {warning["code"] for warning in planned["warnings"]}


def test_the_other_name_of_a_flag_counts_too():
    shares = [{name + "-memory-utilization": 0.5} for name in ("gpu", "device")]
    plans = [plan(several("a100-4", 1, {"model": "qwen3-8b", "extra_args": share})) for share in shares]
    assert plans[0]["digest"] == plans[1]["digest"] is not None
