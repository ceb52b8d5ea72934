# SPDX-License-Identifier: Apache-2.0
"""One run at a time, also when an earlier one was killed on the controller and its module still runs on the host.

Runs on hosts: Python 3.6, standard library only.
"""

import contextlib
import fcntl
import os
import time

# How long a run waits for another one that does the same work; a build or a large model takes minutes.
WAIT_SECONDS = 1800


class BusyError(Exception):
    """Another process held the lock the whole time."""


@contextlib.contextmanager
def exclusive(path, waiting=None, wait_seconds=None):
    """Hold an exclusive lock on the file `path`, which is created for it and removed at the end.

    A killed holder leaves the empty file behind, but no lock. waiting: called once when another process holds it.
    Raises BusyError after wait_seconds (default WAIT_SECONDS).
    """
    until = time.monotonic() + (WAIT_SECONDS if wait_seconds is None else wait_seconds)
    stream = _try(path)
    if stream is None and waiting:
        waiting()
    while stream is None:
        if time.monotonic() >= until:
            raise BusyError(path)
        time.sleep(0.1)
        stream = _try(path)
    with stream:
        try:
            yield
        finally:
            os.unlink(path)


def _try(path):
    """The locked, open file, or None. A file that its holder removed meanwhile is not the lock any more."""
    stream = open(path, "w")  # noqa: SIM115 - closed here or by `exclusive`
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
            return stream
    except OSError:
        pass
    stream.close()
    return None


def is_held(path):
    """Whether a process holds the lock now."""
    try:
        with open(path) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
