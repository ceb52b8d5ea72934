# SPDX-License-Identifier: Apache-2.0
"""The module around the planner."""

import json

import pytest
import vllm_plan
import yaml

from tools import golden


def params(case: str, **changes):
    inputs = golden.inputs(yaml.safe_load((golden.GOLDEN / case / "case.yml").read_text()))
    return {
        "hosts": inputs.hosts,
        "knowledge": {"catalogue": inputs.catalogue, "overrides": inputs.overrides, "flags": inputs.flags},
        "models": inputs.models or {},
        "networks": inputs.networks or [],
        **changes,
    }


@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize("as_text", [False, True])
def test_it_returns_the_plan_of_the_planner(run_module, check_mode, as_text):
    arguments = params("cpu-demo")
    if as_text:
        for name in ("hosts", "knowledge"):
            arguments[name] = "\n" + json.dumps(arguments[name])
    result = run_module(vllm_plan, arguments, check_mode=check_mode)
    assert result["changed"] is False
    assert golden.render(result["plan"]) == (golden.GOLDEN / "cpu-demo" / "plan.json").read_text()


def test_problems_fail_with_all_of_them(run_module):
    result = run_module(vllm_plan, params("request-mistakes"))
    stored = json.loads((golden.GOLDEN / "request-mistakes" / "plan.json").read_text())["problems"]
    assert result["failed"] is True
    assert result["problems"] == stored
    assert result["plan"]["hosts"] == {}
    assert result["msg"].startswith(f"No valid plan: {len(stored)} problems\n")
    assert "E_REQUEST_KEY cpu01: engine_request.modle: engine_request has no key 'modle'. Set: model" in result["msg"]


def test_problems_can_be_returned(run_module):
    result = run_module(vllm_plan, params("request-mistakes", on_problems="return"))
    assert "failed" not in result
    assert result["problems"]


def test_requests_are_checked_without_facts(run_module):
    hosts = {
        "cpu01": {
            "groups": ["engines", "pool_a"],
            "request": {"model": "x", "prot": 1},
            "variables": ["old", "engine_x"],
        },
        "cpu02": {"groups": ["engines", "pool_b"], "request": {"model": "x"}, "variables": ["old"]},
    }
    result = run_module(vllm_plan, {"hosts": hosts, "stage": "requests", "removed": {"old": "engine_request.model"}})
    assert [(p["code"], p["set"]) for p in result["problems"]] == [
        ("E_REQUEST_KEY", "port"),
        ("E_VARIABLE_REMOVED", "engine_request.model"),
    ]
    assert "plan" not in result


def test_texts_stay_texts(run_module):
    result = run_module(vllm_plan, params("cpu-demo", as_text=True))
    mappings = run_module(vllm_plan, params("cpu-demo"))
    assert json.loads(result["plan"]) == mappings["plan"]
    assert json.loads(result["difference"]) == mappings["difference"]
    assert {name: json.loads(text) for name, text in result["hosts"].items()} == mappings["plan"]["hosts"]
    assert result["digest"] == mappings["digest"] == mappings["plan"]["digest"]
    texts = [result["plan"], result["difference"], *result["hosts"].values()]
    assert all(text.startswith(" {") for text in texts), "ansible-core 2.16 would make values of them"


def record(arguments, folder):
    """Write the hardware of every host into `folder` instead of handing it over."""
    for name, host in arguments["hosts"].items():
        facts = host.pop("hardware")
        (folder / f"{name}.json").write_text(json.dumps({"vllm_hardware": facts} if name == "cpu01" else facts))


def test_recordings_replace_the_hosts(run_module, tmp_path):
    arguments = params("cpu-demo", recorded_hardware=str(tmp_path))
    record(arguments, tmp_path)
    result = run_module(vllm_plan, arguments)
    assert golden.render(result["plan"]) == (golden.GOLDEN / "cpu-demo" / "plan.json").read_text()
    assert result["difference"]["machines"]["cpu01"] == {"machine": "cpu01", "provenance": "recorded"}
    (tmp_path / "cpu01.json").unlink()
    result = run_module(vllm_plan, arguments)
    assert [(p["code"], p["host"]) for p in result["problems"]] == [("E_FACTS_MISSING", "cpu01")]


def test_a_recorded_plan_is_what_the_host_runs(run_module, tmp_path):
    arguments = params("cpu-demo", recorded_hardware=str(tmp_path))
    record(arguments, tmp_path)
    states = lambda result: {name: host["state"] for name, host in result["difference"]["hosts"].items()}  # noqa: E731
    result = run_module(vllm_plan, arguments)
    assert states(result) == {"cpu01": "new", "cpu02": "new"}
    own = result["plan"]["hosts"]["cpu01"]
    (tmp_path / "cpu01.plan.json").write_text(json.dumps(own))
    assert states(run_module(vllm_plan, arguments)) == {"cpu01": "same", "cpu02": "new"}


@pytest.mark.parametrize("place", ["{}.json", "{}/facts.json"])
@pytest.mark.parametrize("folder", ["recorded", "machines"])
def test_a_host_is_planned_as_the_machine_it_names(run_module, tmp_path, folder, place):
    arguments = params("cpu-demo", recorded_hardware=str(tmp_path / "recorded"), machines=str(tmp_path / "machines"))
    for name in ("recorded", "machines/big"):
        (tmp_path / name).mkdir(parents=True)
    record(arguments, tmp_path / "recorded")
    (tmp_path / "recorded" / "cpu01.json").unlink()
    facts = json.loads((golden.MACHINES / "xeon-8480-two-sockets" / "facts.json").read_text())
    path = tmp_path / folder / place.format("big")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(facts))
    (path.parent / "machine.json").write_text(json.dumps({"provenance": "reconstructed"}))
    del arguments["hosts"]["cpu01"]["request"]["cpus"]
    arguments["hosts"]["cpu01"]["machine"] = "big"
    result = run_module(vllm_plan, arguments)
    assert result["problems"] == []
    because = [d["because"] for d in result["plan"]["decisions"] if d["host"] == "cpu01" and d["key"] == "numa.cpus"]
    assert "cpu01" in result["plan"]["hosts"]
    assert because and "engine_request" not in because[0]
    provenance = "reconstructed" if place == "{}/facts.json" else "recorded"
    assert result["difference"]["machines"]["cpu01"] == {"machine": "big", "provenance": provenance}


def test_facts_are_laid_over_those_of_a_machine(run_module, tmp_path):
    arguments = params("cpu-demo", recorded_hardware=str(tmp_path), machines=str(golden.MACHINES))
    record(arguments, tmp_path)
    smaller = {"memory": {"total_bytes": 2**31}}
    arguments["hosts"]["cpu01"]["machine"] = {"name": "epyc-virtual", "facts": smaller}
    result = run_module(vllm_plan, arguments)
    assert {(p["code"], p["host"]) for p in result["problems"]} == {("E_MEMORY", "cpu01")}
    used = result["difference"]["machines"]["cpu01"]
    assert used == {"machine": "epyc-virtual", "provenance": "recorded, with other memory"}
    arguments["hosts"]["cpu01"]["machine"] = {"facts": smaller}
    assert run_module(vllm_plan, arguments)["difference"]["machines"]["cpu01"]["machine"] == "cpu01"


@pytest.mark.parametrize(
    "machine", [7, ["epyc-virtual"], {"name": 1}, {"name": "epyc-virtual", "fatcs": {}}, {"facts": 1}]
)
def test_a_machine_of_another_form_is_named(run_module, tmp_path, machine):
    arguments = params("cpu-demo", recorded_hardware=str(tmp_path), machines=str(golden.MACHINES))
    record(arguments, tmp_path)
    arguments["hosts"]["cpu01"]["machine"] = machine
    result = run_module(vllm_plan, arguments)
    assert result["failed"] is True
    assert "engine_machine of cpu01 has to be a name or {name: <name>, facts: {…}}" in result["msg"]


@pytest.mark.parametrize("name", ["small", "../recorded/cpu02", "/etc/hostname"])
def test_a_machine_that_is_not_recorded_is_named_with_those_that_are(run_module, tmp_path, name):
    arguments = params("cpu-demo", recorded_hardware=str(tmp_path), machines=str(golden.MACHINES))
    record(arguments, tmp_path)
    arguments["hosts"]["cpu01"]["machine"] = name
    result = run_module(vllm_plan, arguments)
    assert result["failed"] is True
    assert f"No recording of {name} (cpu01). Set engine_machine to one of: " in result["msg"]
    assert "cpu02" in result["msg"]
    assert "xeon-8480-two-sockets" in result["msg"]


@pytest.mark.parametrize("text", ["{", "", "[]", "1"])
def test_a_broken_recording_is_named(run_module, tmp_path, text):
    (tmp_path / "cpu01.json").write_text(text)
    result = run_module(vllm_plan, params("cpu-demo", recorded_hardware=str(tmp_path)))
    assert result["failed"] is True
    assert "cpu01" in result["msg"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": "{"}, "hosts has to be a mapping or JSON text"),
        ({"hosts": "[]"}, "hosts has to be a mapping"),
        ({"hosts": {"cpu01": "x"}}, "hosts.cpu01 has to be a mapping"),
        ({"recorded_hardware": "/nowhere"}, "recorded_hardware is no folder: /nowhere"),
    ],
)
def test_wrong_arguments_are_named(run_module, changes, message):
    result = run_module(vllm_plan, params("cpu-demo", **changes))
    assert result["failed"] is True
    assert message in result["msg"]


@pytest.mark.parametrize("applied", ["not json", '{"slices": [1]}', None, "[]"])
def test_an_unreadable_record_counts_as_none(run_module, applied):
    arguments = params("cpu-demo")
    arguments["hosts"]["cpu01"]["applied"] = applied
    assert run_module(vllm_plan, arguments)["plan"]["ok"] is True
