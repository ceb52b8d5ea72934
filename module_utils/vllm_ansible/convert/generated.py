# SPDX-License-Identifier: Apache-2.0
"""Models made of nothing but a config and a seed: any architecture of `architectures`, random weights.

They exercise an architecture (its kernels, memory, parallel layouts) where the real weights are far too big. The
weights come from SHAKE-256, so that every machine and every Python makes the same bytes.
"""

import array
import hashlib
import struct
import sys

from ansible.module_utils.vllm_ansible.convert import ModelError, bpe, directory
from ansible.module_utils.vllm_ansible.convert.architectures import architecture_of, tensor_shapes
from ansible.module_utils.vllm_ansible.convert.safetensors import Tensor, count_elements

RECIPE_VERSION = 1  # raise it when other bytes come out of the same input

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TOKEN_IDS = {"bos_token_id": 0, "eos_token_id": 2}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# What the tokenizer learns its merges from: ordinary English about the work this model is made for.
_TEXT = """
A language model reads a sequence of tokens and predicts the next one. The server receives a request, checks the key,
turns the text into tokens and puts the request into a queue. The scheduler takes as many requests from the queue as the
memory can hold, runs them together and returns one token for each of them. Every token needs all the weights of the
model, so the speed of a small batch depends on how fast the memory can deliver them, and the speed of a large batch
depends on how fast the processor can multiply. The attention keys and values of the earlier tokens are kept in blocks,
because computing them again would cost more than storing them. When no block is free, a request has to wait or another
one is stopped and computed again later.

An operator wants few things. The service should start after the machine has started, without anybody logging in. It
should answer within a second, and it should say clearly when it cannot. A change should be visible before it happens,
and it should be possible to go back when the change was a mistake. The same command, run twice, should do nothing the
second time. A server that fails should be replaced by another one before the people who use it notice. Passwords and
keys belong in protected files, never in logs. What was installed, by whom, from which source and with which digest
should be written down, so that an auditor can follow it years later without asking.

Machines differ. Some have two sockets and eight memory nodes, some have one. Some carry accelerators on a fast fabric,
others only the cores they were built with. A plan looks at the machine first and decides then: how many processes, on
which cores, with how much memory, on which port. If the plan cannot work it names the reason and the value to set, and
nothing has been touched. What is the capital of France? The capital of France is Paris. How many hours are in a day?
There are twenty four hours in a day. Please write a short story about a river, a bridge and a friendly old fisherman.
Once upon a time there was a river that ran through a quiet green valley, and over the river there was a bridge made of
stone. Explain in simple words why the sky is blue, list three advantages of solar energy, translate the following
sentence into another language, summarise this paragraph for a reader with little time, and give an example in Python.
Numbers are useful as well: one, two, three, four, five, six, seven, eight, nine, ten, hundred, thousand, million.

Yesterday evening my younger sister visited the old library near the market square. She borrowed several books about
history, chemistry, music and gardening, because she enjoys learning something new every month. On her way home it
rained heavily, so she bought an umbrella, drank hot chocolate with our neighbours and waited until the weather changed.
Breakfast usually means bread, butter, cheese, eggs, apples and coffee; dinner could be fish with potatoes, rice or
vegetables. Children play football in the garden, birds build nests beneath the roof, and the black cat sleeps quietly
upon a warm kitchen window. In January the mountains are white, in July their forests smell of flowers and wild honey.
Doctors, teachers, engineers, lawyers, farmers and artists travel by train, bicycle, aeroplane or ship across countries
and oceans. Governments publish laws, companies develop products, scientists measure temperature, pressure, distance and
energy. Whoever understands a problem properly has already found half of its solution.
"""


def make_model(path, name, config, seed, license_id, on_progress=None):
    """Fill the empty directory `path` with the model of a config and a seed; the same input gives the same bytes.

    Returns:
        the manifest (see `directory.write_model`).
    """
    facts = {
        "name": name,
        "weights": "random",
        "license": license_id,
        "source": {"type": "generated", "seed": seed},
        "recipe": {"name": "generated", "version": RECIPE_VERSION},
    }
    description = (
        f"A small {architecture_of(config)} model with **random weights** (seed {seed}). It exists to exercise the "
        "architecture; what it writes has no meaning."
    )
    weights = tensors(config, seed)
    return directory.write_model(path, weights, config, tokenizer(config), facts, description, on_progress)


def tensors(config, seed):
    """All tensors of the model as `safetensors.Tensor`: norms are one, router biases zero, the rest is random.

    The random values are uniform with the standard deviation `initializer_range` and rounded to bfloat16.

    Raises:
        ModelError: an architecture whose tensors are not known here.
    """
    shapes = tensor_shapes(config)
    if shapes is None:
        raise ModelError(
            f"no tensors are known for {architecture_of(config)}; generated models are for architectures "
            "of module_utils/vllm_ansible/convert/architectures.py"
        )
    table = _value_table(config["initializer_range"])

    def make(name, shape):
        count = count_elements(shape)
        if name.endswith("e_score_correction_bias"):
            return Tensor(name, "F32", shape, lambda: bytes(4 * count))
        if name.endswith("norm.weight"):
            return Tensor(name, "BF16", shape, lambda: struct.pack("<H", 0x3F80) * count)
        return Tensor(name, "BF16", shape, lambda: _random_bfloat16(f"{seed}/{name}", count, table))

    return [make(name, shape) for name, shape in shapes.items()]


def _value_table(deviation):
    """The bfloat16 word of each 16-bit random number: uniform over deviation * (-sqrt(3), sqrt(3))."""
    table = array.array("H")
    for number in range(65536):
        value = (2 * number - 65535) / 65536 * 1.7320508075688772 * deviation
        word = struct.unpack("<I", struct.pack("<f", value))[0]
        table.append((word + 0x7FFF + (word >> 16 & 1)) >> 16)
    return table


def _random_bfloat16(label, count, table):
    numbers = array.array("H", hashlib.shake_256(label.encode()).digest(2 * count))
    words = array.array("H", map(table.__getitem__, numbers))
    if sys.byteorder == "big":
        raise ModelError("generated models need a little-endian machine")
    return words


def tokenizer(config):
    """tokenizer.json and tokenizer_config.json of a byte-level BPE tokenizer with `vocab_size` tokens.

    Raises:
        ModelError: token ids or a vocabulary size this tokenizer does not have.
    """
    for key, expected in _TOKEN_IDS.items():
        if config.get(key) != expected:
            raise ModelError(f"{key} is {config.get(key)}; the tokenizer of a generated model has {expected} there")
    size = config["vocab_size"]
    tokens = SPECIAL_TOKENS + sorted(bpe.BYTE_ALPHABET.values())
    merges = bpe.train(_TEXT, max(0, size - len(tokens)))
    tokens += [left + right for left, right in merges]
    if len(tokens) != size:
        raise ModelError(f"vocab_size is {size}; the tokenizer of a generated model can have 259 to {_most_tokens()}")
    special = dict.fromkeys(range(len(SPECIAL_TOKENS)), True)
    return bpe.tokenizer_json(tokens, merges, special, bpe.PRE_TOKENIZERS["gpt-2"]), {
        "bos_token": SPECIAL_TOKENS[0],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL_TOKENS[2],
        "model_max_length": config["max_position_embeddings"],
        "pad_token": SPECIAL_TOKENS[0],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _most_tokens():
    return len(SPECIAL_TOKENS) + len(bpe.BYTE_ALPHABET) + len(bpe.train(_TEXT, sys.maxsize))
