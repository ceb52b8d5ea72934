# SPDX-License-Identifier: Apache-2.0
import json
from unittest.mock import ANY

import pytest
import vllm_service_unit
from ansible.module_utils.vllm_ansible.units import service, state

PARAMS = {"instance": "one", "served_model_name": "m", "model_size_bytes": 1000}
VERSION = (["systemctl", "--version"], 0, "systemd 252 (252.39-1~deb12u2)\n+PAM", "")


def show(text):
    properties = "--property=ActiveState,NeedDaemonReload,InvocationID"
    return (["systemctl", "show", properties, "vllm-one.service"], 0, text, "")


INACTIVE = show("ActiveState=inactive\nNeedDaemonReload=no\nInvocationID=\n")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Every fixed path of the module below a folder."""
    unit = tmp_path / "etc/systemd/system/vllm-one.service"
    unit.parent.mkdir(parents=True)
    monkeypatch.setattr(service, "unit_path", lambda instance: str(unit))
    recorded = state.recorded_digest
    monkeypatch.setattr(state, "state_digest", lambda instance: "sha256:disk")
    monkeypatch.setattr(state, "recorded_digest", lambda name, invocation: recorded(name, invocation, str(tmp_path)))
    return tmp_path


def record(root, digest):
    folder = root / "run/vllm/one"
    folder.mkdir(parents=True)
    (folder / "started.json").write_text(json.dumps({"digest": digest, "invocation_id": "i"}))


def test_a_new_unit_is_written_once(root, run_module):
    unit = root / "etc/systemd/system/vllm-one.service"
    result = run_module(vllm_service_unit, PARAMS, diff=True, commands=[VERSION, INACTIVE])
    assert result["changed"]
    assert result["diff"]["before"] == ""
    assert unit.read_text() == result["text"] == result["diff"]["after"]
    assert unit.stat().st_mode & 0o777 == 0o644
    assert result["timeout_start_seconds"] == 120
    assert not result["restart_required"]
    again = run_module(vllm_service_unit, PARAMS, commands=[VERSION, INACTIVE])
    assert not again["changed"]
    assert again["text"] == result["text"]


def test_check_mode_writes_nothing_and_says_the_same(root, run_module):
    result = run_module(vllm_service_unit, PARAMS, check_mode=True, commands=[VERSION, INACTIVE])
    assert result["changed"]
    assert not (root / "etc/systemd/system/vllm-one.service").exists()


@pytest.mark.parametrize(("digest", "restart"), [("sha256:disk", False), ("sha256:old", True)])
def test_restart_follows_from_the_record_of_the_running_start(root, run_module, digest, restart):
    (root / "etc/systemd/system/vllm-one.service").write_text(
        run_module(vllm_service_unit, PARAMS, check_mode=True, commands=[VERSION, INACTIVE])["text"]
    )
    record(root, digest)
    running = show("ActiveState=active\nNeedDaemonReload=yes\nInvocationID=i\n")
    result = run_module(vllm_service_unit, PARAMS, commands=[VERSION, running])
    assert not result["changed"]
    assert result["restart_required"] is restart
    assert result["daemon_reload_required"]
    assert result["recorded_digest"] == digest


def test_check_mode_foresees_the_restart_after_a_change(root, run_module):
    (root / "etc/systemd/system/vllm-one.service").write_text("[Unit]\n")
    record(root, "sha256:disk")
    running = show("ActiveState=active\nNeedDaemonReload=no\nInvocationID=i\n")
    assert run_module(vllm_service_unit, PARAMS, check_mode=True, commands=[VERSION, running])["restart_required"]


def test_removal_takes_the_drop_ins_along(root, run_module):
    unit = root / "etc/systemd/system/vllm-one.service"
    unit.write_text("[Unit]\n")
    (root / "etc/systemd/system/vllm-one.service.d").mkdir()
    params = {"instance": "one", "state": "absent"}
    assert run_module(vllm_service_unit, params, check_mode=True, commands=[INACTIVE])["changed"]
    assert unit.exists()
    assert run_module(vllm_service_unit, params, commands=[INACTIVE])["changed"]
    assert list(unit.parent.iterdir()) == []
    assert not run_module(vllm_service_unit, params, commands=[INACTIVE])["changed"]


def test_an_old_systemd_is_refused(root, run_module):
    result = run_module(vllm_service_unit, PARAMS, commands=[(["systemctl", "--version"], 0, "systemd 243 (v243)", "")])
    assert result["failed"]
    assert "systemd 243" in result["msg"]
    assert "247" in result["msg"]
    assert "runtime_directory" in result["msg"]


def test_an_old_systemd_gets_the_key_in_the_runtime_directory(root, run_module):
    old = (["systemctl", "--version"], 0, "systemd 243 (v243)", "")
    result = run_module(vllm_service_unit, {**PARAMS, "key_handover": "runtime_directory"}, commands=[old, INACTIVE])
    assert result["changed"]
    assert "LoadCredential=" not in result["text"]
    older = (["systemctl", "--version"], 0, "systemd 219", "")
    result = run_module(vllm_service_unit, {**PARAMS, "key_handover": "runtime_directory"}, commands=[older])
    assert result["failed"]
    assert "that needs 243" in result["msg"]
    assert "newer systemd" in result["msg"]


@pytest.mark.parametrize("params", [{**PARAMS, "instance": "../one"}, {"instance": "../one", "state": "absent"}])
def test_a_name_that_leaves_the_folder_is_refused(run_module, params):
    result = run_module(vllm_service_unit, params, commands=[])
    assert result["failed"]
    assert "instance: '../one'" in result["msg"]


def test_what_systemd_refuses_is_never_written(root, run_module, monkeypatch):
    program = root / "python3"
    program.touch()
    render = service.render
    monkeypatch.setattr(
        service,
        "render",
        lambda spec: render(spec).replace("/opt/vllm/instances/one/current/bin/python3", str(program)),
    )
    monkeypatch.setattr(vllm_service_unit.AnsibleModule, "get_bin_path", lambda self, name: "/usr/bin/" + name)
    verify = ["/usr/bin/systemd-analyze", "verify", ANY]
    error = "vllm-one.service: bad unit file setting\n"
    result = run_module(vllm_service_unit, PARAMS, commands=[VERSION, (verify, 1, "", error)])
    assert result["failed"]
    assert "bad unit file setting" in result["msg"]
    assert not (root / "etc/systemd/system/vllm-one.service").exists()
