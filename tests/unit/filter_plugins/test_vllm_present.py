# SPDX-License-Identifier: Apache-2.0
"""Tables people read: columns line up, also with Chinese text, and nothing that matters is missing."""

import copy
import json
import re

import pytest
from ansible.module_utils.vllm_ansible.plan.difference import difference
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.inventory import detect_range, expand_hostname_range
from ansible.template import Templar
from hypothesis import given
from hypothesis import strategies as st

try:
    from ansible.template import trust_as_template as TRUSTED
except ImportError:
    TRUSTED = None

from filter_plugins import vllm_present
from tools import golden


def planned(case: str) -> dict:
    return golden.plan(case)


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


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("a bc d", 4, ["a bc", "d"]),
        ("longer than that", 3, ["longer", "than", "that"]),
        ("模型放不下这台机器", 8, ["模型放不", "下这台机", "器"]),
        ("用 TP4 放下", 8, ["用 TP4", "放下"]),
        ("", 5, [""]),
    ],
)
def test_lines_break_at_blanks_and_between_wide_characters(text, columns, expected):
    assert vllm_present.wrap(text, columns) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["gpu01"], "gpu01"),
        (["npu03", "npu01", "npu02"], "npu[01:03]"),
        (["npu9", "npu10", "npu11"], "npu9, npu[10:11]"),
        ([f"h{n:03d}" for n in range(0, 100, 2)], "h[000:098:2]"),
        (["gpu01", "gpu03"], "gpu01, gpu03"),
        (["n1.site2.bank", "n2.site2.bank"], "n[1:2].site2.bank"),
        (["主机1", "主机2", "x"], "x, 主机[1:2]"),
        ([], ""),
    ],
)
def test_hosts_are_written_as_an_inventory_writes_them(names, expected):
    assert vllm_present.host_list(names) == expected


@given(st.sets(st.from_regex(r"[a-c]{0,2}[0-9]{1,3}(\.x[0-9])?", fullmatch=True)))
def test_ranges_mean_the_hosts_they_stand_for(names):
    """Read back by Ansible's own reader of ranges."""
    text = vllm_present.host_list(names)
    parts = text.split(", ") if text else []
    found = [n for part in parts for n in (expand_hostname_range(part) if detect_range(part) else [part])]
    assert sorted(found) == sorted(names)


def test_a_long_list_of_hosts_is_cut_and_counted():
    text = vllm_present.host_list([f"x{n * n}" for n in range(50)], 40)
    assert vllm_present.width(text) <= 40
    assert text.endswith("… (50 hosts)")


def test_the_plan_shows_what_is_decided():
    plan = planned("cpu-demo")
    text = vllm_present.vllm_plan_table(plan, difference(plan, {}))
    for wanted in (
        "Plan for 3 hosts, 2 engines: 2 new",
        "pool_smollm2: smollm2-135m-instruct",
        "  hosts     cpu02 (1 host, 1 engine)",
        "  runs      float32, 1024 tokens of context, 16 requests at once",
        "  endpoint  198.18.77.11:8000",
        "patches cpu.p0 (row vllm-0.32.0-cpu)",
        "1   build         release vllm-0.32.0-cpu-x86_64   build01",
        "10  verify        every instance generates tokens  cpu[01:02]",
        "warning   deepseek-v3-tiny-random has random weights",
    ):
        assert wanted in text
    assert text.splitlines()[-1] == f"digest: {plan['digest']}"
    assert max(vllm_present.width(line) for line in text.splitlines()) <= vllm_present.COLUMNS


def test_engines_on_devices_show_the_devices_and_the_whole_row():
    plan = planned("npu-a2-deepseek-r1")
    text = vllm_present.vllm_plan_table(plan, difference(plan, {}))
    flat = " ".join(text.split())
    assert "layout 8 ascend-a2 on each host: TP4 DP4 EP16" in flat
    assert "versions vllm 0.23.0, vllm-ascend 0.23.0.post1, cann 9.1.0, driver 25.5.0, firmware 7.8.0.5.201," in flat
    assert "runs bfloat16, w8a8, " in flat
    assert " GiB of each device" in text
    assert "blocked" in text
    assert max(vllm_present.width(line) for line in text.splitlines()) <= vllm_present.COLUMNS


def test_a_plan_as_text_shows_the_same():
    plan = planned("cpu-demo")
    found = difference(plan, {})
    texts = [" " + json.dumps(part) for part in (plan, found)]
    assert vllm_present.vllm_plan_table(*texts) == vllm_present.vllm_plan_table(plan, found)
    assert vllm_present.vllm_report_markdown(*texts) == vllm_present.vllm_report_markdown(plan, found)
    assert vllm_present.vllm_report_json(*texts) == vllm_present.vllm_report_json(plan, found)


def changed() -> tuple[dict, dict]:
    """The demo's plan against hosts of which one runs a shorter context and the other a chat template with bars."""
    plan = planned("cpu-demo")
    applied = copy.deepcopy(plan["hosts"])
    flags = [applied[h]["slices"]["engine_service"]["instances"][0]["flags"] for h in ("cpu01", "cpu02")]
    flags[0]["max-model-len"] = 512
    flags[1]["chat-template"] = "{% if 用户 | upper %}\n"
    return plan, difference(plan, applied)


def test_what_changes_is_shown_with_old_and_new():
    plan, found = changed()
    text = vllm_present.vllm_plan_table(plan, found)
    assert "Plan for 3 hosts, 2 engines: 2 changed" in text
    assert "engine_service.smollm2.flags.max-model-len  512 → 1024" in " ".join(text.split(" ")).replace("   ", "  ")
    assert "restart       instance smollm2" in text
    assert "install" not in text
    explained = vllm_present.vllm_explain_table(plan, "cpu01", found)
    assert explained.splitlines()[0] == "cpu01: 13 decisions, changed"
    assert explained.endswith(
        "Compared with what it runs now:\n  engine_service.smollm2.flags.max-model-len: 512 → 1024"
    )


def test_the_same_change_on_many_hosts_is_one_line():
    change = {"what": "engine_service.a.port", "old": 1, "new": 2, "because": None}
    found = {"hosts": {f"h{n}": {"state": "changed", "changes": [change]} for n in range(1, 9)}}
    assert vllm_present.change_rows(found) == [["engine_service.a.port", "1", "2", "", "h[1:8]"]]


def test_groups_that_look_alike_are_one_block():
    plan = planned("cpu-two-sockets")
    groups = [copy.deepcopy(plan["groups"][0]) for _ in range(40)]
    for number, group in enumerate(groups):
        group["members"][0]["host"] = f"cpu{number:02d}"
    text = vllm_present.vllm_plan_table({**plan, "groups": groups})
    assert text.count("  layout  ") == 1
    assert "cpu[00:39] (40 hosts, 40 engines)" in text
    groups[7]["max_model_len"] += 1
    assert vllm_present.vllm_plan_table({**plan, "groups": groups}).count("  layout  ") == 2


def test_what_it_was_planned_from_is_said():
    plan = planned("cpu-demo")
    machines = {
        "cpu01": {"machine": "a100-4", "provenance": "reconstructed"},
        "cpu02": {"machine": "cpu02", "provenance": "recorded"},
    }
    for text in (
        vllm_present.vllm_plan_table(plan, {"machines": machines}),
        vllm_present.vllm_report_markdown(plan, {"machines": machines}),
    ):
        assert "cpu01: planned from reference machine a100-4 (reconstructed), not from the host itself" in text
        assert "cpu02: planned from recordings, not from the host itself" in text


def test_what_cannot_be_installed_yet_is_said():
    plan = {**planned("cpu-demo"), "not_installable": [{"group": "smollm2-cpu01", "because": "row x is plannable"}]}
    assert "blocked   cannot be installed yet: smollm2-cpu01: row x is plannable" in vllm_present.vllm_plan_table(plan)
    assert "Cannot be installed yet: smollm2-cpu01: row x is plannable" in vllm_present.vllm_report_markdown(plan)


def test_drift_is_shown_wherever_the_plan_is():
    plan = planned("npu-bare-kylin")
    change = {"what": "ascend_driver.driver", "recorded": "25.5.0", "seen": None, "planned": "25.5.0"}
    found = {**difference(plan, {}), "drift": {"npu02": [change]}}
    said = "npu02: ascend_driver.driver was 25.5.0 when it was recorded, is –, and the plan has 25.5.0"
    for text in (
        vllm_present.vllm_plan_table(plan, found),
        vllm_present.vllm_report_markdown(plan, found),
        vllm_present.vllm_explain_table(plan, "npu02", found),
        vllm_present.vllm_drift_table([change], "npu02"),
    ):
        assert said in " ".join(text.split())
    assert "Drift" not in vllm_present.vllm_explain_table(plan, "npu01", found)
    assert "site_accept_drift: true" in vllm_present.vllm_drift_table([change], "npu02")


def cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line))


@pytest.mark.parametrize("case", golden.cases())
def test_every_golden_plan_can_be_shown_and_reported(case):
    plan = planned(case)
    found = difference(plan, {})
    assert vllm_present.vllm_plan_table(plan, found)
    report = vllm_present.vllm_report_markdown(plan, found)
    assert report.startswith("# Deployment plan\n")
    for problem in plan["problems"]:
        assert problem["code"] in report
    rows = [line for line in report.splitlines() if line.startswith("|")]
    heads = [index for index, line in enumerate(rows) if set(line) <= set("| -")]
    for index, line in enumerate(rows):
        head = max((h for h in heads if h <= index + 1), default=0)
        assert cells(line) == cells(rows[head]), line
    assert json.loads(vllm_present.vllm_report_json(plan, found))["plan"] == plan


def test_a_cell_cannot_end_a_markdown_table():
    plan, found = changed()
    report = vllm_present.vllm_report_markdown(plan, found)
    line = next(line for line in report.splitlines() if "chat-template" in line)
    assert "{% if 用户 \\| upper %}" in line
    assert cells(line) == 6


def test_a_backslash_does_not_undo_the_escape_of_a_pipe():
    rows = vllm_present.markdown_table(["值"], [["a\\|b"], ["c\\"]])
    assert rows[2:] == ["| a\\\\\\|b |", "| c\\\\ |"]


def test_the_memory_bar_is_as_long_as_what_it_shows():
    memory = {"weights_bytes": 2, "kv_cache_bytes": 3, "total_bytes": 10, "budget_bytes": 20}
    memory = {key: value * vllm_present.GIB for key, value in memory.items()}
    assert vllm_present.memory_bar(memory) == "[wwkkk+++++..........] 10.0 of 20.0 GiB"
    assert vllm_present.memory_bar({}) == "[....................] 0.0 of 0.0 GiB"


def test_the_memory_of_a_device_is_measured_against_the_device():
    gib = vllm_present.GIB
    memory = {"weights": 66 * gib, "kv_cache": 8 * gib, "context": gib // 20, "total": 90 * gib, "capacity": 80 * gib}
    assert vllm_present.memory_bar(memory) == "[wwwwwwwwwwwwwwwwwkk+]! 90.0 of 80.0 GiB"
    assert vllm_present.memory_parts(memory) == "weights 66.0 GiB, KV cache 8.0 GiB, driver context 51 MiB"


def test_layouts_are_short():
    assert vllm_present.layout_text({"tensor_parallel": 4, "data_parallel": 2}) == "TP4 DP2"
    assert vllm_present.layout_text({"tensor_parallel": 1}) == "1 worker"


def test_problems_say_where_what_and_what_to_set():
    problems = planned("does-not-fit")["problems"]
    text = vllm_present.vllm_problem_table(problems)
    assert text.splitlines()[0] == f"No valid plan: {len(problems)} problems. Nothing was changed."
    assert "E_MEMORY  cpu01 engine_request.kv_cache_gib" in text
    assert "  seen: 30\n  set:  kv_cache_gib: 20 for a" in text
    assert max(vllm_present.width(line) for line in text.splitlines()) <= vllm_present.COLUMNS


def test_a_problem_shows_the_needed_value_where_there_is_one():
    text = vllm_present.vllm_problem_table(planned("port-and-disk-taken")["problems"])
    assert "  seen: 0.9 GiB free\n  need: 2.2 GiB free\n  set:  free" in text


def test_reasons_are_those_of_the_host():
    plan = planned("cpu-demo")
    text = vllm_present.vllm_explain_table(plan, "cpu01")
    assert "numa.cpus = 0  (R_CPUS_PINNED)" in text
    assert "cpu02" not in text
    assert "one of: build01, cpu[01:02]" in vllm_present.vllm_explain_table(plan, "cpu09")


def test_reasons_of_two_engines_on_one_host_are_told_apart():
    plan = planned("cpu-two-models-one-host")
    host = plan["groups"][0]["members"][0]["host"]
    text = vllm_present.vllm_explain_table(plan, host)
    names = [g["name"] for g in plan["groups"] if host in [m["host"] for m in g["members"]]]
    assert len(names) == 2
    assert [line[3:] for line in text.splitlines() if line.startswith("== ")] == sorted(names)


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
