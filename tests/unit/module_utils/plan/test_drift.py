# SPDX-License-Identifier: Apache-2.0
"""Which hosts are no longer what was recorded on them, and which only wait for what the plan changes."""

import copy
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan.drift import drift

SLICES = {
    "kernel": {"release": "4.19.90-52.22.v2207.ky10.aarch64"},
    "ascend_driver": {"driver": "25.5.0", "firmware": "7.8.0.5.201"},
    "ascend_cann": {"cann": "9.1.0", "nnal": "9.1.0"},
}
FACTS = {
    "kernel": {"release": "4.19.90-52.22.v2207.ky10.aarch64"},
    "software": {
        "ascend": {
            "driver": "25.5.0",
            "firmware": "7.8.0.5.201",
            "cann": [
                {"path": "/usr/local/Ascend/cann-9.1.0", "version": "9.1.0", "kind": "toolkit"},
                {"path": "/usr/local/Ascend/cann-8.5.0", "version": "8.5.0", "kind": "toolkit"},
                {"path": "/usr/local/Ascend/nnal/atb/9.1.0", "version": "9.1.0", "kind": "nnal"},
            ],
        }
    },
}


def found(
    recorded: dict[str, Any] | None = None,
    planned: dict[str, Any] | None = None,
    seen: dict[str, Any] | None = None,
    kept: tuple[str, ...] = (),
) -> list[tuple[Any, ...]]:
    """Each change as (what, recorded, seen, planned); changes are of one role's values, or of the Ascend software."""

    def slices(changes: dict[str, Any] | None) -> dict[str, Any]:
        return {role: {**part, **(changes or {}).get(role, {})} for role, part in SLICES.items()}

    facts = copy.deepcopy(FACTS)
    for key, value in (seen or {}).items():
        (facts["kernel"] if key == "release" else facts["software"]["ascend"])[key] = value
    decisions = [
        {"host": "npu1", "key": key, "rule": "R_KERNEL_KEPT" if "kernel" in key else "R_DRIVER_KEPT"} for key in kept
    ]
    plan = {"decisions": decisions, "hosts": {"npu1": {"slices": slices(planned)}}}
    changes = drift(plan, {"npu1": {"slices": slices(recorded)}}, {"npu1": facts})
    return [tuple(c[key] for key in ("what", "recorded", "seen", "planned")) for c in changes.get("npu1", [])]


def test_a_host_that_is_as_recorded_did_not_drift():
    assert found() == []
    assert found(seen={"driver": "25.5.0 "}) == found(seen={"driver": "25.5"}) == []  # spelt otherwise


@pytest.mark.parametrize(
    ("seen", "change"),
    [
        ({"driver": "25.3.rc1"}, ("ascend_driver.driver", "25.5.0", "25.3.rc1", "25.5.0")),
        ({"driver": None}, ("ascend_driver.driver", "25.5.0", None, "25.5.0")),
        ({"firmware": "7.8.0.2.212"}, ("ascend_driver.firmware", "7.8.0.5.201", "7.8.0.2.212", "7.8.0.5.201")),
        ({"release": "4.19.90-52.30.v2207.ky10.aarch64"},
         ("kernel.release", "4.19.90-52.22.v2207.ky10.aarch64", "4.19.90-52.30.v2207.ky10.aarch64",
          "4.19.90-52.22.v2207.ky10.aarch64")),
        ({"cann": [FACTS["software"]["ascend"]["cann"][1], FACTS["software"]["ascend"]["cann"][2]]},
         ("ascend_cann.cann", "9.1.0", "8.5.0", "9.1.0")),
        ({"cann": FACTS["software"]["ascend"]["cann"][:1]}, ("ascend_cann.nnal", "9.1.0", None, "9.1.0")),
    ],
)  # fmt: skip
def test_what_somebody_changed_is_named_with_what_was_recorded(seen, change):
    assert found(seen=seen) == [change]


def test_a_plan_that_would_take_over_what_somebody_changed_still_says_so():
    """The plan keeps a driver its row takes: that the plan has it is no proof that it was meant to be there."""
    planned, seen = {"ascend_driver": {"driver": "25.3.rc1"}}, {"driver": "25.3.rc1"}
    kept = ("ascend_driver.driver",)
    assert found(planned=planned, seen=seen, kept=kept) == [("ascend_driver.driver", "25.5.0", "25.3.rc1", "25.3.rc1")]
    assert found(planned={"kernel": {"release": "5.aarch64"}}, seen={"release": "5.aarch64"}, kept=("kernel.release",))


def test_an_upgrade_and_one_that_was_cut_off_are_no_drift():
    planned = {"ascend_driver": {"driver": "26.0.rc1", "firmware": "9.0.0.0.205"}, "ascend_cann": {"cann": "9.2.0"}}
    assert found(planned=planned) == []
    assert found(planned=planned, seen={"firmware": "9.0.0.0.205"}) == []  # the driver comes next
    assert found(planned=planned, seen={"firmware": "9.9"}) != []


def test_what_was_never_installed_or_cannot_be_seen_is_no_drift():
    plan = {"decisions": [], "hosts": {"npu1": {"slices": SLICES}}}
    assert drift(plan, {"npu1": None}, {"npu1": FACTS}) == {}
    assert drift(plan, {"npu1": {"slices": {}}}, {"npu1": {}}) == {}
    assert drift(plan, {"npu1": {"slices": SLICES}}, {"npu1": {}}) == {}
    assert drift(plan, {"npu1": {"slices": SLICES}}, {"npu1": None}) == {}
    assert drift(plan, {"npu1": {"slices": SLICES}}, {"npu1": {"software": {"ascend": {"cann": 1}}}}) == {}


def test_the_kernel_of_facts_that_do_not_know_better_is_the_systems():
    plan = {"decisions": [], "hosts": {"npu1": {"slices": SLICES}}}
    (change,) = drift(plan, {"npu1": {"slices": SLICES}}, {"npu1": {"os": {"kernel": "1.aarch64"}}})["npu1"]
    assert change["seen"] == "1.aarch64"
