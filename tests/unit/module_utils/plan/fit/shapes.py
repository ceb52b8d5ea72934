# SPDX-License-Identifier: Apache-2.0
"""Models for the tests of `plan.fit`: published ones, and any."""

from ansible.module_utils.vllm_ansible.plan.models import Shape
from hypothesis import strategies as st

DEEPSEEK = Shape(
    hidden=7168, layers=61, heads=128, kv_heads=128, head_dim=56, intermediate=18432, vocabulary=129280, tied=False,
    positions=163840, kv_lora_rank=512, q_lora_rank=1536, rope_dim=64, nope_dim=128, v_dim=128, experts=256,
    experts_per_token=8, shared_experts=1, moe_intermediate=2048, dense_layers=3,
)  # fmt: skip
LLAMA_70B = Shape(
    hidden=8192, layers=80, heads=64, kv_heads=8, head_dim=128, intermediate=28672, vocabulary=128256, tied=False,
    positions=131072,
)  # fmt: skip
QWEN_32B = Shape(
    hidden=5120, layers=64, heads=40, kv_heads=8, head_dim=128, intermediate=27648, vocabulary=152064, tied=False,
    positions=32768,
)  # fmt: skip
QWEN_235B = Shape(
    hidden=4096, layers=94, heads=64, kv_heads=4, head_dim=128, intermediate=12288, vocabulary=151936, tied=False,
    positions=40960, experts=128, experts_per_token=8, moe_intermediate=1536,
)  # fmt: skip
EMBEDDING = Shape(
    hidden=1024, layers=24, heads=16, kv_heads=16, head_dim=64, intermediate=4096, vocabulary=21128, tied=False,
    positions=512, encoder=True,
)  # fmt: skip


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Any model: dense or of experts, with ordinary or latent attention; sizes divide by 8."""
    heads = draw(st.sampled_from([8, 16, 24, 64, 128]))
    head_dim = draw(st.sampled_from([64, 128]))
    latent = draw(st.booleans())
    experts = draw(st.sampled_from([0, 0, 8, 64, 256]))
    layers = draw(st.integers(4, 80))
    return Shape(
        hidden=draw(st.sampled_from([512, 4096, 7168])),
        layers=layers,
        heads=heads,
        kv_heads=heads if latent else draw(st.sampled_from([n for n in (1, 2, 4, 8) if heads % n == 0])),
        head_dim=head_dim,
        intermediate=draw(st.sampled_from([2048, 14336, 18432])),
        vocabulary=draw(st.sampled_from([32000, 129280])),
        tied=draw(st.booleans()),
        positions=draw(st.sampled_from([4096, 32768, 131072])),
        kv_lora_rank=512 if latent else 0,
        q_lora_rank=draw(st.sampled_from([0, 1536])) if latent else 0,
        rope_dim=64 if latent else 0,
        nope_dim=128 if latent else 0,
        v_dim=128 if latent else 0,
        experts=experts,
        experts_per_token=min(experts, 8),
        shared_experts=draw(st.integers(0, 2)) if experts else 0,
        moe_intermediate=draw(st.sampled_from([768, 2048])) if experts else 0,
        dense_layers=draw(st.integers(0, 3)) if experts else 0,
    )
