# SPDX-License-Identifier: Apache-2.0
"""Tables people read: columns line up, also with Chinese text, and nothing that matters is missing."""

import json

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

try:
    from ansible.template import trust_as_template as TRUSTED
except ImportError:
    TRUSTED = None

from filter_plugins import vllm_present
from tools import golden


def stored(case: str) -> dict:
    return json.loads((golden.GOLDEN / case / "plan.json").read_text())


@pytest.mark.parametrize(("text", "columns"), [("abc", 3), ("模型", 4), ("e\u0301", 1), ("ａ", 2), ("", 0)])
def test_width_counts_terminal_columns(text, columns):
    assert vllm_present.width(text) == columns


def test_columns_line_up_with_wide_characters():
    lines = vllm_present.table(["模型", "x"], [["a", 1], ["深度求索", 2]])
    assert [vllm_present.width(line) for line in lines[1:]] == [11, 11, 11]
    assert lines[2].index("1") == 10


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [("short", 10, "short"), ("a\nb", 5, "a b"), ("模型模型", 5, "模型…"), ("abcdef", 4, "abc…")],
)
def test_cut_keeps_to_the_width(text, columns, expected):
    assert vllm_present.cut(text, columns) == expected


def test_the_plan_shows_what_is_decided():
    plan = stored("cpu-demo")
    text = vllm_present.vllm_plan_table(plan)
    for wanted in (
        "smollm2-135m-instruct",
        "cpu02",
        "198.18.77.11:8000",
        "vllm-0.32.0-cpu-x86_64",
        "cpu.p0",
        "build01",
    ):
        assert wanted in text
    assert text.splitlines()[-1] == f"digest: {plan['digest']}"
    assert "warning: deepseek-v3-tiny-random has random weights" in text


def test_the_memory_bar_is_as_long_as_what_it_shows():
    memory = {"weights_bytes": 2, "kv_cache_bytes": 3, "total_bytes": 10, "budget_bytes": 20}
    memory = {key: value * vllm_present.GIB for key, value in memory.items()}
    assert vllm_present.memory_bar(memory) == "[wwkkk+++++..........] 10.0 of 20.0 GiB"
    assert vllm_present.memory_bar({}) == "[....................] 0.0 of 0.0 GiB"


def test_layouts_are_short():
    assert vllm_present.layout_text({"tensor_parallel": 4, "data_parallel": 2}) == "TP4 DP2"
    assert vllm_present.layout_text({"tensor_parallel": 1}) == "1 worker"


def test_problems_say_where_what_and_what_to_set():
    problems = stored("does-not-fit")["problems"]
    text = vllm_present.vllm_problem_table(problems)
    assert text.splitlines()[0] == f"No valid plan: {len(problems)} problems. Nothing was changed."
    assert "E_MEMORY  cpu01 engine_request.kv_cache_gib" in text
    assert "  seen: 30\n  set:  kv_cache_gib: 20 for a" in text
    assert max(vllm_present.width(line) for line in text.splitlines()) <= vllm_present.COLUMNS


def test_reasons_are_those_of_the_host():
    plan = stored("cpu-demo")
    text = vllm_present.vllm_explain_table(plan, "cpu01")
    assert "numa.cpus = 0  (R_CPUS_PINNED)" in text
    assert "cpu02" not in text
    assert "one of: build01, cpu01, cpu02" in vllm_present.vllm_explain_table(plan, "cpu09")


def test_results_show_answers_and_stages():
    answered = {"model": "m", "endpoint": "http://a:1", "answer": "四加四等于八。\n" * 9}
    results = {"cpu01": [{**answered, "tokens_per_second": 12.345, "first_token_seconds": None}], "cpu02": []}
    text = vllm_present.vllm_result_table(results, {"build": 61.239})
    assert "cpu01  m      http://a:1  四加四等于八。 四加四等于八。 四加四等于八…  12.3" in text
    assert text.splitlines()[-1] == "build  61.2"


def test_every_filter_is_offered():
    assert set(vllm_present.FilterModule().filters()) == {n for n in dir(vllm_present) if n.startswith("vllm_")}


def test_a_value_of_the_plan_is_never_a_template():
    """extra_args may hold a chat template; ansible-core 2.16 evaluates what is not marked."""
    own = {"slices": {"engine_service": {"instances": [{"flags": {"chat-template": "{{ 6 * 7 }}"}}]}}}
    variables = {"text": vllm_present.wrap_var(" " + json.dumps(own))}  # marked, as what a module returns is
    templar = Templar(loader=DataLoader(), variables=variables)
    templar.environment.filters["vllm_host_plan"] = vllm_present.vllm_host_plan
    expression = "{{ (text | vllm_host_plan).slices.engine_service.instances[0] }}"
    if TRUSTED is not None:
        expression = TRUSTED(expression)
    assert templar.template(expression) == {"flags": {"chat-template": "{{ 6 * 7 }}"}}
    templar.available_variables = {"instance": templar.template(expression)}
    again = "{{ instance.flags['chat-template'] }}"
    assert templar.template(TRUSTED(again) if TRUSTED is not None else again) == "{{ 6 * 7 }}"
