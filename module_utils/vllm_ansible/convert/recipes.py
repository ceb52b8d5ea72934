# SPDX-License-Identifier: Apache-2.0
"""What a conversion request means, and the conversions there are."""

import os

from ansible.module_utils.vllm_ansible.convert import ModelError, directory, files, gguf_source

RECIPE = {"name": "gguf-llama", "version": 1}  # raise the version when other bytes come out of the same input

_DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float32": "float32",
}


def translate(request):
    """Turn a request, in our words or those of the article this project follows, into what will be done.

    Args:
        request: dict with `dtype`, `format`, `quantization` and `input_shape`, each None where it was not given.

    Returns:
        (dtype, notes): the type of the stored weights, and a sentence per word that means something else today.

    Raises:
        ModelError: something that cannot be done, with the reason.
    """
    notes, dtype = [], request["dtype"]
    if request["format"] == "om":
        raise ModelError(
            "format=om cannot be made of a language model: an .om file is a fixed graph compiled by ATC, a language "
            "model has growing inputs and a cache, and no engine loads one. Set format: safetensors; the engine loads "
            "that on Ascend as well."
        )
    wanted = request["quantization"]
    if wanted and wanted.lower() not in ("none", "null"):
        asked = _DTYPES.get(wanted.lower())
        if asked is None:
            raise ModelError(
                f"quantization={wanted} is not available: weights are stored as one of "
                f"{', '.join(sorted(set(_DTYPES.values())))}. Leave quantization out, or set dtype."
            )
        if dtype and dtype != asked:
            raise ModelError(f"quantization={wanted} and dtype={dtype} contradict each other; set dtype alone")
        notes.append(f"quantization={wanted} is a number format, not a quantisation: taken as dtype={asked}")
        dtype = asked
    if request["input_shape"]:
        notes.append(
            f"input_shape={request['input_shape']} is ignored: the inputs of a language model are token ids, any "
            "number of them; max_model_len in engine_request limits it"
        )
    return dtype or "bfloat16", notes


def plan_changes(dest, desired, full=False):
    """What has to happen to make `dest` the model that is desired.

    Args:
        dest: the model directory.
        desired: what the manifest must say: name, dtype, license, source (with sha256) and recipe.
        full: read all files again; otherwise names and sizes decide.

    Returns:
        {"action": "none"|"create"|"replace", "reasons": [sentences], "before": manifest or None}.
    """
    manifest = files.read_json(os.path.join(dest, directory.MANIFEST))
    if manifest is None:
        action = "replace" if os.path.lexists(dest) else "create"
        return {"action": action, "reasons": [f"{dest} holds no finished model"], "before": None}
    # The versions of the tools are recorded, not compared: a newer tool alone is no reason to convert again.
    seen = dict(manifest, recipe={key: manifest.get("recipe", {}).get(key) for key in RECIPE})
    differing = sorted(key for key in desired if seen.get(key) != desired[key])
    reasons = [f"{key}: {seen.get(key)} becomes {desired[key]}" for key in differing]
    described = dict(manifest["files"])
    path = os.path.join(dest, directory.MANIFEST)
    described[directory.MANIFEST] = {"size_bytes": os.path.getsize(path), "sha256": files.file_digest(path)}
    reasons += files.compare_files(dest, described, full)
    return {"action": "replace" if reasons else "none", "reasons": reasons, "before": manifest}


def gguf_to_safetensors(source, dest, desired, option, on_progress=None):
    """Convert a GGUF file and publish the result as the model directory `dest`.

    Args:
        source: the GGUF file.
        dest: the model directory; appears whole, replaces what was there.
        desired: see `plan_changes`.
        option: name of the setting that chooses `dest`, for messages.
        on_progress: function of (bytes written, bytes in all).

    Returns:
        the manifest.

    Raises:
        ModelError: the source cannot be converted or the result is no sound model.
    """
    staging = os.path.join(os.path.dirname(dest), f".{os.path.basename(dest)}.partial")
    with files.exclusive(dest), files.explain_full_disk(os.path.dirname(dest), option):
        files.remove(staging)
        model = gguf_source.GgufSource(source)
        config, tensors = model.config(desired["dtype"]), model.tensors(desired["dtype"])
        files.require_space(os.path.dirname(dest), _bytes_needed(tensors), option)
        os.mkdir(staging)
        facts = dict(desired, recipe=dict(desired["recipe"], **gguf_source.tool_versions()))
        description = "Converted from a GGUF file; block-quantised weights are expanded, their rounding stays."
        manifest = directory.write_model(staging, tensors, config, model.tokenizer(), facts, description, on_progress)
        gguf_source.check_round_trip(os.path.join(staging, "tokenizer.json"))
        files.publish(staging, dest)
    return manifest


def _bytes_needed(tensors):
    weights = sum(
        directory.safetensors.ITEM_BYTES[tensor.dtype] * directory.safetensors.count_elements(tensor.shape)
        for tensor in tensors
    )
    return weights + 32 * 1024 * 1024  # tokenizer, config and slack
