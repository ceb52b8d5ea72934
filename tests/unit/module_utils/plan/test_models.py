# SPDX-License-Identifier: Apache-2.0
"""Models as numbers: what the dimensions add up to, against what is published."""

import pytest
from ansible.module_utils.vllm_ansible.plan.catalogue import read_catalogue
from ansible.module_utils.vllm_ansible.plan.models import DTYPE_BYTES, PARTS, Quantisation

from tools import golden

MODELS = read_catalogue(golden.catalogue(), None, lambda *complaint: None).models

# Parameters in the models' cards (or, where a card gives none, in the metadata of their safetensors files).
PUBLISHED = {
    "deepseek-v3": 671e9,
    "deepseek-v3.1": 671e9,
    "deepseek-r1": 671e9,
    "deepseek-r1-w8a8": 671e9,
    "deepseek-v3.1-w8a8": 671e9,
    "deepseek-r1-distill-qwen-1.5b": 1.78e9,
    "deepseek-r1-distill-qwen-7b": 7.62e9,
    "deepseek-r1-distill-qwen-14b": 14.8e9,
    "deepseek-r1-distill-qwen-32b": 32.8e9,
    "deepseek-r1-distill-llama-8b": 8.03e9,
    "deepseek-r1-distill-llama-70b": 70.6e9,
    "qwen2.5-0.5b-instruct": 0.49e9,
    "qwen2.5-7b-instruct": 7.61e9,
    "qwen2.5-72b-instruct": 72.7e9,
    "qwen2.5-72b-instruct-awq": 72.7e9,
    "qwen3-8b": 8.2e9,
    "qwen3-14b": 14.8e9,
    "qwen3-32b": 32.8e9,
    "qwen3-30b-a3b": 30.5e9,
    "qwen3-235b-a22b": 235e9,
    "llama-3.1-8b-instruct": 8.03e9,
    "llama-3.3-70b-instruct": 70.6e9,
    "qwen3-embedding-0.6b": 0.596e9,
    "all-minilm-l6-v2": 22.7e6,
    "smollm2-135m-instruct": 134515008,
    "deepseek-v3-tiny-random": 5398064,
}


def test_every_model_has_a_published_size():
    assert set(PUBLISHED) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_the_dimensions_add_up_to_the_published_parameters(name):
    shape = MODELS[name].shape
    # two or three digits are published
    assert shape.parameters() == pytest.approx(PUBLISHED[name], rel=0.009)
    assert set(shape.parts()) == set(PARTS)
    assert sum(shape.parts().values()) == shape.parameters()
    assert all(count >= 0 for count in shape.parts().values())


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        # counted in safetensors files, or the metadata of published ones
        ("smollm2-135m-instruct", 134515008),
        ("deepseek-v3-tiny-random", 5398064),
        ("deepseek-r1-distill-qwen-1.5b", 1777088000),
        ("deepseek-r1-distill-llama-70b", 70553706496),
        ("all-minilm-l6-v2", 22713216),
    ],
)
def test_exact_counts(name, exact):
    assert MODELS[name].shape.parameters() == exact


@pytest.mark.parametrize(
    ("name", "kv_bytes_per_token"),
    [
        ("deepseek-r1", 61 * (512 + 64) * 2),
        ("deepseek-r1-distill-llama-70b", 80 * 2 * 8 * 128 * 2),
        ("qwen3-32b", 64 * 2 * 8 * 128 * 2),
        ("all-minilm-l6-v2", 0),
    ],
)
def test_kv_cache_of_a_token(name, kv_bytes_per_token):
    assert MODELS[name].shape.kv_bytes_per_token(2) == kv_bytes_per_token


def test_most_of_deepseek_is_experts():
    parts = MODELS["deepseek-r1"].shape.parts()
    assert parts["experts"] == 58 * 256 * 3 * 7168 * 2048
    assert parts["router"] == 58 * 256 * (7168 + 1)
    # README_WEIGHTS.md of DeepSeek-V3: 11.5B of its own, embeddings and head stored once more
    own = sum(MODELS["deepseek-r1"].shape.mtp_parts().values()) - 2 * 129280 * 7168
    assert own == pytest.approx(11.5e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "published", "error"),
    [
        ("deepseek-r1", 688.6e9, 0.001),  # FP8 blocks with float32 scales, MTP module included
        ("qwen2.5-72b-instruct-awq", 41.6e9, 0.01),
        ("deepseek-r1-distill-llama-70b", 141.1e9, 0.001),
        ("qwen3-30b-a3b", 61.1e9, 0.001),
    ],
)
def test_sizes_on_disk(name, published, error):
    assert MODELS[name].size_bytes == pytest.approx(published, rel=error)


@pytest.mark.parametrize("name", [n for n in MODELS if "size_bytes" in golden.catalogue()["models"][n]])
def test_stated_sizes_agree_with_the_dimensions(name):
    model = MODELS[name]
    assert model.size_bytes == pytest.approx(model.shape.parameters() * DTYPE_BYTES[model.dtype], rel=0.01)


@pytest.mark.parametrize(
    ("quantisation", "part", "bits"),
    [
        (Quantisation("fp8", 8, block=(128, 128)), "experts", 8 + 32 / 16384),
        (Quantisation("fp8", 8, block=(128, 128)), "embeddings", 16),
        (Quantisation("fp8", 8, block=(128, 128)), "router", 16),
        (Quantisation("fp8", 8, block=(128, 128), ignored=("attention",)), "attention", 16),
        (Quantisation("awq", 4, group_size=128), "dense_mlp", 4 + 20 / 128),
        (Quantisation("w8a8", 8), "attention", 8 + 64 / 4096),
        (Quantisation("w8a8", 8), "lm_head", 16),
    ],
)
def test_stored_bits_of_a_part(quantisation, part, bits):
    assert quantisation.bits_of(part, 16, 4096) == bits


def test_tasks_and_sources():
    assert {name for name, model in MODELS.items() if model.task == "embed"} == {
        "qwen3-embedding-0.6b",
        "all-minilm-l6-v2",
    }
    assert {name for name, model in MODELS.items() if model.fetchable} == {
        "smollm2-135m-instruct",
        "deepseek-v3-tiny-random",
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"quantisation": {"method": "nf4", "bits": 4}}, "quantisation.method"),
        ({"quantisation": {"method": "fp8", "bits": 8, "block": [128]}}, "quantisation.block"),
        ({"quantisation": {"method": "awq"}}, "quantisation.bits"),
        ({"quantisation": {"method": "awq", "bits": 4, "group": 128}}, "quantisation.group"),
        ({"task": "sing"}, "task"),
        ({"source": {"type": "torrent"}}, "source.type"),
        ({"weights": "some"}, "weights"),
        ({"dtype": "int4"}, "dtype"),
    ],
)
def test_an_unusable_model_is_complained_about(change, field):
    entry = {**golden.catalogue()["models"]["qwen3-8b"], **change}
    read: list[str] = []
    found = read_catalogue(
        {"rows": {}, "models": {"m": entry}}, None, lambda code, path, was, wanted: read.append(path)
    )
    assert read == ["catalogue.models.m." + field]
    assert found.models == {}
