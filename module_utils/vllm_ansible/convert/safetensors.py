# SPDX-License-Identifier: Apache-2.0
"""The safetensors file format, written and read one tensor at a time.

The `safetensors` package keeps all tensors of a file in memory while it writes; a writer that streams keeps the
memory at one tensor whatever the size of the model. Format: 8 bytes little-endian length of the header, the header
(JSON, padded with spaces to a multiple of 8), the data without gaps.
"""

import collections
import json
import os
import struct
from typing import Any, Dict

from ansible.module_utils.vllm_ansible.convert import ModelError

ITEM_BYTES = {
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "F64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_HEADER_LIMIT = 100 * 1024 * 1024  # the limit of the reference implementation

# name; dtype: key of ITEM_BYTES; shape: tuple of int; read: function returning the data, little-endian, C order.
Tensor = collections.namedtuple("Tensor", "name dtype shape read")


def count_elements(shape):
    """Number of elements of a tensor of this shape; 1 for a scalar."""
    total = 1
    for size in shape:
        total *= size
    return total


def write(path, tensors, on_progress=None):
    """Write one safetensors file and flush it to the disk; the same tensors always give the same bytes.

    Args:
        path: file to create.
        tensors: Tensor tuples in any order; each is read once, when its turn to be written has come.
        on_progress: function of (bytes written, bytes in all), called after each tensor.

    Raises:
        ModelError: a tensor returned another number of bytes than its shape needs.
        OSError: the file cannot be written.
    """
    # Widest type first keeps every tensor aligned to its item size without gaps.
    ordered = sorted(tensors, key=lambda tensor: (-ITEM_BYTES[tensor.dtype], tensor.name))
    header: Dict[str, Dict[str, Any]] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in ordered:
        end = offset + ITEM_BYTES[tensor.dtype] * count_elements(tensor.shape)
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(encoded)))
        stream.write(encoded)
        for tensor in ordered:
            begin, end = header[tensor.name]["data_offsets"]
            data = memoryview(tensor.read()).cast("B")
            if len(data) != end - begin:
                raise ModelError(
                    f"tensor {tensor.name}: shape {list(tensor.shape)} of {tensor.dtype} needs {end - begin} bytes, "
                    f"its source gave {len(data)}"
                )
            stream.write(data)
            if on_progress:
                on_progress(end, offset)
        stream.flush()
        os.fsync(stream.fileno())


def read_header(path):
    """Read and check the header of a safetensors file.

    Returns:
        dict of tensor name to {"dtype": str, "shape": [int], "data_offsets": [begin, end]}, bytes from the file's
        data section.

    Raises:
        ModelError: not a safetensors file, cut short, or its tensors overlap, leave gaps or lack bytes.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
            raise ModelError(f"{path} is not a whole safetensors file: {size} bytes, header of {length} bytes")
        try:
            header = json.loads(stream.read(length).decode())
        except ValueError as error:
            raise ModelError(f"{path}: the header is not JSON ({error})") from error
    header.pop("__metadata__", None)
    position = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        if entry["dtype"] not in ITEM_BYTES:
            raise ModelError(f"{path}: tensor {name} has the unknown type {entry['dtype']}")
        expected = ITEM_BYTES[entry["dtype"]] * count_elements(entry["shape"])
        if begin != position or end - begin != expected:
            raise ModelError(
                f"{path}: tensor {name} claims bytes {begin} to {end}, expected {position} to {position + expected}"
            )
        position = end
    if 8 + length + position != size:
        raise ModelError(f"{path} is not whole: {size} bytes seen, {8 + length + position} expected")
    return header
