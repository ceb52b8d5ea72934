# SPDX-License-Identifier: Apache-2.0
"""The streaming safetensors writer against the format's rules."""

import json
import struct
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.convert import ModelError, safetensors
from ansible.module_utils.vllm_ansible.convert.safetensors import Tensor


def _tensors() -> list[Tensor]:
    return [
        Tensor("b", "BF16", (2, 3), lambda: bytes(range(12))),
        Tensor("a", "BF16", (1,), lambda: b"\x01\x02"),
        Tensor("scalar", "F32", (), lambda: b"abcd"),
    ]


def test_writes_the_documented_layout(tmp_path: Path) -> None:
    path, seen = tmp_path / "x.safetensors", []
    safetensors.write(path, _tensors(), lambda done, total: seen.append((done, total)))
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    # Widest type first, so that every tensor is aligned; then by name.
    assert header == {
        "__metadata__": {"format": "pt"},
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        "a": {"dtype": "BF16", "shape": [1], "data_offsets": [4, 6]},
        "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [6, 18]},
    }
    assert content[8 + length :] == b"abcd\x01\x02" + bytes(range(12))
    assert seen == [(4, 18), (6, 18), (18, 18)]
    header.pop("__metadata__")
    assert safetensors.read_header(path) == header


def test_order_of_the_tensors_does_not_change_the_bytes(tmp_path: Path) -> None:
    safetensors.write(tmp_path / "1", _tensors())
    safetensors.write(tmp_path / "2", reversed(_tensors()))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_refuses_data_of_another_size(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tensor t: shape \[4\] of F16 needs 8 bytes, its source gave 6"):
        safetensors.write(tmp_path / "x", [Tensor("t", "F16", (4,), lambda: bytes(6))])


@pytest.mark.parametrize("keep", [0, 7, 8, 40, -1])
def test_refuses_a_file_cut_short(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "x"
    safetensors.write(path, _tensors())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match="whole"):
        safetensors.read_header(path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "BF16", "shape": [2], "data_offsets": [0, 6]}, "claims bytes 0 to 6, expected 0 to 4"),
        ({"dtype": "BF16", "shape": [2], "data_offsets": [2, 6]}, "claims bytes 2 to 6, expected 0 to 4"),
        ({"dtype": "XYZ", "shape": [2], "data_offsets": [0, 4]}, "unknown type XYZ"),
    ],
)
def test_refuses_a_header_that_lies(tmp_path: Path, entry: dict[str, object], message: str) -> None:
    encoded = json.dumps({"t": entry}).encode()
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(6))
    with pytest.raises(ModelError, match=message):
        safetensors.read_header(path)
