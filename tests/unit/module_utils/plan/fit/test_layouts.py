# SPDX-License-Identifier: Apache-2.0
"""Parallel sizes: published choices, what must hold for any, and what would make it fit."""

from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan.fit import advice
from ansible.module_utils.vllm_ansible.plan.fit.layouts import (
    Pins,
    Question,
    choose,
    closest,
    divides_blocks,
    judge,
    layouts,
    tensor_sizes,
)
from ansible.module_utils.vllm_ansible.plan.fit.sizes import Layout, Scheme, scheme_of, taken
from ansible.module_utils.vllm_ansible.plan.models import Quantisation
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.module_utils.plan.fit.shapes import DEEPSEEK, EMBEDDING, LLAMA_70B, QWEN_32B, QWEN_235B, shapes

GIB = 1024**3
MLA = (32, 64, 128)
BF16 = Scheme(2)
W8A8 = scheme_of(DEEPSEEK, Quantisation("w8a8", 8), 2)
FP8 = scheme_of(DEEPSEEK, Quantisation("fp8", 8, block=(128, 128)), 2)
ASCEND = taken("ascend", {}, 0.92, 128)
CUDA = taken("cuda", {}, 0.9, 16)
NPU, A100, H200 = int(60.96 * GIB), int(79.22 * GIB), int(139.72 * GIB)


def ask(shape: Any = DEEPSEEK, scheme: Any = W8A8, **changes: Any) -> Question:
    usual: dict[str, Any] = {
        "overheads": ASCEND, "device_bytes": NPU, "per_host": 8, "hosts": (1,), "lengths": (16384,), "sequences": 16,
        "step_tokens": 4096, "heads": MLA,
    }  # fmt: skip
    return Question(shape, scheme, **{**usual, **changes})


def gpu(shape: Any = LLAMA_70B, scheme: Any = BF16, **changes: Any) -> Question:
    usual = {"overheads": CUDA, "device_bytes": A100, "sequences": 256, "step_tokens": 8192, "heads": ()}
    return ask(shape, scheme, **{**usual, **changes})


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (ask(per_host=16), Layout(4, 1, 4, 16, 1)),
        (ask(hosts=(1, 2)), Layout(4, 1, 4, 16, 2)),
        (ask(hosts=(1,)), None),
        (ask(device_bytes=NPU // 2, hosts=(1, 2, 3)), None),
        (ask(device_bytes=NPU // 2, hosts=(1, 2, 3, 4)), Layout(8, 1, 4, 32, 4)),
        (gpu(DEEPSEEK, FP8, device_bytes=H200), Layout(8, 1, 1, 8, 1)),
        (gpu(per_host=4), Layout(4, 1, 1, 1, 1)),
        (gpu(per_host=8), Layout(4, 1, 2, 1, 1)),
        (gpu(per_host=1), None),
        (gpu(per_host=3), Layout(1, 3, 1, 1, 1)),
        (gpu(per_host=2, hosts=(1, 2)), Layout(2, 2, 1, 1, 2)),
        (gpu(QWEN_32B, per_host=2), Layout(2, 1, 1, 1, 1)),
        (gpu(QWEN_235B, scheme_of(QWEN_235B, Quantisation("fp8", 8, block=(128, 128)), 2)), Layout(4, 1, 2, 8, 1)),
        (ask(QWEN_235B, scheme_of(QWEN_235B, Quantisation("w8a8", 8), 2), device_bytes=NPU // 2, hosts=(1, 2)),
         Layout(4, 1, 4, 16, 2)),
        (gpu(EMBEDDING, lengths=(512,), per_host=2), Layout(1, 1, 2, 1, 1)),
        (ask(per_host=16, pins=Pins(tensor=8)), Layout(8, 1, 2, 16, 1)),
        (gpu(per_host=8, pins=Pins(data=1)), Layout(4, 1, 1, 1, 1)),
        (gpu(per_host=8, pins=Pins(tensor=8, pipeline=1)), Layout(8, 1, 1, 1, 1)),
        (gpu(per_host=8, pins=Pins(tensor=3)), None),
    ],
)  # fmt: skip
def test_layouts(question, expected):
    answer = choose(question)
    assert (answer and answer.layout) == expected


def test_the_length_wished_for_comes_before_fewer_hosts_and_a_shorter_one_before_a_no():
    """One host carries 16384 tokens and not 65536; a second host carries them."""
    tight = gpu(per_host=2, lengths=(65536, 32768, 16384), sequences=16, step_tokens=2048)
    alone = choose(tight)
    assert alone is not None
    assert alone.load.length == 16384
    together = choose(tight._replace(hosts=(1, 2)))
    assert together is not None
    assert (together.load.length, together.layout.hosts) == (65536, 2)


def test_a_tensor_size_divides_heads_and_kv_heads_or_copies_them():
    assert tensor_sizes(LLAMA_70B, 16) == [1, 2, 4, 8, 16]
    assert tensor_sizes(QWEN_32B, 40) == [1, 2, 4, 8, 40]
    assert tensor_sizes(DEEPSEEK, 12) == [1, 2, 4, 8]


def test_quantised_blocks_are_not_cut():
    fp8 = scheme_of(QWEN_235B, Quantisation("fp8", 8, block=(128, 128)), 2)
    assert divides_blocks(QWEN_235B, fp8, Layout(4))
    assert not divides_blocks(QWEN_235B, fp8, Layout(8))  # 1536 / 8 = 192 columns
    assert divides_blocks(QWEN_235B, fp8, Layout(8, expert=8))  # whole experts
    assert divides_blocks(QWEN_235B, Scheme(2), Layout(8))


questions = st.builds(
    lambda shape, bits, gib, per_host, hosts, length, batch, tokens, heads: ask(
        shape,
        scheme_of(shape, Quantisation("w8a8", 8) if bits == 8 else None, 2),
        device_bytes=gib * GIB,
        per_host=per_host,
        hosts=tuple(range(1, hosts + 1)),
        lengths=(min(length, shape.positions),),
        sequences=batch,
        step_tokens=max(tokens, batch),
        heads=heads,
    ),
    shapes(),
    st.sampled_from([8, 16]),
    st.integers(4, 160),
    st.integers(1, 16),
    st.integers(1, 4),
    st.sampled_from([512, 4096, 32768]),
    st.integers(1, 256),
    st.sampled_from([1, 2048, 8192]),
    st.sampled_from([(), MLA]),
)


@given(questions)
@settings(max_examples=70, deadline=None)
def test_a_layout_divides_the_model_and_never_exceeds_a_device(question):
    for hosts in question.hosts:
        for layout in layouts(question, hosts):
            assert layout.hosts == hosts
            assert layout.world <= hosts * question.per_host
            assert layout.world % hosts == 0
            assert question.shape.heads % layout.tensor == 0
            assert layout.expert == 1 or layout.expert * layout.pipeline == layout.world
    answer = choose(question)
    if answer is not None:
        assert answer.memory.total <= question.device_bytes
        needed = answer.load.length * answer.memory.token
        assert answer.memory.kv_cache >= needed
        assert answer.memory.weights < question.device_bytes


@given(questions, st.integers(1, 4))
@settings(max_examples=70, deadline=None)
def test_more_of_anything_never_makes_it_unfit(question, more):
    if choose(question) is None:
        return
    most = max(question.hosts)
    assert choose(question._replace(hosts=tuple(range(1, most + more + 1))))
    assert choose(question._replace(device_bytes=question.device_bytes + more * GIB))
    assert choose(question._replace(sequences=max(1, question.sequences // 2)))
    assert choose(question._replace(lengths=(max(1, question.lengths[0] // 2),)))
    assert choose(question._replace(per_host=question.per_host + more))


@given(questions)
@settings(max_examples=60, deadline=None)
def test_every_proposal_makes_it_fit_and_is_the_smallest_of_its_kind(question):
    if choose(question) is not None:
        return
    others = [
        advice.Alternative("w4a8", scheme_of(question.shape, Quantisation("w4a8", 4, 128), 2), False, question.shape)
    ]
    for proposal in advice.proposals(question, others, 8, {"larger": 160 * GIB}):
        changed = question
        if "max_num_seqs" in proposal.sets:
            changed = question._replace(sequences=proposal.sets["max_num_seqs"])
            assert not choose(question._replace(sequences=proposal.sets["max_num_seqs"] + 1))
        elif "max_model_len" in proposal.sets:
            length = proposal.sets["max_model_len"]
            changed = question._replace(lengths=(length,))
            block = question.overheads.block_tokens
            if length + block <= question.lengths[0]:
                assert not choose(question._replace(lengths=(length + block,)))
        elif "nodes" in proposal.sets:
            changed = question._replace(hosts=(proposal.sets["nodes"],))
            assert not choose(question._replace(hosts=(proposal.sets["nodes"] - 1,)))
        elif "quantised" in proposal.text:
            changed = question._replace(scheme=others[0].scheme)
        elif "kind" in proposal.text:
            changed = question._replace(device_bytes=160 * GIB)
        else:
            changed = question._replace(per_host=int(proposal.text.split()[2]))
        assert choose(changed), proposal


def test_advice_for_the_known_refusals():
    one_a2 = advice.proposals(ask())
    assert one_a2[-1].sets == {"nodes": 2}
    assert (
        advice.as_text(advice.proposals(ask(per_host=1, device_bytes=21 * GIB)), "a smaller model") == "a smaller model"
    )
    texts = [p.text for p in advice.proposals(gpu(per_host=1))]
    assert texts == ["hosts with 4 such devices each", "nodes: 3 (that many such hosts per replica)"]
    long = advice.proposals(gpu(per_host=2, lengths=(131072,), sequences=16))
    assert long[0].text.startswith("max_model_len: ")


def test_the_least_of_the_devices_on_which_it_fits_is_named():
    others = {"small": 40 * GIB, "h20": 96 * GIB, "h200": 139 * GIB, "b200": 178 * GIB}
    assert advice.larger_device(gpu(per_host=1), others) == "b200"
    assert advice.larger_device(gpu(per_host=2, device_bytes=44 * GIB), others) == "h20"
    assert advice.larger_device(gpu(per_host=1), {"small": 40 * GIB}) is None
    last = advice.proposals(gpu(per_host=1), others=others)[-1]
    assert last.text == "as many devices of the kind b200"


def test_the_closest_layout_is_named_for_the_message():
    best = closest(ask())
    assert best is not None
    assert not best.fits
    assert best.layout == Layout(8, 1, 1, 8, 1)
    assert closest(gpu(pins=Pins(tensor=3))) is None
    assert judge(ask(per_host=16), Layout(4, 1, 4, 16), 16384).fits
