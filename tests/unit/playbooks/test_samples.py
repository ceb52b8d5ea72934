# SPDX-License-Identifier: Apache-2.0
"""The sample inventories plan without any host, from the reference machines they name; level of proof: stand-in."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import golden

PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
SAMPLES = sorted(path.name for path in (golden.ROOT / "inventories").glob("sample-*"))


def plan(inventory: Path, reports: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Plan an inventory as docs/planning.md says: reference machines, a report."""
    command = [str(PLAYBOOK), "-i", str(inventory), "playbooks/plan.yml"]
    command += ["-e", "deployment_plan_recorded_hardware=tests/fixtures/hardware"]
    command += ["-e", f"deployment_plan_report_directory={reports}"]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    run = subprocess.run(command, cwd=golden.ROOT, env=environment, capture_output=True, text=True, check=False)
    return run, json.loads((reports / "plan.json").read_text())


@pytest.fixture(scope="module", params=SAMPLES)
def sample(request, tmp_path_factory):
    """One sample: its name, what plan.yml printed, its report."""
    run, report = plan(golden.ROOT / "inventories" / request.param, tmp_path_factory.mktemp(request.param))
    assert run.returncode == 0, run.stdout
    return request.param, run.stdout, report


def pools(name: str) -> dict[str, Any]:
    hosts = yaml.safe_load((golden.ROOT / "inventories" / name / "hosts.yml").read_text())
    return hosts["all"]["children"]["engines"]["children"]


def test_it_plans_and_reaches_no_host(sample):
    name, shown, report = sample
    assert report["plan"]["ok"] is True
    assert "changed=0" in shown
    assert "unreachable=0" in shown
    assert re.search(r"PLAY \[Read the hosts\] \*+\nskipping: no hosts matched", shown)
    assert {group["pool"] for group in report["plan"]["groups"]} == set(pools(name))
    planned = {member["host"] for group in report["plan"]["groups"] for member in group["members"]}
    assert planned == {host for pool in pools(name).values() for host in pool["hosts"]}


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


def groups(tmp_path: Path, name: str) -> list[dict[str, Any]]:
    return plan(golden.ROOT / "inventories" / name, tmp_path)[1]["plan"]["groups"]


def test_deepseek_r1_is_one_replica_over_two_a2_hosts(tmp_path):
    (group,) = [g for g in groups(tmp_path, "sample-ascend") if g["pool"] == "pool_r1_a2"]
    assert [member["host"] for member in group["members"]] == ["npu01", "npu02"]
    assert (group["layout"]["data_parallel"], group["layout"]["tensor_parallel"]) == (4, 4)


def test_the_bank_has_four_a100_hosts_and_three_kunpeng_hosts(tmp_path):
    planned = groups(tmp_path, "sample-hybrid")
    gpus = [g for g in planned if g["pool"] == "pool_a100"]
    cpus = [g for g in planned if g["pool"] == "pool_kunpeng"]
    assert (len(gpus), len(cpus), len(planned)) == (4, 3, 7)
    assert {g["layout"]["tensor_parallel"] for g in gpus} == {4}
    assert {g["backend"] for g in cpus} == {"cpu"}


def test_a_smaller_machine_is_refused_before_it_is_bought(tmp_path):
    """The question the samples are for: would DeepSeek-V3.1 fit on these four hosts, with two L20 of 48 GB each?"""
    inventory = tmp_path / "inventory"
    shutil.copytree(golden.ROOT / "inventories" / "sample-hybrid", inventory)
    (inventory / "group_vars/pool_a100/machine.yml").write_text("engine_machine: l20-2\n")
    (inventory / "group_vars/pool_a100/request.yml").write_text("engine_request: {model: deepseek-v3.1}\n")
    run, report = plan(inventory, tmp_path / "reports")
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
