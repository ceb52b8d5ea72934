# SPDX-License-Identifier: Apache-2.0
"""Replicas over several hosts come up in one play: the real tasks that start and wait, over a stand-in of systemd."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROLE = Path(__file__).resolve().parents[3] / "roles/engine_service"
START_ONLY = "- ansible.builtin.include_tasks: start.yml\n  vars: {__engine_service_would_restart: false}\n"
# In the place of the tasks that write the unit and start it: only note that it was started.
NOTE_START = """
- ansible.builtin.set_fact:
    __engine_service_unit: {unit: "{{ __engine_service_instance.name }}", timeout_start_seconds: 2}
- ansible.builtin.command: touch {{ state }}/{{ inventory_hostname }}-{{ __engine_service_unit.unit }}
"""
# Calls a unit active when all hosts of its replica have started it.
SYSTEMCTL = """#!/bin/sh
set -eu
unit=$3
members=$(cat "$STATE/members-$unit")
for host in $members; do
  test -e "$STATE/$host-$unit" || { echo ActiveState=activating; exit 0; }
done
echo ActiveState=active
"""
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: engine_service, tasks_from: activate}
"""


def test_a_replica_at_different_positions_of_its_hosts_comes_up(tmp_path):
    state, tasks = tmp_path / "state", tmp_path / "roles/engine_service/tasks"
    state.mkdir()
    shutil.copytree(ROLE / "tasks", tasks)
    for folder in ("vars", "defaults"):
        shutil.copytree(ROLE / folder, tmp_path / "roles/engine_service" / folder)
    (tasks / "activate_instance.yml").write_text(START_ONLY)
    text = (tasks / "start.yml").read_text()
    # the unit's file and systemd are the host's; what remains is when tasks run
    before, after = text.split("- name: Start | Enable the unit")
    enable, rest = after.split("- name: Start | Keep")
    assert "vllm_service_unit:" in before
    assert "no_block: true" in enable
    (tasks / "start.yml").write_text(NOTE_START + "- name: Start | Keep" + rest)

    hosts = {"h1": ["a"], "h2": ["a", "b"], "h3": ["b", "c"]}
    for name in "abc":
        (state / f"members-{name}").write_text(" ".join(host for host, names in hosts.items() if name in names))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/systemctl").write_text(SYSTEMCTL)
    (tmp_path / "bin/journalctl").write_text("#!/bin/sh\n")
    for script in (tmp_path / "bin").iterdir():
        script.chmod(0o755)
    flags = {"a": {"data-parallel-address": "192.0.2.1"}, "b": {"master-addr": "192.0.2.2"}, "c": {}}
    common = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "state": str(state)}
    inventory = {}
    for host, names in hosts.items():
        planned = [{"name": name, "model": "m", "flags": flags[name]} for name in names]
        inventory[host] = {**common, "engine_service_plan": {"instances": planned}}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": inventory}}))
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["ansible-playbook", "-i", "hosts.json", "play.yml"],
        cwd=tmp_path, env={"PATH": path, "HOME": str(tmp_path), "STATE": str(state), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    # an instance of one host is waited for before the next is started, the others at the end
    assert result.stdout.count("Wait | Ask until the unit is up") == 3
