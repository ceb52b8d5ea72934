# SPDX-License-Identifier: Apache-2.0
"""What role engine_service promises, looked at from outside Ansible."""

import time

UNIT = "vllm-one.service"


def show(host, name):
    return host.check_output(f"systemctl show --value --property={name} {UNIT}")


def wait(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def pids(host):
    return host.run("pgrep --uid vllm").stdout.split()


def test_the_unit_serves_and_starts_at_boot(host):
    service = host.service(UNIT)
    assert service.is_running and service.is_enabled
    assert show(host, "StatusText") == "serving tiny"
    assert len(pids(host)) == 3


def test_the_key_is_for_root_only_and_not_in_sight(host):
    key = host.file("/etc/vllm/credentials/one.key")
    assert (key.user, key.mode) == ("root", 0o400)
    for pid in pids(host):
        assert "stand-in-key" not in host.check_output(f"cat /proc/{pid}/cmdline /proc/{pid}/environ | tr '\\0' ' '")
    assert "stand-in-key" not in host.check_output(f"systemctl show {UNIT}; journalctl --unit={UNIT}")


def test_the_running_start_matches_the_disk(host):
    assert show(host, "InvocationID") in host.file("/run/vllm/one/started.json").content_string


def test_the_release_is_linked(host):
    assert host.file("/opt/vllm/instances/one/current").linked_to == "/opt/vllm/releases/stand-in"


def test_a_killed_engine_is_started_again_and_a_stopped_one_leaves_nothing(host):
    main = show(host, "MainPID")
    host.check_output(f"kill -KILL $(pgrep --parent {main})")
    wait(lambda: show(host, "NRestarts") == "1" and show(host, "ActiveState") == "active")
    host.check_output(f"systemctl stop {UNIT}")
    assert pids(host) == []
    assert not host.file("/run/vllm/one").exists
    host.check_output(f"systemctl start {UNIT}")


def test_an_empty_key_keeps_the_unit_down(host):
    host.check_output("cp -p /etc/vllm/credentials/one.key /root/ && truncate --size=0 /etc/vllm/credentials/one.key")
    try:
        assert host.run(f"systemctl restart {UNIT}").rc != 0
        assert (show(host, "ActiveState"), show(host, "ExecMainStatus")) == ("failed", "78")
        assert pids(host) == []
    finally:
        host.check_output("mv /root/one.key /etc/vllm/credentials/one.key")
    host.check_output(f"systemctl reset-failed {UNIT}; systemctl start {UNIT}")
