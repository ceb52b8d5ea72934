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
        staging = "{0}.{1}".format(self._path, os.getpid())
        try:
            with open(staging, "w") as stream:
                stream.write(line + "\n")
            os.replace(staging, self._path)
        except OSError:
            self._path = None

    def count(self, stage, done, total, unit="bytes"):
        """Publish a counted step: ``done`` of ``total`` units; bytes are shown as MiB, an unknown total is 0 or None."""
        percent = 100.0 * done / total if total else None
        if unit == "bytes":
            done, total, unit = round(done / 1048576.0, 1), total and round(total / 1048576.0, 1), "MiB"
        self.update(stage, percent, "{0} of {1} {2}".format(done, total, unit) if total else "{0} {1}".format(done, unit))
