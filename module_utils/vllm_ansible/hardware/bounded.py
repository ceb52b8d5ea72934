# SPDX-License-Identifier: Apache-2.0
"""A host whose tools cannot hold up the facts: each answer is waited for only so long, and all of them together."""

import posixpath
import re
import time

# Without its persistence daemon, nvidia-smi wakes every GPU first: several seconds each.
COMMAND_SECONDS = 60
TOTAL_SECONDS = 180

# What `timeout` exits with when it ended the tool, and what Host.run gives for a tool that cannot even be killed.
TIMED_OUT = (124, 137)

# A screenful per device is a few KiB; what is longer is no answer.
_LONGEST_OUTPUT = 1 << 20
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_TERMINAL = re.compile("\x1b\\[[0-9;]*[A-Za-z]")


def clean(text):
    """Return a tool's output without terminal escapes and control characters, cut to a sane length."""
    return _UNPRINTABLE.sub("", _TERMINAL.sub("", (text or "")[:_LONGEST_OUTPUT]))


class BoundedHost:
    """Passes everything on to a host, and bounds what its tools may take.

    A tool that did not answer in time is not asked again: its driver hangs, and so would every further question.

    Args:
        host: the machine.
        warn: ``warn(code, message)``.
        total_seconds: time for all commands together; what would start later is not started.
    """

    def __init__(self, host, warn, total_seconds=TOTAL_SECONDS):
        self._host = host
        self._warn = warn
        self._end = time.monotonic() + total_seconds
        self._silent = set()

    def __getattr__(self, name):
        return getattr(self._host, name)

    def run(self, arguments, environment=None):
        """Run a tool: (rc, stdout, stderr), or None when it is not installed. rc 124: no answer in time."""
        tool, command = posixpath.basename(arguments[0]), " ".join(arguments)
        left = self._end - time.monotonic()
        if tool in self._silent:
            return (TIMED_OUT[0], "", f"not asked: {tool} did not answer an earlier question")
        if left < 1:
            self._warn("W_TIME", f"the time for vendors' tools was used up before `{command}`: its facts are unknown")
            return (TIMED_OUT[0], "", "not asked: the time for vendors' tools was used up")
        answer = self._host.run(arguments, environment, min(COMMAND_SECONDS, left))
        if answer is None:
            return None
        code, output, error = answer
        if code in TIMED_OUT:
            self._silent.add(tool)
            self._warn("W_TOOL_HANGS", f"`{command}` did not answer in time: it is not asked again")
            return (TIMED_OUT[0], "", "no answer in time, its driver may hang")
        return (code, clean(output), clean(error))
