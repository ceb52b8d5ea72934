# SPDX-License-Identifier: Apache-2.0
"""GGUF files read as the model Hugging Face would have: names, tensor order, config and tokenizer.

The `gguf` package reads the file and undoes its block quantisation; what is ours is the way back from llama.cpp's
layout. Needs the packages of requirements/converter-gguf.lock; without them IMPORT_ERROR holds the reason.
"""

import re
import traceback
from typing import Optional

try:
    import importlib.metadata

    import gguf
    import numpy
    import tokenizers
except ImportError:
    IMPORT_ERROR: Optional[str] = traceback.format_exc()
else:
    IMPORT_ERROR = None

from ansible.module_utils.vllm_ansible.convert import ModelError, bpe
from ansible.module_utils.vllm_ansible.convert.safetensors import Tensor

# numpy has no bfloat16, hence raw 16-bit words from gguf's own rounding (to nearest, ties to even).
_ENCODE = {
    "bfloat16": ("BF16", lambda values: gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)),
    "float16": ("F16", lambda values: values.astype("<f2")),
    "float32": ("F32", lambda values: values.astype("<f4")),
}
_INFINITE = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F800000}

# llama.cpp's name of a tensor -> Hugging Face's, for one block and for the whole model.
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type


class GgufSource:
    """One GGUF file.

    Args:
        path: the file.

    Raises:
        ModelError: not a GGUF file, cut short, or holding something this converter does not know.
    """

    def __init__(self, path):
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, KeyError) as error:
            raise ModelError(f"{path} is not a whole GGUF file ({error})") from error
        self.architecture = self._field("general.architecture")
        if self.architecture != "llama":
            raise ModelError(
                f"{path} holds the architecture {self.architecture}; this converter knows llama. "
                "Set a model source in safetensors format."
            )
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def _field(self, key, default=None):
        field = self._reader.fields.get(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise ModelError(f"{self.path} lacks {key}, which the engine's config needs")
        return default

    def config(self, dtype):
        """The content of config.json for weights stored as `dtype`."""
        heads = self._field("llama.attention.head_count")
        hidden = self._field("llama.embedding_length")
        if self._reader.fields.get("llama.rope.scaling.type") is not None or "rope_freqs.weight" in self._tensors:
            raise ModelError(f"{self.path} scales its rotary positions, which this converter does not carry over")
        tokens = self._token_ids()
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "bos_token_id": tokens["bos"],
            "eos_token_id": tokens["eos"],
            "pad_token_id": tokens["pad"],
            "head_dim": self._field("llama.attention.key_length", hidden // heads),
            "hidden_act": "silu",
            "hidden_size": hidden,
            "initializer_range": 0.02,
            "intermediate_size": self._field("llama.feed_forward_length"),
            "max_position_embeddings": self._field("llama.context_length"),
            "mlp_bias": False,
            "num_attention_heads": heads,
            "num_hidden_layers": self._field("llama.block_count"),
            "num_key_value_heads": self._field("llama.attention.head_count_kv", heads),
            "rms_norm_eps": _shortest(self._field("llama.attention.layer_norm_rms_epsilon")),
            "rope_theta": _shortest(self._field("llama.rope.freq_base", 10000.0)),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "torch_dtype": dtype,
            "vocab_size": len(self._field("tokenizer.ggml.tokens")),
        }

    def tensors(self, dtype):
        """The tensors under their Hugging Face names, as `safetensors.Tensor` that convert when they are read.

        Raises:
            ModelError: a tensor nobody knows; when read: a value that is not finite in `dtype`.
        """
        heads = {"attn_q": self._field("llama.attention.head_count")}
        heads["attn_k"] = self._field("llama.attention.head_count_kv", heads["attn_q"])
        return [self._tensor(tensor, dtype, heads) for tensor in self._reader.tensors]

    def _tensor(self, tensor, dtype, heads):
        match = re.match(r"(?:blk\.(\d+)\.)?(\w+)\.weight$", tensor.name)
        block, kind = match.groups() if match else (None, "")
        target = _MODEL.get(kind) if block is None else _BLOCK.get(kind)
        if target is None:
            raise ModelError(f"{self.path} holds the tensor {tensor.name}, which is not part of a llama model")
        name = f"{target}.weight" if block is None else f"model.layers.{block}.{target}.weight"
        safetensors_type, encode = _ENCODE[dtype]

        def read():
            try:
                values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError as error:
                raise ModelError(f"{tensor.name}: {error}. Set a source quantised otherwise.") from error
            if kind in heads:
                values = _undo_permutation(values, heads[kind])
            with numpy.errstate(over="ignore"):  # what overflows is found and named below
                stored = encode(numpy.ascontiguousarray(values))
            words = stored.view(numpy.uint32 if dtype == "float32" else numpy.uint16)
            infinite = _INFINITE[dtype]
            damaged = int(numpy.count_nonzero((words & infinite) == infinite))
            if damaged:
                raise ModelError(f"{tensor.name}: {damaged} values are not finite as {dtype}")
            return stored

        return Tensor(name, safetensors_type, tuple(int(size) for size in reversed(tensor.shape)), read)

    def _token_ids(self):
        eos = self._field("tokenizer.ggml.eos_token_id")
        return {
            "bos": self._field("tokenizer.ggml.bos_token_id"),
            "eos": eos,
            "pad": self._field("tokenizer.ggml.padding_token_id", eos),
        }

    def tokenizer(self):
        """The contents of tokenizer.json and tokenizer_config.json.

        Raises:
            ModelError: a kind of tokenizer this converter does not rebuild.
        """
        kind, cut = self._field("tokenizer.ggml.model"), self._field("tokenizer.ggml.pre", "gpt-2")
        if kind != "gpt2" or cut not in bpe.PRE_TOKENIZERS:
            raise ModelError(
                f"{self.path} has the tokenizer {kind}/{cut}; this converter rebuilds "
                f"{', '.join('gpt2/' + name for name in sorted(bpe.PRE_TOKENIZERS))}"
            )
        for key in ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_space_prefix"):
            if self._field(key, False):
                raise ModelError(f"{self.path} sets {key}, which this converter does not carry over")
        tokens = self._field("tokenizer.ggml.tokens")
        types = self._field("tokenizer.ggml.token_type")
        added = {index: kind == _CONTROL for index, kind in enumerate(types) if kind in (_CONTROL, _USER_DEFINED)}
        merges = [merge.split(" ") for merge in self._field("tokenizer.ggml.merges")]
        ids = self._token_ids()
        config = {
            "added_tokens_decoder": {
                str(index): {
                    "content": tokens[index],
                    "lstrip": False,
                    "normalized": False,
                    "rstrip": False,
                    "single_word": False,
                    "special": special,
                }
                for index, special in sorted(added.items())
            },
            "bos_token": tokens[ids["bos"]],
            "clean_up_tokenization_spaces": False,
            "eos_token": tokens[ids["eos"]],
            "model_max_length": self._field("llama.context_length"),
            "pad_token": tokens[ids["pad"]],
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": tokens[self._field("tokenizer.ggml.unknown_token_id", ids["eos"])],
        }
        if "tokenizer.chat_template" in self._reader.fields:
            config["chat_template"] = self._field("tokenizer.chat_template")
        return bpe.tokenizer_json(tokens, merges, added, bpe.PRE_TOKENIZERS[cut]), config


def tool_versions():
    """The versions that took part in a conversion, for the manifest."""
    return {"gguf": importlib.metadata.version("gguf"), "numpy": numpy.__version__}


def check_round_trip(path):
    """Load a tokenizer.json the way the engine does and check that text survives it.

    Raises:
        ModelError: it does not load, or text comes back changed.
    """
    text = "The year 2026, 12345 items:\n\tna\u00efve caf\u00e9 \u2014 \u4f60\u597d \U0001f642  (100 %)"
    try:
        tokenizer = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the package raises nothing more specific
        raise ModelError(f"{path} cannot be loaded: {error}") from error
    seen = tokenizer.decode(tokenizer.encode(text).ids)
    if seen != text:
        raise ModelError(f"{path} does not give back the text it was given: {text!r} became {seen!r}")


def _undo_permutation(values, heads):
    """Rows of a q or k projection from llama.cpp's rotary order (pairs interleaved) to Hugging Face's (two halves)."""
    return values.reshape(heads, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)


def _shortest(value):
    """The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(numpy.float32(value)))
