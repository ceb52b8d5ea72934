# SPDX-License-Identifier: Apache-2.0
"""A run waits for another one, and a killed one is in nobody's way."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible import locks

# Holds the lock and says so; a process, because that is what gets killed.
HOLDER = """
import fcntl, sys, time
stream = open(sys.argv[1], "w")
fcntl.flock(stream, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def held(tmp_path: Path):
    """The path of a lock that another process holds, and that process."""
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        yield str(path), process
        process.kill()


def test_a_holder_that_goes_on_is_an_error_in_the_end(held: tuple) -> None:
    path, _process = held
    told: list[str] = []
    assert locks.is_held(path)
    with pytest.raises(locks.BusyError), locks.exclusive(path, lambda: told.append("waiting"), wait_seconds=1):
        pass
    assert told == ["waiting"]


def test_a_killed_holder_is_waited_for_no_longer(held: tuple) -> None:
    path, process = held
    threading.Timer(0.7, process.kill).start()
    began = time.monotonic()
    with locks.exclusive(path, wait_seconds=30):
        assert locks.is_held(path)
    assert time.monotonic() - began < 10
    assert not Path(path).exists() and not locks.is_held(path)


def test_a_lock_whose_file_the_holder_removed_is_taken_anew(tmp_path: Path) -> None:
    """Many threads that count in turn: two holders at once would lose a count."""
    path, counter = str(tmp_path / "lock"), tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        with locks.exclusive(path, wait_seconds=60):
            value = int(counter.read_text())
            time.sleep(0.001)
            counter.write_text(str(value + 1))

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read_text() == "8"
