# SPDX-License-Identifier: Apache-2.0
"""Progress of long modules, as one small JSON file that the ``vllm_progress`` callback reads while the task runs."""

import json
import os
import time


class Progress:
    """Publishes the newest state of one long task.

    The file always holds exactly one JSON line, replaced atomically, so that a reader never sees half of it::

        {"stage": "download", "percent": 42.5, "message": "1.2 of 2.8 GiB", "updated": 1796040000.0}

    Progress is a courtesy to the person watching: a path that cannot be written never fails the task.

    Args:
        path: file to write, on the machine the module runs on; None or "" publishes nothing.
        interval: least seconds between two writes of the same stage (a new stage is always written at once).
        clock: source of seconds since the epoch, for tests.
    """

    def __init__(self, path, interval=0.5, clock=time.time):
        self._path = path
        self._interval = interval
        self._clock = clock
        self._stage = None
        self._written = 0.0

    def update(self, stage, percent=None, message=""):
        """Publish where the task is.

        Args:
            stage: short noun, for example "download".
            percent: 0 to 100, or None where the end is not known.
            message: one line for a person.
        """
        if not self._path:
            return
        now = self._clock()
        if stage == self._stage and percent != 100 and now - self._written < self._interval:
            return
        self._stage, self._written = stage, now
        if percent is not None:
            percent = round(min(100.0, max(0.0, float(percent))), 1)
        line = json.dumps({"stage": stage, "percent": percent, "message": message, "updated": now}, sort_keys=True)
        staging = f"{self._path}.{os.getpid()}"
        try:
            with open(staging, "w") as stream:
                stream.write(line + "\n")
            os.replace(staging, self._path)
        except OSError:
            self._path = None

    def count_bytes(self, stage, done, total=None):
        """Publish ``done`` of ``total`` bytes; a total of None or 0 means the end is not known."""
        mebibytes = f"{done / 1048576:.1f}"
        if total:
            self.update(stage, 100.0 * done / total, f"{mebibytes} of {total / 1048576:.1f} MiB")
        else:
            self.update(stage, None, f"{mebibytes} MiB")
