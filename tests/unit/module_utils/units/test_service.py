# SPDX-License-Identifier: Apache-2.0
"""The unit's text against golden files, and the start limit."""

import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.units import service

GOLDEN = Path(__file__).resolve().parents[3] / "fixtures/units"

CPU = {
    "instance": "smollm2",
    "served_model_name": "smollm2-135m-instruct",
    "listen_address": "10.20.0.11",
    "port": 8000,
    "user": "vllm",
    "group": "vllm",
    "model_size_bytes": 269_000_000,
    "read_bytes_per_s": 450_000_000,
    "memory_max_bytes": 6 << 30,
    "shared_memory_bytes": None,
    "devices": [],
    "environment_file": None,
    "supplementary_groups": [],
    "key_handover": "credential",
    "allowed_networks": ["10.20.0.0/16"],
    "spans_hosts": False,
    "restart_burst": 6,
    "restart_interval_seconds": 600,
    "stop_timeout_seconds": 30,
    "watchdog_seconds": 30,
}
NPU = {
    **CPU,
    "instance": "deepseek-r1",
    "served_model_name": "100% deepseek",
    "listen_address": "0.0.0.0",
    "model_size_bytes": 700_000_000_000,
    "read_bytes_per_s": 2_000_000_000,
    "memory_max_bytes": None,
    "shared_memory_bytes": 16 << 30,
    "devices": ["/dev/davinci0", "/dev/davinci_manager"],
    "environment_file": "/etc/vllm/ascend.env",
    "supplementary_groups": ["HwHiAiUser"],
}
OLD = {**NPU, "key_handover": "runtime_directory"}


@pytest.mark.parametrize(("name", "spec"), [("cpu", CPU), ("npu", NPU), ("npu-systemd-243", OLD)])
def test_the_text_is_the_golden_one(name, spec):
    assert service.check(spec) == []
    assert service.render(spec) == (GOLDEN / f"{name}.service").read_text()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("spec", [CPU, NPU, OLD])
def test_systemd_knows_every_directive(spec, tmp_path):
    # The interpreter is not installed here; a program that exists lets the rest be judged.
    path = tmp_path / "vllm-x.service"
    path.write_text(
        service.render(spec).replace(f"/opt/vllm/instances/{spec['instance']}/current/bin/python3", "/bin/true")
    )
    result = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert [line for line in result.stderr.splitlines() if "vllm-x.service" in line] == []


@pytest.mark.parametrize(
    ("size", "speed", "seconds"),
    [
        (0, None, 120),
        (269_000_000, 450_000_000, 120),
        (10_000_000_000, None, 390),
        (700_000_000_000, 2_000_000_000, 1140),
        (1, 3, 120),
    ],
)
def test_start_limit(size, speed, seconds):
    assert service.start_timeout_seconds(size, speed) == seconds


@pytest.mark.parametrize(
    ("change", "seconds"),
    [({}, 600), ({"spans_hosts": True}, 900), ({"spans_hosts": True, "restart_interval_seconds": 1000}, 1000)],
)
def test_a_replica_gives_up_although_each_start_takes_its_whole_limit(change, seconds):
    # six starts of 120 s and stops of 30 s
    assert f"StartLimitIntervalSec={seconds}\n" in service.render({**CPU, **change})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"instance": "Big One"}, "instance: 'Big One'"),
        ({"instance": "../x"}, "instance: '../x'"),
        ({"environment_file": "ascend.env\nUser=root"}, "environment_file:"),
        ({"supplementary_groups": ["a\nUser=root"]}, "supplementary_groups:"),
        ({"instance": "models"}, "instance: 'models'"),
        ({"port": 70000}, "port: 70000"),
        ({"devices": ["/dev/../etc rw\nUser=root"]}, "devices:"),
        ({"allowed_networks": ["10.0.0.0/8\nUser=root"]}, "allowed_networks:"),
        ({"memory_max_bytes": 0}, "memory_max_bytes: 0"),
    ],
)
def test_what_cannot_be_a_unit_is_named(change, word):
    (problem,) = service.check({**CPU, **change})
    assert word in problem


def test_a_line_break_cannot_smuggle_a_directive():
    lines = service.render({**CPU, "served_model_name": "m\nUser=root"}).splitlines()
    assert "User=root" not in lines


@pytest.mark.skipif(os.geteuid() != 0, reason="the copy belongs to another user")
def test_the_key_is_copied_as_the_unit_says_or_the_unit_stays_down(tmp_path):
    """The command of ExecStartPre=, run here: a link that waits in its place is replaced, never followed."""
    line = next(line for line in service.render(OLD).splitlines() if line.startswith("ExecStartPre="))
    assert line.startswith("ExecStartPre=+/")
    command = line.partition("+")[2]
    for path, own in (("/etc/vllm/credentials/deepseek-r1.key", "key"), ("/run/vllm/deepseek-r1/", "")):
        command = command.replace(path, f"{tmp_path}/{own}")
    words = command.replace("=vllm", "=nobody").replace("--group=nobody", "--group=nogroup").split()
    assert subprocess.run(words, capture_output=True, check=False).returncode != 0, "without a key nothing starts"
    (tmp_path / "key").write_text("secret")
    (tmp_path / "victim").write_text("victim")
    (tmp_path / "api-key").symlink_to(tmp_path / "victim")
    subprocess.run(words, check=True)
    copied = (tmp_path / "api-key").lstat()
    assert (stat.S_IMODE(copied.st_mode), stat.S_ISREG(copied.st_mode)) == (0o400, True)
    assert copied.st_uid == pwd.getpwnam("nobody").pw_uid
    assert (tmp_path / "victim").read_text() == "victim"
