# SPDX-License-Identifier: Apache-2.0
"""Starts playbooks the way AWX does: ansible-runner on a copy of the project, an inventory that is a script, a clean
environment. What AWX does was read from its sources (tasks/jobs.py, playbooks/project_update.yml); it is not run here.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


@dataclass
class Job:
    """What AWX keeps of a finished job."""

    status: str
    stdout: str
    events: list[dict[str, Any]]

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Failed and unreachable results that were not ignored."""
        return [
            event
            for event in self.events
            if event["event"] in ("runner_on_failed", "runner_on_unreachable")
            and not event["event_data"].get("ignore_errors")
        ]

    @property
    def statistics(self) -> dict[str, Any]:
        """The last event: hosts by outcome, and the artifacts of set_stats."""
        return next(event["event_data"] for event in reversed(self.events) if event["event"] == "playbook_on_stats")


class Controller:
    """One project on an AWX-like controller."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file() or (ROOT / name).is_symlink():
                (self.project / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.project / name, follow_symlinks=False)

    def environment(self, **extra: str) -> dict[str, str]:
        """A job's environment: nothing of the caller's but the way to the programs."""
        path = os.pathsep.join([str(BIN), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"])
        return {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", **extra}

    def update(self) -> list[subprocess.CompletedProcess[str]]:
        """The project update: both kinds of requirements of the root requirements.yml, as AWX installs them."""
        requirements = ["install", "-r", "requirements.yml", "-p"]
        return [
            subprocess.run(
                [BIN / "ansible-galaxy", kind, *requirements, str(self.folder / f"requirements_{kind}s")],
                cwd=self.project,
                env=self.environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            for kind in ("role", "collection")
        ]

    def inventory(self, source: str, **hostvars: dict[str, Any]) -> dict[str, Any]:
        """An inventory of the project as an inventory update imports it, host variables added."""
        listing = subprocess.run(
            [BIN / "ansible-inventory", "-i", source, "--list", "--export"],
            cwd=self.project,
            env=self.environment(),
            check=True,
            capture_output=True,
            text=True,
        )
        data = json.loads(listing.stdout)
        for host, variables in hostvars.items():
            data["_meta"]["hostvars"].setdefault(host, {}).update(variables)
        return data

    def launch(
        self,
        playbook: str,
        inventory: dict[str, Any],
        extra_vars: dict[str, Any] | None = None,
        check: bool = False,
        environment: dict[str, str] | None = None,
    ) -> Job:
        """Run a job template's playbook."""
        run = self.folder / f"job{len(list(self.folder.glob('job*')))}"
        (run / "inventory").mkdir(parents=True)
        (run / "env").mkdir()
        (run / "project").symlink_to(self.project)
        script = run / "inventory" / "hosts"
        script.write_text(f"#! /usr/bin/env python3\nprint(r'''{json.dumps(inventory)}''')\n")
        script.chmod(0o700)
        # AWX puts its folders of installed requirements before the project's own paths, in the environment, which wins
        # over ansible.cfg. ansible-runner does so with callbacks: the project's are found beside the playbook only.
        defaults = {"ROLES": "roles:~/.ansible/roles", "COLLECTIONS": "~/.ansible/collections"}
        variables = {
            f"ANSIBLE_{kind}_PATH": f"{self.folder}/requirements_{kind.lower()}:{default}"
            for kind, default in defaults.items()
        }
        variables |= {
            "ANSIBLE_FORCE_COLOR": "True",
            "ANSIBLE_INVENTORY_UNPARSED_FAILED": "True",
            "ANSIBLE_RETRY_FILES_ENABLED": "False",
            **(environment or {}),
        }
        (run / "env" / "envvars").write_text(json.dumps(variables))
        awx = {"awx_job_id": 1, "tower_job_id": 1, "awx_job_launch_type": "manual", "awx_user_name": "operator"}
        (run / "env" / "extravars").write_text(json.dumps({**awx, **(extra_vars or {})}))
        command = [BIN / "ansible-runner", "run", run, "-p", playbook, "--ident", "1", "-q"]
        subprocess.run(
            [*command, *(["--cmdline", "--check --diff"] if check else [])],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        artifacts = run / "artifacts" / "1"
        events = [json.loads(path.read_text()) for path in (artifacts / "job_events").glob("[0-9]*.json")]
        for event in events:
            event.setdefault("event_data", {})
        return Job(
            status=(artifacts / "status").read_text(),
            stdout=(artifacts / "stdout").read_text(),
            events=sorted(events, key=lambda event: event["counter"]),
        )


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Controller:
    return Controller(tmp_path_factory.mktemp("controller"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded facts for every host of the demo inventory: a plan from them contacts no host."""
    folder = tmp_path_factory.mktemp("recorded")
    for host in ("cpu01", "cpu02", "build01"):
        shutil.copy(ROOT / "tests/fixtures/hardware/epyc-virtual/facts.json", folder / f"{host}.json")
    return folder
