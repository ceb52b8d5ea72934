# SPDX-License-Identifier: Apache-2.0
"""What happens to a serving engine when something breaks: killed, frozen, flooded, without its key."""

import contextlib
import http.client
import json
import threading
import time

import pytest

pytestmark = pytest.mark.site

HOST = "cpu01"
KILLED_SECONDS = 45
FROZEN_SECONDS = 60
HEALTHZ_SECONDS = 5
EXPOSURE_LIMIT = 1.5


class Engine:
    """The instance of one host: its API from outside, its unit through ssh."""

    def __init__(self, site, host):
        self.site, self.host = site, host
        self.key = site.key()
        configuration = json.loads(self.ssh("cat /etc/vllm/instances/*.json"))
        self.unit = f"vllm-{configuration['name']}.service"
        self.key_file = f"/etc/vllm/credentials/{configuration['name']}.key"
        self.address, self.port = configuration["listen_address"], configuration["port"]
        self.model = configuration["served_model_name"]

    def ssh(self, command, check=True, timeout=60):
        return self.site.ssh(self.host, command, check=check, timeout=timeout)

    def show(self, name):
        return self.ssh(f"systemctl show --value --property={name} {self.unit}").strip()

    def request(self, method, path, body=None, key=None, timeout=10):
        """(status, body), or (None, b"") when nothing answers."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return None, b""
        finally:
            connection.close()

    def complete(self, tokens=1, timeout=10):
        """Status of a completion of exactly that many tokens."""
        body = {"model": self.model, "prompt": "One two three", "max_tokens": tokens, "ignore_eos": True}
        return self.request("POST", "/v1/completions", {**body, "temperature": 0}, self.key, timeout)[0]

    def healthz(self):
        return self.request("GET", "/healthz", timeout=2)[0]

    def processes(self):
        """{pid: command line} of everything the service user runs."""
        lines = self.ssh("ps -u vllm -o pid=,args=", check=False).splitlines()
        return {int(pid): command for pid, _, command in (line.strip().partition(" ") for line in lines)}

    def core(self):
        (pid,) = (pid for pid, command in self.processes().items() if "EngineCore" in command)
        return pid

    def serves_again(self, since, seconds, restarts):
        """Wait until a new start answers with a token; returns the seconds since `since`."""
        self.site.wait(
            lambda: self.show("NRestarts") == str(restarts + 1) and self.complete() == 200,
            seconds - (time.monotonic() - since),
            f"{self.unit} serves again",
        )
        return time.monotonic() - since


@pytest.fixture(scope="module")
def converged(site):
    """A running site; costs nothing when the bring-up tests ran before."""
    site.play("site.yml").ok()
    return Engine(site, HOST)


@pytest.fixture
def engine(converged):
    """A serving engine with its whole restart budget, and the same again for the next test."""
    converged.ssh(f"systemctl reset-failed {converged.unit}; systemctl start {converged.unit}", timeout=240)
    assert converged.complete() == 200
    return converged


@pytest.fixture
def measured(capsys):
    """Print a figure past pytest's capture, for the log of the gate."""

    def show(what, seconds):
        with capsys.disabled():
            print(f"\n{what} after {seconds:.1f} s", flush=True)

    return show


@contextlib.contextmanager
def load(engine, clients, tokens):
    """Clients that ask for completions of that length, one after the other, until the block ends."""
    over = threading.Event()
    answers = []

    def ask():
        while not over.is_set():
            answers.append(engine.complete(tokens, timeout=240))
            if answers[-1] is None:
                over.wait(0.5)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        over.set()
        for thread in threads:
            thread.join(timeout=300)


def test_a_killed_engine_serves_again(engine, measured):
    restarts = int(engine.show("NRestarts"))
    began = time.monotonic()
    engine.ssh(f"kill -KILL {engine.core()}")
    measured("killed engine serves again", engine.serves_again(began, KILLED_SECONDS, restarts))


def test_a_frozen_engine_says_503_and_serves_again(engine, measured):
    restarts = int(engine.show("NRestarts"))
    with load(engine, clients=4, tokens=64):
        engine.site.wait(lambda: b'"running":0' not in engine.request("GET", "/healthz")[1], 10, "requests run")
        core = engine.core()
        began = time.monotonic()
        engine.ssh(f"kill -STOP {core}")
        engine.site.wait(lambda: engine.healthz() == 503, HEALTHZ_SECONDS, "/healthz says 503")
        measured("/healthz of a frozen engine says 503", time.monotonic() - began)
        measured("frozen engine serves again", engine.serves_again(began, FROZEN_SECONDS, restarts))
    assert "frozen: /healthz says 503" in engine.ssh(f"journalctl --unit={engine.unit} --output=cat --since=-5min")


def test_an_engine_that_froze_while_idle_serves_again(engine, measured):
    restarts = int(engine.show("NRestarts"))
    began = time.monotonic()
    engine.ssh(f"kill -STOP {engine.core()}")
    engine.site.wait(lambda: engine.show("NRestarts") == str(restarts + 1), FROZEN_SECONDS, "restarted by itself")
    measured("engine frozen while idle serves again", engine.serves_again(began, FROZEN_SECONDS, restarts))


def test_a_flood_of_requests_is_not_a_failure(engine):
    restarts, started = engine.show("NRestarts"), engine.show("ExecMainStartTimestampMonotonic")
    health = []
    # Far more than run at once, short enough for a processor that emulates the model's data type.
    with load(engine, clients=100, tokens=8) as answers:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            health.append(engine.healthz())
            time.sleep(1)
    assert set(health) == {200}
    # Every client was served, the last ones while the block ended.
    assert set(answers) == {200}
    assert len(answers) >= 100
    assert (engine.show("NRestarts"), engine.show("ExecMainStartTimestampMonotonic")) == (restarts, started)


@pytest.mark.parametrize(("break_key", "result"), [("rm", "243"), ("truncate --size=0", "78")])
def test_nothing_is_served_without_the_key(engine, break_key, result):
    engine.ssh(f"cp --preserve=all {engine.key_file} /root/saved.key && {break_key} {engine.key_file}")
    try:
        engine.ssh(f"systemctl restart {engine.unit}", check=False)
        assert engine.show("ActiveState") == "failed"
        assert engine.show("ExecMainStatus") == result
        assert engine.processes() == {}
        assert engine.healthz() is None
    finally:
        engine.ssh(f"mv /root/saved.key {engine.key_file}")


def test_a_request_without_the_right_key_is_refused(engine):
    for key in (None, "wrong", engine.key + "x"):
        assert engine.request("GET", "/v1/models", key=key)[0] == 401
    assert engine.request("GET", "/v1/models", key=engine.key)[0] == 200


def test_the_key_cannot_be_seen(engine):
    seen = [engine.ssh(f"systemctl show {engine.unit}"), engine.ssh(f"systemctl cat {engine.unit}")]
    seen.append(engine.ssh(f"journalctl --unit={engine.unit} --output=export"))
    for pid in engine.processes():
        seen.append(engine.ssh(f"cat /proc/{pid}/cmdline /proc/{pid}/environ | tr '\\0' '\\n'"))
    assert len(seen) > 5
    assert [text for text in seen if engine.key in text] == []


def test_the_sandbox_is_tight(engine):
    overall = engine.ssh(f"systemd-analyze security --no-pager {engine.unit}").strip().splitlines()[-1]
    assert float(overall.rpartition(":-")[0].split()[-2]) <= EXPOSURE_LIMIT, overall


def test_nothing_is_left_after_a_stop(engine):
    began = time.monotonic()
    engine.ssh(f"systemctl stop {engine.unit}")
    assert time.monotonic() - began < 30
    assert engine.show("ActiveState") == "inactive"
    assert engine.processes() == {}
    assert engine.healthz() is None
    assert engine.ssh("ls -d /run/vllm/* 2>/dev/null || true") == ""
