# SPDX-License-Identifier: Apache-2.0
"""Device memory per rank: against published figures, and what must hold for any model and layout."""

import pytest
from ansible.module_utils.vllm_ansible.plan.fit import sizes
from ansible.module_utils.vllm_ansible.plan.fit.sizes import Layout, Load, Overheads, Scheme
from ansible.module_utils.vllm_ansible.plan.models import Quantisation
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.module_utils.plan.fit.shapes import DEEPSEEK, EMBEDDING, LLAMA_70B, QWEN_235B, shapes
from tools import fit_table

NOTHING = Overheads(1.0, 0, 0, 0)


@pytest.mark.parametrize("line", fit_table.lines(), ids=lambda line: f"{line.deployment}: {line.figure}")
def test_published_figures_are_met_within_the_stated_error(line):
    assert not line.off, f"published {line.published}, estimated {line.estimated}: {line.error:+.1%}"


def test_the_table_covers_what_was_asked_for_and_names_a_source_for_each_line():
    text = " ".join(line.deployment for line in fit_table.lines())
    for part in ("R1 W8A8, one Atlas 800 A3", "R1 W8A8, two Atlas 800 A2", "70B BF16, 4 x A100", "V3.1 FP8, 8 x H200"):
        assert part in text
    assert all(len(line.source) > 10 for line in fit_table.lines())


@pytest.mark.parametrize("markdown", [[], ["--markdown"]])
def test_the_table_is_printed_and_fails_when_an_estimate_is_off(markdown, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fit_table.py", *markdown])
    assert fit_table.main() == 0
    assert "Llama-3.1-405B FP8" in capsys.readouterr().out
    monkeypatch.setitem(fit_table.LIMITS, "weights", 0.001)
    assert fit_table.main() == 1


@given(shapes())
def test_one_device_holds_all_weights(shape):
    total = shape.parameters() * 2
    twice = shape.kv_lora_rank * shape.heads * (shape.nope_dim + shape.v_dim) * shape.layers * 2
    held = sizes.weight_bytes(shape, Scheme(2), Layout())
    assert held == pytest.approx(total + twice, rel=0.01)


@given(shapes(), st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.sampled_from([1, 2, 4]), st.booleans())
def test_the_ranks_together_hold_at_least_all_weights(shape, tensor, pipeline, data, experts):
    pipeline = min(pipeline, shape.layers)
    expert = tensor * data if experts and shape.experts >= tensor * data else 1
    layout = Layout(tensor, pipeline, data, expert)
    stages = sizes.stage_weights(shape, Scheme(2), layout)
    assert len(stages) == pipeline
    assert sum(sizes.stage_layers(shape, layout)) == shape.layers
    assert sum(stages) * tensor * data >= sizes.weight_bytes(shape, Scheme(2), Layout()) * 0.99


@given(shapes(), st.sampled_from([1, 2, 4, 8]), st.integers(0, 2**40), st.integers(1, 4096), st.integers(1, 512))
def test_a_rank_never_holds_more_than_its_device_when_its_cache_is_not_negative(shape, tensor, device, tokens, batch):
    overheads = Overheads(0.9, 1 << 28, 1 << 29, 1 << 28, 16, 1 << 27)
    found = sizes.memory(shape, Scheme(2), Layout(tensor), Load(1, batch, tokens), overheads, device)
    if found.kv_cache >= 0:
        assert found.total <= found.capacity == device
        parts = found.weights + found.activation + found.graph + found.communication + found.context
        assert found.total == parts + found.kv_cache
    assert found.tokens == max(0, found.kv_cache) // found.token if found.token else found.tokens == 0


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        (LLAMA_70B, Layout(), 80 * 2 * 8 * 128 * 2),
        (LLAMA_70B, Layout(4), 80 * 2 * 2 * 128 * 2),
        (LLAMA_70B, Layout(16), 80 * 2 * 1 * 128 * 2),  # 8 KV heads on 16 ranks: copied, one each
        (LLAMA_70B, Layout(4, 2), 40 * 2 * 2 * 128 * 2),
        (DEEPSEEK, Layout(8), 61 * 576 * 2),  # the latent is not divided
        (QWEN_235B, Layout(4, 1, 2, 8), 94 * 2 * 1 * 128 * 2),
        (EMBEDDING, Layout(), 0),  # reads a text at once
    ],
)
def test_kv_cache_of_one_token(shape, layout, expected):
    assert sizes.kv_token_bytes(shape, layout, 2) == expected


def test_quantisation_leaves_embeddings_and_ignored_parts_alone():
    whole = sizes.weight_bytes(LLAMA_70B, Scheme(2), Layout())
    quantised = sizes.scheme_of(LLAMA_70B, Quantisation("w8a8", 8), 2)
    tables = 2 * LLAMA_70B.vocabulary * LLAMA_70B.hidden * 2
    assert sizes.weight_bytes(LLAMA_70B, quantised, Layout()) == pytest.approx(tables + (whole - tables) / 2, rel=0.005)
    kept = sizes.scheme_of(LLAMA_70B, Quantisation("fp8", 8, ignored=("attention",)), 2)
    assert kept.of("attention") == 2
    assert kept.of("dense_mlp") == pytest.approx(1, rel=0.01)
    assert kept.of("embeddings") == 2
    assert sizes.scheme_of(LLAMA_70B, Quantisation("w4a16", 4, group_size=128), 2).of("dense_mlp") == pytest.approx(
        (4 + 20 / 128) / 8
    )


def test_experts_are_placed_on_all_ranks_and_what_does_not_divide_costs_the_fullest():
    per_expert = 3 * DEEPSEEK.hidden * DEEPSEEK.moe_intermediate
    of = {n: sizes.weight_bytes(DEEPSEEK, Scheme(1), Layout(1, 1, n, n)) for n in (16, 17, 20)}
    layers = DEEPSEEK.layers - DEEPSEEK.dense_layers
    assert of[16] == of[17]  # 256 experts on 17 ranks: 16 on the fullest, as on 16 ranks
    assert of[16] - of[20] == layers * 3 * per_expert  # 13 instead of 16


def test_layers_for_speculation_lie_on_the_last_stage():
    plain = sizes.stage_weights(DEEPSEEK, Scheme(1), Layout(8, 2, 1, 8))
    drafting = sizes.stage_weights(DEEPSEEK, Scheme(1), Layout(8, 2, 1, 8), 1)
    assert drafting[0] == plain[0]
    experts = 256 // 8 * 3 * DEEPSEEK.hidden * DEEPSEEK.moe_intermediate
    assert experts < drafting[1] - plain[1] < 1.4 * experts
    assert sizes.kv_token_bytes(DEEPSEEK, Layout(8), 2, 1) == 62 * 576 * 2
    assert sizes.kv_token_bytes(DEEPSEEK, Layout(8, 2), 2, 1) == 31 * 576 * 2  # 31 and 30 + 1 layers


def test_graphs_lie_beside_the_share_of_the_engine():
    found = sizes.memory(LLAMA_70B, Scheme(2), Layout(4), Load(1, 1, 1), Overheads(0.5, 0, 1 << 30, 0), 80 << 30)
    assert found.total <= (40 << 30) + (1 << 30)
    found = sizes.memory(LLAMA_70B, Scheme(2), Layout(4), Load(1, 1, 1), Overheads(1.0, 0, 1 << 30, 0), 80 << 30)
    assert found.total <= 80 << 30


def test_communication_counts_the_groups_of_ranks_and_is_nothing_on_one_device():
    overheads = Overheads(1.0, 0, 0, 100, 16, 10)

    def taken(*layout: int) -> int:
        return sizes.memory(QWEN_235B, Scheme(2), Layout(*layout), Load(1, 1, 1), overheads, 1 << 40).communication

    assert [taken(1), taken(8), taken(8, 1, 1, 8), taken(4, 1, 4, 16)] == [0, 120, 130, 140]


def test_figures_of_a_row_replace_the_published_ones():
    usual = sizes.TAKEN["cuda"]
    row = sizes.taken("cuda", {"comm_bytes": 7}, 0.9, 16)
    assert (row.communication, row.communicator, row.context) == (7, 0, usual["context_bytes"])
    row = sizes.taken("ascend", {"comm_bytes": 7}, 0.9, 128)
    assert (row.communication, row.communicator, row.graph) == (0, 14, sizes.TAKEN["ascend"]["graph_bytes"])


def test_what_no_framework_sees_of_an_npu_is_not_counted_twice():
    idle = {"context_bytes": int(3.5 * sizes.GIB)}
    seen = sizes.taken("ascend", idle, 0.9, 128, 64 * sizes.GIB).context
    assert seen == pytest.approx((3.5 - 64 * (1 - sizes.USABLE["ascend"])) * sizes.GIB, rel=0.001)
    assert sizes.taken("ascend", idle, 0.9, 128, 128 * sizes.GIB).context == sizes.TAKEN["ascend"]["context_bytes"]
    assert sizes.taken("cuda", idle, 0.9, 16, 80 * sizes.GIB).context == idle["context_bytes"]
