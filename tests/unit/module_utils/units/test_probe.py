# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from ansible.module_utils.vllm_ansible.units import probe


def event(**body):
    return b"data: " + json.dumps(body).encode() + b"\n"


def chat(text=None, finish=None):
    return event(choices=[{"delta": {} if text is None else {"content": text}, "finish_reason": finish}])


USAGE = event(choices=[], usage={"completion_tokens": 3})


def test_measure_a_chat():
    lines = [
        (10.05, event(choices=[{"delta": {"role": "assistant", "content": ""}}])),
        (10.1, b"\n"),
        (10.2, chat("Red")),
        (10.3, chat(", blue")),
        (10.4, chat("", "stop")),
        (10.4, USAGE),
        (10.4, b"data: [DONE]\n"),
    ]
    assert probe.measure(10.0, lines) == {
        "answer": "Red, blue",
        "completion_tokens": 3,
        "first_token_seconds": 0.2,
        "tokens_per_second": 10.0,
    }


def test_measure_a_completion_of_one_token():
    lines = [
        (1.5, event(choices=[{"text": "x", "finish_reason": "length"}])),
        (1.5, event(usage={"completion_tokens": 1})),
    ]
    assert probe.measure(1.0, lines) == {
        "answer": "x",
        "completion_tokens": 1,
        "first_token_seconds": 0.5,
        "tokens_per_second": None,
    }


def test_a_token_without_text_is_a_token():
    assert probe.measure(0, [(1, chat("", "length")), (1, USAGE)])["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "without generating a token"),
        ([(1, chat("x"))], "without generating a token"),
        ([(1, event(choices=[], usage={"completion_tokens": 0}))], "without generating a token"),
        ([(1, event(error={"message": "EngineCore died"}))], "EngineCore died"),
    ],
)
def test_no_token_is_unhealthy(lines, words):
    with pytest.raises(probe.Unhealthy, match=words):
        probe.measure(0, lines)


def test_exposure():
    text = "✓ A\n\n→ Overall exposure level for vllm-one.service: 1.1 OK :-)\n"
    assert probe.exposure(text) == 1.1
    assert probe.exposure("Unit vllm-one.service not found.") is None
