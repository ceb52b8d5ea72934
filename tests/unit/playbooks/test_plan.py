# SPDX-License-Identifier: Apache-2.0
"""playbooks/plan.yml from recordings, no host contacted: what it shows, what it refuses, and the record on a host."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import golden

PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
SECTIONS = {"pool_smollm2": "cpu01", "pool_deepseek": "cpu02"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An inventory of the golden demo beside the recordings of its hosts."""
    folder = tmp_path_factory.mktemp("site")
    case = yaml.safe_load((golden.GOLDEN / "cpu-demo" / "case.yml").read_text())
    for name, host in golden.inputs(case).hosts.items():
        (folder / f"{name}.json").write_text(json.dumps(host["hardware"]))
    pools = {
        pool: {"hosts": {host: {}}, "vars": {"engine_request": case["hosts"][host]["request"]}}
        for pool, host in SECTIONS.items()
    }
    groups = {"engines": {"children": pools}, "build": {"hosts": {"build01": {}}}}
    (folder / "inventory.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))
    return folder


def play(site: Path, *arguments: str, playbook: str = "playbooks/plan.yml") -> subprocess.CompletedProcess[str]:
    command = [str(PLAYBOOK), "-i", str(site / "inventory.yml"), playbook]
    command += ["-e", f"deployment_plan_recorded_hardware={site}", *arguments]
    environment = {**os.environ, "ANSIBLE_SHOW_CUSTOM_STATS": "true", "ANSIBLE_NOCOLOR": "1"}
    return subprocess.run(command, cwd=golden.ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def shown(site: Path) -> str:
    """What plan.yml prints about that fleet."""
    run = play(site, "-e", "plan_explain=cpu02")
    assert run.returncode == 0, run.stdout
    return run.stdout


def digest(text: str) -> str:
    return next(word for word in text.split() if word.startswith("sha256:"))


def test_it_shows_the_plan_and_changes_nothing(shown):
    assert "198.18.77.12:8000" in shown
    assert "engine_request.cpus asks for it" in shown
    assert "plan_digest: " + digest(shown) in shown.replace('"', "").replace("'", "")
    assert "changed=1" not in shown
    assert "unreachable=1" not in shown


def test_check_mode_shows_the_same_and_the_approved_digest_passes(site, shown):
    run = play(site, "--check", "--diff", "-e", f"deployment_plan_expected_digest={digest(shown)}")
    assert run.returncode == 0, run.stdout
    assert digest(run.stdout) == digest(shown)


def test_another_plan_than_the_approved_one_is_refused(site, shown):
    run = play(site, "-e", "deployment_plan_expected_digest=sha256:other")
    assert run.returncode == 2
    assert "The plan changed since it was approved: sha256:other -> " + digest(shown) in " ".join(run.stdout.split())


def test_a_plan_from_outside_is_refused(site):
    run = play(site, "-e", '{"deployment_plan": {"hosts": {}}}')
    assert run.returncode == 2
    assert "deployment_plan was supplied as a variable" in run.stdout


def test_mistakes_are_named_before_any_host_is_read(site):
    wrong = {"engine_request": {"model": "smollm2-135m-instruct", "max_modle_len": 8}, "old_name": 1}
    run = play(site, "-e", json.dumps({**wrong, "inventory_check_removed": {"old_name": "engine_request.model"}}))
    assert run.returncode == 2
    assert "E_REQUEST_KEY" in run.stdout
    assert "set:  max_model_len" in run.stdout
    assert "E_VARIABLE_REMOVED" in run.stdout
    assert "Read the hosts" not in run.stdout


@pytest.mark.slow
def test_limit_plans_part_of_a_fleet(site):
    run = play(site, "--limit", "cpu01,build01")
    assert run.returncode == 0, run.stdout
    assert "1 of 1 hosts of pool_deepseek are outside --limit" in run.stdout
    run = play(site, "--limit", "cpu01")
    assert run.returncode == 2
    assert "build01 is outside --limit" in run.stdout


def test_reports_are_written_and_are_no_change(site, tmp_path, shown):
    run = play(site, "--check", "-e", f"deployment_plan_report_directory={tmp_path}/reports/site")
    assert run.returncode == 0, run.stdout
    assert "changed=0" in run.stdout
    report = json.loads((tmp_path / "reports/site/plan.json").read_text())
    assert report["plan"]["digest"] == digest(shown)
    assert report["difference"]["hosts"]["cpu01"] == {"state": "new", "changes": []}
    document = (tmp_path / "reports/site/plan.md").read_text()
    assert document.startswith("# Deployment plan\n")
    assert digest(shown) in document
    before = sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "reports/site").iterdir())
    play(site, "-e", f"deployment_plan_report_directory={tmp_path}/reports/site")
    assert sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "reports/site").iterdir()) == before


def test_a_plan_with_problems_is_reported_too(site, tmp_path):
    wrong = {"engine_request": {"model": "smollm2-135m-instruct", "kv_cache_gib": 900}}
    run = play(site, "-e", json.dumps({**wrong, "deployment_plan_report_directory": str(tmp_path)}))
    assert run.returncode == 2
    report = json.loads((tmp_path / "plan.json").read_text())["plan"]
    assert "E_MEMORY" in {problem["code"] for problem in report["problems"]}
    assert "**No valid plan.**" in (tmp_path / "plan.md").read_text()


@pytest.mark.slow
def test_hosts_are_planned_as_machines_and_compared_with_recorded_plans(site, tmp_path):
    """No recording of cpu02 is needed: it is to be bought. cpu01 runs a plan with another port."""
    template = "{{ 6 * 7 }}"
    inventory = yaml.safe_load((site / "inventory.yml").read_text())
    pools = inventory["all"]["children"]["engines"]["children"]
    pools["pool_deepseek"]["hosts"]["cpu02"] = {"engine_machine": "xeon-8480-two-sockets"}
    del pools["pool_deepseek"]["vars"]["engine_request"]["cpus"]
    pools["pool_smollm2"]["vars"]["engine_request"]["extra_env"] = {"TEXT": "UNSAFE"}
    text = yaml.safe_dump(inventory).replace("TEXT: UNSAFE", f"TEXT: !unsafe '{template}'")
    (tmp_path / "inventory.yml").write_text(text)
    for name in ("cpu01", "build01"):
        (tmp_path / f"{name}.json").write_text((site / f"{name}.json").read_text())
    reports = ["-e", f"deployment_plan_report_directory={tmp_path}/reports"]
    run = play(tmp_path, *reports)
    assert run.returncode == 0, run.stdout
    assert "cpu02: planned from reference machine xeon-8480-two-sockets (reconstructed)" in run.stdout
    report = json.loads((tmp_path / "reports/plan.json").read_text())
    own = report["plan"]["hosts"]["cpu01"]
    instance = own["slices"]["engine_service"]["instances"][0]
    assert instance["environment"]["TEXT"] == template, "a value of the inventory was evaluated"
    instance["port"] = 8123
    (tmp_path / "cpu01.plan.json").write_text(json.dumps(own))
    run = play(tmp_path, *reports, "-e", "plan_explain=cpu01")
    assert "8123 → 8000" in run.stdout
    assert re.search(r"restart +instance smollm2 +cpu01", run.stdout)
    assert re.search(r"start +instance deepseek +cpu02", run.stdout)


@pytest.mark.slow
def test_each_host_is_compared_with_the_plan_on_it(site, tmp_path):
    """Hosts that are reached (their facts are recorded): what one runs must not be taken for what another runs."""
    inventory = yaml.safe_load((site / "inventory.yml").read_text())
    groups = inventory["all"]["children"]
    hosts = {"cpu01": "pool_smollm2", "cpu02": "pool_deepseek"}
    for number, (host, pool) in enumerate(hosts.items(), 11):
        own = {"engine_address": f"192.0.2.{number}", "deployment_plan_path": str(tmp_path / f"{host}.json")}
        groups["engines"]["children"][pool]["hosts"][host] = own
    inventory["all"]["vars"] = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "hardware_facts_recorded_directory": str(golden.MACHINES),
        "hardware_facts_recorded_machine": "epyc-virtual",
    }
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(inventory))
    arguments = ["-e", "deployment_plan_recorded_hardware=", "-e", f"deployment_plan_report_directory={tmp_path}"]
    run = play(tmp_path, *arguments)
    assert run.returncode == 0, run.stdout
    report = json.loads((tmp_path / "plan.json").read_text())
    assert {h: e["state"] for h, e in report["difference"]["hosts"].items()} == {"cpu01": "new", "cpu02": "new"}
    (tmp_path / "cpu01.json").write_text(json.dumps(report["plan"]["hosts"]["cpu01"]))
    play(tmp_path, *arguments, "--tags", "deploy")  # the plan is made whole, whatever stage is asked for
    report = json.loads((tmp_path / "plan.json").read_text())
    assert {h: e["state"] for h, e in report["difference"]["hosts"].items()} == {"cpu01": "same", "cpu02": "new"}


def record(site: Path, folder: Path, *digests: str) -> Path:
    """A playbook that records one plan after the other on this machine, as host cpu01, into `folder`."""
    plays: list[dict[str, Any]] = []
    for value in digests:
        variables = {
            "deployment_plan": {"hosts": {"cpu01": " " + json.dumps({"digest": value, "build": None, "slices": {}})}},
            "deployment_plan_path": str(folder / "plan.json"),
            "ansible_python_interpreter": sys.executable,
        }
        task = {"ansible.builtin.import_role": {"name": "deployment_plan", "tasks_from": "record"}}
        head = {"hosts": "cpu01", "gather_facts": False, "connection": "local"}
        plays.append({**head, "vars": variables, "tasks": [task]})
    (folder / "record.yml").write_text(yaml.safe_dump(plays))
    return folder / "record.yml"


@pytest.mark.skipif(os.geteuid() != 0, reason="the record belongs to root")
@pytest.mark.slow
def test_the_record_keeps_the_one_before(site, tmp_path):
    reached = ["-e", "deployment_plan_recorded_hardware="]
    run = play(site, *reached, "--check", playbook=str(record(site, tmp_path, "sha256:1")))
    assert "changed=1" in run.stdout
    assert not (tmp_path / "plan.json").exists()
    run = play(site, *reached, playbook=str(record(site, tmp_path, "sha256:1", "sha256:1", "sha256:2", "sha256:2")))
    assert "changed=3" in run.stdout, "written, the same, kept and replaced, the same"
    assert json.loads((tmp_path / "plan.json").read_text())["digest"] == "sha256:2"
    assert json.loads((tmp_path / "plan.previous.json").read_text())["digest"] == "sha256:1"
    run = play(site, playbook=str(record(site, tmp_path, "sha256:3")))
    assert run.returncode == 2
    assert "made from recordings" in run.stdout
