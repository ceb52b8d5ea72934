# SPDX-License-Identifier: Apache-2.0
"""Kernel, driver with firmware and CANN of a host with NPUs; where an engine for them is built."""

import copy
import json
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan import hdk, stack
from ansible.module_utils.vllm_ansible.plan.catalogue import read_catalogue
from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, plan_fleet

from tools import golden

RAW = golden.catalogue()
ROOM = {
    "paths": {
        "/var/lib/vllm": {"available_bytes": 4 * 10**12},
        "/var/cache/vllm": {"mount": "/data", "available_bytes": 4 * 10**12},
    }
}
LANCE = {"id": "kylin", "version_id": "V10", "version": "V10 (Lance)", "name": "Kylin", "glibc": "2.28"}
NAMED = "4.19.90-52.22.v2207.ky10.aarch64"


def machine(name: str, **facts: Any) -> dict[str, Any]:
    running = facts.get("os", {}).get("kernel")
    if running and "kernel" not in facts:
        facts["kernel"] = {"release": running, "default_entry": running, "devel": [running], "headers": [running]}
    return golden.merge(json.loads((golden.MACHINES / name / "facts.json").read_text()), {**ROOM, **facts})


def bare(name: str, **facts: Any) -> dict[str, Any]:
    """A machine before its driver: PCI functions, and nothing any tool says."""
    found = machine(name, **facts)
    functions = {device["pci"]: device for device in found["accelerators"]}
    silent = ("index", "board", "chip", "phy_id", "model", "soc", "memory_bytes", "used_bytes", "health", "driver")
    found["accelerators"] = [{**d, **dict.fromkeys((*silent, "firmware")), "problems": []} for d in functions.values()]
    found["software"] = {**found["software"], "ascend": {"driver": None, "firmware": None, "cann": []}}
    return found


def plan(hardware: Any, catalogue: Any = None, build: Any = None, **host: Any) -> dict[str, Any]:
    hardware = hardware if isinstance(hardware, list) else [hardware]
    request = {"model": "qwen3-8b", **host.pop("request", {})}
    if any(device["device_id"] == "19e5:d802" for device in hardware[0]["accelerators"]):
        request["device_model"] = "910B3"
    hosts: dict[str, Any] = {
        f"npu{n}": {
            "groups": ["engines", "pool_a"],
            "request": request,
            "hardware": own,
            "address": f"192.0.2.{n}",
            **host,
        }
        for n, own in enumerate(hardware, 1)
    }
    hosts["build01"] = {"groups": ["build"], **({"hardware": build} if build else {})}
    return plan_fleet(Inputs(hosts, catalogue or RAW, overrides=golden.SERIES, flags=golden.flags()))


def slices(planned: dict[str, Any], host: str = "npu1") -> dict[str, Any]:
    assert planned["ok"], planned["problems"]
    return planned["hosts"][host]["slices"]


def rules(planned: dict[str, Any], host: str = "npu1") -> dict[str, str]:
    return {d["key"]: d["rule"] for d in planned["decisions"] if d["host"] == host}


@pytest.mark.parametrize(
    ("name", "driver", "firmware", "chip", "npus"),
    [
        ("atlas-800t-a2", "25.5.0", "7.8.0.5.201", "910b", 8),
        ("atlas-800i-a3", "26.0.rc1", "9.0.0.0.205", "A3", 8),
        ("atlas-300i-duo", "25.3.rc1", "7.8.0.2.212", "310p", 2),
    ],
)
def test_a_bare_host_gets_the_newest_release_whose_firmware_is_known(name, driver, firmware, chip, npus):
    request = {"model": "qwen2.5-7b-instruct"}
    installable = golden.merge(RAW, {"rows": {"vllm-ascend-0.23.0.post1-310p": {"status": "installable", "unverified": {
        "release_bytes": "not measured", "artefact_bytes": "not measured"}}}})  # fmt: skip
    planned = plan(bare(name), installable, request=request)
    found = slices(planned)
    assert found["ascend_driver"] == {"driver": driver, "firmware": firmware, "chip": chip, "npus": npus}
    assert found["ascend_cann"] == {"cann": "9.1.0", "nnal": "9.1.0", "chip": chip, "cxx_abi": 1}
    assert rules(planned)["ascend_driver.driver"] == "R_DRIVER_INSTALL"
    assert planned["unread"] == ["npu1"]
    assert [w["host"] for w in planned["warnings"] if w["code"] == "W_DEVICES_UNREAD"] == ["npu1"]


@pytest.mark.parametrize("name", ["atlas-800t-a2", "atlas-800i-a3"])
def test_what_was_installed_is_what_is_planned_next_time(name):
    """The slices of a host do not move when they have been carried out."""
    first = slices(plan(bare(name)))
    done = machine(name)
    wanted = first["ascend_driver"]
    done["software"]["ascend"] = {"driver": wanted["driver"], "firmware": wanted["firmware"], "cann": []}
    again = slices(plan(done))
    assert {r: first[r] for r in ("kernel", "ascend_driver", "ascend_cann")} == {
        r: again[r] for r in ("kernel", "ascend_driver", "ascend_cann")
    }


def test_an_npu_that_does_not_answer_is_still_one_of_those_that_have_to_be_there():
    hardware = machine("atlas-800t-a2")
    for device in hardware["accelerators"][:2]:
        device.update(index=None, health="LOST", problems=["npu-smi does not list it"])
    assert slices(plan(hardware))["ascend_driver"]["npus"] == 8


@pytest.mark.parametrize(
    ("installed", "pin", "expected", "rule"),
    [
        (("25.5.0", "7.8.0.5.201"), None, ("25.5.0", "7.8.0.5.201"), "R_DRIVER_KEPT"),
        (("25.2.1", "7.7.1"), None, ("25.2.1", "7.7.1"), "R_DRIVER_KEPT"),  # its firmware is nobody's business
        (("25.5.0", None), None, ("25.5.0", "7.8.0.5.201"), "R_DRIVER_KEPT"),  # cut off before the firmware
        (("25.0.rc1.1", "7.7.0.1.231"), None, ("25.5.0", "7.8.0.5.201"), "R_DRIVER_INSTALL"),
        (("25.2.1", "7.7.1"), "25.5.0", ("25.5.0", "7.8.0.5.201"), "R_DRIVER_PINNED"),
        (("25.2.1", "7.8.0.5.201"), "25.5.0", ("25.5.0", "7.8.0.5.201"), "R_DRIVER_PINNED"),  # cut off in between
        (("26.0.rc2", "9.1"), "25.5.0", ("25.5.0", "7.8.0.5.201"), "R_DRIVER_PINNED"),  # a downgrade, asked for
    ],
)
def test_which_driver_a_host_gets(installed, pin, expected, rule):
    hardware = machine("atlas-800t-a2")
    hardware["software"]["ascend"].update(driver=installed[0], firmware=installed[1])
    for device in hardware["accelerators"]:
        device.update(driver=installed[0], firmware=installed[1])
    planned = plan(hardware, driver=pin)
    found = slices(planned)["ascend_driver"]
    assert (found["driver"], found["firmware"]) == expected
    assert rules(planned)["ascend_driver.driver"] == rules(planned)["ascend_driver.firmware"] == rule


def test_a_release_the_site_adds_is_taken_when_it_reaches_more_features():
    own = {"driver": "25.5.1", "families": {"a2": {"firmware": "7.8.0.6.1", "architectures": ["aarch64"]}}}
    planned = plan(
        bare("atlas-800t-a2"), golden.merge(RAW, {"hdk": {"own": {**own, "sources": {"driver": "our mirror"}}}})
    )
    assert slices(planned)["ascend_driver"]["driver"] == "25.5.1"
    assert "engine.full_graph" not in {d["key"] for d in planned["decisions"]}
    assert "engine.full_graph" in {d["key"] for d in plan(bare("atlas-800t-a2"))["decisions"]}


def test_a_release_that_reaches_the_features_goes_before_a_newer_one():
    catalogue = read_catalogue(RAW, None, lambda *_: None)
    (row,) = [row for row in catalogue.rows if row.name == "vllm-ascend-0.23.0.post1"]
    package = {"a2": hdk.Package("1", ("aarch64",))}
    releases = [hdk.Hdk(v, v, package) for v in ("25.5.1", "26.1.0", "25.3.rc1", "27.0.0")]
    picky = row._replace(features={"x": {"driver": "<26"}})
    assert [r.driver for r in hdk.for_row(releases, picky, ["a2"], "aarch64")] == ["25.5.1", "25.3.rc1", "26.1.0"]
    assert hdk.for_row(releases, row, ["a3"], "aarch64") == hdk.for_row(releases, row, ["a2"], "x86_64") == []


def test_a_host_no_release_is_known_for_is_refused_with_what_to_add():
    nothing = {**RAW, "hdk": {"hdk-26.0.rc1": RAW["hdk"]["hdk-26.0.rc1"]}}
    planned = plan(bare("atlas-800t-a2"), nothing, request={"model": "qwen3-8b", "version": "=0.23.0"})
    (problem,) = planned["problems"]
    assert problem["code"] == "E_HDK"
    assert "firmware of none of them is known for a2" in problem["message"]
    assert "deployment_plan_catalogue_overrides.hdk" in problem["set"]


def test_hosts_of_one_replica_are_planned_when_only_some_have_their_driver():
    """A run that was cut off between two hosts is completed by the next."""
    done = machine("atlas-800t-a2")
    mixed = [done, bare("atlas-800t-a2")]
    planned = plan(mixed, request={"model": "deepseek-r1-w8a8"})
    assert planned["ok"], planned["problems"]
    (group,) = planned["groups"]
    assert [member["host"] for member in group["members"]] == ["npu1", "npu2"]
    assert planned["unread"] == ["npu2"]


@pytest.mark.parametrize(
    ("system", "running", "pin", "release", "rule", "whole"),
    [
        (LANCE, NAMED, None, NAMED, "R_KERNEL_KEPT", True),
        (LANCE, "4.19.90-52.30.v2207.ky10.aarch64", None, NAMED, "R_KERNEL", True),
        (LANCE, NAMED, NAMED, NAMED, "R_KERNEL_PINNED", True),
        ({}, "5.10.0-60.18.0.50.oe2203.aarch64", None, "5.10.0-60.18.0.50.oe2203.aarch64", "R_KERNEL_KEPT", False),
        ({}, "5.10.0-1.aarch64", "5.10.0-2.aarch64", "5.10.0-2.aarch64", "R_KERNEL_PINNED", True),
    ],
)
def test_which_kernel_a_host_gets(system, running, pin, release, rule, whole):
    planned = plan(machine("atlas-800t-a2", os={**system, "kernel": running}), kernel=pin)
    found = slices(planned)["kernel"]
    assert (found["release"], found["pinned"]) == (release, True)
    assert found["boot_parameters"] == ["iommu.passthrough=1"]
    assert found["packages"] == stack.kernel_packages(release, whole)
    assert rules(planned)["kernel.release"] == rule


def test_the_newest_of_several_named_kernels_is_taken():
    kernels = [NAMED, "4.19.90-52.100.v2207.ky10.aarch64", "4.19.90-52.9.v2207.ky10.aarch64"]
    more = golden.merge(RAW, {"platforms": {"kylin-v10-lance": {"kernels": {"aarch64": kernels}}}})
    planned = plan(machine("atlas-800t-a2", os={**LANCE, "kernel": "4.19.90-1.aarch64"}), more)
    assert slices(planned)["kernel"]["release"] == kernels[1]


def test_the_kernel_that_the_facts_read_themselves_goes_before_the_systems():
    planned = plan(machine("atlas-800t-a2", os={"kernel": "1.0-old.aarch64"}, kernel={"release": "1.1-new.aarch64"}))
    assert slices(planned)["kernel"]["release"] == "1.1-new.aarch64"


@pytest.mark.parametrize(
    ("release", "whole", "packages"),
    [
        (NAMED, True, ["kernel-4.19.90-52.22.v2207.ky10", "kernel-devel-4.19.90-52.22.v2207.ky10",
                       "kernel-headers-4.19.90-52.22.v2207.ky10"]),
        (NAMED, False, ["kernel-devel-4.19.90-52.22.v2207.ky10", "kernel-headers-4.19.90-52.22.v2207.ky10"]),
        ("5.15.0-25-generic", True, ["linux-image-5.15.0-25-generic", "linux-headers-5.15.0-25-generic"]),
        ("6.1.0-18-arm64", False, ["linux-headers-6.1.0-18-arm64"]),
    ],
)  # fmt: skip
def test_packages_are_named_exactly(release, whole, packages):
    assert stack.kernel_packages(release, whole) == packages


def test_hosts_without_npu_engines_have_none_of_it():
    planned = plan(machine("epyc-virtual"), request={"model": "smollm2-135m-instruct"}, build=machine("epyc-virtual"))
    assert not {"kernel", "ascend_driver", "ascend_cann"} & set(slices(planned))
    (instance,) = slices(planned)["engine_service"]["instances"]
    assert not {"environment_file", "supplementary_groups", "key_handover"} & set(instance)


@pytest.mark.parametrize(("systemd", "handover"), [(243, "runtime_directory"), (247, None), (None, None)])
def test_an_engine_gets_canns_environment_its_group_and_its_key(systemd, handover):
    hardware = machine(
        "atlas-800t-a2", os={"systemd": systemd}, davinci={"ascend_group": "ascend", "access": [], "managers": []}
    )
    (instance,) = slices(plan(hardware))["engine_service"]["instances"]
    assert instance["environment_file"] == "/etc/vllm/ascend.env"
    assert instance["supplementary_groups"] == ["ascend"]
    assert instance.get("key_handover") == handover
    (instance,) = slices(plan(machine("atlas-800t-a2")))["engine_service"]["instances"]
    assert instance["supplementary_groups"] == ["HwHiAiUser"]


def test_a_build_carries_the_series_of_engine_and_plugin_and_may_be_made_anywhere():
    planned = plan([machine("atlas-800t-a2")], build=machine("epyc-virtual"))
    assert planned["ok"], planned["problems"]
    (build,) = planned["builds"]
    assert build == {
        "build": "vllm-0.23.0-ascend-a2-aarch64",
        "engine": "vllm",
        "version": "0.23.0",
        "backend": "ascend",
        "architecture": "aarch64",
        "row": "vllm-ascend-0.23.0.post1",
        "series_sha256": "1" * 64,
        "local_version": "ascend.p0",
        "plugin": "vllm-ascend",
        "plugin_version": "0.23.0.post1",
        "plugin_series_sha256": "2" * 64,
        "plugin_local_version": "p0",
        "soc_version": "ascend910b1",
        "host": "build01",
    }
    (because,) = [d["because"] for d in planned["decisions"] if d["rule"] == "R_BUILD_HOST"]
    assert "it is x86_64" in because


def test_each_family_has_its_own_build_and_a_host_of_the_architecture_goes_first():
    hosts = {
        name: {
            "groups": ["engines", f"pool_{name}"],
            "request": {"model": "qwen3-8b"},
            "hardware": machine(m),
            "address": a,
        }
        for name, m, a in (("a", "atlas-800t-a2", "192.0.2.1"), ("b", "atlas-800i-a3", "192.0.2.2"))
    }
    hosts["build01"] = {"groups": ["build"], "hardware": machine("epyc-virtual")}
    hosts["build02"] = {"groups": ["build"], "hardware": machine("kylin-v10-kunpeng")}
    planned = plan_fleet(Inputs(hosts, RAW, overrides=golden.SERIES, flags=golden.flags()))
    found = {b["build"]: (b["soc_version"], b["host"]) for b in planned["builds"]}
    assert found == {
        "vllm-0.23.0-ascend-a2-aarch64": ("ascend910b1", "build02"),
        "vllm-0.23.0-ascend-a3-aarch64": ("ascend910_9391", "build02"),
    }


@pytest.mark.parametrize("missing", ["vllm", "vllm-ascend"])
def test_a_row_that_needs_patches_needs_those_of_its_plugin_too(missing):
    catalogue = golden.merge(RAW, {"rows": {"vllm-ascend-0.23.0.post1": {"requires_series": True}}})
    given = copy.deepcopy({**golden.SERIES, missing: {}})
    host = {"groups": ["engines", "pool_a"], "request": {"model": "qwen3-8b"}, "hardware": machine("atlas-800t-a2")}
    build = {"groups": ["build"]}
    planned = plan_fleet(Inputs({"npu1": host, "b": build}, catalogue, overrides=given, flags=golden.flags()))
    (problem,) = planned["problems"]
    assert problem["code"] == "E_SERIES_MISSING"
    assert f"engine_overrides/{missing}/0.23.0" in problem["set"]


@pytest.mark.parametrize("driver", ["25.foo", "unknown"])
def test_a_driver_that_is_no_version_is_said_and_not_fallen_over(driver):
    hardware = machine("atlas-800t-a2")
    hardware["software"]["ascend"]["driver"] = driver
    assert [p["code"] for p in plan(hardware)["problems"]] == ["E_DRIVER"]
    assert [p["code"] for p in plan(machine("atlas-800t-a2"), driver="25.foo")["problems"]] == ["E_DRIVER"]
