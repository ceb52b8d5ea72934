# SPDX-License-Identifier: Apache-2.0
"""The progress callback: its pure parts, and whole runs of ansible-playbook with it enabled."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def plugin():
    spec = importlib.util.spec_from_file_location("vllm_progress", ROOT / "callback_plugins" / "vllm_progress.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"status": "loading weights 40 %"}, "loading weights 40 %"),
        ({"status": {"StatusText": "loading", "ActiveState": "activating"}}, "loading"),
        ({"StatusText": " compiling "}, "compiling"),
        ({"stdout": "ActiveState=activating\nStatusText=a=b"}, "a=b"),
        ({"status": {"ActiveState": "activating"}}, None),
        ({"status": 503}, None),
        ({"stdout": "StatusText="}, None),
        ({}, None),
    ],
)
def test_status_text(plugin, result, text):
    assert plugin.status_text(result) == text


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"stage": "download", "percent": 42.4, "message": "1 of 2 MiB"}, "download 42 % 1 of 2 MiB"),
        ({"stage": "build", "percent": None, "message": ""}, "build"),
        ({"stage": "start", "percent": 0, "message": ""}, "start 0 %"),
    ],
)
def test_progress_words(plugin, record, words):
    assert plugin.progress_words(record) == words


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"updated": 99.0}', '{"updated": null}'])
def test_progress_that_is_stale_or_broken_is_none(plugin, tmp_path, content):
    path = tmp_path / "progress.json"
    path.write_text(content)
    assert plugin.read_progress(path, since=100.0) is None
    assert plugin.read_progress(tmp_path / "missing", since=100.0) is None


def test_a_running_task_speaks_at_the_heartbeat_and_when_its_stage_changes(plugin, tmp_path):
    path = tmp_path / "progress.json"
    running = plugin.Running("Build the engine", now=0.0, wall=1000.0)
    running.hosts = [f"host{number}" for number in range(6)]
    running.paths = {"host0": str(path)}
    assert running.line(14.9, heartbeat=15) is None
    assert running.line(15.0, heartbeat=15) == (
        "RUNNING 15 s: [host0, host1, host2, host3 and 2 more]: Build the engine"
    )
    path.write_text(json.dumps({"stage": "compile", "percent": 3, "message": "", "updated": 1016.0}))
    assert running.line(16.0, heartbeat=15) is None, "news waits two seconds after the last line"
    assert running.line(17.0, heartbeat=15).endswith("\n  host0: compile 3 %")
    assert running.line(31.0, heartbeat=15) is None, "the same stage is no news"
    assert running.line(32.0, heartbeat=15)


def test_stages_count_time_to_play_and_role_and_merge_batches(plugin):
    stages = plugin.Stages()
    stages.task(None, 0.0)  # a task before any play is nobody's
    stages.play("install", 1.0)
    stages.task("release", 2.0)
    stages.task("release", 4.0)
    stages.task(None, 5.0)
    stages.play("other", 10.0)
    stages.play("install", 11.0)
    stages.task("service", 11.0)
    stages.close(12.5)
    assert stages.listing() == [
        {
            "name": "install",
            "seconds": 10.5,
            "tasks": 4,
            "roles": [{"name": "release", "seconds": 3.0, "tasks": 2}, {"name": "service", "seconds": 1.5, "tasks": 1}],
        },
        {"name": "other", "seconds": 1.0, "tasks": 0, "roles": []},
    ]
    assert [line.split() for line in stages.table()[:3]] == [
        ["stage", "seconds", "tasks"],
        ["install", "10.5", "4"],
        ["release", "3.0", "2"],
    ]


def test_an_error_in_a_handler_switches_the_callback_off_and_is_not_raised(plugin):
    callback = plugin.CallbackModule()
    callback.v2_runner_on_ok(object())
    assert callback.disabled
    assert callback._finished.is_set()


PLAYBOOK = """
- name: First stage
  hosts: localhost
  gather_facts: false
  vars: {where: "{{ lookup('env', 'PROGRESS_FILE') }}"}
  tasks:
    - name: Take a while
      slow: {progress_path: "{{ where }}"}
    - name: Wait for the service
      ansible.builtin.shell: >-
        echo StatusText=loading weights; test -e {{ where }}.again || ! touch {{ where }}.again
      register: poll
      until: poll.rc == 0
      retries: 3
      delay: 0
- name: Second stage
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Fail
      ansible.builtin.fail: {msg: no}
      when: lookup('env', 'FAIL') == '1'
"""

# The module keeps running until a heartbeat was printed: the test waits for the event, not for a while.
MODULE = """
import json, os, time
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"progress_path": {"type": "path"}})
path = module.params["progress_path"]
for number in range(100):
    with open(path + ".new", "w") as stream:
        json.dump({"stage": "download", "percent": 50, "message": "half", "updated": time.time()}, stream)
    os.rename(path + ".new", path)
    if os.path.exists(path + ".seen"):
        break
    time.sleep(0.2)
module.exit_json(changed=False)
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "slow.py").write_text(MODULE)
    (tmp_path / "ansible.cfg").write_text(
        textwrap.dedent(f"""\
        [defaults]
        library = library
        callback_plugins = {ROOT / "callback_plugins"}
        callbacks_enabled = vllm_progress
        [callback_vllm_progress]
        heartbeat_seconds = 0.5
        """)
    )
    return tmp_path


def play(project, **environment):
    """Run the playbook, telling the slow module as soon as its progress was shown; returns (exit code, output)."""
    command = [
        *(sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "-c", "local"),
        *("-e", f"ansible_python_interpreter={sys.executable}", "play.yml"),
    ]
    progress_file = project / "progress.json"
    env = {**os.environ, **environment, "PROGRESS_FILE": str(progress_file), "ANSIBLE_CONFIG": "ansible.cfg"}
    process = subprocess.Popen(
        command, cwd=project, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    output = ""
    for line in process.stdout:
        output += line
        if "download 50 % half" in line:
            (project / "progress.json.seen").touch()
    watchdog.cancel()
    return process.wait(), output


def test_a_run_shows_progress_status_and_stages(project):
    code, output = play(project, VLLM_PROGRESS_SUMMARY=str(project / "summary.json"))
    assert code == 0, output
    assert re.search(r"RUNNING \d+ s: \[localhost\]: Take a while\n  localhost: download 50 % half", output), output
    assert "  localhost: loading weights\n" in output
    assert "DEPRECATION" not in output
    assert re.search(r"STAGES \**\n\s*stage +seconds +tasks\n", output), output
    summary = json.loads((project / "summary.json").read_text())
    assert summary["playbook"] == "play.yml"
    assert [(stage["name"], stage["tasks"]) for stage in summary["stages"]] == [("First stage", 2), ("Second stage", 1)]
    stages = sum(stage["seconds"] for stage in summary["stages"])
    assert stages > 0.5 and summary["seconds"] > stages - 0.05, "each figure is rounded to hundredths"


def test_a_failed_run_still_has_its_stages_and_its_exit_code(project):
    (project / "progress.json.seen").touch()
    code, output = play(project, FAIL="1", VLLM_PROGRESS_SUMMARY=str(project / "summary.json"))
    assert code == 2, output
    assert len(json.loads((project / "summary.json").read_text())["stages"]) == 2


def test_a_summary_that_cannot_be_written_does_not_fail_the_run(project):
    (project / "progress.json.seen").touch()
    code, output = play(project, VLLM_PROGRESS_SUMMARY=str(project / "missing" / "summary.json"))
    assert code == 0, output
    assert "Callback dispatch" not in output
