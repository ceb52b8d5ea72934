# SPDX-License-Identifier: Apache-2.0
"""What a plan would change on hosts that run another one, and in which order."""

import copy
import json

import pytest
from ansible.module_utils.vllm_ansible.plan.difference import difference

from tools import golden

STEPS_OF_A_NEW_HOST = [
    ("apply", "host_baseline"),
    ("install", "release vllm-0.32.0-cpu-x86_64"),
    ("install", "model deepseek-v3-tiny-random"),
    ("install", "model smollm2-135m-instruct"),
    ("start", "instance deepseek"),
    ("start", "instance smollm2"),
    ("verify", "every instance generates tokens"),
]


@pytest.fixture
def plan() -> dict:
    return golden.plan("cpu-demo")


@pytest.fixture
def applied(plan) -> dict:
    """Every host runs what is planned for it."""
    return copy.deepcopy(plan["hosts"])


def service(entry: dict) -> dict:
    return entry["slices"]["engine_service"]["instances"][0]


def steps(found: dict, host: str | None = None) -> list[tuple[str, str]]:
    return [(s["action"], s["what"]) for s in found["steps"] if host is None or host in s["hosts"]]


def test_a_new_fleet_is_built_installed_started_and_verified_in_that_order(plan):
    found = difference(plan, {})
    assert found["hosts"] == {
        "cpu01": {"state": "new", "changes": []},
        "cpu02": {"state": "new", "changes": []},
    }
    assert steps(found) == [
        ("build", "release vllm-0.32.0-cpu-x86_64"),
        ("prepare", "model deepseek-v3-tiny-random"),
        ("prepare", "model smollm2-135m-instruct"),
        *STEPS_OF_A_NEW_HOST,
    ]
    assert ("start", "instance smollm2") not in steps(found, "cpu02")


def test_a_build_without_a_host_is_no_step(plan):
    plan["builds"][0]["host"] = None
    assert steps(difference(plan, {})) == STEPS_OF_A_NEW_HOST


def test_an_unchanged_fleet_is_only_built_and_verified(plan, applied):
    found = difference(plan, applied)
    assert {host["state"] for host in found["hosts"].values()} == {"same"}
    assert {action for action, _ in steps(found)} == {"build", "prepare", "verify"}
    assert {action for action, _ in steps(found, "cpu01")} == {"verify"}


def test_a_changed_setting_restarts_its_instance_and_says_why(plan, applied):
    service(applied["cpu01"])["flags"]["max-model-len"] = 512
    found = difference(plan, applied)
    assert found["hosts"]["cpu01"] == {
        "state": "changed",
        "changes": [
            {
                "what": "engine_service.smollm2.flags.max-model-len",
                "old": 512,
                "new": 1024,
                "because": "engine_request.max_model_len asks for it",
            }
        ],
    }
    assert steps(found, "cpu01") == [("restart", "instance smollm2"), ("verify", "every instance generates tokens")]
    assert found["hosts"]["cpu02"]["state"] == "same"


def port(entry):
    service(entry)["port"] = 9000


def cpus(entry):
    entry["slices"]["numa_policy"]["instances"][0]["cpus"] = "1"


def patches(entry):
    entry["build"]["series_sha256"] = "1" * 64


def release(entry):
    entry["slices"]["engine_release"]["build"] = "vllm-0.31.0-cpu-x86_64"


def model(entry):
    entry["slices"]["model_store"]["models"][0]["source"]["sha256"] = "1" * 64


def keep(entry):
    entry["slices"]["engine_release"]["keep"] = 3


@pytest.mark.parametrize(
    ("change", "what", "expected"),
    [
        (port, "engine_service.smollm2.port", {"restart"}),
        (cpus, "numa_policy.smollm2.cpus", {"restart"}),
        (patches, "engine_release.patches", {"install", "restart"}),
        (release, "engine_release.build", {"install", "restart"}),
        (model, "model_store.smollm2-135m-instruct.source.sha256", {"install", "restart"}),
        (keep, "engine_release.keep", set()),
    ],
)
def test_what_restarts_an_instance(plan, applied, change, what, expected):
    change(applied["cpu01"])
    found = difference(plan, applied)
    assert [entry["what"] for entry in found["hosts"]["cpu01"]["changes"]] == [what]
    assert {action for action, _ in steps(found, "cpu01")} == {"verify", *expected}


def test_a_reason_is_the_decision_of_that_value(plan, applied):
    port(applied["cpu01"])
    cpus(applied["cpu02"])
    found = difference(plan, applied)["hosts"]
    assert found["cpu01"]["changes"][0]["because"].startswith("the first port from 8000")
    assert [c["because"] for c in found["cpu02"]["changes"]] == []  # cpu02 is bound to CPU 1 already
    service(applied["cpu02"])["environment"]["VLLM_CPU_KVCACHE_SPACE"] = "2"
    assert "engine_request.kv_cache_gib asks" in difference(plan, applied)["hosts"]["cpu02"]["changes"][0]["because"]


def test_instances_come_and_go(plan, applied):
    for role in ("engine_service", "numa_policy", "service_verify"):
        applied["cpu01"]["slices"][role]["instances"][0]["name"] = "before"
    found = difference(plan, applied)
    told = {c["what"]: (c["old"], c["new"]) for c in found["hosts"]["cpu01"]["changes"]}
    assert told["engine_service.before"] == ("there", None)
    assert told["engine_service.smollm2"] == (None, "there")
    assert steps(found, "cpu01")[:2] == [("stop", "instance before"), ("start", "instance smollm2")]


def test_a_slice_of_a_role_it_does_not_know_is_applied_before_the_release(plan, applied):
    plan["hosts"]["cpu01"]["slices"]["ascend_driver"] = {"version": "25.5.1"}
    applied["cpu01"]["slices"]["ascend_driver"] = {"version": "25.3.0"}
    plan["hosts"]["cpu01"]["slices"]["something"] = {"a": 1}
    found = difference(plan, applied)
    assert {(c["what"], c["old"], c["new"]) for c in found["hosts"]["cpu01"]["changes"]} == {
        ("ascend_driver.version", "25.3.0", "25.5.1"),
        ("something.a", None, 1),
    }
    assert steps(found, "cpu01")[:2] == [("apply", "ascend_driver"), ("apply", "something")]


@pytest.mark.parametrize(
    "record", [[], "x", {"slices": 1}, {"slices": {}}, {"slices": {"engine_service": 1}, "build": 1}]
)
def test_a_record_of_any_shape_is_compared(plan, record):
    found = difference(plan, {"cpu01": record})
    assert ("start", "instance smollm2") in steps(found, "cpu01")
    json.dumps(found)


def test_it_changes_neither_the_plan_nor_the_record(plan, applied):
    port(applied["cpu01"])
    before = copy.deepcopy((plan, applied))
    difference(plan, applied)
    assert (plan, applied) == before


@pytest.mark.parametrize("case", golden.cases())
def test_every_golden_plan_can_be_compared_with_nothing_and_with_itself(case):
    plan = golden.plan(case)
    assert {host["state"] for host in difference(plan, {})["hosts"].values()} <= {"new"}
    again = difference(plan, plan["hosts"])
    assert {host["state"] for host in again["hosts"].values()} <= {"same"}
    assert {step["action"] for step in again["steps"]} <= {"build", "prepare", "verify"}
