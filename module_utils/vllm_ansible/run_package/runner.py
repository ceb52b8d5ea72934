# SPDX-License-Identifier: Apache-2.0
"""Runs one installer: no questions, a time limit for it and all it starts, its progress told, nothing left behind."""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional

SCRATCH = ".vllm-run-package-"
_PERCENT = re.compile(r"upgradePercentage:\s*(\d+)%")
_KEPT_BYTES = 1 << 20
_GRACE_SECONDS = 10


class Outcome(NamedTuple):
    """``rc`` is negative for a signal; ``output`` the last MiB of both streams; ``timed_out`` the limit ended it."""

    rc: int
    output: str
    timed_out: bool


def leftovers(folder: str) -> List[str]:
    """Scratch folders that killed runs left in `folder`."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(os.path.join(folder, name) for name in names if name.startswith(SCRATCH))


@contextlib.contextmanager
def scratch(folder: str) -> Iterator[str]:
    """A folder for the archive to unpack into; gone afterwards, whatever happens."""
    path = tempfile.mkdtemp(prefix=SCRATCH, dir=folder)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def run(
    argv: List[str],
    environment: Dict[str, str],
    timeout_seconds: float,
    progress: Optional[Callable[..., None]] = None,
    stage: str = "install",
    answers: str = "",
) -> Outcome:
    """Run a program in a session of its own and end all of it when the limit is reached.

    answers: what it reads; then its input ends.
    progress: called as ``progress(stage, percent, line)`` with each line that is printed.
    """
    with tempfile.TemporaryFile() as source:
        source.write(answers.encode("utf-8"))
        source.seek(0)
        process = subprocess.Popen(
            argv,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_seconds
    kept, percent, timed_out = b"", None, False
    ended_at = None
    try:
        while True:
            now = time.monotonic()
            if process.poll() is not None and ended_at is None:
                ended_at = now
            # A service that the installer started may hold the pipe open for ever.
            if ended_at is not None and now - ended_at > 1:
                break
            if ended_at is None and now >= deadline:
                timed_out = True
                break
            if not select.select([process.stdout], [], [], 0.2)[0]:
                continue
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                break
            kept = (kept + chunk)[-_KEPT_BYTES:]
            text = chunk.decode("utf-8", "replace")
            figures = _PERCENT.findall(text)
            percent = int(figures[-1]) if figures else percent
            last = text.strip().splitlines()[-1:]
            if progress and last:
                progress(stage, percent, last[0].strip()[-200:])
        if not timed_out and ended_at is None:
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                timed_out = True
    finally:
        if timed_out or process.poll() is None:
            _end(process)
        process.stdout.close()
    return Outcome(process.returncode, kept.decode("utf-8", "replace"), timed_out)


def _end(process):
    """End the whole session, first politely."""
    for number, wait in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=wait)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGTERM:
            # The installer is gone; what it started may not have listened.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return
