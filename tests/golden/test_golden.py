# SPDX-License-Identifier: Apache-2.0
"""Every case plans to the very bytes stored beside it; `tools/golden.py --update` stores new ones."""

import pytest

from tools import golden


@pytest.mark.parametrize("case", golden.cases())
def test_case_plans_as_stored(case):
    assert golden.files(case) == golden.stored(case)


LAYOUTS = {
    "npu-a3-deepseek-r1": ({"tensor": 4, "data": 4, "expert": 16, "pipeline": 1}, 1),
    "npu-a2-deepseek-r1": ({"tensor": 4, "data": 4, "expert": 16, "pipeline": 1}, 2),
    "gpu-a100-llama-70b": ({"tensor": 4, "data": 1, "expert": 1, "pipeline": 1}, 1),
    "gpu-h200-deepseek-v31": ({"tensor": 8, "data": 1, "expert": 8, "pipeline": 1}, 1),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_published_deployments_are_laid_out_as_published(case):
    layout, hosts = LAYOUTS[case]
    plan = golden.plan(case)
    assert plan["ok"]
    assert plan["groups"][0]["layout"] == {name + "_parallel": size for name, size in layout.items()}
    assert len(plan["groups"][0]["members"]) == hosts


REFUSED = {
    "container-only-host": ["E_GLIBC"],
    "gpu-one-a100-refused": ["E_DEVICE_MEMORY", "E_DEVICE_MEMORY"],
    "npu-driver-outside-range": ["E_DRIVER"],
    "npu-fp8-refused": ["E_QUANTISATION", "E_QUANTISATION"],
    "npu-sick-devices": ["E_DEVICE_MEMORY"],
    "npu-too-few-hosts": ["E_DEVICE_MEMORY", "E_DEVICE_MEMORY", "E_MODEL_ARCHITECTURE"],
    "npu-two-drivers": ["E_GROUP_MIXED"],
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_have_exactly_these_problems(case):
    assert sorted(problem["code"] for problem in golden.plan(case)["problems"]) == REFUSED[case]


def test_every_case_is_kept():
    stored = {path.parent.name for path in golden.GOLDEN.glob("*/plan.json")}
    assert stored == set(golden.cases())
    assert len(stored) > 15


def test_merge_replaces_lists_and_keeps_other_keys():
    assert golden.merge({"a": {"b": [1], "c": 2}, "d": 3}, {"a": {"b": [4]}}) == {"a": {"b": [4], "c": 2}, "d": 3}
