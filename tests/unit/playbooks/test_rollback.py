# SPDX-License-Identifier: Apache-2.0
"""playbooks/rollback.yml and the refusal of a drifted host by site.yml, against this machine and recorded facts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import golden

pytestmark = pytest.mark.slow

PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
INSTANCE = {"name": "a", "group": "a-h1", "model": "m", "model_size_bytes": 1}


def play(folder: Path, hosts: dict[str, Any], playbook: str, *arguments: str, **variables: Any) -> tuple[int, str]:
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    groups: dict[str, Any] = {
        "engines": {"children": {"pool_a": {"hosts": hosts}}},
        "build": {"hosts": {"build01": {}}},
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups, "vars": {**local, **variables}}}))
    run = subprocess.run(
        [str(PLAYBOOK), "-i", str(folder / "hosts.yml"), playbook, *arguments], cwd=golden.ROOT, text=True,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, capture_output=True, check=False,
    )  # fmt: skip
    return run.returncode, " ".join(run.stdout.split())


def previous(folder: Path, host: str, installed: Any = None, **slices: Any) -> dict[str, Any]:
    """A host with a plan recorded before the one it runs; `installed` is what it ran with."""
    own = {"digest": "sha256:1", "slices": {"engine_service": {"instances": [INSTANCE]}, **slices}}
    (folder / f"{host}.previous.json").write_text(
        json.dumps({**own, **({"installed": installed} if installed else {})})
    )
    return {"deployment_plan_path": str(folder / f"{host}.json")}


def test_what_a_host_cannot_go_back_to_is_named(tmp_path):
    release = tmp_path / "release"
    (release / "bin").mkdir(parents=True)
    (release / "bin/python3").touch()
    stack = {
        "ascend_driver": {"driver": "25.5.0", "firmware": "7.8.0.5.201", "chip": "910b", "npus": 8},
        "ascend_cann": {"cann": "9.1.0", "nnal": "9.1.0", "chip": "910b", "cxx_abi": 1},
    }
    there = {"release": str(release), "models": {}}
    gone = {"ascend_driver": {"driver": {"file": "d.run", "sha256": "0", "path": str(tmp_path / "d.run")}}}
    hosts = {
        "none": {"deployment_plan_path": str(tmp_path / "none.json")},
        "old": previous(tmp_path, "old"),
        "pruned": previous(
            tmp_path, "pruned", {"release": "/nowhere/r1", "models": {"m": {"directory": "/nowhere/m"}}}
        ),
        "bare": previous(tmp_path, "bare", there, **stack),
        "moved": previous(tmp_path, "moved", {**there, "packages": gone}, **stack),
    }
    code, shown = play(tmp_path, hosts, "playbooks/rollback.yml")
    assert code == 2
    for part in (
        "none has no plan to go back to",
        "none.previous.json is not there",
        "old.previous.json is without what it ran with",
        "pruned cannot go back: /nowhere/r1/bin/python3 is not there; /nowhere/m is not there.",
        "bare cannot go back: driver 25.5.0 has to be installed again, and no package of it was recorded; firmware",
        f"moved cannot go back: driver 25.5.0 has to be installed again, and {tmp_path}/d.run is not on the controller",
    ):
        assert part in shown
    assert "TASK [host_baseline" not in shown, "nothing was changed"


def test_hosts_of_one_replica_go_back_together_or_not_at_all(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").touch()
    there = {"release": str(tmp_path), "models": {}}
    hosts = {name: previous(tmp_path, name, there) for name in ("h1", "h2")}
    code, shown = play(tmp_path, hosts, "playbooks/rollback.yml")
    assert code == 2
    assert "h1 runs one replica with h2, which this batch leaves out" in shown
    assert "h2 runs one replica" not in shown, "the next batch is not begun"


@pytest.mark.skipif(os.geteuid() != 0, reason="the record belongs to root")
def test_the_two_records_change_places(tmp_path):
    for name, value in (("h1.json", "now"), ("h1.previous.json", "before")):
        (tmp_path / name).write_text(json.dumps({"digest": value, "text": "{{ 6 * 7 }}"}, indent=1))
    task = {"ansible.builtin.import_role": {"name": "deployment_plan", "tasks_from": "restore"}}
    (tmp_path / "restore.yml").write_text(yaml.safe_dump([{"hosts": "h1", "gather_facts": False, "tasks": [task]}]))
    host = {"h1": {"deployment_plan_path": str(tmp_path / "h1.json")}}
    code, shown = play(tmp_path, host, str(tmp_path / "restore.yml"))
    assert code == 0, shown
    for name, value in (("h1.json", "before"), ("h1.previous.json", "now")):
        assert json.loads((tmp_path / name).read_text()) == {"digest": value, "text": "{{ 6 * 7 }}"}


def test_site_leaves_a_host_alone_that_somebody_else_changed(tmp_path):
    """An A2 whose driver was replaced by hand: its facts are a recording, and so is what was recorded on it."""
    recorded = {"digest": "sha256:1", "slices": {"ascend_driver": {"driver": "25.3.rc1", "firmware": "7.8.0.5.201"}}}
    (tmp_path / "npu01.json").write_text(json.dumps(recorded))
    host = {
        "engine_address": "192.0.2.11",
        "engine_request": {"model": "qwen3-8b"},
        "engine_models": {"qwen3-8b": {
            **golden.catalogue()["models"]["qwen3-8b"], "source": {"type": "path", "path": "/srv/qwen3-8b"}}},
        "deployment_plan_path": str(tmp_path / "npu01.json"),
        "hardware_facts_recorded_directory": str(golden.MACHINES),
        "hardware_facts_recorded_machine": "atlas-800t-a2",
    }  # fmt: skip
    build = {key: host[key] for key in host if key.startswith("hardware_facts")}
    code, shown = play(
        tmp_path, {"npu01": host}, "site.yml", "--tags", "accelerator", **build, engine_models=host["engine_models"]
    )
    assert code == 2
    assert "npu01 is no longer what was recorded on it" in shown
    assert "ascend_driver.driver was 25.3.rc1 when it was recorded, is 25.5.0, and the plan has 25.5.0" in shown
    assert "set site_accept_drift: true" in shown
    assert "changed=0" in shown
