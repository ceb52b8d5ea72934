# SPDX-License-Identifier: Apache-2.0
"""Tools that hang, that are asked too much, and that print what no terminal should show."""

import pytest
from ansible.module_utils.vllm_ansible.hardware import bounded
from ansible.module_utils.vllm_ansible.hardware.bounded import BoundedHost, clean


class Tools:
    """A host whose tools take as long as they are told to, on a clock of its own."""

    def __init__(self, monkeypatch, **seconds):
        self.now, self.asked, self.seconds = 0.0, [], seconds
        monkeypatch.setattr(bounded.time, "monotonic", lambda: self.now)

    def run(self, arguments, environment, timeout_seconds):
        self.asked.append((arguments[0], timeout_seconds))
        takes = self.seconds[arguments[0]]
        self.now += min(takes, timeout_seconds)
        return (0, "fine", "") if takes <= timeout_seconds else (124, "half", "")


@pytest.fixture
def warnings():
    return []


def test_a_tool_that_hangs_is_asked_once_and_the_others_go_on(monkeypatch, warnings):
    tools = Tools(monkeypatch, hangs=1000, works=1)
    host = BoundedHost(tools, lambda *entry: warnings.append(entry))
    assert [host.run([name])[:2] for name in ("works", "hangs", "hangs", "works")] == [
        (0, "fine"), (124, ""), (124, ""), (0, "fine"),
    ]  # fmt: skip
    assert tools.asked == [("works", 60), ("hangs", 60), ("works", 60)]
    assert [code for code, _ in warnings] == ["W_TOOL_HANGS"]


def test_all_tools_together_have_a_limit(monkeypatch, warnings):
    tools = Tools(monkeypatch, slow=50)
    host = BoundedHost(tools, lambda *entry: warnings.append(entry))
    answers = [host.run(["slow", str(number)]) for number in range(6)]
    assert [answer[0] for answer in answers] == [0, 0, 0, 124, 124, 124]
    assert tools.now == 180
    assert tools.asked[3][1] == 30, "the last one gets what is left"
    assert warnings[0][0] == "W_TOOL_HANGS"


def test_what_would_start_too_late_is_not_started(monkeypatch, warnings):
    tools = Tools(monkeypatch, slow=60, other=1)
    host = BoundedHost(tools, lambda *entry: warnings.append(entry))
    for number in range(3):
        host.run(["slow", str(number)])
    assert host.run(["other"])[0] == 124
    assert [code for code, _ in warnings] == ["W_TIME"]


def test_a_missing_tool_stays_missing_and_everything_else_passes(warnings):
    class Host:
        def run(self, arguments, environment, timeout_seconds):
            return None

        def read(self, path):
            return "text of " + path

    host = BoundedHost(Host(), lambda *entry: warnings.append(entry))
    assert host.run(["absent"]) is None
    assert host.read("/x") == "text of /x"
    assert warnings == []


def test_escapes_control_characters_and_endless_output_are_removed():
    assert clean("\x1b[4mGPU0\x1b[0m\ta\x00b\r\n\ud800c") == "GPU0\tab\nc"
    assert len(clean("x" * 5_000_000)) == 1 << 20
    assert clean(None) == ""
