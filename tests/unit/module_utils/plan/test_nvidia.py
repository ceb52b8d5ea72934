# SPDX-License-Identifier: Apache-2.0
"""Driver and CUDA of hosts with GPUs. The machines are reconstructed ones with other boards put in: stand-ins."""

import copy
import json
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan import drift, nvidia
from ansible.module_utils.vllm_ansible.plan.catalogue import read_catalogue
from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, plan_fleet

from tools import golden

RAW = golden.catalogue()
SYSTEMS = {
    "ubuntu2204": {"id": "ubuntu", "version_id": "22.04", "glibc": "2.35"},
    "ubuntu2404": {"id": "ubuntu", "version_id": "24.04", "glibc": "2.39"},
    "debian12": {"id": "debian", "version_id": "12", "glibc": "2.36"},
    "rhel8": {"id": "almalinux", "version_id": "8.10", "glibc": "2.28"},
    "rhel9": {"id": "rhel", "version_id": "9.6", "glibc": "2.34"},
    "rhel10": {"id": "rocky", "version_id": "10.0", "glibc": "2.39"},
    "kylin10": {"id": "kylin", "version_id": "V10", "version": "V10 (Halberd)", "glibc": "2.28"},
}
# device of the catalogue -> kernel module of the driver
BOARDS = {
    "v100-32g": "proprietary", "t4": "open", "a100-80g": "open", "l20": "open", "h100-80g": "open", "b200": "open",
}  # fmt: skip


def machine(board: str, driver: str | None = None, name: str = "a100-4", **facts: Any) -> dict[str, Any]:
    """A server with four of these boards: with `driver` as its tools show them, without one as PCI does."""
    found = json.loads((golden.MACHINES / name / "facts.json").read_text())
    device = RAW["devices"][board]
    for number, entry in enumerate(found["accelerators"]):
        entry.update(device_id=device["pci"][0], index=None, model=None, memory_bytes=None, driver=driver)
        if driver:
            entry.update(index=number, memory_bytes=device["memory_bytes"])
    own = {"driver": driver, "kernel_module": BOARDS[board] if driver else None, "cuda": None, "fabric_manager": None}
    return golden.merge(found, golden.merge({"software": {"nvidia": own}}, facts))


def plan(hardware: Any, catalogue: Any = None, **host: Any) -> dict[str, Any]:
    hardware = hardware if isinstance(hardware, list) else [hardware]
    hosts = {
        f"gpu{n}": {"groups": ["engines", "pool_a"], "request": {"model": "qwen2.5-7b-instruct"}, "hardware": own,
                    "address": f"192.0.2.{n}", **host}
        for n, own in enumerate(hardware, 1)
    }  # fmt: skip
    return plan_fleet(Inputs(hosts, catalogue or RAW, flags=golden.flags()))


def slices(planned: dict[str, Any]) -> dict[str, Any]:
    assert planned["ok"], planned["problems"]
    return planned["hosts"]["gpu1"]["slices"]


@pytest.mark.parametrize("board", BOARDS)
def test_every_generation_is_planned_bare_and_the_same_when_that_was_carried_out(board):
    first = plan(machine(board))
    assert first["unread"] == ["gpu1"]
    found = slices(first)["nvidia_driver"]
    assert (found["version"], found["flavour"], found["gpus"]) == ("580.126.09", BOARDS[board], 4)
    assert found["nvswitch"] == (board == "b200")
    done = plan(machine(board, found["version"]))
    assert done["unread"] == []
    for role in ("nvidia_driver", "nvidia_cuda", "tuned_profile"):
        assert slices(done)[role] == slices(first)[role]


@pytest.mark.parametrize("distro", SYSTEMS)
def test_the_repository_is_that_of_the_operating_system(distro):
    found = slices(plan(machine("a100-80g", os=SYSTEMS[distro])))["nvidia_driver"]["repository"]
    kind = "apt" if distro[0] in "du" else "dnf"
    assert found == {"kind": kind, "distro": distro, "architecture": "x86_64"}


def test_an_arm_server_has_its_own_architecture_and_kunpeng_with_kylin_none():
    bare = machine("a100-80g", name="kunpeng-a100-1")
    (problem,) = plan(bare)["problems"]
    assert (problem["code"], problem["field"]) == ("E_OS", "vllm_hardware.os")
    assert "installer for aarch64 by hand" in problem["set"]
    red = golden.merge(bare, {"os": SYSTEMS["rhel9"]})
    assert slices(plan(red))["nvidia_driver"]["repository"]["architecture"] == "sbsa"
    own = golden.merge(RAW, {"gpu_repositories": {"rhel8": {"ids": ["rhel", "kylin"], "version": "V10|8"}}})
    assert slices(plan(bare, own))["nvidia_driver"]["repository"]["distro"] == "rhel8"


def test_the_switches_of_a_board_are_seen_on_the_bus_or_known_of_the_board():
    for raw, found in (({"nvswitches": 4}, True), ({"nvswitches": 0}, False), ({}, False), (None, False)):
        assert nvidia.switches(raw, []) is found


def test_a_driver_on_centos_7_is_taken_and_the_engine_is_not():
    planned = plan(json.loads((golden.MACHINES / "centos7-gpu" / "facts.json").read_text()))
    (problem,) = planned["problems"]
    assert problem["code"] == "E_GLIBC"
    assert problem["seen"] == "2.17"
    assert "a container of one: the host's driver serves it" in problem["set"]


def test_an_older_driver_is_replaced_and_a_newer_one_is_not():
    assert slices(plan(machine("l20", "535.129.03")))["nvidia_driver"]["version"] == "580.126.09"
    assert slices(plan(machine("l20", "610.43.02")))["nvidia_driver"]["version"] == "610.43.02"
    planned = plan(machine("l20", "610.43.02"), driver="580.126.09")
    assert slices(planned)["nvidia_driver"]["version"] == "580.126.09"
    rules = {d["key"]: d["rule"] for d in planned["decisions"] if d["host"]}
    assert (rules["nvidia_driver.version"], rules["nvidia_driver.flavour"]) == ("R_DRIVER_PINNED", "R_GPU_MODULE")


def test_hosts_of_one_replica_get_one_driver_though_only_some_have_theirs():
    request = {"model": "llama-3.3-70b-instruct", "nodes": 2}
    planned = plan([machine("a100-80g", "580.126.09"), machine("a100-80g")], request=request)
    assert planned["ok"], planned["problems"]
    assert planned["unread"] == ["gpu2"]
    mixed = plan([machine("a100-80g", "580.65.06"), machine("a100-80g")], request=request)
    assert [p["code"] for p in mixed["problems"]] == ["E_GROUP_MIXED"]


@pytest.mark.parametrize(
    ("facts", "signed", "codes"),
    [
        ({"kernel": {"secure_boot": True}}, False, {"E_SECURE_BOOT"}),
        ({"kernel": {"secure_boot": True}}, True, set()),
        ({"kernel": {"secure_boot": False}}, False, set()),
        ({"software": {"nvidia": {"nouveau": True}}}, False, {"W_NOUVEAU"}),
        ({"kernel": {"release": "5.15.0-60", "installed": ["5.15.0-60"], "devel": ["5.15.0-9"]}}, False,
         {"W_KERNEL_DEVEL"}),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_of_a_driver_is_said_before(facts, signed, codes):
    ordinary = {"W_ROW_UNVERIFIED", "W_DEVICES_UNREAD"}
    planned = plan(machine("t4", **facts), signed=signed)
    assert {f["code"] for f in planned["problems"] + planned["warnings"]} - ordinary == codes
    # a host whose driver stays is not asked about headers or signatures
    kept = plan(machine("t4", "580.126.09", **facts), signed=signed)
    assert {f["code"] for f in kept["problems"] + kept["warnings"]} - ordinary == codes & {"W_NOUVEAU"}


def test_a_driver_that_waits_for_its_reboot_counts_as_installed():
    facts = {"software": {"nvidia": {"library": "580.126.09"}}}
    planned = plan(machine("t4", "580.65.06", **facts))
    assert slices(planned)["nvidia_driver"]["version"] == "580.126.09"
    assert "W_GPU_REBOOT" in {w["code"] for w in planned["warnings"]}


@pytest.mark.parametrize(
    ("cuda", "found"),
    [
        ({}, {"toolkit": None, "dcgm": "4", "cuda_major": "13"}),
        ({"toolkit": "12.8", "nccl": True}, {"toolkit": "12.8", "cuda_major": "12", "nccl": True}),
        ({"dcgm": False, "gds": True, "openmpi": True}, {"dcgm": None, "gds": True, "openmpi": True}),
    ],
)
def test_of_cuda_there_is_what_is_asked_for(cuda, found):
    own = slices(plan(machine("h100-80g", "580.126.09"), cuda=cuda))["nvidia_cuda"]
    assert {key: own[key] for key in found} == found


@pytest.mark.parametrize(
    ("cuda", "system", "code", "words"),
    [
        ({"toolkit": "12.8"}, "kylin10", None, ""),
        ({"toolkit": "13.0"}, "kylin10", "E_CUDA", "12.9"),
        ({"dcgm": True}, "kylin10", "E_CUDA", "dcgm: false"),
        ({"gds": True}, "kylin10", "E_GDS", "gds: false"),
        ({"gds": True}, "debian12", "E_GDS", "gds: false"),
        ({"gds": True}, "rhel8", None, ""),
        ({"toolkit": 12.8}, "rhel8", "E_REQUEST_VALUE", "engine_cuda.toolkit"),
        ({"toolkit": "twelve"}, "rhel8", "E_REQUEST_VALUE", 'quotes such as "12.8"'),
        ({"nccl": "perhaps"}, "rhel8", "E_REQUEST_VALUE", "true or false"),
    ],
)
def test_what_nvidia_does_not_offer_is_refused_with_what_there_is(cuda, system, code, words):
    problems = plan(machine("h100-80g", "580.126.09", os=SYSTEMS[system]), cuda=cuda)["problems"]
    assert [p["code"] for p in problems] == ([code] if code else [])
    assert all(words in p["set"] for p in problems)


def test_storage_goes_past_the_processor_only_on_kernels_that_can():
    old = machine("h100-80g", "580.126.09", kernel={"release": "4.14.0-1"})
    assert [p["code"] for p in plan(old, cuda={"gds": True})["problems"]] == ["E_GDS"]


def test_a_changed_driver_is_drift_and_a_planned_change_is_not():
    first = plan(machine("a100-80g", "580.126.09"))
    applied = {"gpu1": first["hosts"]["gpu1"]}

    def found(hardware: dict[str, Any], **host: Any) -> list[tuple[Any, ...]]:
        planned = plan(hardware, **host)
        changes = drift.drift(planned, applied, {"gpu1": hardware}).get("gpu1", [])
        return [tuple(c[key] for key in ("what", "recorded", "seen", "planned")) for c in changes]

    assert found(machine("a100-80g", "580.126.09")) == []
    assert found(machine("a100-80g", "580.65.06")) == [
        ("nvidia_driver.version", "580.126.09", "580.65.06", "580.65.06")
    ]
    assert found(machine("a100-80g", "580.65.06"), driver="580.126.09") != [], "to name it does not undo the change"
    gone = machine("a100-80g")
    assert found(gone) == [("nvidia_driver.version", "580.126.09", None, "580.126.09")]
    other = machine("a100-80g", "580.126.09", software={"nvidia": {"kernel_module": "proprietary"}})
    assert found(other) == [("nvidia_driver.flavour", "open", "proprietary", "proprietary")]
    applied["gpu1"] = copy.deepcopy(applied["gpu1"])
    applied["gpu1"]["slices"]["nvidia_driver"]["version"] = "580.65.06"
    assert found(machine("a100-80g", "580.65.06"), driver="580.126.09") == [], "an upgrade"


@pytest.mark.parametrize(
    ("part", "name", "change", "field"),
    [
        ("gpu_drivers", "nvidia-580.126.09", {"version": "newest"}, "version"),
        ("gpu_drivers", "nvidia-580.126.09", {"flavours": {"hopper": "nouveau"}}, "flavours"),
        ("gpu_repositories", "rhel9", {"version": "9("}, "version"),
        ("gpu_repositories", "rhel9", {"kind": "yum"}, "kind"),
        ("cuda_toolkits", "cuda-12.8", {"floor": "?"}, "floor"),
        ("cuda_toolkits", "cuda-12.8", {"drivre": "1"}, "drivre"),
    ],
)
def test_what_a_site_lays_over_the_catalogue_is_checked(part, name, change, field):
    raw, bad = {**RAW, part: {**RAW[part], name: {**RAW[part][name], **change}}}, []
    read_catalogue(raw, None, lambda code, where, seen, wanted: bad.append((code, where)))
    assert bad
    assert all(code == "E_CATALOGUE" and where.startswith(f"catalogue.{part}.{name}.{field}") for code, where in bad)


def test_the_drivers_of_every_repository_are_known():
    releases = {entry["version"] for entry in RAW["gpu_drivers"].values()}
    assert {driver for entry in RAW["gpu_repositories"].values() for driver in entry["drivers"]} == releases
