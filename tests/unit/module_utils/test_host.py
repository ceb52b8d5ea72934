# SPDX-License-Identifier: Apache-2.0
"""The live door to the machine."""

import io
import os
import threading
import time

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


def test_owner_group_and_mode_of_a_path(tmp_path, monkeypatch):
    path = tmp_path / "device"
    path.write_text("")
    path.chmod(0o640)
    found = Host().access(str(path))
    assert found == {"owner": path.owner(), "group": path.group(), "mode": "0640"}

    def nameless(_number):
        raise KeyError

    monkeypatch.setattr(host_module.pwd, "getpwuid", nameless)
    monkeypatch.setattr(host_module.grp, "getgrgid", nameless)
    found = Host().access(str(path))
    assert (found["owner"], found["group"]) == (str(path.stat().st_uid), str(path.stat().st_gid))
    assert Host().access(str(tmp_path / "none")) is None


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


def test_a_tool_gets_the_time_it_is_given_and_at_least_a_second(tools):
    calls = []
    host = Host(lambda argv, environ_update: calls.append(argv) or (124, "", ""))
    tool, limiter = tools("npu-smi"), tools("timeout")
    for seconds in (7.9, 0.2):
        assert host.run(["npu-smi"], timeout_seconds=seconds)[0] == 124
    assert calls == [[limiter, "-k", "5", "7", tool], [limiter, "-k", "5", "1", tool]]


def test_a_tool_that_cannot_even_be_killed_is_left_behind(tools, monkeypatch):
    tools("npu-smi")
    monkeypatch.setattr(host_module, "GRACE_SECONDS", 0.05)
    released = threading.Event()
    host = Host(lambda _argv, environ_update: released.wait(60) and (0, "late", ""))
    before = time.monotonic()
    assert host.run(["npu-smi"], timeout_seconds=0.1) == (124, "", "")
    assert time.monotonic() - before < 30
    released.set()


def test_what_a_tool_raises_reaches_the_caller(tools):
    tools("npu-smi")

    def fail(_argv, environ_update):
        raise SystemExit("as AnsibleModule.fail_json does")

    with pytest.raises(SystemExit, match="as AnsibleModule"):
        Host(fail).run(["npu-smi"])


def test_the_read_speed_of_what_can_be_read_directly(tmp_path):
    path = tmp_path / "disk"
    path.write_bytes(bytes(24 << 20))
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no direct reads")
    before = time.monotonic()
    assert Host().measure_read(str(path), 16 << 20, 1) > 0
    assert time.monotonic() - before < 20


def test_the_read_speed_is_measured_within_its_limits(tmp_path, monkeypatch):
    """Eight places over the whole device, no more bytes than allowed, none after the time is up."""
    places, clock = [], iter(range(1000))

    class Device(io.RawIOBase):
        def __init__(self):
            self.place = 0

        def seek(self, offset, whence=os.SEEK_SET):
            self.place = offset if whence == os.SEEK_SET else (800 << 20)
            return self.place

        def readinto(self, block):
            places.append(self.place >> 20)
            self.place += len(block)
            return len(block)

    monkeypatch.setattr(host_module.os, "open", lambda *_arguments: -1)
    monkeypatch.setattr(host_module, "open", lambda *_arguments, **_options: Device(), raising=False)
    monkeypatch.setattr(host_module.time, "perf_counter", lambda: next(clock))
    assert Host().measure_read("/dev/x", 64 << 20, 100) == (64 << 20) // 9, "a tick for each look at the clock"
    assert places == [0, 96, 200, 296, 400, 496, 600, 696]
    places.clear()
    assert Host().measure_read("/dev/x", 1 << 40, 3) == (16 << 20) // 11
    assert places == [0, 8]


def test_what_cannot_be_read_directly_has_no_speed(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "empty", "/proc/self/status"):
        assert Host().measure_read(str(path), 1 << 20, 1) is None


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
