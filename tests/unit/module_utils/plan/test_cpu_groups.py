# SPDX-License-Identifier: Apache-2.0
"""One CPU replica over several hosts: who joins whom, what each host holds, and what is refused."""

import json
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, plan_fleet

from tools import golden

TINY, SMOL = "deepseek-v3-tiny-random", "smollm2-135m-instruct"  # 4 heads; 9 heads with 3 of the KV cache


def facts(**changes: Any) -> dict[str, Any]:
    return {**json.loads((golden.MACHINES / "epyc-virtual" / "facts.json").read_text()), **changes}


def plan(count: int, *left_out: str, last: dict[str, Any] | None = None, **request: Any) -> dict[str, Any]:
    hosts: dict[str, Any] = {"build01": {"groups": ["build"]}}
    for number in range(1, count + 1):
        name = f"h{number}"
        hardware = {**facts(), **(last or {})} if number == count else facts()
        hosts[name] = {"groups": ["engines", "pool_a"], "request": request, "address": f"192.0.2.{number}"}
        hosts[name] |= {"left_out": True} if name in left_out else {"hardware": hardware}
    return plan_fleet(Inputs(hosts, golden.catalogue(), overrides=golden.SERIES, flags=golden.flags()))


def services(planned: dict[str, Any], instance: int = 0) -> list[dict[str, Any]]:
    assert planned["ok"], planned["problems"]
    slices = [planned["hosts"][name]["slices"] for name in sorted(planned["hosts"]) if name != "build01"]
    return [own["engine_service"]["instances"][instance] for own in slices if "engine_service" in own]


def problem(planned: dict[str, Any]) -> dict[str, Any]:
    (found,) = planned["problems"]
    return found


def test_each_host_gets_its_rank_and_the_way_to_the_head():
    planned = plan(3, model=SMOL, nodes=3)
    head, *members = services(planned)
    meeting = {"nnodes": 3, "master-addr": "192.0.2.1", "master-port": 13389, "tensor-parallel-size": 3}
    assert [one["flags"]["node-rank"] for one in (head, *members)] == [0, 1, 2]
    assert all(meeting.items() <= one["flags"].items() for one in (head, *members))
    assert ["headless" in one["flags"] for one in (head, *members)] == [False, True, True]
    assert [one["environment"]["VLLM_HOST_IP"] for one in (head, *members)] == [f"192.0.2.{n}" for n in (1, 2, 3)]
    assert head["environment"]["GLOO_SOCKET_IFNAME"]
    # a member asks its head's API whether it is there
    assert {one["port"] for one in (head, *members)} == {8000}
    slices = {name: host["slices"] for name, host in planned["hosts"].items() if name != "build01"}
    assert slices["h1"]["host_baseline"]["reserved_ports"] == [8000, 13389]
    assert [len(slices[name]["service_verify"]["instances"]) for name in ("h1", "h2", "h3")] == [1, 0, 0]


def test_workers_are_spread_over_the_hosts_and_share_the_weights():
    (alone,), (first, second) = services(plan(1, model=TINY)), services(plan(2, model=TINY, nodes=2))
    assert "nnodes" not in alone["flags"]
    assert "TORCH_COMPILE_DISABLE" not in alone["environment"]
    assert first["environment"]["TORCH_COMPILE_DISABLE"] == "1"
    assert first["memory_max_bytes"] == second["memory_max_bytes"]
    four = services(plan(2, model=TINY, nodes=2, tensor_parallel_size=4))
    assert [one["environment"]["VLLM_CPU_OMP_THREADS_BIND"] for one in four] == ["0|1", "0|1"]


def test_two_replicas_have_two_heads():
    first, second, third, fourth = services(plan(4, model=TINY, nodes=2))
    assert [one["flags"]["master-addr"] for one in (first, second, third, fourth)] == [
        *["192.0.2.1"] * 2,
        *["192.0.2.3"] * 2,
    ]


@pytest.mark.parametrize(
    ("count", "request_", "code", "wanted"),
    [
        (2, {"model": SMOL}, "E_MULTI_NODE", "nodes: 1 or 3 or 9"),
        (2, {"model": TINY, "tensor_parallel_size": 1}, "E_LAYOUT", "tensor_parallel_size: a multiple of 2"),
        (3, {"model": TINY, "tensor_parallel_size": 3}, "E_LAYOUT", "nodes: 1"),
        (2, {"model": TINY, "extra_args": {"distributed-executor-backend": "ray"}}, "E_ARG_VALUE", "its own processes"),
        (2, {"model": TINY, "pipeline_parallel_size": 2}, "E_LAYOUT", "pipeline_parallel_size: 1"),
        (2, {"model": TINY, "data_parallel_size": 2}, "E_LAYOUT", "replicas_per_host: 2"),
    ],
)
def test_what_cannot_be_divided_is_refused(count, request_, code, wanted):
    found = problem(plan(count, nodes=count, **request_))
    assert found["code"] == code
    assert wanted in found["set"]


def test_ray_is_left_to_one_host_with_accelerators():
    hardware = json.loads((golden.MACHINES / "h200-8" / "facts.json").read_text())
    for nodes, codes in ((1, []), (2, ["E_MULTI_NODE"])):
        request = {"model": "qwen3-8b", "nodes": nodes, "extra_args": {"distributed-executor-backend": "ray"}}
        hosts: dict[str, Any] = {"build01": {"groups": ["build"]}}
        for number in (1, 2):
            hosts[f"h{number}"] = {"groups": ["engines", "pool_a"], "request": request, "hardware": hardware,
                                   "address": f"192.0.2.{number}"}  # fmt: skip
        planned = plan_fleet(Inputs(hosts, golden.catalogue(), overrides=golden.SERIES, flags=golden.flags()))
        assert [found["code"] for found in planned["problems"] if found["code"] == "E_MULTI_NODE"] == codes


def test_a_limit_to_part_of_a_replica_names_the_missing_hosts():
    found = problem(plan(3, "h2", "h3", model=SMOL, nodes=3))
    assert (found["code"], found["seen"]) == ("E_GROUP_INCOMPLETE", "h2, h3")


def test_hosts_of_two_architectures_make_no_replica():
    planned = plan(2, model=TINY, nodes=2, last={"architecture": "aarch64"})
    assert "E_GROUP_MIXED" in {found["code"] for found in planned["problems"]}
