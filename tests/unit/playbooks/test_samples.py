# SPDX-License-Identifier: Apache-2.0
"""The sample inventories plan without any host, from the reference machines they name; level of proof: stand-in."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import golden

PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
SAMPLES = sorted(path.name for path in (golden.ROOT / "inventories").glob("sample-*"))


def play(inventory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PLAYBOOK), "-i", str(inventory), *arguments]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    return subprocess.run(command, cwd=golden.ROOT, env=environment, capture_output=True, text=True, check=False)


def plan(inventory: Path, reports: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Plan an inventory as docs/planning.md says, with a report."""
    run = play(inventory, "playbooks/plan.yml", "-e", f"deployment_plan_report_directory={reports}", *arguments)
    return run, json.loads((reports / "plan.json").read_text())


@functools.cache
def planned(name: str) -> tuple[str, str, dict[str, Any]]:
    """One sample: its name, what plan.yml printed, its report."""
    with tempfile.TemporaryDirectory() as reports:
        run, report = plan(golden.ROOT / "inventories" / name, Path(reports))
    assert run.returncode == 0, run.stdout
    return name, run.stdout, report


@pytest.fixture(params=SAMPLES)
def sample(request):
    return planned(request.param)


def pools(name: str) -> dict[str, Any]:
    hosts = yaml.safe_load((golden.ROOT / "inventories" / name / "hosts.yml").read_text())
    return hosts["all"]["children"]["engines"]["children"]


def test_it_plans_and_reaches_no_host(sample):
    name, shown, report = sample
    assert report["plan"]["ok"] is True
    assert "changed=0" in shown
    assert "unreachable=0" in shown
    assert {group["pool"] for group in report["plan"]["groups"]} == set(pools(name))
    members = {member["host"] for group in report["plan"]["groups"] for member in group["members"]}
    assert members == {host for pool in pools(name).values() for host in pool["hosts"]}


def test_it_says_that_no_host_was_seen(sample):
    _, shown, report = sample
    used = report["difference"]["machines"]
    assert set(used) == set(report["plan"]["hosts"]) | {h for h in used if h.startswith("build")}
    for machine in {entry["machine"] for entry in used.values()}:
        assert f"planned from reference machine {machine} (reconstructed" in " ".join(shown.split())


def test_every_engine_fits_its_devices(sample):
    for group in sample[2]["plan"]["groups"]:
        memory = group["memory"]
        assert 0 < memory["weights_bytes"] < memory["total_bytes"] <= memory["budget_bytes"], group["name"]
        assert group["endpoint"]["port"] >= 8000


def test_every_machine_it_names_is_documented(sample):
    described = (golden.MACHINES / "README.md").read_text()
    for entry in sample[2]["difference"]["machines"].values():
        assert f"`{entry['machine']}`" in described


def test_a_sample_holds_no_secret_and_asks_for_few_things():
    for path in (golden.ROOT / "inventories").glob("sample-*/group_vars/*/request.yml"):
        requests = yaml.safe_load(path.read_text())["engine_request"]
        for request in requests if isinstance(requests, list) else [requests]:
            assert set(request) == {"model"}, f"{path}: the plan decides the rest"


def test_deepseek_r1_is_one_replica_over_two_a2_hosts():
    (group,) = [g for g in planned("sample-ascend")[2]["plan"]["groups"] if g["pool"] == "pool_r1_a2"]
    assert [member["host"] for member in group["members"]] == ["npu01", "npu02"]
    assert (group["layout"]["data_parallel"], group["layout"]["tensor_parallel"]) == (4, 4)


def test_the_bank_has_four_a100_hosts_and_three_kunpeng_hosts():
    groups = planned("sample-hybrid")[2]["plan"]["groups"]
    gpus = [g for g in groups if g["pool"] == "pool_a100"]
    cpus = [g for g in groups if g["pool"] == "pool_kunpeng"]
    assert (len(gpus), len(cpus), len(groups)) == (4, 3, 7)
    assert {g["layout"]["tensor_parallel"] for g in gpus} == {4}
    assert {g["backend"] for g in cpus} == {"cpu"}


@pytest.mark.slow
def test_a_smaller_machine_is_refused_before_it_is_bought(tmp_path):
    """The question the samples are for: would DeepSeek-V3.1 fit on these four hosts, with two L20 of 48 GB each?"""
    inventory = tmp_path / "inventory"
    shutil.copytree(golden.ROOT / "inventories" / "sample-hybrid", inventory)
    (inventory / "group_vars/pool_a100/machine.yml").write_text("engine_machine: l20-2\n")
    (inventory / "group_vars/pool_a100/request.yml").write_text("engine_request: {model: deepseek-v3.1}\n")
    run, report = plan(inventory, tmp_path / "reports", "-e", f"deployment_plan_recorded_hardware={golden.MACHINES}")
    assert run.returncode == 2
    problems = report["plan"]["problems"]
    assert {problem["code"] for problem in problems} == {"E_DEVICE_MEMORY"}
    assert [problem["host"] for problem in problems] == ["gpu01"]
    assert "the same on 3 more hosts" in problems[0]["message"]
    assert problems[0]["set"].startswith("nodes: 11"), "what would make it fit, computed"
    document = (tmp_path / "reports" / "plan.md").read_text()
    for problem in problems:
        assert problem["set"].replace("|", "\\|") in document
        assert " ".join(problem["set"].split()[:3]) in run.stdout


@pytest.mark.slow
def test_what_was_not_looked_at_is_not_installed():
    run = play(golden.ROOT / "inventories/sample-nvidia", "site.yml")
    assert run.returncode == 2
    assert "This plan was made from recordings" in run.stdout
    assert "Take deployment_plan_recorded_hardware away" in run.stdout
    assert "TASK [engine_build" not in run.stdout


@pytest.mark.slow
def test_what_is_only_planned_is_not_installed(tmp_path):
    """300I Duo that were looked at (their facts are a recording): this version plans them, no role installs them."""
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "engine_address": "192.0.2.11",
        "engine_request": {"model": "qwen2.5-7b-instruct"},
        "hardware_facts_recorded_directory": str(golden.MACHINES),
        "hardware_facts_recorded_machine": "atlas-300i-duo",
    }
    inventory = {"all": {"children": {"engines": {"children": {"pool_r1": {"hosts": {"npu01": host}}}}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    run = play(tmp_path / "hosts.yml", "site.yml")
    assert run.returncode == 2
    assert "The plan is valid, but cannot be installed yet; nothing was changed." in run.stdout
    assert "r1-npu01: row vllm-ascend-0.23.0.post1-310p is known and planned" in " ".join(run.stdout.split())
    assert "changed=0" in run.stdout and "TASK [host_baseline" not in run.stdout
