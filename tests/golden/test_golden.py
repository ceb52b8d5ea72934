# SPDX-License-Identifier: Apache-2.0
"""Every case plans to the very bytes stored beside it; `tools/golden.py --update` stores new ones."""

import pytest

from tools import golden


@pytest.mark.parametrize("case", golden.cases())
def test_case_plans_as_stored(case):
    assert golden.render(golden.plan(case)) == (golden.GOLDEN / case / "plan.json").read_text()


def test_machines_without_an_engine_have_exactly_that_problem():
    plan = golden.plan("npu-no-engine")
    assert [problem["code"] for problem in plan["problems"]] == ["E_NO_ENGINE"]
    devices = next(d for d in plan["decisions"] if d["rule"] == "R_DEVICES")
    assert devices["value"] == 8
    assert plan["groups"][0]["backend"] == "ascend"


def test_every_case_is_kept():
    stored = {path.parent.name for path in golden.GOLDEN.glob("*/plan.json")}
    assert stored == set(golden.cases())
    assert len(stored) > 15


def test_merge_replaces_lists_and_keeps_other_keys():
    assert golden.merge({"a": {"b": [1], "c": 2}, "d": 3}, {"a": {"b": [4]}}) == {"a": {"b": [4], "c": 2}, "d": 3}
