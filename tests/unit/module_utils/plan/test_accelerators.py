# SPDX-License-Identifier: Apache-2.0
"""Fleets with accelerators: what holds for any of them, and what each host is started with."""

import copy
import json
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan.canonical import GIB
from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, plan_fleet
from hypothesis import given, settings
from hypothesis import strategies as st

from tools import golden

FILES = golden.MACHINES.glob("*/facts.json")
MACHINES = {path.parent.name: json.loads(path.read_text()) for path in FILES}
ROOM = {"disks": [{"mount": "/", "available_bytes": 8 * 1024**4}], "paths": {}}
KINDS = ("atlas-800t-a2", "atlas-800i-a2", "atlas-800i-a3", "atlas-300i-duo", "a100-4", "h200-8", "l20-2")
TIGHT = {"gpu-memory-utilization": 0.62}
MODELS = (
    "deepseek-r1-w8a8",
    "deepseek-v3.1",
    "llama-3.3-70b-instruct",
    "qwen2.5-72b-instruct-awq",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "qwen3-8b",
    "qwen3-embedding-0.6b",
)


def host(machine: str, number: int, request: Any, **facts: Any) -> dict[str, Any]:
    hardware = golden.merge({**MACHINES[machine], **ROOM}, facts)
    address = f"192.0.2.{number}"
    return {"groups": ["engines", "pool_a"], "request": request, "hardware": hardware, "address": address}


def plan(hosts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    given_ = {"catalogue": golden.catalogue(), "overrides": golden.SERIES, "flags": golden.flags(), **changes}
    return plan_fleet(Inputs({**hosts, "build01": {"groups": ["build"]}}, **given_))


def several(machine: str, count: int, request: Any, **facts: Any) -> dict[str, Any]:
    return {f"host{n}": host(machine, n, request, **facts) for n in range(1, count + 1)}


def codes(planned: dict[str, Any]) -> list[str]:
    return sorted({problem["code"] for problem in planned["problems"]})


def instances(planned: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return planned["hosts"][name]["slices"]["engine_service"]["instances"]


requests = st.fixed_dictionaries(
    {"model": st.sampled_from(MODELS)},
    optional={
        "max_model_len": st.sampled_from([512, 16384, 40000, 131072]),
        "max_num_seqs": st.sampled_from([1, 64, 1024]),
        "tensor_parallel_size": st.sampled_from([1, 2, 4, 8]),
        "dtype": st.sampled_from(["bfloat16", "float16"]),
        "extra_args": st.sampled_from([{"gpu-memory-utilization": 0.95}, {"gpu-memory-utilization": "0.5"}]),
    },
)


@given(st.sampled_from(KINDS), st.integers(1, 5), requests, st.randoms(use_true_random=False))
@settings(max_examples=70, deadline=None)
def test_a_plan_never_exceeds_a_device_and_gives_none_twice(machine, count, request, random):
    hosts = several(machine, count, request)
    planned = plan(hosts)
    for group in planned["groups"] if planned["ok"] else []:
        memory, layout = group["memory"], group["layout"]
        assert memory["total_bytes"] <= memory["budget_bytes"]
        device = min(a["memory_bytes"] for a in MACHINES[machine]["accelerators"])
        assert memory["budget_bytes"] <= device
        assert memory["kv_cache_bytes"] >= 0
        world = layout["tensor_parallel"] * layout["pipeline_parallel"] * layout["data_parallel"]
        assert sum(len(numbers) for numbers in group["devices"].values()) == world
        for numbers in group["devices"].values():
            assert len(set(numbers)) == len(numbers) <= len(MACHINES[machine]["accelerators"])
    names = list(hosts)
    random.shuffle(names)
    assert plan({name: hosts[name] for name in names}) == planned


@given(st.sampled_from(KINDS), st.integers(1, 4), requests)
@settings(max_examples=50, deadline=None)
def test_another_host_never_makes_a_fitting_request_unfit(machine, count, request):
    before = plan(several(machine, count, request))
    if before["ok"]:
        after = plan(several(machine, count + 1, request))
        assert after["ok"], after["problems"]
        assert len(after["groups"]) >= len(before["groups"])


@pytest.mark.parametrize(
    ("machine", "count", "request_"),
    [
        ("atlas-800t-a2", 1, {"model": "deepseek-r1-w8a8"}),
        ("a100-4", 1, {"model": "qwen3-235b-a22b"}),
        ("l20-2", 1, {"model": "llama-3.3-70b-instruct"}),
        ("h200-8", 1, {"model": "deepseek-v3.1", "max_model_len": 163840, "extra_args": TIGHT}),
        ("h200-8", 1, {"model": "deepseek-v3.1", "max_num_seqs": 8192, "extra_args": TIGHT}),
    ],
)
def test_what_a_no_proposes_is_a_yes_when_it_is_planned(machine, count, request_):
    refused = plan(several(machine, count, request_))
    assert codes(refused) == ["E_DEVICE_MEMORY"]
    proposals = refused["problems"][0]["set"].split(", or ")
    tried = 0
    for proposal in proposals:
        key, _, value = proposal.split(" (")[0].partition(": ")
        if key in ("max_model_len", "max_num_seqs", "model", "nodes"):
            tried += 1
            changed = {**request_, key: value if key == "model" else int(value)}
            accepted = plan(several(machine, int(value) if key == "nodes" else count, changed))
            assert accepted["ok"], (proposal, accepted["problems"])
    assert tried


def test_extra_arguments_that_change_memory_are_counted():
    def memory(**extra: Any) -> dict[str, int]:
        request = {"model": "deepseek-r1-w8a8", "extra_args": {key.replace("_", "-"): v for key, v in extra.items()}}
        planned = plan(several("atlas-800i-a3", 1, request))
        assert planned["ok"], planned["problems"]
        return planned["groups"][0]["memory"]

    usual = memory()
    drafting = memory(speculative_config={"method": "mtp", "num_speculative_tokens": 3})
    assert drafting["weights_bytes"] > usual["weights_bytes"] + GIB // 2
    assert memory(speculative_config='{"method": "mtp", "num_speculative_tokens": 1}') == drafting
    assert memory(speculative_config={"method": "ngram", "num_speculative_tokens": 1}) == usual
    assert memory(kv_cache_dtype="fp8")["kv_cache_tokens"] == pytest.approx(2 * usual["kv_cache_tokens"], rel=0.01)
    assert memory(gpu_memory_utilization=0.85)["total_bytes"] < usual["total_bytes"] - 4 * GIB


def test_the_hosts_of_a_replica_know_each_other():
    planned = plan(several("atlas-800t-a2", 2, {"model": "deepseek-r1-w8a8"}))
    first, second = (instances(planned, name)[0] for name in ("host1", "host2"))
    common = {"data-parallel-size": 4, "tensor-parallel-size": 4, "enable-expert-parallel": True}
    joined = {"data-parallel-size-local": 2, "data-parallel-address": "192.0.2.1", "data-parallel-rpc-port": 13389}
    for instance in (first, second):
        assert common.items() <= instance["flags"].items()
        assert instance["flags"]["quantization"] == "ascend"
        assert joined.items() <= instance["flags"].items()
    assert "headless" not in first["flags"]
    assert {"headless": True, "data-parallel-start-rank": 2}.items() <= second["flags"].items()
    assert second["environment"]["HCCL_IF_IP"] == "192.0.2.2"
    assert second["environment"]["ASCEND_RT_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    slices = [planned["hosts"][name]["slices"] for name in ("host1", "host2")]
    assert [len(s["service_verify"]["instances"]) for s in slices] == [1, 0], "only the head answers"
    assert {13389, *range(60000, 60032)} <= set(slices[0]["host_baseline"]["reserved_ports"])
    assert 13389 not in slices[1]["host_baseline"]["reserved_ports"]
    assert first["allowed_networks"] == ["192.0.2.0/24"]


def test_clients_from_elsewhere_do_not_shut_out_the_hosts_of_a_replica():
    planned = plan(several("atlas-800t-a2", 2, {"model": "deepseek-r1-w8a8"}), networks=["198.51.100.0/24", "x"])
    allowed = [instances(planned, name)[0]["allowed_networks"] for name in ("host1", "host2")]
    assert allowed == [["198.51.100.0/24", "x", "192.0.2.2"], ["198.51.100.0/24", "x", "192.0.2.1"]]


def test_two_replicas_of_one_host_have_their_own_devices_cpus_and_ports():
    request = {"model": "qwen3-8b", "replicas_per_host": 2, "tensor_parallel_size": 4}
    planned = plan(several("atlas-800t-a2", 1, request))
    one, two = instances(planned, "host1")
    visible = [i["environment"]["ASCEND_RT_VISIBLE_DEVICES"].split(",") for i in (one, two)]
    assert len(visible[0]) == len(visible[1]) == 4
    assert not set(visible[0]) & set(visible[1])
    assert one["environment"]["HCCL_IF_BASE_PORT"] == "60000"
    assert two["environment"]["HCCL_IF_BASE_PORT"] == "60032"
    bound = planned["hosts"]["host1"]["slices"]["numa_policy"]["instances"]
    assert bound[0]["cpus"] != bound[1]["cpus"]
    assert one["devices"][-3:] == ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    assert set(one["devices"][:-3]) == {f"/dev/davinci{n}" for n in visible[0]}


def test_an_engine_that_fits_no_share_is_refused_by_what_the_whole_host_has():
    requests_ = [{"model": "qwen3-235b-a22b"}, {"model": "qwen3-8b"}]
    problems = plan(several("a100-4", 1, requests_))["problems"]
    assert [problem["code"] for problem in problems] == ["E_DEVICE_MEMORY"]
    assert "does not fit 4 device(s)" in problems[0]["message"]


def test_a_pool_of_two_kinds_makes_replicas_of_each():
    request = {"model": "deepseek-r1-w8a8"}
    hosts = {"a2-1": host("atlas-800t-a2", 1, request), "a3-1": host("atlas-800i-a3", 2, request)}
    hosts["a2-2"] = host("atlas-800t-a2", 3, request)
    planned = plan(hosts)
    assert planned["ok"], planned["problems"]
    assert sorted([m["host"] for m in g["members"]] for g in planned["groups"]) == [["a2-1", "a2-2"], ["a3-1"]]


def test_limit_takes_a_replica_whole_or_not_at_all():
    hosts = several("atlas-800t-a2", 4, {"model": "deepseek-r1-w8a8"})
    for name in ("host1", "host2"):
        hosts[name].update(left_out=True, hardware=None)
    planned = plan(hosts)
    assert planned["ok"], planned["problems"]
    assert [m["host"] for g in planned["groups"] for m in g["members"]] == ["host3", "host4"]
    hosts["host1"].update(several("atlas-800t-a2", 1, {"model": "deepseek-r1-w8a8"})["host1"], left_out=False)
    assert codes(plan(hosts)) == ["E_GROUP_INCOMPLETE"]


def test_a_group_that_is_only_planned_for_says_so():
    planned = plan({**several("a100-4", 1, {"model": "qwen3-8b"})})
    assert planned["ok"]
    assert planned["installable"] is False
    assert [entry["group"] for entry in planned["not_installable"]] == ["a-host1"]
    assert planned["builds"][0]["host"] is None


def test_memory_that_something_else_holds_and_a_fabric_manager_of_another_version_are_warned_of():
    used = copy.deepcopy(MACHINES["h200-8"]["accelerators"])
    used[0]["used_bytes"] = 60 * GIB
    facts = {
        "accelerators": used,
        "software": {"nvidia": {"fabric_manager": {"version": "570.1", "active": True}}},
    }
    planned = plan(several("h200-8", 1, {"model": "qwen3-8b"}, **facts))
    assert planned["ok"]
    assert {"W_DEVICE_BUSY", "W_FABRIC_MANAGER"} <= {w["code"] for w in planned["warnings"]}


def test_npus_without_a_network_are_warned_of_where_a_replica_spans_hosts():
    ports = [{"index": 0, "device": 0, "address": None, "link": "UP", "health": "Init", "tls": None}]
    planned = plan(several("atlas-800t-a2", 2, {"model": "deepseek-r1-w8a8"}, hccn=ports))
    warnings = [w["message"] for w in planned["warnings"] if w["code"] == "W_NPU_NETWORK"]
    assert len(warnings) == 2
    assert "NPU 0 has address none, link UP, health Init" in warnings[0]
    alone = plan(several("atlas-800i-a3", 1, {"model": "deepseek-r1-w8a8"}, hccn=[]))
    assert not [w for w in alone["warnings"] if w["code"] == "W_NPU_NETWORK"]
