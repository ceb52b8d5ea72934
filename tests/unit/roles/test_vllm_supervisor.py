# SPDX-License-Identifier: Apache-2.0
"""The supervisor, alone and as a process over the stand-in engine of tests/fixtures/stand_in_engine."""

import contextlib
import dataclasses
import http.client
import importlib.machinery
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
SUPERVISOR = ROOT / "roles/engine_service/files/vllm-supervisor"
STAND_IN = ROOT / "tests/fixtures/stand_in_engine"
KEY = "sk-test-5d41402abc4b2a76"


def load():
    loader = importlib.machinery.SourceFileLoader("vllm_supervisor", str(SUPERVISOR))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("vllm_supervisor", loader))
    sys.modules["vllm_supervisor"] = module
    dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = dont_write
    return module


supervisor = load()


# --- the pure parts -----------------------------------------------------------------------------------------------


def instance(**changes):
    values = {
        "name": "one",
        "model_directory": "/m",
        "served_model_name": "m",
        "listen_address": "127.0.0.1",
        "port": 8000,
    }
    return supervisor.Instance(**{**values, **changes})


def test_flags_become_arguments():
    flags = {
        "max-model-len": 1024,
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "seed": None,
        "allowed-origins": ["a", "b"],
        "speculative-config": {"method": "ngram"},
    }
    assert instance(flags=flags).engine_command("/c/api-key") == [
        *(sys.executable, "-I", "-m", "vllm.entrypoints.cli.main", "serve"),
        "/m",
        "--api-key-file=/c/api-key",
        "--served-model-name=m",
        "--host=127.0.0.1",
        "--port=8000",
        "--allowed-origins",
        "a",
        "b",
        "--enforce-eager",
        "--max-model-len=1024",
        '--speculative-config={"method": "ngram"}',
    ]


def test_the_engine_inherits_only_what_it_needs():
    inherited = {"PATH": "/bin", "NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1", "CACHE_DIRECTORY": "/c", "SECRET": "x"}
    environment = instance(environment={"VLLM_CPU_KVCACHE_SPACE": 1}).engine_environment(inherited)
    assert environment["PATH"] == "/bin"
    assert environment["XDG_CACHE_HOME"] == "/c"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "SECRET"} & set(environment)


def test_the_engine_gets_what_the_environment_file_names(tmp_path):
    path = tmp_path / "ascend.env"
    path.write_text('# CANN\nASCEND_HOME_PATH=/a\nPYTHONPATH="/a b/python"\n')
    one = instance(environment_file=str(path), environment={"HCCL_IF_IP": "192.0.2.1"})
    inherited = {"ASCEND_HOME_PATH": "/a", "PYTHONPATH": "/a b/python", "SECRET": "x"}
    environment = one.engine_environment(inherited)
    assert environment["ASCEND_HOME_PATH"] == "/a"
    assert environment["PYTHONPATH"] == "/a b/python"
    assert environment["HCCL_IF_IP"] == "192.0.2.1"
    assert "SECRET" not in environment
    assert one.engine_command("/k")[1:4] == ["-s", "-P", "-m"]
    path.unlink()
    with pytest.raises(supervisor.ConfigurationError, match=r"ascend\.env cannot be read"):
        one.environment_file_names()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "a JSON object is needed"),
        ("{", "cannot be read as JSON"),
        ('{"name": "one"}', "missing 4 required positional arguments: 'model_directory'"),
        ('{"port": "8000"}', "port: has the wrong type: '8000'"),
        ('{"port": true}', "port: has the wrong type: True"),
        (
            json.dumps(dataclasses.asdict(supervisor.Instance("a", "/m", "m", "::", 1, {"headless": True}))),
            "the hosts of the replica cannot meet: 'data-parallel-address'",
        ),
    ],
)
def test_a_broken_instance_file_is_named(tmp_path, content, message):
    path = tmp_path / "one.json"
    path.write_text(content)
    with pytest.raises(supervisor.ConfigurationError, match=r"one\.json") as error:
        supervisor.Instance.load(str(path))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:01", "loading weights, 40%"),
        ("INFO Launching 2 data parallel engine(s) in headless mode, with", "looking for the head of the replica"),
        ("(EngineCore pid=7) INFO Initializing a V1 LLM engine (v0.32.0)", "initialising the engine"),
        ("INFO:     Application startup complete.", "generating a first token"),
        ("an ordinary line", "starting Python"),
    ],
)
def test_log_lines_tell_the_stage(line, stage):
    subject = supervisor.Supervisor(instance(), KEY, 120, 5)
    subject.note_stage(line)
    assert subject.stage == stage


STOPPED = ("VLLM::EngineCore (12)",)


def looks(*samples, trust_cpu=True):
    """Feed (time, status, tokens, engine ticks, stopped) to a judge with stall 5 s, longest step 120 s, 100 ticks/s."""
    judge = supervisor.Judge(5, 120, trust_cpu, 100)
    for at, status, tokens, ticks, stopped in samples:
        verdict = judge.look(at, status, (tokens,), supervisor.Processes(at * 10, ticks, stopped))
    return verdict


def stalled(until, tick_rate, stopped=(), status=503):
    """A healthy look at 0 s, then looks without progress every 2 s up to `until`."""
    return [(0, 200, 7, 0, ()), *((at, status, 7, int(at * tick_rate), stopped) for at in range(2, until + 1, 2))]


def test_a_stopped_process_is_frozen_as_soon_as_healthz_says_so():
    alive, why = looks(*stalled(2, 0, STOPPED))
    assert not alive
    assert "VLLM::EngineCore (12)" in why


def test_an_engine_that_uses_no_processor_is_frozen():
    assert looks(*stalled(6, 0))[0]
    assert not looks(*stalled(8, 0))[0]


def test_a_long_step_that_computes_is_waited_for_up_to_the_limit():
    assert looks(*stalled(120, 90))[0]
    assert not looks(*stalled(124, 90))[0]


def test_host_cpu_time_proves_nothing_on_an_accelerator():
    assert looks(*stalled(60, 0), trust_cpu=False)[0]
    assert not looks(*stalled(124, 0), trust_cpu=False)[0]
    assert not looks(*stalled(8, 0, STOPPED), trust_cpu=False)[0]


def test_moving_tokens_are_life_even_when_healthz_disagrees():
    samples = [(at, 503, at, 0, ()) for at in range(0, 400, 2)]
    assert looks((0, 200, 0, 0, ()), *samples)[0]


def test_a_silent_api_that_computes_is_not_frozen_and_a_stopped_one_is():
    # The samples' API process uses 10 ticks per second.
    assert looks(*stalled(30, 0, status=None))[0]
    assert looks(*stalled(6, 0, STOPPED, status=None))[0]
    assert not looks(*stalled(8, 0, STOPPED, status=None))[0]


def test_processes_are_read_from_proc(tmp_path):
    for pid, name, state, parent, group, ticks in (
        (5, "a) b", "S", 1, 5, 3),
        (6, "core", "T", 5, 5, 4),
        (7, "other", "T", 5, 1, 9),
        (8, "worker", "S", 6, 5, 2),
    ):
        (tmp_path / str(pid)).mkdir()
        words = [state, str(parent), str(group), *["0"] * 8, str(ticks), "1", "0"]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(words)}\n")
    seen = supervisor.look_at_processes(5, str(tmp_path))
    assert (seen.server_ticks, seen.engine_ticks, seen.stopped) == (4, 8, ("core (6)",))
    assert (sorted(seen.pids), seen.children) == ([5, 6, 8], (6,))


def test_connections_are_read_from_proc(tmp_path):
    (tmp_path / "net").mkdir()
    head = " sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = " 0: {} {} {} 00000000:00000000 00:00000000 00000000 999 0 {} 1 0000000000000000\n"
    rows = [("0200000A:C350", "0100000A:344D", "01", 71), ("0200000A:C351", "0100000A:344E", "02", 72)]
    (tmp_path / "net/tcp").write_text(head + "".join(row.format(*words) for words in rows))
    six = ("0000000000000000FFFF00000200000A:C352", "0000000000000000FFFF00000100000A:9C40", "01", 73)
    (tmp_path / "net/tcp6").write_text(head + row.format(*six))
    for pid, inodes in ((5, (71, 72, 99)), (6, (73,))):
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
        for number, inode in enumerate(inodes):
            (tmp_path / f"{pid}/fd/{number}").symlink_to(f"socket:[{inode}]")
    assert supervisor.look_at_connections([5, 6, 7], str(tmp_path)) == [
        supervisor.Connection(5, 0xC350, "10.0.0.1", 13389),
        supervisor.Connection(6, 0xC352, "10.0.0.1", 40000),
    ]
    assert supervisor.read_address("B80D0120000000000000000001000000") == "2001:db8::1"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, None),
        (
            {"data-parallel-address": "192.0.2.1", "data-parallel-rpc-port": 13389, "data-parallel-size-local": 2},
            ("192.0.2.1", 13389, 2, True),
        ),
        (
            {"nnodes": 2, "node-rank": 1, "master-addr": "192.0.2.1", "master-port": 13389, "tensor-parallel-size": 16},
            ("192.0.2.1", 13389, 8, False),
        ),
    ],
)
def test_the_flags_tell_where_a_replica_meets(flags, expected):
    found = supervisor.Replica.of(flags)
    assert (found and (found.head, found.port, found.ranks, found.greets)) == expected


def member_looks(*samples, greets=True):
    """Feed (time, started, connections of the ranks 11 and 12 as (pid, own port, port)) to a member; patience 5 s."""
    member = supervisor.Member(supervisor.Replica("192.0.2.1", 13389, 2, greets), 5)
    for now, started, links in samples:
        connections = [supervisor.Connection(pid, own, "192.0.2.1", port) for pid, own, port in links]
        # 10 is a helper of Python's multiprocessing, which talks to nobody
        seen = member.look(now, supervisor.Processes(0, 0, (), children=(10, 11, 12)), connections, started)
    return seen


GREETING = [(11, 1, 13389), (12, 2, 13389)]
LOADING = [*GREETING, (11, 3, 40000), (12, 4, 40000)]
JOINED = LOADING[2:]


def test_a_member_is_ready_when_every_rank_is_done_with_its_greeting():
    assert member_looks((1, False, GREETING), (9, False, LOADING), (99, False, LOADING)) == (False, "")
    assert member_looks((1, False, LOADING), (2, False, JOINED)) == (False, "")
    assert member_looks((1, False, LOADING), (2, False, JOINED), (4, False, JOINED)) == (True, "")
    assert member_looks((1, False, LOADING), (2, False, JOINED[:1]), (4, False, JOINED[:1]))[0] is False


def test_workers_of_one_rank_are_ready_when_connected():
    assert member_looks((1, False, GREETING), (3, False, GREETING), greets=False) == (True, "")


def test_workers_that_lose_a_starting_head_do_not_wait_for_it():
    _, trouble = member_looks((1, False, GREETING), (2, False, []), (7, False, []), greets=False)
    assert trouble == "the head 192.0.2.1 went away while 2 ranks were starting"


def test_a_member_is_not_ready_before_its_head_and_leaves_one_that_fell_silent():
    member = supervisor.Member(supervisor.Replica("192.0.2.1", 13389, 1, False), 5)
    linked = [supervisor.Connection(11, 1, "192.0.2.1", 13389)]

    def look(now, started, answers):
        return member.look(now, supervisor.Processes(0, 0, (), children=(11,)), linked, started, answers)

    assert [look(at, False, False) for at in (1, 99)] == [(False, "")] * 2
    assert look(100, False, True) == (True, "")
    # its connections stay, as those to a host without power do
    assert [look(at, True, answers)[1] for at, answers in ((101, True), (102, False), (116, False))] == [""] * 3
    assert [look(at, True, answers)[1] for at, answers in ((116.5, True), (117, False), (131, False))] == [""] * 3
    assert look(132, True, False)[1] == "the head 192.0.2.1 takes no connection"


def test_a_starting_head_ends_when_a_member_left_the_meeting():
    head = supervisor.Head(supervisor.Replica("192.0.2.1", 13389, 1, False), 8000, 5)
    met = [supervisor.Connection(5, 13389, "192.0.2.2", 40001)]
    assert [head.look(at, links, started=False) for at, links in ((1, []), (9, met), (10, []), (14, []))] == [""] * 4
    assert "192.0.2.2" in head.look(15, [], started=False)


def test_a_member_that_never_found_its_head_is_only_not_ready():
    assert member_looks((1, False, []), (99, False, [])) == (False, "")


@pytest.mark.parametrize("after", [[], [(11, 7, 13389), (12, 8, 13389)]])
def test_a_head_that_starts_again_under_a_starting_member_is_noticed(after):
    assert member_looks((1, False, GREETING), (2, False, after), (6, False, after)) == (False, "")
    _, trouble = member_looks((1, False, GREETING), (2, False, after), (7, False, after))
    assert trouble == "the head 192.0.2.1 went away while 2 ranks were starting"


def test_a_member_without_connections_is_in_trouble_after_its_patience():
    assert member_looks((1, True, JOINED), (2, True, []), (6, True, [])) == (False, "")
    assert member_looks((1, True, JOINED), (2, True, []), (6, True, JOINED), (9, True, [])) == (False, "")
    _, trouble = member_looks((1, True, JOINED), (2, True, JOINED[:1]), (7, True, JOINED[:1]))
    assert trouble == "1 of 2 ranks have no connection to the head 192.0.2.1"


def test_the_head_knows_its_members_from_the_meeting_and_clients_are_none():
    head = supervisor.Head(supervisor.Replica("192.0.2.1", 13389, 2, True), 8000, 5)
    member, client = ("192.0.2.2", 40001), ("192.0.2.9", 50000)
    met = [supervisor.Connection(5, 13389, *member), supervisor.Connection(5, 8000, *client)]
    assert head.look(1, met, started=False) == ""
    linked = [supervisor.Connection(5, 41000, *member)]
    assert [head.look(at, linked, started=True) for at in (2, 20)] == ["", ""]
    # what a member's host asks of the API does not make it a member
    asking = [supervisor.Connection(5, 8000, *member)]
    assert [head.look(at, asking, started=True) for at in (21, 25)] == ["", ""]
    assert "192.0.2.2" in head.look(26, asking, started=True)


# --- as a process -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter that finds the stand-in as its own vLLM, isolated mode included."""
    folder = tmp_path_factory.mktemp("release")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "stand_in.pth").write_text(str(STAND_IN))
    return folder / "bin/python3"


class Service:
    """A started supervisor, with this test in the place of systemd."""

    def __init__(self, python, root, environment=None, key=KEY, start_timeout=20, model=True, **changes):
        self.root = root
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = changes.get("port", probe.getsockname()[1])
        (root / "etc/vllm/instances").mkdir(parents=True)
        (root / "run/vllm/one").mkdir(parents=True)
        (root / "credentials").mkdir()
        if key is not None:
            (root / "credentials/api-key").write_text(key)
        configuration = {
            "name": "one",
            "model_directory": str(root if model else root / "missing"),
            "served_model_name": "m",
            "listen_address": "127.0.0.1",
            "port": self.port,
            "environment": environment or {},
            "stall_after_seconds": 0.5,
            "max_step_seconds": 60,
            **changes,
        }
        (root / "etc/vllm/instances/one.json").write_text(json.dumps(configuration))
        self.messages = []
        self.notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notifications.bind(str(root / "notify"))
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()
        # The polling time is a constant of the service; the test is in a hurry.
        code = (
            "import importlib.machinery as m, sys; s = m.SourceFileLoader('s', sys.argv[1]).load_module();"
            "s.POLL_SECONDS, s.HEALTH_TIMEOUT_SECONDS = 0.2, 1; sys.argv[1:] = sys.argv[2:]; sys.exit(s.main())"
        )
        arguments = [f"--root={root}", f"--start-timeout={start_timeout}", "--stop-timeout=3", "one"]
        self.process = subprocess.Popen(
            [python, "-B", "-W", "ignore", "-c", code, SUPERVISOR, *arguments],
            env={
                "PATH": os.environ["PATH"],
                "NOTIFY_SOCKET": str(root / "notify"),
                "CREDENTIALS_DIRECTORY": str(root / "credentials"),
                "INVOCATION_ID": "abc",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def listen(self):
        while data := self.notifications.recv(65536):
            self.messages.append(data.decode())

    def wait_for(self, text, seconds=15):
        deadline = time.monotonic() + seconds
        while not any(text in message for message in list(self.messages)):
            assert time.monotonic() < deadline, f"no {text!r} in {self.messages}"
            time.sleep(0.05)

    def result(self, seconds=15):
        output, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, output.decode()

    def group(self):
        """(API process, engine process) of the stand-in."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        server = int(children[0])
        # The thread that started it owns the child; the stand-in starts it from its main thread.
        engine = int(Path(f"/proc/{server}/task/{server}/children").read_text().split()[0])
        return server, engine

    def request(self, method, path, prompt=None, tokens=1, timeout=30):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        body = json.dumps({"prompt": prompt, "max_tokens": tokens}) if prompt else None
        connection.request(method, path, body, {"Authorization": f"Bearer {KEY}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def in_background(self, prompt, tokens):
        """Send a request nobody waits for."""

        def send():
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.request("POST", "/v1/completions", prompt, tokens)

        threading.Thread(target=send, daemon=True).start()

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=15)
        # an empty message ends the listener, which must not read from a closed socket
        self.notifications.sendto(b"", self.notifications.getsockname())
        self.listener.join(timeout=15)
        self.notifications.close()


@pytest.fixture
def start(python, tmp_path):
    services = []

    def begin(name="", **options):
        (tmp_path / name).mkdir(exist_ok=True)
        services.append(Service(python, tmp_path / name, **options))
        return services[-1]

    yield begin
    for service in services:
        service.close()


def gone(pid):
    """Ended: no process, or one whose parent has not noticed yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_ready_only_after_a_token_and_stopped_on_request(start):
    service = start(environment={"STAND_IN_LOAD_SECONDS": "1"})
    service.wait_for("STATUS=starting Python")
    assert not any("READY" in message for message in service.messages)
    service.wait_for("READY=1")
    server, engine = service.group()
    record = json.loads((service.root / "run/vllm/one/started.json").read_text())
    assert record["invocation_id"] == "abc"
    service.process.send_signal(signal.SIGHUP)
    service.process.send_signal(signal.SIGTERM)
    status, output = service.result()
    assert status == 0
    assert "stopped on request" in output
    assert gone(server)
    assert gone(engine)


def test_an_engine_without_tokens_is_never_ready(start):
    service = start(environment={"STAND_IN_NO_TOKENS": "1"})
    status, output = service.result()
    assert status == 1
    assert "the first request gave no token" in output
    assert not any("READY" in message for message in service.messages)


def test_an_engine_that_serves_without_the_key_is_never_ready(start):
    service = start(environment={"STAND_IN_OPEN": "1"})
    status, output = service.result()
    assert status == 1
    assert "without the key was answered with HTTP 200" in output
    assert not any("READY" in message for message in service.messages)


def test_an_engine_without_the_override_is_refused(start):
    status, output = start(environment={"STAND_IN_NO_HEALTHZ": "1"}).result()
    assert status == 1
    assert "no /healthz" in output


def test_the_supervisor_gives_up_before_systemd_would(start):
    status, output = start(environment={"STAND_IN_LOAD_SECONDS": "30"}, start_timeout=6).result()
    assert status == 1
    assert "not serving after 1 s" in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": None}, "no API key"),
        ({"key": "\n"}, "is empty"),
        ({"model": False}, "missing is not a directory"),
        ({"port": "8000"}, "port: has the wrong type"),
    ],
)
def test_what_no_restart_can_cure_exits_78_without_an_engine(start, options, message):
    service = start(**options)
    status, output = service.result()
    assert status == supervisor.EXIT_CONFIGURATION
    assert message in output
    assert not (service.root / "run/vllm/one/started.json").exists()


def test_the_key_is_nowhere_to_be_seen(start):
    service = start()
    service.wait_for("READY=1")
    for pid in (service.process.pid, *service.group()):
        for name in ("cmdline", "environ"):
            assert KEY.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    service.request("GET", "/leak")
    service.process.send_signal(signal.SIGTERM)
    _, output = service.result()
    assert "the key is ***" in output
    assert KEY not in output


@pytest.mark.parametrize("how", ["exit 0", "kill the engine"])
def test_an_engine_that_ends_fails_the_service(start, how):
    service = start()
    service.wait_for("READY=1")
    if how == "exit 0":
        with pytest.raises(http.client.RemoteDisconnected):
            service.request("GET", "/exit")
    else:
        os.kill(service.group()[1], signal.SIGKILL)
    status, output = service.result()
    assert status == 1
    assert "exited with status 0 during: serving" in output or "the engine core is dead" in output


def test_a_dead_engine_is_not_waited_for(start):
    service = start(environment={"STAND_IN_LINGER_SECONDS": "60"})
    service.wait_for("READY=1")
    os.kill(service.group()[1], signal.SIGKILL)
    status, output = service.result(seconds=5)
    assert status == 1
    assert "the engine core is dead" in output


def test_a_frozen_engine_with_requests_is_ended(start):
    service = start()
    service.wait_for("READY=1")
    server, engine = service.group()
    service.in_background("slow", 1000)
    time.sleep(0.5)
    os.kill(engine, signal.SIGSTOP)
    status, output = service.result(seconds=5)
    assert status == 1
    assert "frozen: /healthz says 503, stopped:" in output
    assert gone(server)
    assert gone(engine)


@pytest.mark.parametrize("which", ["API process", "idle engine"])
def test_a_frozen_api_process_and_a_frozen_idle_engine_are_ended(start, which):
    service = start(idle_canary_seconds=0.5)
    service.wait_for("READY=1")
    os.kill(service.group()[which == "idle engine"], signal.SIGSTOP)
    status, output = service.result(seconds=15)
    assert status == 1
    assert "frozen:" in output


def test_a_queue_of_slow_requests_is_not_killed(start):
    service = start(idle_canary_seconds=0.5)
    service.wait_for("READY=1")
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(service.request("POST", "/v1/completions", "slow", 3)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _ in answers] == [200, 200, 200]
    assert service.process.poll() is None


def test_a_long_prefill_is_not_killed_and_keeps_the_watchdog_fed(start):
    service = start()
    service.wait_for("READY=1")
    assert service.request("POST", "/v1/completions", "prefill 3")[1]["usage"]["completion_tokens"] == 1
    assert service.process.poll() is None
    assert sum("WATCHDOG=1" in message for message in service.messages) >= 8
    service.wait_for("still computing")


def test_a_step_beyond_the_limit_is_ended(start):
    service = start(max_step_seconds=1)
    service.wait_for("READY=1")
    with pytest.raises((OSError, http.client.HTTPException)):
        service.request("POST", "/v1/completions", "prefill 10")
    status, output = service.result()
    assert status == 1
    assert "no progress for 1 s" in output


# --- one replica on several hosts ---------------------------------------------------------------------------------


@pytest.fixture
def replica(start):
    """Start its head or its member, two ranks; both are on this machine, their APIs have addresses of their own."""
    with socket.create_server(("127.0.0.1", 0)) as probe, socket.create_server(("127.0.0.1", 0)) as other:
        port, api = probe.getsockname()[1], other.getsockname()[1]
    meeting = {"data-parallel-size": 3, "data-parallel-address": "127.0.0.1", "data-parallel-rpc-port": port}

    def begin(name, **options):
        own = {"data-parallel-size-local": 1}
        if name == "member":
            own = {"headless": True, "data-parallel-size-local": 2, "data-parallel-start-rank": 1}
        loading = {"STAND_IN_LOAD_SECONDS": "1"} if name == "member" else {}
        address = "127.0.0.2" if name == "member" else "127.0.0.1"
        options = {
            "flags": {**meeting, **own},
            "environment": loading,
            "listen_address": address,
            "port": api,
            **options,
        }
        return start(name=name, **options)

    return begin


def ready(service):
    return any("READY" in message for message in service.messages)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_member_is_ready_with_its_head_in_either_order_and_stops_on_request(replica):
    member = replica("member")
    member.wait_for("STATUS=looking for the head of the replica")
    assert not ready(member)
    head = replica("head")
    member.wait_for("READY=1")
    head.wait_for("READY=1")
    fed = len(member.messages)
    time.sleep(1)
    assert "WATCHDOG=1" in member.messages[fed:]
    server = member.group()[0]
    ranks = children(server)
    # nobody listens: the port of the plan stays closed on a member
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", member.port))
    member.process.terminate()
    assert member.result()[0] == 0
    assert all(map(gone, [server, *ranks]))


def test_a_member_without_a_head_gives_up_before_systemd_would(replica):
    status, output = replica("member", start_timeout=6).result()
    assert status == 1
    assert "last stage: looking for the head of the replica" in output


def test_a_member_ends_when_its_head_does(replica):
    head, member = replica("head"), replica("member")
    head.wait_for("READY=1")
    member.wait_for("READY=1")
    os.killpg(head.group()[0], signal.SIGKILL)
    status, output = member.result()
    assert status == 1
    assert "2 of 2 ranks have no connection to the head 127.0.0.1" in output


def test_a_head_ends_when_a_member_does(replica):
    head, member = replica("head"), replica("member")
    head.wait_for("READY=1")
    member.wait_for("READY=1")
    member.process.terminate()
    status, output = head.result()
    assert status == 1
    assert "no connection to 127.0.0.1 any more" in output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_member_ends_when_one_of_its_ranks_ends_or_is_stopped(replica, number):
    _, member = replica("head"), replica("member")
    member.wait_for("READY=1")
    server = member.group()[0]
    ranks = children(server)
    os.kill(ranks[0], number)
    status, output = member.result()
    assert status == 1
    assert ("frozen: stopped" if number == signal.SIGSTOP else "exited with status 0 during: serving") in output
    assert all(map(gone, [server, *ranks]))
