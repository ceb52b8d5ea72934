# SPDX-License-Identifier: Apache-2.0
"""Every module that touches a serving host runs on a real host that has Python 3.7 and nothing newer (as Kylin V10)."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.vllm_ansible import artefact

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = Path(__file__).with_name("old_python.yml")
ENVIRONMENT = {**os.environ, "LAB_ID": "82", "ANSIBLE_NOCOLOR": "1"}
# They run on the build host or on the controller, whose Python is ours to choose.
NOT_ON_HOSTS = {"vllm_engine_build", "vllm_model_convert", "vllm_model_fetch", "vllm_model_pack", "vllm_plan"}
NOT_ON_HOSTS |= {"vllm_fabric_report"}
EXIT_NO_PYTHON = 3


def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["lab/lab", *arguments], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def inventory() -> Iterator[Path]:
    lab("down", "--all")
    up = lab("up", "old01", "--python", "3.7=old01")
    try:
        if up.returncode == EXIT_NO_PYTHON:
            pytest.skip(up.stderr.strip())
        assert up.returncode == 0, up.stdout + up.stderr
        yield ROOT / ".cache/lab/82/inventory.yml"
    finally:
        lab("down", "--all")


def play(inventory: Path, **variables: str) -> tuple[str, int]:
    """Run the playbook with the controller of this test run; returns its output and the number of changes."""
    extra = [word for name, value in variables.items() for word in ("-e", f"{name}={value}") if name != "check"]
    check = ["--check", "--diff"] if variables.get("check") else []
    playbook = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [playbook, "-i", inventory, PLAYBOOK, *extra, *check],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    recap = re.search(r"^old01 .*changed=(\d+)", done.stdout, re.MULTILINE)
    assert recap
    return done.stdout, int(recap[1])


def test_playbook_uses_every_host_module() -> None:
    tasks = yaml.safe_load(PLAYBOOK.read_text(encoding="utf-8"))[0]["tasks"]
    used = {key for task in tasks for key in task if key.startswith("vllm_")}
    assert used | NOT_ON_HOSTS == {path.stem for path in (ROOT / "library").glob("vllm_*.py")}


def test_modules_on_a_host_with_python_37_only(inventory: Path, tmp_path: Path) -> None:
    version = lab("exec", "old01", "--", "sh", "-c", "ls /usr/bin/python3*; /usr/bin/python3.7 --version").stdout
    assert "Python 3.7" in version
    assert not re.search(r"/usr/bin/python3(\.(8|9|1\d))?$", version, re.MULTILINE), version
    source = tmp_path / "tree"
    source.mkdir()
    (source / "weights").write_bytes(b"1" * 100_000)
    packed = artefact.pack(str(source), str(tmp_path / "small.artefact.tar"), "model", "small")
    variables = {"artefact_path": packed["path"], "artefact_sha256": packed["sha256"], "artefact_there": "false"}
    _, would_change = play(inventory, **variables, check="yes")
    assert would_change >= 4
    assert not lab("exec", "old01", "--", "sh", "-c", "ls -d /var/lib/vllm /etc/sysctl.d/*vllm* 2>/dev/null").stdout
    _, changed = play(inventory, **variables)
    assert changed >= 5
    variables["artefact_there"] = "true"
    output, again = play(inventory, **variables)
    assert again == 0, output
    output, again = play(inventory, **variables, check="yes")
    assert again == 0, output
