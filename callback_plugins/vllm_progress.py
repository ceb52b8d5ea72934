# SPDX-License-Identifier: Apache-2.0
"""Shows where long steps are, and how long each stage of a run took."""

from __future__ import annotations

DOCUMENTATION = r"""
name: vllm_progress
type: notification
short_description: Show where long steps are and how long each stage took
version_added: 0.1.0
description:
  - A task that runs longer than I(heartbeat_seconds) is named, with the hosts still at it and the seconds spent.
  - Where such a task has an argument C(progress_path) naming a file on the controller (modules of this project running
    on a local connection), the stage, percentage and message in that file are shown with it.
  - When a task with C(until) is tried again, the status text in its result is shown, for example what the service
    being waited for said last through systemd's C(STATUS=).
  - At the end, a table gives the seconds of each play and of each role in it; I(summary_path) also writes it as JSON.
  - The callback only prints. An error in it switches it off and never changes the run.
author: vllm-ansible contributors (@vllm-ansible)
requirements:
  - Enable it with C(callbacks_enabled = vllm_progress).
options:
  heartbeat_seconds:
    description: Seconds after which, and interval at which, a running task is named. V(0) never does.
    type: float
    default: 15
    env:
      - name: VLLM_PROGRESS_HEARTBEAT
    ini:
      - section: callback_vllm_progress
        key: heartbeat_seconds
  show_summary:
    description: Print the table of stages at the end of a run.
    type: bool
    default: true
    env:
      - name: VLLM_PROGRESS_SHOW_SUMMARY
    ini:
      - section: callback_vllm_progress
        key: show_summary
  summary_path:
    description:
      - "File to write the stages to as JSON: C({schema, playbook, seconds, stages: [{name, seconds, tasks, roles:
        [{name, seconds, tasks}]}]})."
    type: path
    env:
      - name: VLLM_PROGRESS_SUMMARY
    ini:
      - section: callback_vllm_progress
        key: summary_path
"""

import functools
import json
import os
import threading
import time

import ansible.constants as C
from ansible.plugins.callback import CallbackBase
from ansible.template import Templar

# A stage that changes is news, but a module racing through its stages must not flood the screen.
LEAST_SECONDS_BETWEEN_LINES = 2.0
HOSTS_NAMED = 4


def status_text(result):
    """The status a retried result carries, or None.

    Understands a plain C(status) string, the C(status) dict of C(ansible.builtin.systemd_service) and the output of
    C(systemctl show).
    """
    status = result.get("status")
    if isinstance(status, dict):
        status = status.get("StatusText")
    status = status or result.get("StatusText")
    if not status:
        lines = str(result.get("stdout") or "").splitlines()
        status = next((line.partition("=")[2] for line in lines if line.startswith("StatusText=")), None)
    return status.strip() if isinstance(status, str) and status.strip() else None


def read_progress(path, since):
    """The progress a module published at C(path), or None when there is none written after C(since) (epoch seconds)."""
    try:
        with open(path, encoding="utf-8") as stream:
            progress = json.load(stream)
        return progress if progress["updated"] >= since else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def progress_words(progress):
    """One progress record as words: C(download 42 % 1.2 of 2.8 GiB)."""
    percent = progress.get("percent")
    parts = [progress.get("stage"), None if percent is None else f"{percent:.0f} %", progress.get("message")]
    return " ".join(str(part) for part in parts if part)


class Running:
    """One task that is running, on one or more hosts."""

    def __init__(self, name, now, wall):
        self.name = name
        self.hosts = []
        self.paths = {}
        self.started = self.printed = now
        self.wall = wall
        self.seen = {}

    def line(self, now, heartbeat):
        """The line to print at C(now), or None when there is no news."""
        progress = {host: read_progress(path, self.wall) for host, path in self.paths.items() if host in self.hosts}
        progress = {host: record for host, record in progress.items() if record}
        stages = {host: record.get("stage") for host, record in progress.items()}
        silent = now - self.printed
        if silent < heartbeat and not (stages != self.seen and silent >= LEAST_SECONDS_BETWEEN_LINES):
            return None
        self.printed, self.seen = now, stages
        more = len(self.hosts) - HOSTS_NAMED
        hosts = ", ".join(self.hosts[:HOSTS_NAMED]) + (f" and {more} more" if more > 0 else "")
        text = f"RUNNING {now - self.started:.0f} s: [{hosts}]: {self.name}"
        for host, record in progress.items():
            text += f"\n  {host}: {progress_words(record)}"
        return text


class Stages:
    """Seconds and tasks of each play, and of each role in it. Tasks outside a role are counted to the play alone."""

    def __init__(self):
        self.plays = {}
        self._open = None

    def play(self, name, now):
        """A play starts."""
        self.close(now)
        self.plays.setdefault(name, {"seconds": 0.0, "tasks": 0, "roles": {}})
        self._open = (name, None, now)

    def task(self, role, now):
        """A task starts, in C(role) or in none (C(None))."""
        self.close(now)
        if self._open is None:
            return
        play = self.plays[self._open[0]]
        play["tasks"] += 1
        if role:
            play["roles"].setdefault(role, {"seconds": 0.0, "tasks": 0})["tasks"] += 1
        self._open = (self._open[0], role, now)

    def close(self, now):
        """Count the time since the last event to what was open."""
        if self._open is None:
            return
        name, role, since = self._open
        self.plays[name]["seconds"] += now - since
        if role:
            self.plays[name]["roles"][role]["seconds"] += now - since
        self._open = (name, role, now)

    def listing(self):
        """The stages as plain data, in order of first appearance."""

        def rounded(name, entry):
            return {"name": name, "seconds": round(entry["seconds"], 2), "tasks": entry["tasks"]}

        return [
            {**rounded(name, play), "roles": [rounded(role, entry) for role, entry in play["roles"].items()]}
            for name, play in self.plays.items()
        ]

    def table(self):
        """The stages as lines of text."""
        rows = []
        for stage in self.listing():
            rows.append((stage["name"], stage["seconds"], stage["tasks"]))
            rows += [("  " + role["name"], role["seconds"], role["tasks"]) for role in stage["roles"]]
        width = max([len(row[0]) for row in rows] + [len("stage")])
        return [f"{'stage':<{width}}  {'seconds':>9}  {'tasks':>5}"] + [
            f"{name:<{width}}  {seconds:>9.1f}  {tasks:>5}" for name, seconds, tasks in rows
        ]


def _harmless(method):
    """Progress never breaks a run: an error in a handler is told at -vvv and switches the callback off."""

    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run matters more
            self.disabled = True
            self._finished.set()
            self._display.vvv(f"vllm_progress is off after an error in {method.__name__}: {error!r}")
            return None

    return wrapper


def _field(result, name):
    """A field of a task result: public (C(result.host)) on ansible-core 2.19 and later, private before."""
    return getattr(result, name) if hasattr(result, name) else getattr(result, "_" + name)


class CallbackModule(CallbackBase):
    """See DOCUMENTATION.

    Handlers are called from the strategy's thread and from the results thread, the heartbeat runs in its own: state is
    touched under C(_lock) only, and nothing is displayed while it is held.
    """

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "vllm_progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, display=None, options=None):
        super().__init__(display=display, options=options)
        self._clock = time.monotonic
        self._wall_clock = time.time
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._play = None
        self._playbook = None
        self._started = self._clock()
        self._stages = Stages()
        self._running = {}
        self._statuses = {}

    def _show(self, text):
        self._display.display(text, color=C.COLOR_DEBUG)

    @_harmless
    def v2_playbook_on_start(self, playbook):
        with self._lock:
            self._playbook = os.path.basename(playbook._file_name)
            self._started = self._clock()
            self._stages, self._running, self._statuses = Stages(), {}, {}
            self._finished = threading.Event()
        if self.get_option("heartbeat_seconds") > 0:
            threading.Thread(target=self._watch, args=(self._finished,), name="vllm_progress", daemon=True).start()

    @_harmless
    def v2_playbook_on_play_start(self, play):
        with self._lock:
            self._play = play
            self._running.clear()
            self._stages.play(play.get_name().strip() or "unnamed play", self._clock())

    @_harmless
    def v2_playbook_on_task_start(self, task, is_conditional):
        self._task_starts(task)

    @_harmless
    def v2_playbook_on_handler_task_start(self, task):
        self._task_starts(task)

    def _task_starts(self, task):
        role = getattr(task, "_role", None)
        with self._lock:
            self._stages.task(role.get_name() if role else None, self._clock())

    @_harmless
    def v2_runner_on_start(self, host, task):
        path = self._progress_path(host, task)
        with self._lock:
            running = self._running.get(task._uuid)
            if running is None:
                running = self._running[task._uuid] = Running(task.get_name(), self._clock(), self._wall_clock())
            running.hosts.append(host.get_name())
            if path:
                running.paths[host.get_name()] = path

    def _progress_path(self, host, task):
        """The file the task will report to, or None; its arguments are not templated yet when it starts."""
        path = task.args.get("progress_path") if isinstance(task.args, dict) else None
        if isinstance(path, str) and "{" in path:
            variables = task.get_variable_manager().get_vars(play=self._play, host=host, task=task)
            try:
                path = Templar(loader=task.get_loader(), variables=variables).template(path)
            except Exception:  # noqa: BLE001 - the task itself will tell about a path that cannot be templated
                return None
        return path if isinstance(path, str) else None

    @_harmless
    def v2_runner_on_ok(self, result):
        self._task_ends(result)

    @_harmless
    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._task_ends(result)

    @_harmless
    def v2_runner_on_skipped(self, result):
        self._task_ends(result)

    @_harmless
    def v2_runner_on_unreachable(self, result):
        self._task_ends(result)

    def _task_ends(self, result):
        host, uuid = _field(result, "host").get_name(), _field(result, "task")._uuid
        with self._lock:
            self._statuses.pop((uuid, host), None)
            running = self._running.get(uuid)
            if running is None or host not in running.hosts:
                return
            running.hosts.remove(host)
            if not running.hosts:
                del self._running[uuid]

    @_harmless
    def v2_runner_retry(self, result):
        text = status_text(_field(result, "result"))
        host, task = _field(result, "host").get_name(), _field(result, "task")
        with self._lock:
            known = self._statuses.get((task._uuid, host))
            self._statuses[task._uuid, host] = text
            if task._uuid in self._running:
                self._running[task._uuid].printed = self._clock()
        if text and text != known:
            self._show(f"  {host}: {text}")

    def _watch(self, finished):
        while not finished.wait(1.0):
            self._beat()

    @_harmless
    def _beat(self):
        with self._lock:
            running = list(self._running.values())
            now, heartbeat = self._clock(), self.get_option("heartbeat_seconds")
            lines = [line for line in (entry.line(now, heartbeat) for entry in running) if line]
        for line in lines:
            self._show(line)

    @_harmless
    def v2_playbook_on_stats(self, stats):
        self._finished.set()
        with self._lock:
            now = self._clock()
            self._stages.close(now)
            stages, table, seconds = self._stages.listing(), self._stages.table(), round(now - self._started, 2)
        if self.get_option("show_summary") and stages:
            self._display.banner("STAGES")
            self._display.display("\n".join([*table, f"total {seconds:.1f} seconds"]))
        path = self.get_option("summary_path")
        if path:
            summary = {"schema": 1, "playbook": self._playbook, "seconds": seconds, "stages": stages}
            staging = f"{path}.{os.getpid()}"
            with open(staging, "w", encoding="utf-8") as stream:
                json.dump(summary, stream, indent=2)
                stream.write("\n")
            os.replace(staging, path)
