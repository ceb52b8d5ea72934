# SPDX-License-Identifier: Apache-2.0
"""playbooks/plan.yml as AWX starts it: artifacts, approval, events that stay readable."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from .conftest import BIN, ROOT, Controller

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def inventory(controller):
    return controller.inventory("inventories/demo")


@pytest.fixture(scope="module")
def job(controller, inventory, recorded):
    return controller.launch("playbooks/plan.yml", inventory, {"deployment_plan_recorded_hardware": str(recorded)})


def test_the_project_update_needs_no_server(controller: Controller):
    for result in controller.update():
        assert result.returncode == 0, result.stderr
        assert "ERROR" not in result.stderr


def test_it_succeeds_and_changes_nothing(job):
    assert job.status == "successful", job.stdout[-3000:]
    assert job.failures == []
    assert job.statistics["failures"] == job.statistics["dark"] == job.statistics["changed"] == {}


def test_the_digest_is_an_artifact_of_the_job(job):
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", job.statistics["artifact_data"]["plan_digest"])


def test_the_table_is_in_an_event_of_the_task_that_shows_it(job):
    shown = [event for event in job.events if event["event_data"].get("task") == "Show the plan"]
    assert any("smollm2-135m-instruct" in str(event["event_data"].get("res", "")) for event in shown)


def test_no_task_runs_once_per_host(job):
    """Planned from recordings, a thousand hosts cost what one costs: Ansible's own price is per host and task."""
    results = Counter(
        (event["event_data"]["play"], event["event_data"]["task"])
        for event in job.events
        if event["event"] in ("runner_on_ok", "runner_on_skipped")
    )
    assert len(results) > 8
    assert {task: number for task, number in results.items() if number != 1} == {}


def test_the_reports_are_files_of_the_job(controller, inventory, recorded, tmp_path):
    variables = {
        "deployment_plan_recorded_hardware": str(recorded),
        "deployment_plan_report_directory": str(tmp_path / "reports"),
    }
    job = controller.launch("playbooks/plan.yml", inventory, variables, check=True)
    assert job.status == "successful", job.stdout[-3000:]
    assert job.statistics["changed"] == {}
    report = json.loads((tmp_path / "reports" / "plan.json").read_text())
    assert report["plan"]["digest"] == job.statistics["artifact_data"]["plan_digest"]
    assert report["plan"]["digest"] in (tmp_path / "reports" / "plan.md").read_text()


def lines(text: str) -> list[str]:
    """Lines with something on them, without colours: where an event begins with a blank line differs by its kind."""
    return [line for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]


def test_every_line_of_output_belongs_to_an_event(job):
    """The progress callback prints from a thread of its own: a torn event would be lost text or a broken counter."""
    assert [event["counter"] for event in job.events] == list(range(1, len(job.events) + 1))
    said = Counter(line for event in job.events for line in lines(event["stdout"]))
    assert Counter(lines(job.stdout)) - said == Counter()
    assert any("STAGES" in event["stdout"] for event in job.events if event["event"] == "verbose")


def test_the_same_fleet_has_the_same_digest_on_the_command_line(job, recorded, tmp_path):
    command = [BIN / "ansible-playbook", "-i", "inventories/demo", "playbooks/plan.yml"]
    result = subprocess.run(
        [*command, "-e", f"deployment_plan_recorded_hardware={recorded}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    assert f"digest: {job.statistics['artifact_data']['plan_digest']}" in result.stdout


def test_a_plan_that_is_not_the_approved_one_stops_the_job(controller, inventory, recorded, job):
    approved = "sha256:" + "0" * 64
    variables = {"deployment_plan_recorded_hardware": str(recorded), "deployment_plan_expected_digest": approved}
    second = controller.launch("playbooks/plan.yml", inventory, variables)
    assert second.status == "failed"
    message = second.failures[0]["event_data"]["res"]["msg"]
    assert approved in message
    assert job.statistics["artifact_data"]["plan_digest"] in message


def test_a_plan_from_a_survey_is_refused(controller, inventory, recorded):
    variables = {"deployment_plan_recorded_hardware": str(recorded), "deployment_plan": {"digest": "mine"}}
    refused = controller.launch("playbooks/plan.yml", inventory, variables)
    assert refused.status == "failed"
    assert "set engine_request in the inventory" in refused.failures[0]["event_data"]["res"]["msg"]


def test_a_misspelt_request_reaches_the_operator_with_the_nearest_key(controller, recorded):
    inventory = controller.inventory("inventories/demo", cpu01={"engine_request": {"modle": "smollm2-135m-instruct"}})
    refused = controller.launch("playbooks/plan.yml", inventory, {"deployment_plan_recorded_hardware": str(recorded)})
    assert refused.status == "failed"
    told = json.dumps([event["event_data"]["res"] for event in refused.failures])
    assert "modle" in told
    assert "model" in told.replace("modle", "")


def test_every_playbook_would_be_offered_as_a_job_template():
    """AWX lists a file when one of its lines says `hosts:` or `import_playbook:`."""
    offered = re.compile(r"^\s*?-?\s*?(?:hosts|(ansible\.builtin\.)?import_playbook):\s*?.*?$", re.M)
    for path in [ROOT / "site.yml", *sorted((ROOT / "playbooks").glob("*.yml"))]:
        assert offered.search(Path(path).read_text(encoding="utf-8")), path.name
