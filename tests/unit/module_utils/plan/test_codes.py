# SPDX-License-Identifier: Apache-2.0
"""Every code is shown by a golden case or here, with what it says to set."""

import json
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan import codes
from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, check_requests, plan_fleet

from tools import golden

ROW = golden.catalogue()["rows"]["vllm-0.32.0-cpu"]
SHOWN = [json.loads((golden.GOLDEN / case / "plan.json").read_text()) for case in golden.cases()]
NO_CUDA = {name: row for name, row in golden.catalogue()["rows"].items() if row["backend"] != "cuda"}
HERE: dict[str, tuple[dict[str, Any], str]] = {
    "E_CATALOGUE": ({"catalogue": {"rows": {"r": {**ROW, "release_bytes": "big"}}}}, "correct the catalogue"),
    "E_DTYPE": ({"catalogue": {"rows": {"r": {**ROW, "dtypes": ["float16"]}}}}, "dtype: float16"),
    "E_FLAGS_MISSING": ({"flags": {}}, "engine_overrides/vllm/0.32.0/flags.yml"),
    "E_NETWORKS": ({"networks": "10.0.0.0/8"}, 'deployment_plan_allowed_networks: ["10.0.0.0/8"]'),
    "E_NO_HOSTS": ({"hosts": {}}, "a group named pool_<name> under engines, with hosts and an engine_request"),
    "E_SERIES_MISSING": ({"overrides": {}}, "engine_overrides/vllm/0.32.0/manifest.yml with a series for cpu"),
}


def inputs() -> Inputs:
    request = {"model": "smollm2-135m-instruct"}
    engine = {"machine": "epyc-virtual", "groups": ["engines", "pool_a"], "request": request}
    build = {"machine": "epyc-virtual", "groups": ["build"]}
    return golden.inputs({"hosts": {"cpu01": engine, "build01": build}})


@pytest.mark.parametrize("code", HERE)
def test_problem_says_what_to_set(code):
    changes, set_to = HERE[code]
    changed = inputs()._replace(**changes)
    if "catalogue" in changes:
        changed.catalogue["models"] = golden.catalogue()["models"]
    found = [p for p in plan_fleet(changed)["problems"] if p["code"] == code]
    assert [p["set"] for p in found] == [set_to]


def test_one_release_per_host():
    flags = golden.flags()["vllm"]["0.32.0"]
    newer = {**ROW, "version": "0.33.0", "default": False}
    request = [{"model": "smollm2-135m-instruct"}, {"model": "deepseek-v3-tiny-random", "version": "=0.33.0"}]
    given = inputs()
    given.hosts["cpu01"]["request"] = request
    given = given._replace(
        catalogue={**golden.catalogue(), "rows": {"old": ROW, "new": newer}},
        flags={"vllm": {"0.32.0": flags, "0.33.0": flags}},
        overrides={"vllm": {**golden.SERIES["vllm"], "0.33.0": golden.SERIES["vllm"]["0.32.0"]}},
    )
    found = plan_fleet(given)["problems"]
    assert [p["code"] for p in found] == ["E_MIXED_VERSIONS"]
    assert found[0]["seen"] == "vllm-0.32.0-cpu-x86_64, vllm-0.33.0-cpu-x86_64"


GPU = {"machine": "a100-4", "groups": ["engines", "pool_a"], "request": {"model": "qwen3-8b"}}


def test_flags_of_a_row_that_is_only_planned_for_may_be_unknown():
    planned = plan_fleet(golden.inputs({"hosts": {"gpu01": GPU}})._replace(flags={}))
    assert planned["ok"]
    assert "W_FLAGS_UNCHECKED" in [w["code"] for w in planned["warnings"]]


def test_devices_without_a_row():
    given = golden.inputs({"hosts": {"gpu01": GPU}})._replace(catalogue={**golden.catalogue(), "rows": NO_CUDA})
    found = plan_fleet(given)["problems"]
    assert [p["code"] for p in found] == ["E_NO_ENGINE"]
    assert "a100-80g of gpu01" in found[0]["message"]


def test_removed_variables_say_what_to_use():
    hosts = {"a": {"groups": ["engines", "pool_a"], "request": {"model": "x"}, "variables": ["gone"]}}
    found = check_requests({**hosts, "b": hosts["a"]}, {"gone": "engine_request.model"}).problems
    assert [(p["code"], p["set"]) for p in found] == [("E_VARIABLE_REMOVED", "engine_request.model")]
    assert "1 more host" in found[0]["message"]


def test_no_code_is_without_an_example():
    problems = {p["code"] for plan in SHOWN for p in plan["problems"]} | set(HERE)
    assert set(codes.PROBLEMS) - problems == {"E_NO_ENGINE", "E_VARIABLE_REMOVED"}, "tested above by name"
    warnings = {w["code"] for plan in SHOWN for w in plan["warnings"]}
    assert set(codes.WARNINGS) - warnings == {"W_FLAGS_UNCHECKED"}, "tested above by name"
    rules = {d["rule"] for plan in SHOWN for d in plan["decisions"]}
    assert set(codes.RULES) - rules == set()


def test_no_example_shows_a_secret():
    for case in golden.cases():
        assert "hush-me" not in (golden.GOLDEN / case / "plan.json").read_text()
