# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE tokenizers in the file layout of Hugging Face `tokenizers` (tokenizer.json)."""

import collections
import re
from typing import Dict, List, Tuple


def _byte_alphabet():
    """The printable character that stands for each byte, as in GPT-2: printable bytes are themselves."""
    printable = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable}
    alphabet.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    return alphabet


BYTE_ALPHABET = _byte_alphabet()

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}

# How text is cut before the merges, by the name llama.cpp gives it (tokenizer.ggml.pre).
PRE_TOKENIZERS = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    },
}


def tokenizer_json(tokens, merges, added_tokens, pre_tokenizer):
    """The content of tokenizer.json.

    Args:
        tokens: all tokens, in the order of their ids.
        merges: [left, right] pairs, strongest first.
        added_tokens: ids of the tokens that are matched as a whole before the merges, to whether they are special
            (control tokens, left out of decoded text).
        pre_tokenizer: one of PRE_TOKENIZERS' values.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": tokens[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": special,
            }
            for index, special in sorted(added_tokens.items())
        ],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": collections.OrderedDict((token, index) for index, token in enumerate(tokens)),
            "merges": merges,
        },
    }


def train(text, count):
    """Learn the `count` strongest merges of a text; ties go to the pair that sorts first, so the result is fixed.

    Returns:
        list of [left, right]; shorter than `count` where the text has no more pairs.
    """
    words = collections.Counter(re.findall(r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s+", text))
    pieces = {word: [BYTE_ALPHABET[byte] for byte in word.encode()] for word in words}
    merges: List[List[str]] = []
    while len(merges) < count:
        pairs: Dict[Tuple[str, str], int] = collections.Counter()
        for word, parts in pieces.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        if not pairs:
            break
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append([left, right])
        for parts in pieces.values():
            index = 0
            while index < len(parts) - 1:
                if parts[index] == left and parts[index + 1] == right:
                    parts[index : index + 2] = [left + right]
                index += 1
    return merges
