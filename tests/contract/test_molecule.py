# SPDX-License-Identifier: Apache-2.0
"""Molecule reports a missing playbook or a missing test as "missing" and still ends with 0: these do not."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / ".config/molecule/config.yml"
SCENARIOS = sorted((ROOT / "molecule").glob("*/molecule.yml"))
NEEDS_PLAYBOOK = {"create", "prepare", "converge", "side_effect", "cleanup", "destroy"}


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Molecule's way of laying a scenario's file over the base: mappings are merged, all else is replaced."""
    both = below | above
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            both[key] = merged(below[key], above[key])
    return both


def settings(scenario: Path) -> dict[str, Any]:
    return merged(yaml.safe_load(BASE.read_text()), yaml.safe_load(scenario.read_text()) or {})


def test_there_are_scenarios() -> None:
    assert SCENARIOS
    folders = {p.parent for p in (ROOT / "molecule").glob("*/*") if p.name != "__pycache__"}
    assert folders == {s.parent for s in SCENARIOS}, "a folder without molecule.yml is never run"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.parent.name)
class TestScenario:
    def test_every_playbook_of_its_sequence_exists(self, scenario: Path) -> None:
        found = settings(scenario)
        playbooks = found["ansible"]["playbooks"]
        for step in NEEDS_PLAYBOOK & set(found["scenario"]["test_sequence"]):
            assert (scenario.parent / playbooks.get(step, f"{step}.yml")).is_file(), step

    def test_verify_finds_something_to_run(self, scenario: Path) -> None:
        found = settings(scenario)
        if found["verifier"]["name"] == "testinfra":
            assert list((scenario.parent / "tests").glob("test_*.py"))
        else:
            assert (scenario.parent / found["ansible"]["playbooks"].get("verify", "verify.yml")).is_file()

    def test_check_mode_runs_on_clean_and_on_converged_hosts(self, scenario: Path) -> None:
        steps = settings(scenario)["scenario"]["test_sequence"]
        at = {step: steps.index(step) for step in ("create", "converge", "idempotence", "verify", "destroy")}
        checks = [i for i, step in enumerate(steps) if step == "check"]
        assert any(at["create"] < c < at["converge"] for c in checks)
        assert at["converge"] < at["idempotence"]
        assert any(at["idempotence"] < c < at["verify"] for c in checks)
        assert steps[-1] == "destroy", "hosts are left behind"

    def test_its_name_is_its_folder(self, scenario: Path) -> None:
        assert settings(scenario)["scenario"].get("name", scenario.parent.name) == scenario.parent.name

    def test_its_inventory_has_hosts(self, scenario: Path) -> None:
        inventory = yaml.safe_load((scenario.parent / "inventory/hosts.yml").read_text())
        assert "hosts:" in yaml.safe_dump(inventory)
