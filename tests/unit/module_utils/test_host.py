# SPDX-License-Identifier: Apache-2.0
"""The live door to the machine."""

import os

import pytest
from ansible.module_utils.vllm_ansible import host as host_module
from ansible.module_utils.vllm_ansible.host import Host


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A directory of tools, the only one that is searched."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(host_module, "TOOL_DIRECTORIES", ())

    def install(name):
        path = tmp_path / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return str(path)

    return install


def test_what_is_missing_is_none_or_empty(tmp_path):
    host = Host()
    missing = str(tmp_path / "missing")
    assert host.read(missing) is host.read_link(missing) is host.usage(missing) is None
    assert host.read(str(tmp_path)) is None, "a directory has no text"
    assert host.list_directory(missing) == []
    assert not host.exists(missing)


def test_bytes_that_are_no_text_are_replaced(tmp_path):
    (tmp_path / "file").write_bytes(b"a\xffb")
    assert Host().read(str(tmp_path / "file")) == "a\ufffdb"


def test_the_system_describes_this_process():
    system = Host().system()
    assert system["euid"] == os.geteuid()
    assert system["page_size"] in (4096, 16384, 65536)


def test_a_tool_runs_in_the_c_locale_under_a_time_limit(tools):
    calls = []
    host = Host(lambda argv, environ_update: calls.append((argv, environ_update)) or (0, "out", "err", "more"))
    tool, limiter = tools("npu-smi"), tools("timeout")
    assert host.run(["npu-smi", "info"], environment={"X": "1"}) == (0, "out", "err")
    assert calls == [([limiter, "-k", "5", "60", tool, "info"], {"X": "1", "LC_ALL": "C", "LANG": "C"})]


def test_a_missing_tool_is_none_and_nothing_runs(tools):
    host = Host(lambda *_args, **_options: pytest.fail("must not run"))
    assert host.run(["npu-smi", "info"]) is None


def test_a_file_is_replaced_whole_with_its_mode_and_nothing_stays_beside(tmp_path):
    path = tmp_path / "new" / "file"
    Host().write_atomically(str(path), "one")
    Host().write_atomically(str(path), "two", mode=0o640)
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == ["file"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(host_module.os, "fsync", lambda _descriptor: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        Host().write_atomically(str(path), "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_remove_takes_an_empty_directory_along_and_leaves_a_full_one(tmp_path):
    for other in (False, True):
        directory = tmp_path / str(other)
        directory.mkdir()
        (directory / "file").write_text("")
        if other:
            (directory / "other").write_text("")
        Host().remove(str(directory / "file"))
        assert directory.exists() is other
