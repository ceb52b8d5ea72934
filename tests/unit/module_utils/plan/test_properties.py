# SPDX-License-Identifier: Apache-2.0
"""What must hold for any fleet: total, deterministic, never over the memory, volatile facts never decide."""

import copy
import json
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.vllm_ansible.plan import codes
from ansible.module_utils.vllm_ansible.plan.canonical import GIB, canonical_json
from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, check_requests, plan_fleet
from ansible.module_utils.vllm_ansible.plan.requests import CHECKS
from ansible.module_utils.vllm_ansible.plan.words import WORDS
from hypothesis import given, settings
from hypothesis import strategies as st

from tools import golden

CATALOGUE, FLAGS = golden.catalogue(), golden.flags()
MACHINES = {path.parent.name: json.loads(path.read_text()) for path in golden.MACHINES.glob("*/facts.json")}
SMALL = MACHINES["epyc-virtual"]
BUILD = {"groups": ["build"], "hardware": SMALL}
REQUEST = {"model": "smollm2-135m-instruct", "max_model_len": 1024}

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
junk = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


def plan(hosts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    settings_ = {"catalogue": CATALOGUE, "overrides": golden.SERIES, "flags": FLAGS, **changes}
    planned = plan_fleet(Inputs(hosts, **settings_))
    assert planned["ok"] == (not planned["problems"]) == bool(planned["digest"]) == bool(planned["hosts"])
    for problem in planned["problems"]:
        assert problem["code"] in codes.PROBLEMS
        assert problem["message"]
        assert problem["set"]
    json.loads(golden.render(planned))
    return planned


def engine(hardware: Any = None, **changes: Any) -> dict[str, Any]:
    return {"groups": ["engines", "pool_a"], "request": REQUEST, "hardware": hardware or SMALL, **changes}


def paths(value: Any, prefix: tuple = ()) -> list[tuple]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix] + [path for key, item in inner for path in paths(item, (*prefix, key))]


def replaced(value: Any, path: tuple, new: Any) -> Any:
    if not path:
        return new
    value = copy.copy(value)
    value[path[0]] = replaced(value[path[0]], path[1:], new)
    return value


@given(st.sampled_from(sorted(MACHINES)), st.data())
@settings(max_examples=70, deadline=None)
def test_broken_facts_are_a_problem_and_never_a_crash(machine, data):
    facts = MACHINES[machine]
    for _ in range(data.draw(st.integers(1, 3))):
        facts = replaced(facts, data.draw(st.sampled_from(paths(facts))), data.draw(junk))
    plan({"cpu01": engine(facts or {}), "build01": BUILD})


@given(st.dictionaries(st.sampled_from([*CHECKS, *WORDS, "mdoel"]), junk | st.sampled_from([1, "8", "cpu", "0-1"])))
@settings(max_examples=70, deadline=None)
def test_any_request_is_planned_or_refused(request):
    hosts = {"cpu01": engine(request={"model": "smollm2-135m-instruct", **request}), "build01": BUILD}
    plan(hosts)
    check_requests(hosts, {})


@given(junk, junk, junk, junk, junk)
@settings(max_examples=50, deadline=None)
def test_any_catalogue_models_series_flags_and_networks(catalogue, models, overrides, flags, networks):
    changes = {"catalogue": catalogue, "models": models, "overrides": overrides, "flags": flags, "networks": networks}
    for name, value in changes.items():
        plan({"cpu01": engine(), "build01": BUILD}, **{name: value})
    plan({"cpu01": engine(), "build01": BUILD}, **changes)


@given(st.sampled_from(("rows", "models")), st.data())
@settings(max_examples=50, deadline=None)
def test_a_broken_catalogue_entry_is_a_problem_and_never_a_crash(part, data):
    path = data.draw(st.sampled_from([p for p in paths(CATALOGUE[part]) if p]))
    plan(
        {"cpu01": engine(), "b": BUILD}, catalogue={**CATALOGUE, part: replaced(CATALOGUE[part], path, data.draw(junk))}
    )


@given(st.dictionaries(st.text(max_size=5), junk, max_size=4))
@settings(max_examples=50, deadline=None)
def test_any_hosts(hosts):
    plan(hosts)
    check_requests(hosts, {"x": "y"})


@given(st.sampled_from(golden.cases()), st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_order_of_hosts_changes_no_byte(case, random):
    inputs = golden.inputs(yaml.safe_load(Path(golden.GOLDEN, case, "case.yml").read_text()))
    names = list(inputs.hosts)
    random.shuffle(names)
    shuffled = inputs._replace(hosts={name: inputs.hosts[name] for name in names})
    assert canonical_json(plan_fleet(shuffled)) == canonical_json(plan_fleet(inputs))


@given(st.integers(0, 2**42), st.integers(0, 2**42), st.lists(st.integers(1, 65535), max_size=4), st.integers(0, 100))
@settings(max_examples=50, deadline=None)
def test_what_moves_by_itself_may_object_but_never_decides(memory, disk, ports, pages):
    facts = copy.deepcopy(SMALL)
    facts["memory"]["available_bytes"] = memory
    facts["memory"]["hugepages"] = [{"size_bytes": 2097152, "total": 100, "free": pages}]
    for entry in [*facts["disks"], *facts["paths"].values()]:
        entry["available_bytes"] = disk
    facts["listeners"] = [{"address": "0.0.0.0", "port": port, "unit": None, "process": "x"} for port in ports]
    usual = plan({"cpu01": engine(), "build01": BUILD})
    moved = plan({"cpu01": engine(facts), "build01": BUILD})
    assert moved["digest"] == usual["digest"] or {p["code"] for p in moved["problems"]} <= {"E_DISK", "E_PORT_TAKEN"}


def test_a_deployed_host_plans_the_same_although_its_disk_is_full_and_its_port_taken():
    first = plan({"cpu01": engine(), "build01": BUILD})
    facts = copy.deepcopy(SMALL)
    facts["listeners"] = [{"address": SMALL["default_address"], "port": 8000, "unit": None, "process": None}]
    for entry in [*facts["disks"], *facts["paths"].values()]:
        entry["available_bytes"] = 10
    again = plan({"cpu01": engine(facts, applied=first["hosts"]["cpu01"]), "build01": BUILD})
    assert again["digest"] == first["digest"]
    assert {p["code"] for p in plan({"cpu01": engine(facts), "build01": BUILD})["problems"]} == {
        "E_DISK",
        "E_PORT_TAKEN",
    }


@given(
    st.integers(GIB, 64 * GIB),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(1, 70)),
    st.integers(1, 8192),
    st.integers(1, 512),
    st.sampled_from(("smollm2-135m-instruct", "deepseek-v3-tiny-random")),
)
@settings(max_examples=70, deadline=None)
def test_a_plan_never_exceeds_the_memory_or_carries_less_than_one_request(total, replicas, kv, length, batch, model):
    facts = golden.merge(SMALL, {"memory": {"total_bytes": total}, "cpu": {"online": "0-3", "allowed": "0-3"}})
    facts["numa"] = {"nodes": [{"id": 0, "cpus": "0-3", "memory_bytes": total}]}
    request = {"model": model, "replicas_per_host": replicas, "max_model_len": length, "max_num_seqs": batch}
    planned = plan({"cpu01": engine(facts, request={**request, "kv_cache_gib": kv}), "build01": BUILD})
    if planned["ok"]:
        instances = planned["hosts"]["cpu01"]["slices"]["engine_service"]["instances"]
        assert sum(i["memory_max_bytes"] for i in instances) < total
        for group, instance in zip(planned["groups"], instances, strict=True):
            assert group["memory"]["total_bytes"] <= instance["memory_max_bytes"]


@given(st.sampled_from(golden.cases()), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_another_host_changes_nothing_for_those_that_were_there(case, number):
    inputs = golden.inputs(yaml.safe_load(Path(golden.GOLDEN, case, "case.yml").read_text()))
    before = plan_fleet(inputs)
    more = {**inputs.hosts, f"cpu{number}": {**engine(), "groups": ["engines", "pool_another"]}}
    after = plan_fleet(inputs._replace(hosts={**more, "zbuild": BUILD}))
    if before["ok"]:
        assert after["ok"]
        for name, host in before["hosts"].items():
            assert "engine_build" in host["slices"] or after["hosts"][name] == host


@given(st.integers(1, 6), st.lists(st.booleans(), min_size=6, max_size=6))
@settings(max_examples=60, deadline=None)
def test_engines_of_one_host_never_share_a_cpu_a_port_or_a_name(replicas, pinned):
    facts = golden.merge(SMALL, {"cpu": {"online": "0-7", "allowed": "0-7"}, "memory": {"total_bytes": 64 * GIB}})
    facts["numa"] = {"nodes": [{"id": n, "cpus": f"{n * 4}-{n * 4 + 3}", "memory_bytes": 32 * GIB} for n in (0, 1)]}
    requests = [
        {**REQUEST, "name": f"r{i}", **({"cpus": str(i), "port": 8000 + i} if pinned[i] else {})}
        for i in range(replicas)
    ]
    planned = plan({"cpu01": engine(facts, request=requests), "build01": BUILD})
    assert planned["ok"], planned["problems"]
    slices = planned["hosts"]["cpu01"]["slices"]
    bound = [c for i in slices["numa_policy"]["instances"] for c in _cpus(i["cpus"])]
    assert len(bound) == len(set(bound))
    assert len({i["port"] for i in slices["engine_service"]["instances"]}) == replicas
    assert len({i["name"] for i in slices["engine_service"]["instances"]}) == replicas
    for instance, binding in zip(
        slices["engine_service"]["instances"], slices["numa_policy"]["instances"], strict=True
    ):
        assert instance["environment"]["VLLM_CPU_OMP_THREADS_BIND"] == binding["cpus"]


def _cpus(text: str) -> list[int]:
    ranges = [part.partition("-") for part in text.split(",")]
    return [cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)]
