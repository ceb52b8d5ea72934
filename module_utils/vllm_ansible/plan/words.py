# SPDX-License-Identifier: Apache-2.0
"""The words of the source articles: taken as what they mean today, left out with a note, or refused with what works.

The tables are in plan/word_table.py; docs/planning.md, "Words of the articles", is generated from them.
"""

import re
from typing import Any, Dict, List

from ansible.module_utils.vllm_ansible.plan.canonical import show
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.word_table import (
    ENVIRONMENT,
    FLAGS,
    KEPT,
    LIFTED,
    METRICS,
    WORDS,
    Refusal,
    Word,
)

# What the message about an unknown key may propose.
PROPOSED = sorted(name for name, word in WORDS.items() if word.to and word.to != name)


def spell(key: Any) -> str:
    """Return a key as the tables have it: ``nodeSelector`` and ``node-selector`` are ``node_selector``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(key)).lower().replace("-", "_").replace(" ", "_")


def translate(raw: Dict[Any, Any], findings: Findings, where: Dict[str, Any]) -> Dict[Any, Any]:
    """Return `raw` with every article word replaced; `where` goes into each finding (host, also)."""
    raw = _lift(raw, findings, where)
    words = {key: WORDS[spell(key)] for key in raw if isinstance(key, str) and spell(key) in WORDS}
    request = {key: value for key, value in raw.items() if key not in words or _is_real(key, words[key])}
    for key in sorted(words):
        _take(key, words[key], raw[key], request, findings, where)
    _clean(request, "extra_args", {name: WORDS[name] for name in FLAGS}, spell, findings, where)
    _clean(request, "extra_env", ENVIRONMENT, str, findings, where)
    given = request.get("extra_env")
    for name in sorted(set(KEPT) & set(given)) if isinstance(given, dict) else []:
        note, field = "{}: {}".format(name, KEPT[name]), "engine_request.extra_env." + name
        findings.warning("W_WORD_KEPT", note, where["host"], field)
    return request


def _is_real(key: str, word: Word) -> bool:
    """Whether the key is one of the request's own, listed for some of its values only."""
    return word.to == key or (word.to is None and not word.note)


def _lift(raw: Dict[Any, Any], findings: Findings, where: Dict[str, Any]) -> Dict[Any, Any]:
    lifted = [key for key in raw if isinstance(key, str) and spell(key) in LIFTED]
    flat = {key: value for key, value in raw.items() if key not in lifted}
    for key in sorted(lifted):
        field, value = "engine_request." + key, raw[key]
        if isinstance(value, dict):
            flat.update((name, value[name]) for name in value if name not in flat)
            note = "{}: the engine takes flat options; its keys are read as if they stood in engine_request".format(key)
            findings.warning("W_WORD_TRANSLATED", note, where["host"], field)
        elif str(value).lower() == "vllm":
            findings.warning("W_WORD_LEFT_OUT", "{}: vLLM is what is served".format(key), where["host"], field)
        else:
            _refuse(key, value, Refusal("", "", "vLLM is what is served", "no {}".format(key)), field, findings, where)
    return flat


def _clean(request: Dict[Any, Any], part: str, words: Any, spelt: Any, findings: Findings, where: Any) -> None:
    """Take article words out of extra_args or extra_env; the caller's mapping stays as it was."""
    given = request.get(part)
    if not isinstance(given, dict):
        return
    found = {key: words[spelt(key)] for key in given if isinstance(key, str) and spelt(key) in words}
    if found:
        request[part] = {key: value for key, value in given.items() if key not in found}
    for key in sorted(found):
        _take(key, found[key], given[key], request, findings, where, part + ".")


def _take(
    key: str, word: Word, value: Any, request: Dict[Any, Any], findings: Findings, where: Any, part: str = ""
) -> None:
    """Do with one word what its table says: refuse it, leave it out, or move its value to where it belongs."""
    field, text = "engine_request." + part + key, str(value).strip().lower()
    choice = re.sub(r"[\s_]+", "-", text)
    refusal = next((r for r in word.refused if re.search(r.pattern, text)), None)
    if refusal is not None and "quanti" in key and text in str(request.get("model", "")).lower():
        refusal, word = (
            None,
            Word("the weights of this model are quantised that way, and the plan says so to the engine"),
        )
    if refusal is not None:
        request.pop(key, None)
        _refuse(key, value, refusal, field, findings, where)
        return
    if _is_real(key, word) and word.to is None:
        return
    new = value
    if word.to is not None and word.values is not None:
        if _is_real(key, word) and choice not in word.values:
            return  # the check of that key says what it has to be
        if choice not in word.values:
            _refuse(key, value, Refusal("", "", word.note, word.instead), field, findings, where)
            return
        new = word.values[choice]
    elif word.to is None and word.instead:
        _refuse(key, value, Refusal("", "", word.note, word.instead), field, findings, where)
        return
    if word.to is None or new is None:
        note = "; ".join([word.note] + _metrics(value)) if key.startswith(("metric", "alert")) else word.note
        findings.warning("W_WORD_LEFT_OUT", "{}: {}".format(key, note), where["host"], field)
    elif word.to == key and new == value:
        return
    elif word.to != key and word.to in request and request[word.to] != new:
        findings.problem(
            "E_REQUEST_CONTRADICTION",
            "{} means {target}: {}, and the request also says {target}: {}".format(
                key, show(new), show(request[word.to]), target=word.to
            ),
            "only {}".format(word.to),
            field=field,
            seen=value,
            **where,
        )
    else:
        request[word.to] = new
        findings.warning(
            "W_WORD_TRANSLATED",
            "{}: {} is taken as {}: {} ({})".format(key, show(value), word.to, show(new), word.note),
            where["host"],
            field,
        )


def _refuse(key: str, value: Any, refusal: Refusal, field: str, findings: Findings, where: Dict[str, Any]) -> None:
    findings.problem(
        "E_WORD_REFUSED",
        "{}: {} cannot be had: {}".format(key, show(value), refusal.note),
        refusal.instead,
        field=field,
        seen=value,
        **where,
    )


def _metrics(value: Any) -> List[str]:
    """Return what the metrics named in `value` are called today."""
    text = show(value, 10000).lower()
    return ["{} is {}".format(name, METRICS[name]) for name in sorted(METRICS) if name in text]
