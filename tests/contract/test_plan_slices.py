# SPDX-License-Identifier: Apache-2.0
"""What the planner hands out is what the roles take: every slice of every golden plan passes its role's door."""

import json
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

ROOT = Path(__file__).resolve().parents[2]
PLANS = [path for path in sorted((ROOT / "tests" / "golden").glob("*/plan.json")) if json.loads(path.read_text())["ok"]]


def doors(role: str) -> dict[str, dict]:
    """The specification of the slice in each entry point of a role that takes it."""
    source = ROOT / "roles" / role / "meta" / "argument_specs.yml"
    entries = yaml.safe_load(source.read_text(encoding="utf-8"))["argument_specs"]
    name = f"{role}_plan"
    return {entry: {name: spec["options"][name]} for entry, spec in entries.items() if name in spec.get("options", {})}


def slices(plan: dict) -> list[tuple[str, str, dict]]:
    """Every slice; where a plan is not installable because a site has not said where the weights are, as if it had."""
    for entry in [] if plan["installable"] else plan["hosts"].values():
        for model in entry["slices"].get("model_store", {}).get("models", []):
            if model["source"]["type"] == "hub":
                model["source"] = {"type": "path", "path": "/srv/models"}
    return [(host, role, part) for host, entry in plan["hosts"].items() for role, part in entry["slices"].items()]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.parent.name)
def test_every_slice_passes_the_specification_of_its_role(path):
    for host, role, part in slices(json.loads(path.read_text(encoding="utf-8"))):
        assert doors(role), f"{role} has a slice and no entry point takes it"
        for entry, specification in doors(role).items():
            errors = ArgumentSpecValidator(specification).validate({f"{role}_plan": part}).error_messages
            assert errors == [], f"{host}: {role}:{entry}"


def test_every_role_that_takes_a_slice_gets_one():
    assert PLANS, "no golden plan to look at"
    given = {role for path in PLANS for _host, role, _part in slices(json.loads(path.read_text(encoding="utf-8")))}
    taking = {path.name for path in (ROOT / "roles").iterdir() if (path / "meta").is_dir() and doors(path.name)}
    assert given == taking


def test_a_slice_is_specified_to_its_depth():
    """A bare `type: dict` would let anything in."""
    for path in sorted((ROOT / "roles").iterdir()):
        for entry, specification in doors(path.name).items() if (path / "meta").is_dir() else ():
            assert specification[f"{path.name}_plan"].get("options"), f"{path.name}:{entry}"


def test_a_wrong_slice_is_refused_at_the_door():
    specification = doors("host_baseline")["main"]
    result = ArgumentSpecValidator(specification).validate({"host_baseline_plan": {"reserved_port": [1]}})
    assert any("reserved_port" in message for message in result.error_messages)
