# SPDX-License-Identifier: Apache-2.0
"""The progress file: what a reader may rely on."""

import json

import pytest
from ansible.module_utils.vllm_ansible.progress import Progress


class Clock:
    """A clock the test moves by hand."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def read(path):
    lines = path.read_text().splitlines()
    assert len(lines) == 1
    return json.loads(lines[0])


def test_one_line_holds_the_newest_state(tmp_path, clock):
    path = tmp_path / "progress.json"
    progress = Progress(str(path), clock=clock)
    progress.update("download", 10, "first")
    progress.update("unpack", None, "second")
    assert read(path) == {"stage": "unpack", "percent": None, "message": "second", "updated": 1000.0}
    assert [entry.name for entry in tmp_path.iterdir()] == ["progress.json"], "no staging file may stay behind"


def test_updates_of_one_stage_are_throttled_but_its_end_is_not(tmp_path, clock):
    path = tmp_path / "progress.json"
    progress = Progress(str(path), interval=0.5, clock=clock)
    progress.update("download", 1)
    clock.now += 0.1
    progress.update("download", 2)
    assert read(path)["percent"] == 1
    progress.update("download", 100)
    assert read(path)["percent"] == 100
    clock.now += 0.6
    progress.update("download", 3)
    assert read(path)["percent"] == 3


@pytest.mark.parametrize(("given", "shown"), [(-1, 0.0), (33.333, 33.3), (250, 100.0)])
def test_percent_is_bounded_and_short(tmp_path, clock, given, shown):
    path = tmp_path / "progress.json"
    Progress(str(path), clock=clock).update("convert", given)
    assert read(path)["percent"] == shown


@pytest.mark.parametrize(
    ("done", "total", "percent", "message"),
    [
        (1048576, 4194304, 25.0, "1.0 of 4.0 MiB"),
        (1572864, None, None, "1.5 MiB"),
        (0, 0, None, "0.0 MiB"),
    ],
)
def test_counted_bytes(tmp_path, clock, done, total, percent, message):
    path = tmp_path / "progress.json"
    Progress(str(path), clock=clock).count_bytes("download", done, total)
    assert (read(path)["percent"], read(path)["message"]) == (percent, message)


@pytest.mark.parametrize("path", [None, ""])
def test_no_path_publishes_nothing(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Progress(path).update("download", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_no_error(tmp_path):
    missing = tmp_path / "missing" / "progress.json"
    progress = Progress(str(missing))
    progress.update("download", 1)
    progress.update("unpack", 1)
    assert not missing.exists()
