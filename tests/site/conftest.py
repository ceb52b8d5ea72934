# SPDX-License-Identifier: Apache-2.0
"""The demo site on real systemd hosts. One session boots the hosts once; the files run in alphabetical order:
bring-up (check mode, interruption, second run), then failures of the running engines."""

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)


class Play:
    """What one finished ansible-playbook run said."""

    def __init__(self, returncode, output):
        self.returncode = returncode
        self.output = output
        self.recap = {
            host: {"ok": int(ok), "changed": int(changed), "unreachable": int(lost), "failed": int(failed)}
            for host, ok, changed, lost, failed in RECAP.findall(output)
        }

    @property
    def changed(self):
        return {host: counts["changed"] for host, counts in self.recap.items() if counts["changed"]}

    def ok(self):
        assert self.returncode == 0, self.output[-6000:]
        return self


class Site:
    """The demo's hosts and the commands an operator would type."""

    hosts = ("cpu01", "cpu02")
    ports = {"cpu01": 8000, "cpu02": 8000}

    def __init__(self, lab_id):
        self.environment = dict(os.environ, LAB_ID=str(lab_id), ANSIBLE_FORCE_COLOR="0", ANSIBLE_NOCOLOR="1")
        self.state = ROOT / ".cache" / "lab" / str(lab_id)

    def run(self, *argv, timeout=600, check=True):
        result = subprocess.run(
            argv,
            cwd=ROOT,
            env=self.environment,
            timeout=timeout,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert not check or result.returncode == 0, f"{shlex.join(argv)}: {result.stdout[-4000:]}"
        return result

    def play(self, *arguments, timeout=900):
        result = self.run("tools/demo", "play", *arguments, timeout=timeout, check=False)
        return Play(result.returncode, result.stdout)

    def plan(self):
        """The plan as data."""
        with tempfile.TemporaryDirectory() as folder:
            self.play("playbooks/plan.yml", "-e", f"deployment_plan_report_directory={folder}").ok()
            return json.loads(Path(folder, "plan.json").read_text())["plan"]

    def start_play(self, log, *arguments):
        """Start a run in a process group of its own, to be killed halfway."""
        return subprocess.Popen(
            ["tools/demo", "play", *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    @staticmethod
    def kill(process):
        """SIGKILL a run started by start_play with everything it started on this machine."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def lab(self, *arguments, check=True):
        return self.run("lab/lab", *arguments, check=check)

    def ssh(self, host, command, check=True, timeout=60):
        """Run a shell command on a host; returns its output."""
        argv = ["ssh", "-F", str(self.state / "ssh_config"), host, command]
        return self.run(*argv, timeout=timeout, check=check).stdout

    def snapshot(self, host):
        """Every file of the host that a run could change, with size, mode and time of change of content."""
        listing = self.ssh(
            host,
            "find / -xdev \\( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/tmp -o -path /dev"
            " -o -path /var/log -o -path /root/.ansible \\) -prune -o ! -type d -printf '%p %s %m %T@\\n' | sort",
        )
        return listing.splitlines()

    def key(self):
        return (self.state / "api-key").read_text().strip()

    def wait(self, condition, seconds, what):
        """Poll until condition() is true; returns the seconds it took."""
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            if condition():
                return time.monotonic() - start
            time.sleep(0.25)
        raise AssertionError(f"not within {seconds} s: {what}")


@pytest.fixture(scope="session")
def site():
    """Two bare, booted hosts; removed at the end whatever happens."""
    site = Site(os.environ.get("VLLM_SITE_LAB_ID", "80"))
    site.lab("down", "--all")
    try:
        site.run("tools/demo", "hosts")
        yield site
    finally:
        if os.environ.get("VLLM_SITE_KEEP") != "1":
            site.lab("down", "--all")
