# SPDX-License-Identifier: Apache-2.0
"""The digest that decides about a restart, and that the supervisor computes the same."""

import importlib.machinery
import importlib.util
import json
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.units import state

FILES = {
    "/etc/systemd/system/vllm-one.service": "[Service]\nEnvironmentFile=/etc/vllm/ascend.env\n",
    "/etc/systemd/system/vllm-one.service.d/20-numa.conf": "[Service]",
    "/etc/systemd/system/vllm-one.service.d/notes.txt": "not read by systemd",
    "/etc/vllm/instances/one.json": "{}",
    "/etc/vllm/ascend.env": "ASCEND_HOME_PATH=/a\n",
    "/opt/vllm/libexec/vllm-supervisor": "#!",
    "/etc/vllm/credentials/one.key": "secret\n",
}


@pytest.fixture
def root(tmp_path):
    for path, text in FILES.items():
        target = Path(f"{tmp_path}{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    link = tmp_path / "opt/vllm/instances/one/current"
    link.parent.mkdir(parents=True)
    link.symlink_to("/opt/vllm/releases/a")
    return tmp_path


def test_watched_paths(root):
    assert state.watched_paths("one", str(root)) == [
        "/etc/systemd/system/vllm-one.service",
        "/etc/systemd/system/vllm-one.service.d/20-numa.conf",
        "/etc/vllm/ascend.env",
        "/etc/vllm/credentials/one.key",
        "/etc/vllm/instances/one.json",
        "/opt/vllm/instances/one/current",
        "/opt/vllm/libexec/vllm-supervisor",
    ]


def test_the_supervisor_computes_the_same_digest(root, project_root):
    loader = importlib.machinery.SourceFileLoader(
        "supervisor_for_digest", str(project_root / "roles/engine_service/files/vllm-supervisor")
    )
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    exec(compile(loader.get_source(loader.name), loader.path, "exec", dont_inherit=True), module.__dict__)
    for _ in range(2):
        assert module.state_digest("one", str(root), b"secret\n") == state.state_digest("one", str(root))
        # The same again for an instance without a release, as before the first installation.
        (root / "opt/vllm/instances/one/current").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if not path.endswith(".txt")],
)
def test_every_watched_file_counts(root, path):
    before = state.state_digest("one", str(root))
    Path(f"{root}{path}").write_text("changed")
    assert state.state_digest("one", str(root)) != before


def test_the_release_counts_and_other_files_do_not(root):
    before = state.state_digest("one", str(root))
    (root / "etc/systemd/system/vllm-one.service.d/notes.txt").write_text("changed")
    assert state.state_digest("one", str(root)) == before
    link = root / "opt/vllm/instances/one/current"
    link.unlink()
    link.symlink_to("/opt/vllm/releases/b")
    assert state.state_digest("one", str(root)) != before


@pytest.mark.parametrize(
    ("record", "invocation", "digest"),
    [
        (json.dumps({"digest": "sha256:a", "invocation_id": "i"}), "i", "sha256:a"),
        (json.dumps({"digest": "sha256:a", "invocation_id": "i"}), "j", None),
        (json.dumps({"digest": "sha256:a", "invocation_id": ""}), "", None),
        ("[1]", "i", None),
        ("{", "i", None),
        (None, "i", None),
    ],
)
def test_only_the_record_of_this_start_counts(tmp_path, record, invocation, digest):
    folder = tmp_path / "run/vllm/one"
    folder.mkdir(parents=True)
    if record is not None:
        (folder / "started.json").write_text(record)
    assert state.recorded_digest("one", invocation, str(tmp_path)) == digest


@pytest.mark.parametrize(
    ("active", "recorded", "running", "restart"),
    [
        ("active", "d", True, False),
        ("active", "old", True, True),
        ("active", None, True, True),
        ("activating", "d", True, False),
        ("activating", None, True, True),
        ("failed", None, False, False),
        ("inactive", None, False, False),
        ("deactivating", "old", False, False),
    ],
)
def test_restart(active, recorded, running, restart):
    found = state.describe({"ActiveState": active, "NeedDaemonReload": "no"}, "d", recorded)
    assert (found["running"], found["restart_required"], found["daemon_reload_required"]) == (running, restart, False)


def test_an_unknown_unit():
    found = state.describe(state.parse_show(""), "d", None)
    assert found["active_state"] == "inactive"
    assert not found["restart_required"]


def test_parse_show_keeps_equal_signs():
    assert state.parse_show("ActiveState=active\nStatusText=a=b\nnonsense\n") == {
        "ActiveState": "active",
        "StatusText": "a=b",
    }
