# SPDX-License-Identifier: Apache-2.0
"""Fleets and requests that are odd: refused with a way out that works, or planned without contradicting themselves."""

import copy
import datetime
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan import findings
from ansible.module_utils.vllm_ansible.plan.canonical import GIB
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


def applied(request: dict[str, Any], set_to: str) -> list[dict[str, Any]]:
    """The request with each of the alternatives of a problem's `set`, e.g. ``nodes: 2 or 3, or model: x``."""
    changed = []
    for part in set_to.split(", or "):
        key, _, values = part.partition(": ")
        for value in values.split(" or "):
            number = value.split()[0]
            changed.append({**request, key: int(number) if number.isdigit() else number})
    return changed


@pytest.mark.parametrize(
    ("machine", "request_"),
    [
        ("a100-4", {"model": "qwen3-8b", "pipeline_parallel_size": 3, "data_parallel_size": 2}),
        ("h200-8", {"model": "qwen3-32b", "tensor_parallel_size": 8, "data_parallel_size": 2}),
        ("a100-4", {"model": "qwen3-30b-a3b", "pipeline_parallel_size": 2}),
    ],
)
def test_pins_that_exclude_each_other_name_sizes_that_work(machine, request_):
    problem = only(plan(several(machine, 1, request_)), "E_LAYOUT")
    ways = applied(request_, problem["set"])
    assert ways
    for way in ways:
        assert plan(several(machine, 1, way))["ok"], way
    assert problem["seen"] == request_[problem["field"].partition(".")[2]]


def test_what_is_short_does_not_count_graphs_which_lie_outside_the_engines_share():
    problem = only(plan(several("a100-4", 1, {"model": "qwen3-235b-a22b"})), "E_DEVICE_MEMORY")
    # 94 layers of 128 experts of 3 x 4096 x 1536 and attention of 64 and 4 heads, two embeddings, routers and norms: in
    # bfloat16 on four devices 109.5 GiB; 4.2 GiB beside it, 4096 tokens of 2 x 128 x 94 elements, 72.3 GiB of room
    assert problem["seen"] == "41.6 GiB short on each device"


def test_ways_out_of_a_shared_host_are_for_a_shared_host():
    request = {"model": "llama-3.3-70b-instruct", "replicas_per_host": 4}
    text = only(plan(several("a100-4", 1, request)), "E_DEVICE_MEMORY")["set"]
    assert text.startswith("fewer engines on this host")
    assert "sick" not in text
    assert "nodes" not in text
    assert "devices each" not in text
    assert plan(several("a100-4", 1, {**request, "replicas_per_host": 1}))["ok"]


def test_padded_weights_are_the_same_model():
    text = only(
        plan(several("a100-4", 1, {"model": "qwen2.5-72b-instruct", "data_parallel_size": 4})), "E_DEVICE_MEMORY"
    )
    assert "model: qwen2.5-72b-instruct-awq" in text["set"]
    awq = {"model": "qwen2.5-72b-instruct-awq", "data_parallel_size": 4}
    assert plan(several("a100-4", 1, awq))["ok"]


@pytest.mark.parametrize("total_gib", [3, 24, 500])
def test_a_host_of_the_memory_asked_for_is_large_enough(total_gib):
    # what is asked for counts the share that is left to the system, too
    memory = {"total_bytes": total_gib * GIB, "cgroup_limit_bytes": None}
    request = {"model": "llama-3.3-70b-instruct" if total_gib == 24 else "qwen2.5-7b-instruct", "max_model_len": 1024}
    if total_gib == 500:
        request["kv_cache_gib"] = 600
    problem = only(plan({"host1": host("xeon-8480-two-sockets", 1, request, memory=memory), "b": build()}), "E_MEMORY")
    if "kv_cache_gib: " in problem["set"]:
        pinned = {**request, "kv_cache_gib": int(problem["set"].split()[1])}
        assert plan({"host1": host("xeon-8480-two-sockets", 1, pinned, memory=memory), "b": build()})["ok"]
        return
    needed = float(problem["set"].partition("host with ")[2].split()[0])
    larger = {**memory, "total_bytes": int(needed * GIB)}
    assert plan({"host1": host("xeon-8480-two-sockets", 1, request, memory=larger), "b": build()})["ok"]


def test_no_context_length_is_proposed_where_the_weights_alone_are_too_much():
    request = {"model": "llama-3.1-8b-instruct", "max_model_len": 131072}
    problem = only(plan({"host1": host("epyc-virtual", 1, request), "b": build()}), "E_KV_TOO_SMALL")
    assert "max_model_len" not in problem["set"]
    needed = float(problem["set"].partition("host with ")[2].split()[0])
    memory = {"total_bytes": int(needed * GIB), "cgroup_limit_bytes": None}
    larger = plan({"host1": host("epyc-virtual", 1, {**request, "kv_cache_gib": 32}, memory=memory), "b": build()})
    assert larger["ok"]


def test_two_replicas_never_share_a_name():
    hosts = {"b-1": small(1), "1": small(2), "build1": build()}
    hosts["b-1"]["groups"] = ["engines", "pool_a"]
    hosts["1"]["groups"] = ["engines", "pool_a_b"]
    problem = only(plan(hosts), "E_INSTANCE_NAME")
    assert "a-b-1" in problem["message"]


@pytest.mark.parametrize("port", [13389, 60000, 60031])
def test_clients_are_not_sent_to_the_port_at_which_ranks_meet(port):
    request = {"model": "deepseek-r1-w8a8", "port": port}
    problem = only(plan(several("atlas-800t-a2", 2, request)), "E_PORT_COLLISION")
    assert (problem["host"], problem["seen"]) == ("host1", port)
    assert plan(several("atlas-800t-a2", 2, {**request, "port": 13390}))["ok"]


DAY = datetime.date(2026, 1, 1)


@pytest.mark.parametrize(
    "request_",
    [
        {1: 2},
        {None: 1},
        {DAY: 1},
        {"name": DAY},
        {"extra_args": {"seed": DAY}},
        {"extra_args": {"additional-config": {1: 2, "b": DAY}}},
        {"extra_env": {"A": DAY}},
    ],
)
def test_what_only_yaml_knows_is_planned_or_refused(request_):
    hosts = {"host1": small(), "build1": build()}
    hosts["host1"]["request"] = {**SMOL, **request_}
    planned = plan(hosts)
    assert planned["ok"] or planned["problems"]
    golden.render(planned)
    check_requests(hosts, {})


def test_dates_in_a_model_are_texts():
    model = copy.deepcopy(golden.catalogue()["models"]["smollm2-135m-instruct"])
    model["source"]["released"] = DAY
    hosts = {"host1": small(model="mine"), "build1": build()}
    golden.render(plan(hosts, models={"mine": model}))


@pytest.mark.parametrize("address", ["cpu01.example", "10.0.0.1/24", "10.0.0.256", "主机"])
def test_an_engine_listens_on_an_ip_address(address):
    problem = only(plan({"host1": {**small(), "address": address}, "build1": build()}), "E_ADDRESS")
    assert problem["seen"] == address
    assert plan({"host1": {**small(), "address": "2001:db8::5"}, "build1": build()})["ok"]


@pytest.mark.parametrize(("inside", "expected"), [({5}, []), ({4, 5}, ["E_GROUP_INCOMPLETE"])])
def test_a_spare_host_inside_limit_is_spare_and_no_riddle(inside, expected):
    hosts = several("atlas-800t-a2", 5, {"model": "deepseek-r1-w8a8"})
    for number in set(range(1, 6)) - inside:
        hosts[f"host{number}"].update(left_out=True, hardware=None)
    planned = plan(hosts)
    assert codes(planned) == expected
    assert [w["host"] for w in planned["warnings"] if w["code"] == "W_HOST_SPARE"] == ["host5"]


def test_a_shorter_default_length_is_said_to_be_what_fits():
    planned = plan(several("atlas-300i-pro", 1, {"model": "qwen3-8b"}))
    because = next(d["because"] for d in planned["decisions"] if d["rule"] == "R_LENGTH_WHAT_FITS")
    assert because.startswith("16384 tokens, the smaller of the model's 40960 and the row's default, do not fit")


def test_an_empty_data_type_of_a_model_is_named():
    model = {**golden.catalogue()["models"]["smollm2-135m-instruct"], "dtype": ""}
    planned = plan({"host1": small(model="mine"), "build1": build()}, models={"mine": model})
    assert "engine_models.mine.dtype" in {problem["field"] for problem in planned["problems"]}


def test_a_c_library_that_is_no_version_is_named():
    catalogue = copy.deepcopy(golden.catalogue())
    catalogue["rows"]["vllm-ascend-0.23.0.post1"]["machines"]["aarch64"]["glibc"] = "("
    planned = plan(several("atlas-800i-a3", 1, {"model": "qwen3-8b"}), catalogue=catalogue)
    assert "E_CATALOGUE" in codes(planned)
    fields = {problem["field"] for problem in planned["problems"]}
    assert "catalogue.rows.vllm-ascend-0.23.0.post1.machines.aarch64.glibc" in fields
