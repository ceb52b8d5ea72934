# SPDX-License-Identifier: Apache-2.0
"""The check against a small API on a real socket."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import vllm_service_check

KEY = "sk-test"


class Api:
    """What the API answers; a test changes the attributes."""

    health = 200
    unguarded = False
    model = "m"
    chat_template = True
    refusals = 0

    def __init__(self):
        api = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self, status, body):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def do_GET(self):
                if self.path == "/healthz":
                    api.refusals -= 1
                    self.answer(503 if api.refusals >= 0 else api.health, {"status": "x"})
                elif not api.unguarded and self.headers.get("Authorization") != f"Bearer {KEY}":
                    self.answer(401, {})
                else:
                    self.answer(200, {"data": [{"id": api.model}]})

            def do_POST(self):
                chat = self.path == "/v1/chat/completions"
                if chat and not api.chat_template:
                    self.answer(400, {"error": {"message": "no chat template"}})
                    return
                choice = {"delta": {"content": "Red"}} if chat else {"text": "blue"}
                events = [{"choices": [choice]}, {"choices": [], "usage": {"completion_tokens": 2}}]
                self.answer(200, b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def api():
    api = Api()
    yield api
    api.server.shutdown()
    api.server.server_close()


def show(active="active", restarts=0):
    command = ["systemctl", "show", "--property=ActiveState,StatusText,NRestarts", "vllm-one.service"]
    return (command, 0, f"ActiveState={active}\nStatusText=loading weights, 40%\nNRestarts={restarts}\n", "")


def security(figure):
    command = ["systemd-analyze", "--no-pager", "security", "vllm-one.service"]
    return (command, 0, f"→ Overall exposure level for vllm-one.service: {figure} OK :-)\n", "")


def params(api, **changes):
    values = {"instance": "one", "address": "127.0.0.1", "port": api.port, "model": "m", "api_key": KEY}
    return {**values, "timeout_seconds": 0, **changes}


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_healthy_instance(api, run_module, check_mode):
    result = run_module(
        vllm_service_check,
        params(api, exposure_limit=1.5),
        check_mode=check_mode,
        commands=[show(restarts=2), security(1.1)],
    )
    check = result["check"]
    assert not result["changed"]
    assert result["running"]
    assert (check["answer"], check["completion_tokens"], check["exposure"], check["restarts"]) == ("Red", 2, 1.1, 2)
    assert check["endpoint"] == f"http://127.0.0.1:{api.port}/v1"
    assert check["first_token_seconds"] >= 0


def test_a_model_without_chat_template_is_completed(api, run_module):
    api.chat_template = False
    assert run_module(vllm_service_check, params(api), commands=[show()])["check"]["answer"] == "blue"


def test_it_is_asked_again_until_it_is_healthy(api, run_module):
    api.refusals = 1
    result = run_module(vllm_service_check, params(api, timeout_seconds=10), commands=[show(), show()])
    assert result["running"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"health": 503}, "/healthz answers 503"),
        ({"model": "other"}, "model m is not served here, but other"),
        ({"unguarded": True}, "a wrong key is answered with 200 instead of 401"),
    ],
)
def test_what_is_wrong_is_said(api, run_module, change, message):
    for name, value in change.items():
        setattr(api, name, value)
    result = run_module(vllm_service_check, params(api), commands=[show()])
    assert result["failed"]
    assert message in result["msg"]
    assert "journalctl -u vllm-one.service" in result["msg"]


def test_an_inactive_unit_fails_with_its_status(api, run_module):
    result = run_module(vllm_service_check, params(api), commands=[show("activating")])
    assert result["failed"]
    assert "vllm-one.service is activating: loading weights, 40%" in result["msg"]


def test_check_mode_says_that_nothing_runs_yet(api, run_module):
    result = run_module(vllm_service_check, params(api), check_mode=True, commands=[show("inactive")])
    assert not result.get("failed")
    assert not result["running"]
    assert result["msg"] == "vllm-one.service is not running yet"


def test_a_weakened_sandbox_fails(api, run_module):
    result = run_module(vllm_service_check, params(api, exposure_limit=1.5), commands=[show(), security(4.2)])
    assert result["failed"]
    assert "says 4.2, allowed is 1.5" in result["msg"]


def test_no_connection_is_a_reason(api, run_module):
    api.server.shutdown()
    api.server.server_close()
    result = run_module(vllm_service_check, params(api), commands=[show()])
    assert result["failed"]
    assert "ConnectionRefusedError" in result["msg"]
