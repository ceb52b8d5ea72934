# SPDX-License-Identifier: Apache-2.0
"""The entry points of role engine_service on a booted host, with the stand-in engine as two releases.

The tests follow one host through its life and run in the order of the file.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
LAB_ID = os.environ.get("LAB_TEST_SERVICE_ID", "69")
ENVIRONMENT = os.environ | {"LAB_ID": LAB_ID, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
RELEASES = "/opt/vllm/releases"

PLAYBOOK = """
- hosts: all
  gather_facts: false
  vars:
    engine_service_api_key: stand-in-key
    engine_service_release_directory: "/opt/vllm/releases/{{ release }}"
    engine_service_models: {tiny: {directory: /var/lib/vllm/models/tiny, size_bytes: 1, read_bytes_per_s: 1}}
    engine_service_plan: {instances: "{{ instances }}"}
  tasks:
    - ansible.builtin.import_role: {name: host_baseline}
      when: entry == 'main'
    - ansible.builtin.include_role: {name: engine_service, tasks_from: "{{ entry }}"}
"""

INSTANCE = {
    "name": "one",
    "model": "tiny",
    "served_model_name": "tiny",
    "listen_address": "127.0.0.1",
    "port": 8000,
    "model_size_bytes": 1,
}


class Host:
    """One lab host and the playbook run against it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "play.yml").write_text(PLAYBOOK)

    def lab(self, *argv: str, stdin: bytes | None = None) -> str:
        result = subprocess.run(
            [ROOT / "lab/lab", *argv], env=ENVIRONMENT, input=stdin, capture_output=True, check=False, timeout=120
        )
        assert result.returncode == 0, f"lab {argv}: {result.stdout.decode()}{result.stderr.decode()}"
        return result.stdout.decode().strip()

    def run(self, command: str) -> str:
        return self.lab("exec", "service", "--", "sh", "-c", command)

    def play(self, entry: str, *, release: str = "a", instances: list[dict] | None = None, **variables: object) -> str:
        """Run one entry point; returns the whole output, its last line begins with the number of changes."""
        extra = {"entry": entry, "release": release, "instances": [INSTANCE] if instances is None else instances}
        inventory = self.folder / "hosts.yml"
        inventory.write_text(self.lab("inventory"))
        result = subprocess.run(
            [
                *("ansible-playbook", "--inventory", inventory, self.folder / "play.yml"),
                *("--extra-vars", json.dumps(extra | variables)),
            ],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        self.failed = result.returncode != 0
        return result.stdout

    def links(self) -> tuple[str, str]:
        return tuple(self.run("readlink /opt/vllm/instances/one/current /opt/vllm/instances/one/previous").split())

    def started(self) -> str:
        assert self.run("systemctl is-active vllm-one") == "active"
        return self.run("systemctl show --value --property=InvocationID vllm-one")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("engine_service"))
    host.lab("down", "--all")
    try:
        host.lab("up", "service")
        archive = subprocess.run(
            ["tar", "c", "-C", ROOT / "tests/fixtures/stand_in_engine", "vllm"], capture_output=True, check=True
        ).stdout
        host.run(f"mkdir -p {RELEASES} /var/lib/vllm/models/tiny; cd {RELEASES}; python3 -m venv --without-pip a")
        host.lab("exec", "service", "--", "tar", "x", "-C", f"{RELEASES}/a/lib/python3.11/site-packages", stdin=archive)
        host.run(f"cp -a {RELEASES}/a {RELEASES}/b")
        yield host
    finally:
        host.lab("down", "--all")


def test_an_empty_key_stops_the_role_before_it_changes_anything(host: Host) -> None:
    output = host.play("main", engine_service_api_key=" ")
    assert host.failed
    assert "engine_service_api_key is empty" in output
    assert host.run("ls /etc/vllm/instances") == ""


def test_main_starts_the_instance(host: Host) -> None:
    output = host.play("main")
    assert not host.failed, output
    host.started()


def test_what_an_interrupted_run_left_behind_is_completed(host: Host) -> None:
    before = host.started()
    # As if the run had ended between writing a drop-in and everything after it.
    folder = "/etc/systemd/system/vllm-one.service.d"
    host.run(f"mkdir {folder}; printf '[Service]\\nNice=5\\n' > {folder}/20-numa.conf")
    host.play("main")
    assert not host.failed
    assert host.started() != before
    assert host.run("systemctl show --value --property=Nice vllm-one") == "5"
    again = host.started()
    assert "changed=0" in host.play("main")
    assert host.started() == again


def test_activate_switches_and_restore_switches_back(host: Host) -> None:
    before = host.started()
    host.play("activate", release="b")
    assert not host.failed
    assert host.links() == (f"{RELEASES}/b", f"{RELEASES}/a")
    after = host.started()
    assert after != before
    host.play("restore")
    assert not host.failed
    assert host.links() == (f"{RELEASES}/a", f"{RELEASES}/b")
    assert host.started() != after


def test_a_release_that_is_not_there_is_refused(host: Host) -> None:
    before = host.started()
    output = host.play("activate", release="c")
    assert host.failed
    assert "/opt/vllm/releases/c is not on this host, one keeps its release" in output
    assert (host.links()[0], host.started()) == (f"{RELEASES}/a", before)


def test_a_start_that_fails_says_why(host: Host) -> None:
    output = host.play("main", instances=[{**INSTANCE, "environment": {"STAND_IN_NO_TOKENS": "1"}}])
    assert host.failed
    assert "vllm-one.service does not serve" in output
    assert "the first request gave no token" in output


def test_a_corrected_request_is_served_again(host: Host) -> None:
    host.play("main")
    assert not host.failed
    host.started()


def test_an_instance_that_left_the_plan_is_removed(host: Host) -> None:
    host.play("main", instances=[])
    assert not host.failed
    left = host.run(
        "find /etc /opt/vllm/instances /var/lib/vllm /var/cache/vllm /run/vllm -name '*one*' 2>/dev/null || true"
    )
    assert [path for path in left.splitlines() if "vllm" in path] == []
    assert "not-found" in host.run("systemctl show --property=LoadState vllm-one")
    assert "changed=0" in host.play("main", instances=[])
