# SPDX-License-Identifier: Apache-2.0
"""The words of the source articles: translated to what they mean today, left out with a note, or refused.

A table, so that the next word is a line. Evidence for each: docs/planning.md, "Words of the articles".
"""

from typing import Any, Dict, NamedTuple, Optional

from ansible.module_utils.vllm_ansible.plan.canonical import show
from ansible.module_utils.vllm_ansible.plan.findings import Findings


class Word(NamedTuple):
    """One article key. With `to`, the value moves there (through `values`, if given); without, it is left out."""

    note: str
    to: Optional[str] = None
    values: Optional[Dict[str, Optional[str]]] = None
    refuse: str = ""


_DTYPES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "float": "float32"}
_DTYPES.update({name: name for name in ("float16", "bfloat16", "float32", "auto")})
_BACKENDS = {"npu": "ascend", "gpu": "cuda", "nvidia": "cuda", "huawei": "ascend"}
_BACKENDS.update({name: name for name in ("ascend", "cuda", "cpu")})

WORDS = {
    "max_num_batches": Word("the engine has no such option; the number of requests it runs at once is meant",
                            to="max_num_seqs"),
    "max_batch_size": Word("the engine batches continuously; the number of requests it runs at once is meant",
                           to="max_num_seqs"),
    "max_seq_len": Word("the context length is meant", to="max_model_len"),
    "max_sequence_length": Word("the context length is meant", to="max_model_len"),
    "tensor_parallel": Word("the engine's name for it is longer", to="tensor_parallel_size"),
    "pipeline_parallel": Word("the engine's name for it is longer", to="pipeline_parallel_size"),
    "device": Word("there is no --device for a plugin platform; the backend decides the build",
                   to="backend", values={**_BACKENDS, "auto": None}, refuse="backend: ascend, cuda or cpu"),
    "precision": Word("a precision is a dtype", to="dtype", values=dict(_DTYPES),
                      refuse="dtype: bfloat16, float16 or float32"),
    "quantization": Word(
        "fp16 and bf16 are data types, not quantisations", to="dtype",
        values=dict(_DTYPES, none=None),
        refuse="a model whose weights are already quantised that way; this request key only ever meant a dtype",
    ),
    "block_size": Word("tokens per KV block: the engine chooses (16 or 128); thousands would waste nearly all of the"
                       " cache. To force one: extra_args: {block-size: 32}"),
    "swap_space": Word("removed from the engine: a preempted request is computed again"),
    "dynamic_batching": Word("always on: the engine batches continuously"),
    "prefetch_buffer": Word("the engine has no such option"),
    "input_shape": Word("a language model takes token ids of any length; max_model_len bounds them"),
}  # fmt: skip


def translate(raw: Dict[Any, Any], findings: Findings, where: Dict[str, Any]) -> Dict[Any, Any]:
    """Return `raw` with every article word replaced; `where` goes into each finding (host, also)."""
    request = {key: value for key, value in raw.items() if key not in WORDS}
    for key in sorted(key for key in raw if isinstance(key, str) and key in WORDS):
        word, value, field = WORDS[key], raw[key], "engine_request." + key
        target = word.to
        if target is None:
            findings.warning("W_WORD_LEFT_OUT", "{}: {}".format(key, word.note), where["host"], field)
            continue
        new = value
        if word.values is not None:
            text = str(value).lower()
            if text not in word.values:
                findings.problem(
                    "E_WORD_REFUSED",
                    "{}: {} means nothing the engine can do: {}".format(key, show(value), word.note),
                    word.refuse,
                    field=field,
                    seen=value,
                    **where,
                )
                continue
            new = word.values[text]
        if new is None:
            findings.warning("W_WORD_LEFT_OUT", "{}: {}".format(key, word.note), where["host"], field)
        elif target in request and request[target] != new:
            findings.problem(
                "E_REQUEST_CONTRADICTION",
                "{} means {target}: {}, and the request also says {target}: {}".format(
                    key, show(new), show(request[target]), target=target
                ),
                "only {}".format(target),
                field=field,
                seen=value,
                **where,
            )
        else:
            request[target] = new
            findings.warning(
                "W_WORD_TRANSLATED",
                "{}: {} is taken as {}: {} ({})".format(key, show(value), target, show(new), word.note),
                where["host"],
                field,
            )
    return request
