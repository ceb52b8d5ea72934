# SPDX-License-Identifier: Apache-2.0
"""A model directory as the engine loads it: written, described in manifest.json, and checked."""

import os

from ansible.module_utils.vllm_ansible.convert import ModelError, files, safetensors
from ansible.module_utils.vllm_ansible.convert.architectures import architecture_of, tensor_shapes

MANIFEST = "manifest.json"
_OTHER_TOKENIZERS = ("tokenizer.model", "tekken.json", "vocab.json")

_CARD = """---
license: {license}
library_name: vllm
---
# {name}

{description}

| | |
|---|---|
| architecture | {architecture} |
| parameters | {parameters:,} |
| weights | {weights}, {dtype} |

Made by vllm-ansible; `manifest.json` says from what.
"""


def write_model(directory, tensors, config, tokenizer, facts, description, on_progress=None):
    """Fill an empty directory with a whole model and check it.

    Args:
        tensors: `safetensors.Tensor` tuples.
        config: content of config.json, with `torch_dtype` and the token ids.
        tokenizer: (content of tokenizer.json, content of tokenizer_config.json).
        facts: what the manifest says beside the figures found here: name, weights, license, source, recipe.
        description: one paragraph for the model card.

    Returns:
        the manifest.

    Raises:
        ModelError: the result is not a model the engine could load.
    """
    tokenizer_content, tokenizer_config = tokenizer
    token_ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    for name, content in (
        ("config.json", config),
        ("generation_config.json", {key: config[key] for key in token_ids if key in config}),
        ("tokenizer.json", tokenizer_content),
        ("tokenizer_config.json", tokenizer_config),
    ):
        files.write_json(os.path.join(directory, name), content)
    safetensors.write(os.path.join(directory, "model.safetensors"), tensors, on_progress)
    manifest = dict(facts, schema=1, format="safetensors", **check_model(directory))
    with open(os.path.join(directory, "README.md"), "w", encoding="utf-8") as stream:
        stream.write(_CARD.format(description=description, **manifest))
    manifest["files"] = files.describe_files(directory)
    files.write_json(os.path.join(directory, MANIFEST), manifest)
    return manifest


def check_model(directory):
    """Check that a directory holds a model whose parts fit together.

    Returns:
        {"architecture", "dtype", "tensors" (how many), "parameters", "size_bytes" (of the weights)}.

    Raises:
        ModelError: config, weights or tokenizer are missing or contradict each other.
    """
    config = files.read_json(os.path.join(directory, "config.json"))
    if config is None:
        raise ModelError(f"{directory} has no readable config.json")
    seen, size = {}, 0
    weights = [name for name in files.list_files(directory) if name.endswith(".safetensors")]
    if not weights:
        raise ModelError(
            f"{directory} holds no weights in safetensors format; files seen: {', '.join(files.list_files(directory))}"
        )
    for name in weights:
        path = os.path.join(directory, name)
        size += os.path.getsize(path)
        for tensor, entry in safetensors.read_header(path).items():
            if tensor in seen:
                raise ModelError(f"{directory} holds the tensor {tensor} twice")
            seen[tensor] = entry
    expected = tensor_shapes(config)
    if expected is not None:
        _compare_tensors(directory, seen, expected)
    _check_tokenizer(directory, config)
    return {
        "architecture": architecture_of(config),
        "dtype": config.get("dtype") or config.get("torch_dtype"),
        "tensors": len(seen),
        "parameters": sum(safetensors.count_elements(entry["shape"]) for entry in seen.values()),
        "size_bytes": size,
    }


def _compare_tensors(directory, seen, expected):
    problems = [f"{name} is missing" for name in sorted(set(expected) - set(seen))]
    problems += [f"{name} does not belong there" for name in sorted(set(seen) - set(expected))]
    problems += [
        f"{name} has the shape {seen[name]['shape']}, config.json says {list(expected[name])}"
        for name in sorted(set(seen) & set(expected))
        if seen[name]["shape"] != list(expected[name])
    ]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ModelError(f"the tensors of {directory} do not fit its config.json: {'; '.join(problems[:3])}{more}")


def _check_tokenizer(directory, config):
    tokenizer = files.read_json(os.path.join(directory, "tokenizer.json"))
    if tokenizer is None:
        if not any(os.path.isfile(os.path.join(directory, name)) for name in _OTHER_TOKENIZERS):
            raise ModelError(f"{directory} has no tokenizer: neither tokenizer.json nor {', '.join(_OTHER_TOKENIZERS)}")
        return
    vocabulary = tokenizer["model"]["vocab"]
    if isinstance(vocabulary, dict):
        highest = max(vocabulary.values())
        for merge in tokenizer["model"].get("merges") or []:
            left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
            if not {left, right, left + right} <= vocabulary.keys():
                raise ModelError(f"{directory}/tokenizer.json merges {left!r} and {right!r}, which are not all tokens")
    else:
        highest = len(vocabulary) - 1
    highest = max([highest] + [token["id"] for token in tokenizer.get("added_tokens") or []])
    if highest >= config.get("vocab_size", highest + 1):
        raise ModelError(
            f"{directory}/tokenizer.json has the token id {highest}, config.json a vocab_size of {config['vocab_size']}"
        )


def architecture_in(directory):
    """The architecture named by the config.json of a directory."""
    config = files.read_json(os.path.join(directory, "config.json"))
    if config is None:
        raise ModelError(f"{directory} has no readable config.json")
    return architecture_of(config)
