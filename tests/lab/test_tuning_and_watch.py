# SPDX-License-Identifier: Apache-2.0
"""The roles tuned_profile and accelerator_watch through the life of one booted host, its journal and a power cut.

Only sysctls of the network are real in a lab host: they are its own. The tests run in the order of the file.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
LAB_ID = os.environ.get("LAB_TEST_WATCH_ID", "74")
ENVIRONMENT = os.environ | {"LAB_ID": LAB_ID, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
MESSAGE_ID = "b6d8c7a4f1e94c0f9a3be2d5708c1f46"
STATE = "/var/lib/accelerator-watch"

PLAYBOOK = """
- hosts: all
  gather_facts: false
  vars:
    tuned_profile_plan:
      profile: vllm-cpu
      sysctls: {net.ipv4.tcp_keepalive_time: "120", net.ipv4.no_such_thing: "1"}
    accelerator_watch_hook:
      - /bin/sh
      - -c
      - echo "$VLLM_RULE $VLLM_CODE $VLLM_DEVICE" >> /var/lib/accelerator-watch/drained
    accelerator_watch_actions: {nccl_network: drain}
  tasks:
    - ansible.builtin.include_role: {name: tuned_profile, tasks_from: "{{ entry }}"}
    - ansible.builtin.include_role: {name: accelerator_watch, tasks_from: "{{ entry }}"}
"""

COMPLETION = (
    "gpu01:982:1261 [2] NCCL WARN NET/IB : Got completion from peer 198.51.100.7<55921> with status=12 opcode=1 len=0 "
    "vendor err 129 (Send)"
)
XID = "NVRM: Xid (PCI:0000:04:00): 79, pid=1, GPU has fallen off the bus."


class Host:
    """One lab host and the playbook run against it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "play.yml").write_text(PLAYBOOK)

    def lab(self, *argv: str) -> str:
        result = subprocess.run(
            [ROOT / "lab/lab", *argv], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120
        )
        assert result.returncode == 0, f"lab {argv}: {result.stdout}{result.stderr}"
        return result.stdout.strip()

    def run(self, command: str) -> str:
        return self.lab("exec", "watched", "--", "sh", "-c", command)

    def play(self, entry: str, *options: str) -> tuple[int, int, str]:
        """Run one entry point of both roles; returns (exit status, changes, output)."""
        inventory = self.folder / "hosts.yml"
        inventory.write_text(self.lab("inventory"))
        result = subprocess.run(
            ["ansible-playbook", "-i", inventory, self.folder / "play.yml", "-e", f"entry={entry}", *options],
            cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        changed = re.search(r"changed=(\d+)", result.stdout)
        assert changed, result.stdout + result.stderr
        return result.returncode, int(changed[1]), result.stdout

    def keepalive(self) -> str:
        return self.run("cat /proc/sys/net/ipv4/tcp_keepalive_time")

    def events(self) -> list[dict[str, str]]:
        lines = self.run(f"journalctl -q -o json MESSAGE_ID={MESSAGE_ID}").splitlines()
        return [json.loads(line) for line in lines]

    def engine_prints(self, *lines: str) -> None:
        text = "\n".join(lines)
        self.run(f"systemd-run --quiet --collect --wait --unit=vllm-chat -- echo '{text}'")

    def wait_for(self, command: str) -> None:
        self.run(f"timeout 60 sh -c 'until {command}; do sleep 0.1; done'")

    def metric(self, words: str) -> str:
        return self.run(f"grep -F '{words}' {STATE}/accelerator_watch.prom | grep -o '[0-9]*$' || echo 0")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("watched"))
    host.lab("down", "--all")
    try:
        host.lab("up", "watched")
        yield host
    finally:
        host.lab("down", "--all")


def test_check_mode_on_a_bare_host(host: Host) -> None:
    rc, changed, output = host.play("main", "--check", "--diff")
    assert rc == 0, output
    assert changed > 5
    assert "+net/ipv4/tcp_keepalive_time = 120" in output and "/proc/sys/net/ipv4/tcp_keepalive_time: 120" in output
    assert host.keepalive() == "7200"
    assert host.run("ls -d /opt/vllm /etc/vllm /var/lib/vllm 2>/dev/null || true") == ""


def test_main_twice(host: Host) -> None:
    rc, _changed, output = host.play("main")
    assert rc == 0, output
    assert "This kernel has no sysctl net.ipv4.no_such_thing" in output
    assert host.keepalive() == "120"
    rc, changed, output = host.play("main")
    assert (rc, changed) == (0, 0), output


def test_lines_of_an_engine_and_of_others(host: Host) -> None:
    host.run(f"logger -t kernel '{XID}'; systemd-run --quiet --wait --unit=other -- echo '{COMPLETION}'")
    host.engine_prints(XID, f"prompt: {COMPLETION}", *[COMPLETION] * 30)
    host.wait_for(f"test -s {STATE}/drained")
    host.wait_for(f"grep -q succeeded.*1 {STATE}/accelerator_watch.prom")
    (event,) = host.events()
    assert (event["VLLM_RULE"], event["VLLM_CODE"], event["VLLM_UNIT"]) == ("nccl_network", "12", "vllm-chat.service")
    assert event["_SYSTEMD_UNIT"] == "accelerator-watch.service" and event["PRIORITY"] == "2"
    assert host.run(f"cat {STATE}/drained") == "nccl_network 12 vllm-chat.service:2"
    assert host.metric("nccl_network") == "30"
    assert "nvidia_xid" not in host.run(f"cat {STATE}/accelerator_watch.prom")


def test_a_killed_watch_and_a_power_cut_lose_and_double_nothing(host: Host) -> None:
    host.run("systemctl kill --signal=KILL accelerator-watch; systemctl stop accelerator-watch")
    host.engine_prints(*[COMPLETION] * 5)
    host.run("systemctl start accelerator-watch")
    host.wait_for(f"grep -q nccl_network.*35 {STATE}/accelerator_watch.prom")
    assert len(host.events()) == 1
    host.run("journalctl --sync")
    host.lab("kill", "watched")
    host.lab("up", "watched")
    host.wait_for("systemctl is-active -q accelerator-watch")
    assert host.keepalive() == "120", "the setting did not last"
    host.engine_prints(COMPLETION)
    host.wait_for(f"test $(wc -l < {STATE}/drained) = 2")
    assert host.metric("nccl_network") == "36"
    assert len(host.events()) == 2, "a start of the host begins a new incident"


def test_verify_names_what_differs_and_who_may_have_set_it(host: Host) -> None:
    host.run(
        "echo 'net.ipv4.tcp_keepalive_time = 99' > /etc/sysctl.d/99-zz.conf; sysctl -q -p /etc/sysctl.d/99-zz.conf"
    )
    rc, _changed, output = host.play("verify")
    assert rc == 2
    text = re.sub(r"\s+", " ", output)
    assert "net.ipv4.tcp_keepalive_time: seen 99, planned 120. It may have been set by /etc/sysctl.d/99-zz.conf" in text
    assert "/etc/sysctl.d/99-zz.conf sets 99 at the next boot" in text
    host.run("rm /etc/sysctl.d/99-zz.conf; sysctl -q -w net.ipv4.tcp_keepalive_time=120")
    rc, changed, output = host.play("verify")
    assert (rc, changed) == (0, 0), output


def test_remove_restores(host: Host) -> None:
    rc, changed, output = host.play("remove")
    assert rc == 0 and changed >= 4, output
    assert host.keepalive() == "7200"
    left = "find /etc /opt /var/lib /run -name '*accelerator*' -o -name '*tuned*' -o -name '*tuning*'"
    assert host.run(left) == ""
    assert "accelerator" not in host.run("cat /etc/passwd")
    rc, changed, output = host.play("remove")
    assert (rc, changed) == (0, 0), output
