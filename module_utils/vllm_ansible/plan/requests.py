# SPDX-License-Identifier: Apache-2.0
"""What operators write (``engine_request``), checked and typed. No facts are needed here."""

import difflib
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.cpulist import parse_cpulist
from ansible.module_utils.vllm_ansible.plan.canonical import canonical_json, natural_key, plain, show, slug
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.models import MODEL_NAME
from ansible.module_utils.vllm_ansible.plan.words import PROPOSED, translate

BACKENDS = ("ascend", "cpu", "cuda")
DTYPES = ("auto", "bfloat16", "float16", "float32")


class Request(NamedTuple):
    """One validated request; None means "the plan decides". `version` is exact, without the leading ``=``."""

    model: str
    name: Optional[str] = None
    version: Optional[str] = None
    backend: Optional[str] = None
    device_model: Optional[str] = None
    dtype: Optional[str] = None
    max_model_len: Optional[int] = None
    max_num_seqs: Optional[int] = None
    max_num_batched_tokens: Optional[int] = None
    kv_cache_gib: Optional[int] = None
    tensor_parallel_size: Optional[int] = None
    pipeline_parallel_size: Optional[int] = None
    data_parallel_size: Optional[int] = None
    nodes: Optional[int] = None
    replicas_per_host: int = 1
    port: Optional[int] = None
    served_model_name: Optional[str] = None
    cpus: Optional[str] = None
    extra_args: Dict[str, Any] = {}
    extra_env: Dict[str, str] = {}


class Claim(NamedTuple):
    """A request and the hosts of one pool that share it, in natural order."""

    pool: str
    request: Request
    hosts: Tuple[str, ...]


class _Invalid(Exception):
    """A value that cannot be used; the text says what it has to be."""


def _text(pattern: str, wanted: str) -> Any:
    def check(value: Any) -> str:
        if isinstance(value, str) and re.match(pattern + r"\Z", value):
            return value
        raise _Invalid(wanted)

    return check


def _number(low: int, high: int) -> Any:
    def check(value: Any) -> int:
        # Ansible's templates turn numbers into texts, so "8" is a number too.
        if isinstance(value, str) and re.match(r"[0-9]{1,12}\Z", value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise _Invalid("a whole number from {} to {}".format(low, high))

    return check


def _choice(choices: Tuple[str, ...]) -> Any:
    def check(value: Any) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise _Invalid("one of " + ", ".join(choices))

    return check


def _version(value: Any) -> str:
    if isinstance(value, str) and re.match(r"=?[0-9]+(\.[0-9a-z]+)+\Z", value):
        return value.lstrip("=")
    raise _Invalid('a full version in quotes such as "=0.32.0"')


def _cpus(value: Any) -> str:
    text = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    try:
        if not all(parse_cpulist(rank) for rank in text.split("|")):
            raise ValueError(text)
    except ValueError:
        raise _Invalid('a CPU list in quotes such as "0-3,8"; one list per rank, separated by |') from None
    return text


def _mapping(value: Any) -> Dict[str, Any]:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    raise _Invalid("a mapping of names to values")


_SIZE = _number(1, 1024)
CHECKS = {
    "model": _text(MODEL_NAME, "a name of letters, digits, dots and dashes, as in the catalogue or engine_models"),
    "name": _text(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?", "a name of at most 48 small letters, digits and dashes"),
    "version": _version,
    "backend": _choice(BACKENDS),
    "device_model": _text(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}", "a device's name as npu-smi or nvidia-smi prints it"),
    "dtype": _choice(DTYPES),
    "max_model_len": _number(1, 100000000),
    "max_num_seqs": _number(1, 65536),
    "max_num_batched_tokens": _number(1, 100000000),
    "kv_cache_gib": _number(1, 65536),
    "tensor_parallel_size": _SIZE,
    "pipeline_parallel_size": _SIZE,
    "data_parallel_size": _SIZE,
    "nodes": _SIZE,
    "replicas_per_host": _SIZE,
    "port": _number(1024, 65535),
    "served_model_name": _text(
        r"[A-Za-z0-9][A-Za-z0-9._/-]{0,119}", "a name of letters, digits, dots, dashes and slashes"
    ),
    "cpus": _cpus,
    "extra_args": _mapping,
    "extra_env": _mapping,
}


def nearest(word: str, known: Any) -> str:
    """Return a hint naming the known word closest to `word`, or all of them when none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else "one of " + ", ".join(sorted(known))


def normalise(raw: Any, findings: Findings, where: Dict[str, Any]) -> Optional[Request]:
    """Return the request, or None after every problem in it was recorded; `where` goes into each finding."""
    if not isinstance(raw, dict):
        findings.problem(
            "E_REQUEST_VALUE",
            "engine_request has to be a mapping with at least `model`",
            "engine_request: {model: <name from the catalogue or engine_models>}",
            field="engine_request",
            seen=raw,
            **where,
        )
        return None
    request, bad = translate(raw, findings, where), False
    before = findings.count
    values: Dict[str, Any] = {}
    for key in sorted(request, key=str):
        field, value = "engine_request.{}".format(key), request[key]
        if key not in CHECKS:
            hint = nearest(str(key), list(CHECKS) + PROPOSED)
            if hint.startswith("one of "):
                hint = nearest(str(key), CHECKS) + "; the engine's own flags go into extra_args"
            findings.problem(
                "E_REQUEST_KEY", "engine_request has no key {!r}".format(key), hint, field=field, seen=value, **where
            )
        elif value is not None:
            try:
                values[key] = CHECKS[key](value)
            except _Invalid as error:
                bad = True
                findings.problem(
                    "E_REQUEST_VALUE",
                    "{} cannot be {}".format(field, show(value)),
                    "{}: {}".format(key, error),
                    field=field,
                    seen=value,
                    **where,
                )
    bad |= "model" not in values
    if request.get("model") is None and raw.get("model") is None:
        findings.problem(
            "E_REQUEST_VALUE",
            "engine_request names no model",
            "model: <name from the catalogue or engine_models>",
            field="engine_request.model",
            **where,
        )
    bad |= _contradictions(values, findings, where)
    return None if bad or findings.count != before else Request(**values)


def _contradictions(values: Dict[str, Any], findings: Findings, where: Dict[str, Any]) -> bool:
    """Report pins that exclude each other whatever the hardware is."""
    found = []
    if (values.get("nodes") or 1) > 1 and values.get("replicas_per_host", 1) > 1:
        found.append(
            ("replicas_per_host", "a replica over several hosts and several replicas on one host exclude each other",
             "either nodes or replicas_per_host")
        )  # fmt: skip
    if values.get("replicas_per_host", 1) > 1 and "cpus" in values:
        found.append(("cpus", "several replicas on one host cannot all run on the same pinned CPUs",
                      "no cpus: the plan divides the host, or one request per replica in a list"))  # fmt: skip
    length, batch = values.get("max_model_len"), values.get("max_num_seqs")
    tokens = values.get("max_num_batched_tokens")
    if tokens is not None and batch is not None and tokens < batch:
        found.append(("max_num_batched_tokens",
                      "a step of {} tokens cannot hold the {} requests of max_num_seqs".format(tokens, batch),
                      "max_num_batched_tokens: {} or more".format(max(batch, length or 0))))  # fmt: skip
    for key, message, set_to in found:
        findings.problem(
            "E_REQUEST_CONTRADICTION",
            message[0].upper() + message[1:],
            set_to,
            field="engine_request." + key,
            seen=values.get(key),
            **where,
        )
    return bool(found)


def read_claims(pools: Dict[str, Dict[str, Any]], findings: Findings) -> List[Claim]:
    """Turn each pool's raw requests (pool -> host -> request) into claims, equal ones checked and reported once.

    A request may be a list of requests: several engines on each host of the pool.
    """
    claims = []
    for pool in sorted(pools, key=natural_key):
        alike: Dict[str, Tuple[Any, List[str]]] = {}
        for host in sorted(pools[pool], key=natural_key):
            raw = plain(pools[pool][host])
            alike.setdefault(canonical_json(raw), (raw, []))[1].append(host)
        for raw, hosts in alike.values():
            where = {"host": hosts[0], "also": len(hosts) - 1}
            requests = [normalise(item, findings, where) for item in (raw if isinstance(raw, list) and raw else [raw])]
            several = len(requests) > 1
            for request in requests:
                if request is None:
                    continue
                name = request.name or slug(request.model if several else _strip(pool))
                claims.append(Claim(pool, request._replace(name=name), tuple(hosts)))
    return claims


def _strip(pool: str) -> str:
    return pool[len("pool_") :] if pool.startswith("pool_") and len(pool) > len("pool_") else pool
