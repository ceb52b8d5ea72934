# SPDX-License-Identifier: Apache-2.0
"""Tables for people: the plan, its problems, its reasons, and what a deployment ended with.

Presentation only; filters cannot import the project's module_utils, so nothing is decided here. Widths count terminal
columns, so that Chinese text lines up. Plans and differences come as mappings or as the JSON text of vllm_plan.
"""

import json
import re
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
LIST = 50  # width at which a list of hosts in a table is cut
PARTS = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "activation": "activations",
    "graph": "graphs",
    "communication": "communication",
    "context": "driver context",
    "overhead": "processes",
}
ALIKE = (
    "pool",
    "model",
    "layout",
    "dtype",
    "quantisation",
    "device",
    "max_model_len",
    "max_num_seqs",
    "memory",
    "build",
)
SIZES = {"tensor_parallel": "TP", "pipeline_parallel": "PP", "data_parallel": "DP", "expert_parallel": "EP"}
Plan = str | Mapping[str, Any]


def width(text: str) -> int:
    """Return the terminal columns of `text`: two for wide characters, none for combining ones."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(text: str, columns: int) -> str:
    """Return `text` filled with spaces up to `columns` terminal columns."""
    return text + " " * (columns - width(text))


def cut(text: str, columns: int) -> str:
    """Return `text` on one line, shortened with an ellipsis to at most `columns` terminal columns."""
    text = " ".join(text.split())
    if len(text) <= columns and width(text) <= columns:
        return text
    kept = 0
    for position, character in enumerate(text):
        kept += width(character)
        if kept > columns - 1:
            return text[:position] + "…"
    return text


def wrap(text: str, columns: int) -> list[str]:
    """Break `text` into lines of at most `columns`: at blanks, and between the wide characters of a longer word."""
    lines = [""]
    for word in text.split():
        if lines[-1] and width(lines[-1]) + 1 + width(word) > columns:
            lines.append("")
        lines[-1] += " " if lines[-1] else ""
        for part in re.findall(r"[\u2e80-\uffef]|[^\u2e80-\uffef]+", word):
            if lines[-1].strip() and width(lines[-1]) + width(part) > columns:
                lines.append("")
            lines[-1] += part
    return [line.rstrip() for line in lines]


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as their widest cell."""
    cells = [list(head)] + [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(width(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(pad(cell, w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return [lines[0], "  ".join("-" * w for w in widths), *lines[1:]]


def labelled(pairs: Iterable[tuple[str, str]], indent: str = "  ") -> list[str]:
    """Return lines "label  text"; a long text continues below itself, an empty one is left out."""
    lines = []
    for label, text in pairs:
        for number, part in enumerate(wrap(text, COLUMNS - len(indent) - 10) if text else []):
            lines.append(indent + pad("" if number else label, 10) + part)
    return lines


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts ``npu2`` before ``npu10``."""
    return [(0, int(p), p) if p.isdecimal() else (1, 0, p) for p in re.split(r"([0-9]+)", name) if p]


def host_list(names: Iterable[str], columns: int = 0, word: str = "host") -> str:
    """Return host names in the range syntax of an inventory: ``gpu01, npu[01:16], cpu[01:99:2]``.

    A list longer than `columns` (0: any length) is cut, and says how many hosts it stands for.
    """
    alike: dict[tuple[str, str, int], list[int]] = {}  # (text before, text after, digits) -> numbers
    names = set(names)
    for name in names:
        found = re.match(r"([^.]*?)([0-9]+)([^0-9.]*(?:[.].*)?)\Z", name)
        before, number, after = found.groups() if found else (name, "", "")
        alike.setdefault((before, after, len(number)), []).append(int(number or 0))
    spans = []
    for (before, after, digits), numbers in sorted(alike.items()):
        for first, last, stride in runs(sorted(numbers)):
            one, other = (str(number).zfill(digits) if digits else "" for number in (first, last))
            step = f":{stride}" if stride > 1 else ""
            spans.append(before + (one if first == last else f"[{one}:{other}{step}]") + after)
    text = ", ".join(spans)
    if columns and width(text) > columns:
        return cut(text, columns - 12) + f" ({count(len(names), word)})"
    return text


def runs(numbers: Sequence[int]) -> Iterable[tuple[int, int, int]]:
    """Return arithmetic runs (first, last, stride) of sorted numbers; a wider stride needs three numbers."""
    start = 0
    while start < len(numbers):
        end, stride = start, numbers[start + 1] - numbers[start] if start + 1 < len(numbers) else 1
        while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == stride:
            end += 1
        if stride > 1 and end - start < 2:
            end = start
        yield numbers[start], numbers[end], stride
        start = end + 1


def count(number: int, word: str) -> str:
    """Return ``1 host`` or ``3 hosts``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def load(part: Plan | None) -> Any:
    """Return a plan or a difference that may come as JSON text (`as_text` of vllm_plan)."""
    return json.loads(part) if isinstance(part, str) else part or {}


def size(memory: Mapping[str, Any], part: str) -> int:
    """Return one part of a memory estimate in bytes, 0 when it is not estimated."""
    return memory.get(part + "_bytes") or memory.get(part) or 0


def capacity(memory: Mapping[str, Any]) -> int:
    """Return what there is: of the device, or of the host for its engines."""
    return size(memory, "capacity") or size(memory, "budget")


def memory_bar(memory: Mapping[str, Any]) -> str:
    """Return what an engine takes as a bar with numbers: `w` weights, `k` KV cache, `+` the rest, `!` too much."""
    budget, total = max(1, capacity(memory)), size(memory, "total")
    ends = []
    filled = 0
    for part in ("weights", "kv_cache", "total"):
        filled = total if part == "total" else filled + size(memory, part)
        ends.append(min(BAR, -(-filled * BAR // budget)))
    gauge = ("w" * ends[0] + "k" * (ends[1] - ends[0]) + "+" * (ends[2] - ends[1])).ljust(BAR, ".")
    return f"[{gauge}]{'!' if total > budget else ''} {total / GIB:.1f} of {budget / GIB:.1f} GiB"


def memory_parts(memory: Mapping[str, Any]) -> str:
    """Return the parts of an estimate: ``weights 65.7 GiB, activations 57 MiB``."""
    sizes = {word: size(memory, part) for part, word in PARTS.items() if size(memory, part)}
    return ", ".join(
        f"{w} {n / GIB:.1f} GiB" if n >= GIB // 10 else f"{w} {n / 1024**2:.0f} MiB" for w, n in sizes.items()
    )


def layout_text(layout: Mapping[str, int]) -> str:
    """Return parallel sizes above one, e.g. ``TP4 DP2``; ``1 worker`` when there are none."""
    return " ".join(f"{short}{layout[key]}" for key, short in SIZES.items() if layout.get(key, 1) > 1) or "1 worker"


def versions_text(plan: Mapping[str, Any], group: Mapping[str, Any]) -> str:
    """Return the row a group runs: engine, plugin, every other component, drivers, our patches."""
    build: Mapping[str, Any] = next((b for b in plan["builds"] if b["build"] == group.get("build")), {})
    versions = {**(group.get("versions") or {}), **_below_the_engine(plan, group)}
    # the engine and its plugin first
    parts = [f"{name} {versions[name]}" for name in sorted(versions, key=lambda n: (not n.startswith("vllm"), n))]
    if build:
        parts.append(f"patches {build['local_version']}" if build["local_version"] else "unpatched")
    return ", ".join(parts) + (f" (row {group['row']})" if group.get("row") else "")


def _below_the_engine(plan: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, str]:
    """Return what the hosts of a group get or keep instead of the ranges that its row takes."""
    hosts = [plan["hosts"].get(member["host"], {}).get("slices", {}) for member in group.get("members", [])]
    parts = {
        "driver": ("ascend_driver", "driver"),
        "firmware": ("ascend_driver", "firmware"),
        "kernel": ("kernel", "release"),
    }
    found = {name: sorted({own[role][key] for own in hosts if role in own}) for name, (role, key) in parts.items()}
    return {name: " and ".join(values) for name, values in found.items() if values}


def devices_text(group: Mapping[str, Any]) -> str:
    """Return the devices of a group: ``8 a100-80g on each host``; nothing on CPUs."""
    numbers = [len(own) for own in (group.get("devices") or {}).values()]
    if not any(numbers):
        return ""
    kind = group.get("device") or "devices"
    return f"{numbers[0]} {kind}" + (" on each host" if len(numbers) > 1 else "")


def runs_text(group: Mapping[str, Any]) -> str:
    """Return how a group computes and what it carries: ``bfloat16, 16384 tokens of context, 64 requests at once``."""
    length = f"{group['max_model_len']} tokens of context" if group.get("max_model_len") else None
    requests = f"{group['max_num_seqs']} requests at once" if group.get("max_num_seqs") else None
    tokens = (group.get("memory") or {}).get("kv_cache_tokens")
    held = f"a cache of {tokens} tokens" if tokens else None
    return ", ".join(filter(None, (group.get("dtype"), group.get("quantisation"), length, requests, held)))


def variants(plan: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Return the groups by pool, those of a pool that look alike together."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for group in plan["groups"]:
        own = {key: group.get(key) for key in ALIKE}
        own["members"] = [len((group.get("devices") or {}).get(member["host"], [])) for member in group["members"]]
        alike.setdefault(json.dumps(own, sort_keys=True), []).append(group)
    return sorted(((groups[0]["pool"], groups) for groups in alike.values()), key=lambda entry: natural(entry[0]))


def hosts_of(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    return [member["host"] for group in groups for member in group["members"]]


def ports_text(groups: Sequence[Mapping[str, Any]]) -> str:
    """Return where clients reach the engines: the address of one, the ports of several."""
    ports = sorted({group["endpoint"]["port"] for group in groups if group["endpoint"]["port"]})
    if not ports:
        return ""
    if len(groups) == 1:
        return f"{groups[0]['endpoint']['address']}:{ports[0]}"
    text = ", ".join(str(port) for port in ports)
    return f"{'port' if len(ports) == 1 else 'ports'} {text}, on {groups[0]['endpoint']['address']} and the others"


def pool_lines(plan: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> list[str]:
    """Return the block of one pool, or of those engines of it that look alike."""
    first, hosts = groups[0], sorted(set(hosts_of(groups)), key=natural)
    engines = count(len(groups), "engine")
    each = f", {len(first['members'])} hosts per engine" if len(first["members"]) > 1 else ""
    memory = first.get("memory") or {}
    where = "of each device" if devices_text(first) else "of the host"
    states = [found.get("hosts", {}).get(host, {}).get("state") for host in hosts]
    changes = ", ".join(f"{states.count(state)} {state}" for state in ("new", "changed", "same") if state in states)
    lines = [
        f"{first['pool']}: {first['model']}",
        *labelled([
            ("hosts", f"{host_list(hosts, 3 * LIST)} ({count(len(hosts), 'host')}, {engines}{each})"),
            ("layout", ": ".join(filter(None, (devices_text(first), layout_text(first["layout"]))))),
            ("versions", versions_text(plan, first)),
            ("runs", runs_text(first)),
            ("endpoint", ports_text(groups)),
        ]),
    ]  # fmt: skip
    if size(memory, "total"):
        lines.append("  " + pad("memory", 10) + memory_bar(memory) + " " + where)
        lines += labelled([("", memory_parts(memory))])
    return lines + labelled([("now", changes)])


def step_rows(found: Mapping[str, Any]) -> list[list[Any]]:
    return [
        [number, step["action"], step["what"], host_list(step["hosts"], LIST)]
        for number, step in enumerate(found.get("steps", []), 1)
    ]


def change_rows(found: Mapping[str, Any]) -> list[list[Any]]:
    """Return the changes of all hosts, the same change on several hosts once: what, old, new, why, hosts."""
    alike: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for host, entry in found.get("hosts", {}).items():
        for change in entry["changes"]:
            alike.setdefault(json.dumps(change, sort_keys=True), (change, []))[1].append(host)
    return [
        [c["what"], value_text(c["old"]), value_text(c["new"]), c["because"] or "", host_list(hosts, LIST)]
        for c, hosts in alike.values()
    ]


def value_text(value: Any) -> str:
    """Return a value of a plan on one line: a text as it is, everything else as JSON, nothing as a dash."""
    if value is None:
        return "–"
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True), 60)


def machine_lines(found: Mapping[str, Any]) -> list[str]:
    """Say which hosts were planned from recordings, and from what kind."""
    alike: dict[tuple[str, str], list[str]] = {}
    for host, used in found.get("machines", {}).items():
        name = "recordings" if used["machine"] == host else f"reference machine {used['machine']}"
        alike.setdefault((name, used["provenance"]), []).append(host)
    return [
        f"{host_list(hosts, LIST)}: planned from {name}"
        + (f" ({kind})" if kind != "recorded" else "")
        + ", not from the host itself"
        for (name, kind), hosts in alike.items()
    ]


def drift_lines(entries: Mapping[str, Any]) -> list[str]:
    """Say what of each host is not as it was recorded on it."""
    return [
        f"{host}: {c['what']} was {value_text(c['recorded'])} when it was recorded, is {value_text(c['seen'])}, and "
        f"the plan has {value_text(c['planned'])}"
        for host, changes in entries.items()
        for c in changes
    ]


def not_installable(plan: Mapping[str, Any]) -> list[str]:
    """Return the groups this version of the project plans and cannot install, the same reason once."""
    alike: dict[str, list[str]] = {}
    for entry in plan.get("not_installable") or []:
        alike.setdefault(str(entry["because"]), []).append(str(entry["group"]))
    return [f"{host_list(groups, LIST, 'engine')}: {because}" for because, groups in alike.items()]


def warning_lines(plan: Mapping[str, Any]) -> list[str]:
    """Return the warnings, the same one of several hosts once."""
    alike: dict[str, list[str]] = {}
    for warning in plan["warnings"]:
        alike.setdefault(warning["message"], []).append(warning["host"] or "")
    return [f"{host_list(filter(None, hosts), LIST)}: {m}" if any(hosts) else m for m, hosts in alike.items()]


def title(plan: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return the plan in one line."""
    states = [entry["state"] for entry in found.get("hosts", {}).values()]
    parts = [f"{states.count(state)} {state}" for state in ("new", "changed", "same") if state in states]
    hosts = len(plan["hosts"]) or len(set(hosts_of(plan["groups"])))
    text = f"Plan for {count(hosts, 'host')}, {count(len(plan['groups']), 'engine')}"
    return text + (f": {', '.join(parts)}" if parts else "")


def vllm_host_plan(text: Plan) -> Any:
    """Return one host's part of the plan: its digest, build and slices. Its values are never taken for templates."""
    return wrap_var(load(text))


def vllm_plan_table(plan: Plan, difference: Plan | None = None) -> str:
    """Return the plan as text: a block per pool, what happens in which order, warnings, the digest to approve."""
    planned, found = load(plan), load(difference)
    lines = [title(planned, found), ""]
    for _pool, groups in variants(planned):
        lines += [*pool_lines(planned, groups, found), ""]
    if planned["groups"]:
        lines += ["memory bars: w weights, k KV cache, + the rest, . free", ""]
    if planned["models"]:
        models = [
            [m["name"], m["architecture"], m["weights"], f"{m['size_bytes'] / 1e9:.1f} GB"] for m in planned["models"]
        ]
        lines += [*table(["model", "architecture", "weights", "size"], models), ""]
    rows = step_rows(found)
    if rows:
        lines += ["In this order, all hosts of a step at once:"]
        lines += [*table(["", "what happens", "", "on"], rows), ""]
    changes = [[what, f"{old} → {new}", hosts] for what, old, new, _why, hosts in change_rows(found)]
    if changes:
        lines += [*table(["what changes", "from → to", "on"], changes), ""]
    said = [("note", text) for text in machine_lines(found)]
    said += [("drift", text) for text in drift_lines(found.get("drift", {}))]
    said += [("warning", text) for text in warning_lines(planned)]
    said += [("blocked", "cannot be installed yet: " + text) for text in not_installable(planned)]
    lines += labelled(said, "") + ([""] if said else [])
    return "\n".join([*lines, f"digest: {planned['digest']}"])


def vllm_problem_table(problems: Sequence[Mapping[str, Any]]) -> str:
    """Return every problem as a paragraph: code, where, what is wrong, the value seen, what to set."""
    lines = [f"No valid plan: {count(len(problems), 'problem')}. Nothing was changed."]
    for problem in problems:
        place = " ".join(part for part in (problem.get("host"), problem.get("field")) if part)
        lines += ["", f"{problem['code']}  {place}".rstrip()]
        lines += ["  " + line for line in wrap(problem["message"], COLUMNS - 2)]
        if problem.get("seen") is not None:
            lines.append(f"  seen: {cut(str(problem['seen']), COLUMNS - 8)}")
        if problem.get("needed") is not None:
            lines.append(f"  need: {cut(str(problem['needed']), COLUMNS - 8)}")
        first, *rest = wrap(problem["set"], COLUMNS - 8)
        lines += [f"  set:  {first}", *(" " * 8 + line for line in rest)]
    return "\n".join(lines)


def decisions_of(plan: Mapping[str, Any], host: str) -> list[Mapping[str, Any]]:
    """Return every decision about `host` and its engine groups."""
    groups = {g["name"] for g in plan["groups"] if host in [m["host"] for m in g["members"]]}
    return [
        d
        for d in plan["decisions"]
        if d["host"] == host or (d["host"] is None and (d["group"] in groups or d["group"] is None))
    ]


def vllm_not_installable_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return what of a valid plan this version cannot install, for an assertion that nothing has changed yet."""
    lines = ["The plan is valid, but cannot be installed yet; nothing was changed."]
    for text in not_installable({"not_installable": entries}):
        lines += ["  " + line for line in wrap(text, COLUMNS - 2)]
    return "\n".join(lines)


def vllm_drift_table(changes: Sequence[Mapping[str, Any]], host: str) -> str:
    """Return how a host drifted and what can be done, for an assertion that nothing has changed there yet."""
    lines = [f"{host} is no longer what was recorded on it, and not because of this plan. Nothing was changed there."]
    for text in drift_lines({host: changes}):
        lines += ["  " + line for line in wrap(text, COLUMNS - 2)]
    advice = (
        "Find out who changed it. To carry the plan out all the same, which keeps what it has as seen and replaces the "
        "rest, set site_accept_drift: true for this host. To get back what was recorded where the plan has another "
        "value, name it: engine_driver or engine_kernel."
    )
    return "\n".join(lines + wrap(advice, COLUMNS))


def vllm_explain_table(plan: Plan, host: str, difference: Plan | None = None) -> str:
    """Return every decision about `host` and its engine groups with the rule and the reason, and what changes there."""
    planned, found = load(plan), load(difference)
    known = {*planned["hosts"], *hosts_of(planned["groups"])}
    if host not in known:
        return f"{host} is not in the plan. Set plan_explain to one of: {host_list(known)}"
    own = decisions_of(planned, host)
    state = found.get("hosts", {}).get(host, {})
    lines = [f"{host}: {count(len(own), 'decision')}" + (f", {state['state']}" if state else "")]
    used = {name: machine for name, machine in found.get("machines", {}).items() if name == host}
    lines += [f"  {line}" for line in machine_lines({"machines": used})]
    told = None
    several = len({d["group"] for d in own if d["group"]}) > 1
    for decision in sorted(own, key=lambda d: natural(d["group"] or "")) if several else own:
        if several and decision["group"] not in (None, told):
            told = decision["group"]
            lines += ["", f"== {told}"]
        lines += ["", f"{decision['key']} = {value_text(decision['value'])}  ({decision['rule']})"]
        lines += ["  " + line for line in wrap(decision["because"], COLUMNS - 2)]
    drifted = drift_lines({name: c for name, c in found.get("drift", {}).items() if name == host})
    lines += ["", "Drift:", *(f"  {text}" for text in drifted)] if drifted else []
    if state.get("changes"):
        lines += ["", "Compared with what it runs now:"]
        lines += [f"  {c['what']}: {value_text(c['old'])} → {value_text(c['new'])}" for c in state["changes"]]
    return "\n".join(lines)


def vllm_report_json(plan: Plan, difference: Plan | None = None) -> str:
    """Return the whole plan and the difference to what is applied as indented JSON: the same input, the same bytes."""
    content = {"schema": 1, "plan": load(plan), "difference": load(difference)}
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return a Markdown table; nothing in a cell can end it."""
    texts = [[re.sub(r"\s+", " ", "" if c is None else str(c)) for c in row] for row in rows]
    cells = [[text.replace("\\", "\\\\").replace("|", "\\|") for text in row] for row in texts]
    return [f"| {' | '.join(row)} |" for row in ([*head], ["---"] * len(head), *cells)]


def vllm_report_markdown(plan: Plan, difference: Plan | None = None) -> str:
    """Return the plan as a document to hand on: what, where, in which order, what changes, why."""
    planned, found = load(plan), load(difference)
    lines = ["# Deployment plan", "", title(planned, found) + ".", ""]
    if planned["ok"]:
        lines += [f"Digest `{planned['digest']}`; a run can be held to it with `deployment_plan_expected_digest`.", ""]
    else:
        lines += ["**No valid plan.** Nothing would be changed until the problems below are solved.", ""]
        rows = [
            [*(p[key] for key in ("code", "host", "field", "message")), value_text(p["seen"]), p["set"]]
            for p in planned["problems"]
        ]
        lines += [
            "## Problems",
            "",
            *markdown_table(["code", "host", "field", "what is wrong", "seen", "set"], rows),
            "",
        ]
    notes = [*machine_lines(found), *(f"Cannot be installed yet: {text}" for text in not_installable(planned))]
    notes += [f"Drift: {text}" for text in drift_lines(found.get("drift", {}))]
    notes += warning_lines(planned)
    if notes:
        lines += ["## To know", "", *(f"- {' '.join(note.split())}" for note in notes), ""]
    rows = []
    for pool, groups in variants(planned):
        first, memory = groups[0], groups[0].get("memory") or {}
        used = f"`{memory_bar(memory)}`" if size(memory, "total") else ""
        layout = ": ".join(filter(None, (devices_text(first), layout_text(first["layout"]))))
        row = [pool, first["model"], host_list(hosts_of(groups), LIST), len(groups), layout, runs_text(first)]
        rows.append([*row, ports_text(groups), used])
    head = ["pool", "model", "hosts", "engines", "layout", "runs", "endpoint", "memory"]
    lines += ["## Pools", "", *markdown_table(head, rows), ""]
    lines += ["Memory: `w` weights, `k` KV cache, `+` the rest, of each device or of the host's budget.", ""]
    rows = [
        [pool, versions_text(planned, groups[0]), memory_parts(groups[0].get("memory") or {})]
        for pool, groups in variants(planned)
    ]
    lines += [*markdown_table(["pool", "versions", "memory of one worker"], rows), ""]
    if found.get("steps"):
        lines += ["## What happens, in this order", ""]
        lines += [*markdown_table(["step", "action", "what", "hosts"], step_rows(found)), ""]
    changes = change_rows(found)
    if changes:
        lines += ["## What changes", "", *markdown_table(["what", "now", "then", "why", "hosts"], changes), ""]
    for pool, groups in variants(planned):
        host = groups[0]["members"][0]["host"]
        own = [d for d in decisions_of(planned, host) if d["group"] in (None, groups[0]["name"])]
        rows = [[d["key"], value_text(d["value"]), d["because"]] for d in own]
        lines += [
            f"## Why: {pool}, for example {host}",
            "",
            *markdown_table(["decision", "value", "because"], rows),
            "",
        ]
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
            "vllm_not_installable_table": vllm_not_installable_table,
            "vllm_drift_table": vllm_drift_table,
            "vllm_explain_table": vllm_explain_table,
            "vllm_report_json": vllm_report_json,
            "vllm_report_markdown": vllm_report_markdown,
            "vllm_result_table": vllm_result_table,
        }
