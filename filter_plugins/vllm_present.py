# SPDX-License-Identifier: Apache-2.0
"""Tables for people: the plan, its problems, its reasons, and what a deployment ended with.

Presentation only; filters cannot import the project's module_utils, so nothing is decided here. Widths count terminal
columns, so that Chinese text lines up.
"""

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

try:
    from ansible.utils.unsafe_proxy import wrap_var
except ImportError:  # ansible-core 2.23 and later: what a filter makes is never taken for a template

    def wrap_var(v: Any) -> Any:
        return v


GIB = 1024**3
BAR = 20
COLUMNS = 110  # width that explanations are wrapped to


def width(text: str) -> int:
    """Return the terminal columns of `text`: two for wide characters, none for combining ones."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(text: str, columns: int) -> str:
    """Return `text` filled with spaces up to `columns` terminal columns."""
    return text + " " * (columns - width(text))


def cut(text: str, columns: int) -> str:
    """Return `text` on one line, shortened with an ellipsis to at most `columns` terminal columns."""
    text = " ".join(text.split())
    if width(text) <= columns:
        return text
    while width(text) > columns - 1:
        text = text[:-1]
    return text + "…"


def wrap(text: str, columns: int) -> list[str]:
    """Break `text` at blanks into lines of at most `columns`; a longer word gets a line of its own."""
    lines = [""]
    for word in text.split():
        if lines[-1] and width(lines[-1]) + 1 + width(word) > columns:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as their widest cell."""
    cells = [list(head)] + [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(width(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(pad(cell, w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return [lines[0], "  ".join("-" * w for w in widths), *lines[1:]]


def memory_bar(memory: Mapping[str, int]) -> str:
    """Return what an engine takes of its host as a bar with numbers: weights `w`, KV cache `k`, the rest `+`."""
    budget = max(1, memory.get("budget_bytes", 1))
    ends = []
    filled = 0
    for part in ("weights_bytes", "kv_cache_bytes", "total_bytes"):
        filled = memory.get(part, 0) if part == "total_bytes" else filled + memory.get(part, 0)
        ends.append(min(BAR, -(-filled * BAR // budget)))
    gauge = ("w" * ends[0] + "k" * (ends[1] - ends[0]) + "+" * (ends[2] - ends[1])).ljust(BAR, ".")
    return f"[{gauge}] {memory.get('total_bytes', 0) / GIB:.1f} of {budget / GIB:.1f} GiB"


def layout_text(layout: Mapping[str, int]) -> str:
    """Return parallel sizes above one, e.g. ``TP4 DP2``; ``1 worker`` when there are none."""
    names = {"tensor_parallel": "TP", "pipeline_parallel": "PP", "data_parallel": "DP", "expert_parallel": "EP"}
    return " ".join(f"{short}{layout[key]}" for key, short in names.items() if layout.get(key, 1) > 1) or "1 worker"


def load(part: str | Mapping[str, Any]) -> Any:
    """Return a part of the plan that may come as JSON text (`as_text` of vllm_plan)."""
    return json.loads(part) if isinstance(part, str) else part


def vllm_host_plan(text: str | Mapping[str, Any]) -> Any:
    """Return one host's part of the plan: its digest, build and slices. Its values are never taken for templates."""
    return wrap_var(load(text))


def vllm_plan_table(plan: str | Mapping[str, Any]) -> str:
    """Return the plan as text: one line per engine group, what is built, warnings, the digest to approve."""
    plan = load(plan)
    rows = []
    for group in plan["groups"]:
        hosts = ", ".join(member["host"] for member in group["members"])
        endpoint = f"{group['endpoint']['address']}:{group['endpoint']['port']}"
        row = [group["pool"], hosts, group["model"], layout_text(group["layout"]), group["dtype"]]
        rows.append([*row, group["max_model_len"], endpoint, memory_bar(group["memory"])])
    head = [
        "pool",
        "hosts",
        "model",
        "layout",
        "dtype",
        "context",
        "endpoint",
        "memory (w weights, k KV cache, + rest)",
    ]
    lines = [f"Plan for {len(plan['hosts'])} hosts, {len(plan['groups'])} engine groups", "", *table(head, rows), ""]
    builds = [[b["build"], b["local_version"] or "unpatched", b["row"], b["host"]] for b in plan["builds"]]
    lines += [*table(["release", "patches", "row", "built on"], builds), ""]
    models = [[m["name"], m["architecture"], m["weights"], f"{m['size_bytes'] / 1e6:.0f} MB"] for m in plan["models"]]
    lines += [*table(["model", "architecture", "weights", "size"], models), ""]
    lines += [f"warning: {w['host'] + ': ' if w['host'] else ''}{w['message']}" for w in plan["warnings"]]
    lines += [f"digest: {plan['digest']}"]
    return "\n".join(lines)


def vllm_problem_table(problems: Sequence[Mapping[str, Any]]) -> str:
    """Return every problem as a paragraph: code, where, what is wrong, the value seen, what to set."""
    lines = [f"No valid plan: {len(problems)} problem{'' if len(problems) == 1 else 's'}. Nothing was changed."]
    for problem in problems:
        place = " ".join(part for part in (problem.get("host"), problem.get("field")) if part)
        lines += ["", f"{problem['code']}  {place}".rstrip()]
        lines += ["  " + line for line in wrap(problem["message"], COLUMNS - 2)]
        if problem.get("seen") is not None:
            lines.append(f"  seen: {cut(str(problem['seen']), COLUMNS - 8)}")
        lines.append(f"  set:  {problem['set']}")
    return "\n".join(lines)


def vllm_explain_table(plan: str | Mapping[str, Any], host: str) -> str:
    """Return every decision about `host` and its engine groups with the rule and the reason."""
    plan = load(plan)
    groups = {g["name"] for g in plan["groups"] if host in [m["host"] for m in g["members"]]}
    own = [
        d
        for d in plan["decisions"]
        if d["host"] == host or (d["host"] is None and (d["group"] in groups or d["group"] is None))
    ]
    if not groups and host not in plan["hosts"]:
        known = ", ".join(sorted(plan["hosts"]))
        return f"{host} is not in the plan. Set plan_explain to one of: {known}"
    lines = [f"{host}: {len(own)} decisions"]
    for decision in own:
        lines += ["", f"{decision['key']} = {decision['value']}  ({decision['rule']})"]
        lines += ["  " + line for line in wrap(decision["because"], COLUMNS - 2)]
    return "\n".join(lines)


def vllm_result_table(
    results: Mapping[str, Sequence[Mapping[str, Any]]], stages: Mapping[str, float] | None = None
) -> str:
    """Return what every engine answered (host -> `service_verify_results`), and the seconds each stage took."""
    rows = []
    for host in sorted(results):
        for result in results[host]:
            speed, first = result.get("tokens_per_second"), result.get("first_token_seconds")
            rows.append([
                host,
                result.get("model"),
                result.get("endpoint"),
                cut(str(result.get("answer", "")), 44),
                "" if speed is None else f"{float(speed):.1f}",
                "" if first is None else f"{float(first):.2f}",
            ])  # fmt: skip
    lines = table(["host", "model", "endpoint", "answer", "tokens/s", "first token s"], rows)
    if stages:
        lines += ["", *table(["stage", "seconds"], [[name, f"{seconds:.1f}"] for name, seconds in stages.items()])]
    return "\n".join(lines)


class FilterModule:
    """The filters, by the names used in playbooks."""

    def filters(self) -> dict[str, Any]:
        return {
            "vllm_host_plan": vllm_host_plan,
            "vllm_plan_table": vllm_plan_table,
            "vllm_problem_table": vllm_problem_table,
            "vllm_explain_table": vllm_explain_table,
            "vllm_result_table": vllm_result_table,
        }
