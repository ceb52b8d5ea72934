# SPDX-License-Identifier: Apache-2.0
"""What operators add by hand (``extra_args``, ``extra_env``), and the engine's own list of flags."""

import json
import re
from typing import Any, Dict, Optional

from ansible.module_utils.vllm_ansible.plan.backends.base import Context, fail
from ansible.module_utils.vllm_ansible.plan.canonical import SECRET_NAME, show
from ansible.module_utils.vllm_ansible.plan.groups import Group
from ansible.module_utils.vllm_ansible.plan.requests import nearest

# Flags the plan or a role sets, and where the operator says it instead.
OWNED_FLAGS = {
    "api-key": "engine_service_api_key",
    "api-key-file": "engine_service_api_key",
    "data-parallel-address": "nothing: the plan knows the hosts of a replica",
    "data-parallel-rpc-port": "nothing: the plan gives each replica its port",
    "data-parallel-size": "engine_request.data_parallel_size",
    "data-parallel-size-local": "nothing: it follows from data_parallel_size and nodes",
    "data-parallel-start-rank": "nothing: it follows from a host's place in its replica",
    "device-ids": "nothing: the plan divides the devices of a host",
    "dtype": "engine_request.dtype",
    "enable-expert-parallel": "nothing: experts are divided where the layout says so",
    "headless": "nothing: it follows from a host's place in its replica",
    "host": "engine_address",
    "master-addr": "nothing: the plan knows the hosts of a replica",
    "master-port": "nothing: the plan gives each replica its port",
    "max-model-len": "engine_request.max_model_len",
    "max-num-batched-tokens": "engine_request.max_num_batched_tokens",
    "max-num-seqs": "engine_request.max_num_seqs",
    "model": "engine_request.model",
    "nnodes": "engine_request.nodes",
    "node-rank": "nothing: it follows from a host's place in its replica",
    "pipeline-parallel-size": "engine_request.pipeline_parallel_size",
    "port": "engine_request.port",
    "served-model-name": "engine_request.served_model_name",
    "tensor-parallel-size": "engine_request.tensor_parallel_size",
}
_DEVICES = "nothing: the plan divides the devices of a host"
_INTERFACE = "nothing: it is the interface of engine_address"
OWNED_ENVIRONMENT = {
    "ASCEND_RT_VISIBLE_DEVICES": _DEVICES,
    "CUDA_VISIBLE_DEVICES": _DEVICES,
    "GLOO_SOCKET_IFNAME": _INTERFACE,
    "HCCL_IF_BASE_PORT": "nothing: the plan gives each instance its ports",
    "HCCL_IF_IP": "engine_address",
    "HCCL_SOCKET_IFNAME": _INTERFACE,
    "TP_SOCKET_IFNAME": _INTERFACE,
    "VLLM_API_KEY": "engine_service_api_key",
    "VLLM_CPU_KVCACHE_SPACE": "engine_request.kv_cache_gib",
    "VLLM_CPU_OMP_THREADS_BIND": "engine_request.cpus",
    "VLLM_HOST_IP": "engine_address",
    "VLLM_PORT": "engine_request.port",
    "PATH": "nothing: the release brings its own programs",
    "PYTHONHOME": "nothing: the release brings its own Python",
    "PYTHONPATH": "nothing: the release brings its own Python",
}
RAY_FLAGS = ("distributed-executor-backend", "data-parallel-backend")
_PATTERNS = {
    "int": (r"-?[0-9]+\Z", "a whole number"),
    "float": (r"-?[0-9]+(\.[0-9]+)?([eE]-?[0-9]+)?\Z", "a number"),
    "human-int": (r"(auto|-?[0-9]+(\.[0-9]+)?[kKmMgGtT]?)\Z", "a whole number, also as 4k or 1M"),
}


def engine_flags(documents: Any, engine: str, version: str) -> Optional[Dict[str, Any]]:
    """Return the flags of one engine version (``flags.yml``), or None when they are not recorded."""
    versions = documents.get(engine) if isinstance(documents, dict) else None
    document = versions.get(version) if isinstance(versions, dict) else None
    flags = document.get("flags") if isinstance(document, dict) else None
    return {str(k): v if isinstance(v, dict) else {} for k, v in flags.items()} if isinstance(flags, dict) else None


def apply_extras(group: Group, context: Context) -> None:
    """Lay the request's extra arguments and environment over the plan's own, each checked."""
    row = group.row
    assert row is not None
    known = engine_flags(context.flags, row.engine, row.version)
    if known is None and row.status != "installable":
        context.findings.warning(
            "W_FLAGS_UNCHECKED",
            "The flags of {} {} are not recorded: whether it has those of the plan and of extra_args was not "
            "checked".format(row.engine, row.version),
            field="flags",
        )
    elif known is None:
        context.findings.problem(
            "E_FLAGS_MISSING",
            "The flags of {} {} are not recorded, so none can be checked".format(row.engine, row.version),
            "engine_overrides/{}/{}/flags.yml".format(row.engine, row.version),
            field="flags",
        )
        group.failed = True
        return
    known = None if known is None else row.flags_with_choices(known)
    for name in sorted(group.flags):
        if known is not None:
            _check_flag(group, name, group.flags[name], known, "catalogue.rows.{}.flags".format(row.name), context)
    for key in sorted(group.request.extra_args):
        name, value = key.lstrip("-").replace("_", "-"), group.request.extra_args[key]
        alias = (known or {}).get(name, {}).get("alias_of")
        name = alias if isinstance(alias, str) else name
        field = "engine_request.extra_args." + key
        if name in OWNED_FLAGS:
            fail(group, context, "E_ARG_OWNED", "--{} is set by the plan".format(name),
                 OWNED_FLAGS[name], field, value)  # fmt: skip
        elif name in RAY_FLAGS and value == "ray" and (group.backend == "cpu" or len(group.hosts) > 1):
            _refuse_ray(group, name, field, context)
        elif known is None or _check_flag(group, name, value, known, field, context):
            # False becomes the flag's own negation; the engine has no --flag=false
            group.flags.pop(name, None)
            group.flags["no-" + name if value is False else name] = value is False or value
            context.findings.decide("R_ARG_EXTRA", "engine.flags." + name, value,
                                    "engine_request.extra_args asks for it", group=group.name)  # fmt: skip
    for key in sorted(group.request.extra_env):
        _extra_environment(group, key, group.request.extra_env[key], context)


def _refuse_ray(group: Group, name: str, field: str, context: Context) -> None:
    """vLLM's CPU platform names no Ray resource (ray_device_key); with --nnodes its executor has to be mp."""
    if group.backend == "cpu":
        fail(group, context, "E_ARG_VALUE", "The CPU engine does not support Ray",
             "no {}: the engine starts its own processes".format(name), field, "ray")  # fmt: skip
    else:
        fail(group, context, "E_MULTI_NODE",
             "The hosts of a replica meet by the engine's own launch, and no role starts a Ray cluster for them",
             "no {}, or nodes: 1".format(name), field, "ray")  # fmt: skip


def _check_flag(group: Group, name: str, value: Any, known: Dict[str, Any], field: str, context: Context) -> bool:
    if name not in known:
        fail(group, context, "E_ARG_UNKNOWN",
             "{} {} has no flag --{}".format(group.row.engine, group.row.version, name) if group.row else name,
             nearest(name, known) if known else "no flag", field, value)  # fmt: skip
        return False
    wanted = _wrong_value(value, known[name])
    if wanted:
        fail(group, context, "E_ARG_VALUE", "--{} cannot be {}".format(name, show(value)),
             "{}: {}".format(name, wanted), field, value)  # fmt: skip
    return not wanted


def _wrong_value(value: Any, spec: Dict[str, Any]) -> str:
    """Return what the value has to be, or an empty text when it is right. Types not listed here are not checked."""
    kind, choices = spec.get("type"), spec.get("choices")
    if kind == "bool":
        if value is False and not spec.get("negatable"):
            return "true, or left out: it cannot be negated"
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(value, bool) and kind in ("int", "float", "str", "human-int"):
        return "no truth value" if kind == "str" else "a number"
    if isinstance(choices, list) and choices and kind != "any":
        return "" if value in choices else "one of " + ", ".join(str(c) for c in choices)
    if kind in _PATTERNS and not re.match(_PATTERNS[kind][0], str(value)):
        return _PATTERNS[kind][1]
    if (kind == "json" or "keys" in spec) and not isinstance(value, (dict, list)):
        try:
            value = json.loads(value)
        except (TypeError, ValueError):
            return "a mapping, a list or JSON text"
    if "keys" in spec:
        unknown = sorted(set(map(str, value)) - set(spec["keys"])) if isinstance(value, dict) else []
        if unknown or not isinstance(value, dict):
            return "a mapping of {}".format(nearest(unknown[0], spec["keys"]) if unknown else ", ".join(spec["keys"]))
    if kind == "str" and not isinstance(value, (str, int, float)):
        return "a text"
    if kind == "list" and not (isinstance(value, list) and all(isinstance(v, (str, int, float)) for v in value)):
        return "a list"
    return ""


def _extra_environment(group: Group, key: str, value: Any, context: Context) -> None:
    field = "engine_request.extra_env." + key
    if key in OWNED_ENVIRONMENT:
        fail(group, context, "E_ENV_OWNED", "{} is set by the plan".format(key), OWNED_ENVIRONMENT[key], field)
    elif SECRET_NAME.search(key):
        fail(group, context, "E_ENV_SECRET", "{} looks like a secret, and a plan holds none".format(key),
             "a credential of the service (engine_service_api_key), not an environment variable", field)  # fmt: skip
    elif not re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", key) or not isinstance(value, (str, int, float)):
        fail(group, context, "E_ENV_VALUE", "{} cannot be set to {}".format(key, show(value)),
             "a variable name and a text or number", field, value)  # fmt: skip
    else:
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if "\n" in text or "\0" in text:
            fail(group, context, "E_ENV_VALUE", "{} holds more than one line".format(key), "one line", field)
            return
        group.environment[key] = text
        context.findings.decide("R_ENV_EXTRA", "engine.environment." + key, text,
                                "engine_request.extra_env asks for it", group=group.name)  # fmt: skip
