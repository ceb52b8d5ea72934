# SPDX-License-Identifier: Apache-2.0
"""Every case plans to the very bytes stored beside it; `tools/golden.py --update` stores new ones."""

import pytest

from tools import golden


@pytest.mark.parametrize("case", golden.cases())
def test_case_plans_as_stored(case):
    assert golden.files(case) == golden.stored(case)


LAYOUTS = {
    "npu-a3-deepseek-r1": ({"tensor": 4, "data": 4, "expert": 16, "pipeline": 1}, 1),
    "npu-a2-deepseek-r1": ({"tensor": 4, "data": 4, "expert": 16, "pipeline": 1}, 2),
    "gpu-a100-llama-70b": ({"tensor": 4, "data": 1, "expert": 1, "pipeline": 1}, 1),
    "gpu-h200-deepseek-v31": ({"tensor": 8, "data": 1, "expert": 8, "pipeline": 1}, 1),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_published_deployments_are_laid_out_as_published(case):
    layout, hosts = LAYOUTS[case]
    plan = golden.plan(case)
    assert plan["ok"]
    assert plan["groups"][0]["layout"] == {name + "_parallel": size for name, size in layout.items()}
    assert len(plan["groups"][0]["members"]) == hosts


REFUSED = {
    "container-only-host": ["E_GLIBC"],
    "gpu-one-a100-refused": ["E_DEVICE_MEMORY", "E_DEVICE_MEMORY"],
    "npu-driver-outside-range": ["E_DRIVER"],
    "npu-fp8-refused": ["E_QUANTISATION", "E_QUANTISATION"],
    "npu-sick-devices": ["E_DEVICE_MEMORY"],
    "npu-too-few-hosts": ["E_DEVICE_MEMORY", "E_DEVICE_MEMORY", "E_MODEL_ARCHITECTURE"],
    "npu-two-drivers": ["E_GROUP_MIXED"],
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_have_exactly_these_problems(case):
    assert sorted(problem["code"] for problem in golden.plan(case)["problems"]) == REFUSED[case]


def test_every_case_is_kept():
    stored = {path.parent.name for path in golden.GOLDEN.glob("*/plan.json")}
    assert stored == set(golden.cases())
    assert len(stored) > 15


def test_merge_replaces_lists_and_keeps_other_keys():
    assert golden.merge({"a": {"b": [1], "c": 2}, "d": 3}, {"a": {"b": [4]}}) == {"a": {"b": [4], "c": 2}, "d": 3}


# What docs/recipes-ascend.md explains: (flag or variable of the published recipe) -> value, by host of the case.
RECIPE = {
    "--data-parallel-size": "4", "--tensor-parallel-size": "4", "--quantization": "ascend", "--seed": "1024",
    "--enable-expert-parallel": "", "--max-num-seqs": "16", "--max-model-len": "16384",
    "--max-num-batched-tokens": "4096", "--gpu-memory-utilization": "0.92", "--port": "8000",
    "--speculative-config": '{"method": "mtp", "num_speculative_tokens": 3}',
    "HCCL_OP_EXPANSION_MODE": "AIV", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
}  # fmt: skip
NETWORK = dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"), "enp189s0f0")
FULL = {"--compilation-config": '{"cudagraph_mode": "FULL_DECODE_ONLY"}'}
# FULL_DECODE_ONLY is published; the driver recorded on that machine is older than full graphs want.
A2 = {
    "--compilation-config": '{"cudagraph_mode": "PIECEWISE"}', "--data-parallel-size-local": "2",
    "--data-parallel-address": "192.0.2.11", "--data-parallel-rpc-port": "13389",
    "HCCL_BUFFSIZE": "200", "HCCL_INTRA_PCIE_ENABLE": "1", "HCCL_INTRA_ROCE_ENABLE": "0",
    "OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false",
}  # fmt: skip
SECOND = {"--headless": "", "--data-parallel-start-rank": "2"}
RECIPES = {
    ("a3", "a3-01", "192.0.2.41"): {**RECIPE, **NETWORK, **FULL},
    ("a2", "npu1", "192.0.2.11"): {**RECIPE, **NETWORK, **A2},
    ("a2", "npu2", "192.0.2.12"): {**RECIPE, **NETWORK, **A2, **SECOND},
}


@pytest.mark.parametrize("model", ["r1", "v31"])
@pytest.mark.parametrize("place", RECIPES, ids=lambda place: place[1])
def test_the_published_recipes_come_out_flag_by_flag(model, place):
    machine, host, address = place
    folder = golden.GOLDEN / f"recipe-{machine}-{model}" / "units"
    lines = [*(folder / f"{host}.ascend.arguments").read_text().splitlines()]
    lines += (folder / f"{host}.ascend.environment").read_text().splitlines()
    found = {name: value for name, _mark, value in (line.partition("=") for line in lines)}
    assert {name: found.get(name) for name in RECIPES[place]} == RECIPES[place]
    assert (found["HCCL_IF_IP"], found["--host"]) == (address, address)
    assert ("--no-enable-prefix-caching" in found) == (model == "v31")
    assert host == "npu2" or not SECOND.keys() & found.keys()


def test_the_planner_refuses_what_the_engine_or_its_plugin_does_not_have():
    case = golden.yaml.safe_load((golden.GOLDEN / "recipe-a3-r1" / "case.yml").read_text())
    case["hosts"]["a3-01"]["request"]["extra_args"] = {
        "device-memory-utilization": 0.9,
        "additional-config": {"scheduler_config": {}},
        "max-num-partial-prefills": "many",
    }
    problems = golden.plan_fleet(golden.inputs(case))["problems"]
    assert {(problem["code"], problem["field"].rpartition(".")[2]) for problem in problems} == {
        ("E_ARG_UNKNOWN", "device-memory-utilization"), ("E_ARG_VALUE", "additional-config"),
        ("E_ARG_VALUE", "max-num-partial-prefills"),
    }  # fmt: skip
