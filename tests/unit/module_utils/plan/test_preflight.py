# SPDX-License-Identifier: Apache-2.0
"""Every check of the preflight: nothing is said of a right value, the code with seen and needed of a wrong one."""

import copy
import json
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan import specifications
from ansible.module_utils.vllm_ansible.plan.canonical import GIB
from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, plan_fleet
from ansible.module_utils.vllm_ansible.plan.reader import Reader
from hypothesis import given, settings
from hypothesis import strategies as st

from tools import golden

ROOM = {"disks": [{"mount": "/", "size_bytes": 9 * 10**12, "available_bytes": 8 * 10**12, "kind": "nvme"}], "paths": {}}
RUNNING = "5.10.0-60.18.0.50.oe2203.aarch64"
OTHER = "5.10.0-60.139.0.166.oe2203.aarch64"
FREE = {"owner": "HwHiAiUser", "group": "HwHiAiUser", "mode": "0666"}


def facts(machine: str = "atlas-800t-a2") -> dict[str, Any]:
    return {**json.loads((golden.MACHINES / machine / "facts.json").read_text()), **copy.deepcopy(ROOM)}


def put(tree: Any, path: str, value: Any) -> None:
    """Set one value; ``*`` in the path is every entry of a list."""
    key, _, rest = path.partition(".")
    for place in range(len(tree)) if key == "*" else [int(key) if isinstance(tree, list) else key]:
        if rest:
            put(tree[place], rest, value)
        else:
            tree[place] = value


def plan(*machines: dict[str, Any], applied: Any = None, **request: Any) -> dict[str, Any]:
    hosts: dict[str, Any] = {"build01": {"groups": ["build"]}}
    for number, hardware in enumerate(machines, 1):
        hosts[f"h{number}"] = {
            "groups": ["engines", "pool_a"], "request": {"model": "qwen3-8b", **request}, "hardware": hardware,
            "address": hardware.get("default_address") if len(machines) == 1 else f"192.0.2.{number}",
            **({"applied": applied} if applied else {}),
        }  # fmt: skip
    flags = golden.flags()
    return plan_fleet(Inputs(hosts, golden.catalogue(), overrides=golden.SERIES, flags=flags))


def said(planned: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return code -> (seen, needed) of what has a needed value."""
    found = planned["problems"] + planned["warnings"]
    assert all(entry["set"] and entry["host"] and entry["field"] for entry in found if "needed" in entry)
    return {entry["code"]: (entry["seen"], entry["needed"]) for entry in found if "needed" in entry}


@pytest.mark.parametrize(
    "machine",
    ["atlas-800t-a2", "atlas-800i-a2", "atlas-800i-a3", "atlas-300i-duo", "h200-8", "a100-4",
     "l20-2", "kunpeng-a100-1"],
)  # fmt: skip
def test_nothing_is_said_of_a_machine_that_is_as_it_should_be(machine):
    planned = plan(facts(machine))
    assert planned["ok"], planned["problems"]
    assert said(planned) == {}


@pytest.mark.parametrize(
    ("changes", "code", "seen", "needed"),
    [
        ({"clock.synchronised": False, "clock.source": None}, "W_CLOCK", "no time service runs",
         "a synchronised clock"),
        ({"clock.synchronised": False}, "W_CLOCK", "chrony runs", "a synchronised clock"),
        ({"kernel.default_entry": OTHER}, "W_KERNEL_ENTRY", OTHER, RUNNING),
        ({"kernel.devel": [OTHER]}, "W_KERNEL_DEVEL", OTHER, RUNNING),
        ({"kernel.devel": [], "kernel.headers": []}, "W_KERNEL_DEVEL", "none", RUNNING),
        ({"kernel.headers": [OTHER]}, "W_KERNEL_DEVEL", OTHER, RUNNING),
        ({"accelerators.*.compatibility": "NOT OK"}, "W_NPU_FIRMWARE",
         "NOT OK (driver 25.5.0, firmware 7.8.0.5.201)", "OK"),
        ({"software.ascend.driver": "25.2.0"}, "W_NPU_REBOOT", "25.5.0", "25.2.0"),
        ({"warnings": [{"code": "W_NPU_NOT_ROOT", "message": "…"}]}, "W_NPU_NOT_ROOT", "an ordinary user", "root"),
        ({"davinci.devices": ["/dev/davinci0"]}, "W_NPU_DEVICES",
         "1 of /dev/davinci*", "8 of /dev/davinci* and their managers"),
        ({"davinci.managers.1.present": False}, "W_NPU_DEVICES",
         "8 of /dev/davinci*, no /dev/devmm_svm", "8 of /dev/davinci* and their managers"),
        ({"davinci.access.0.group": "root"}, "E_NPU_ACCESS", "HwHiAiUser:root 0660", "group HwHiAiUser with mode 0660"),
        ({"davinci.access.0.mode": "0640"}, "E_NPU_ACCESS",
         "HwHiAiUser:HwHiAiUser 0640", "group HwHiAiUser with mode 0660"),
        ({"davinci.managers.0.mode": "0600"}, "E_NPU_ACCESS",
         "HwHiAiUser:HwHiAiUser 0600", "group HwHiAiUser with mode 0660"),
        ({"accelerators.2.link.width": 8}, "W_PCIE_LINK", "x8", "x16"),
        ({"accelerators.2.link.width": 8, "accelerators.2.slot.max_width": 8}, "W_PCIE_LINK",
         "x8 in a slot of x8", "x16"),
        ({"accelerators.*.link.speed_gts": 8.0}, "W_PCIE_LINK", "8 GT/s", "16 GT/s"),
        ({"accelerators.2.link.width": 4, "accelerators.2.link.speed_gts": 2.5}, "W_PCIE_LINK",
         "x4 at 2.5 GT/s", "x16 at 16 GT/s"),
        ({"accelerator_links.0.link": "PHB"}, "W_DEVICE_LINKS", "PHB between 0 and 1", "HCCS between all"),
        ({"accelerator_links.*.link": "SYS"}, "W_DEVICE_LINKS",
         "SYS between 0 and 1, 27 more pairs", "HCCS between all"),
        ({"nics.0.speed_mbps": 1000}, "W_NIC_SPEED", "1000 Mbit/s", "10000 Mbit/s"),
        ({"hccn.*.speed_mbps": 100000}, "W_NPU_PORT_SPEED", "100000 Mbit/s", "200000 Mbit/s"),
        ({"cpu.cores": 144}, "W_CPU_LAYOUT", 144, 192),
        ({"disks.0.size_bytes": 10**11}, "W_DISK_SIZE", "93.1 GiB", "279.4 GiB"),
        ({"disks.0.kind": "hdd"}, "W_DISK_KIND", "hdd", "nvme or ssd"),
        ({"disks.0.kind": "hdd", "disks.0.raid": "megaraid_sas"}, "W_DISK_KIND",
         "hdd behind megaraid_sas", "nvme or ssd"),
        ({"memory.modules": {"populated_channels": 31, "channels": 32}}, "W_MEMORY_CHANNELS", 31, 32),
        ({"disks.0.available_bytes": 10 * GIB}, "E_DISK", "10.0 GiB free", None),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_the_needed_one(changes, code, seen, needed):
    hardware = facts()
    for path, value in changes.items():
        put(hardware, path, value)
    planned = plan(hardware)
    found = said(planned)
    assert set(found) == {code}
    assert found[code] == (seen, found[code][1] if needed is None else needed)
    assert planned["ok"] == code.startswith("W_")


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel": {"release": RUNNING, "default_entry": None, "devel": [], "headers": [], "installed": []}},
        {"davinci.access": [FREE], "davinci.managers": []},
        {"davinci.managers.0.present": False, "software.ascend.driver": None, "accelerators.*.driver": None},
        {"clock": {"synchronised": None, "source": None}},
        {"accelerators.*.link": None},
        {"accelerators.*.link.width": None},
        {"accelerator_links": []},
        {"nics.0.speed_mbps": None},
        {"hccn.*.speed_mbps": None},
        {"cpu.cores": None},
        {"disks.0.size_bytes": None, "disks.0.kind": None},
        {"disks.0.kind": "virtual"},
        {"memory.modules": None},
        {"memory.modules": {"populated_channels": 32, "channels": 32}},
        {"memory.modules": {"populated_channels": None, "channels": None, "populated": 8, "slots": 32}},
        {"accelerators.*.used_bytes": None, "accelerators.*.processes": None, "accelerators.*.compatibility": None},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_what_is_unknown_or_all_right_is_not_complained_about(changes):
    hardware = facts()
    for path, value in changes.items():
        put(hardware, path, value)
    assert said(plan(hardware)) == {}


def test_facts_of_an_earlier_version_say_nothing_of_what_they_lack():
    hardware = facts()
    for key in ("kernel", "clock", "davinci"):
        del hardware[key]
    del hardware["memory"]["modules"]
    for npu in hardware["accelerators"]:
        for key in ("slot", "compatibility", "processes"):
            del npu[key]
    assert said(plan(hardware)) == {}


def test_two_npus_of_eight_that_the_tool_lost_are_named_by_their_bus():
    hardware = facts()
    for place in (0, 1):
        npu = hardware["accelerators"][place]
        npu.update(
            index=None, health="Lost", problems=["PCI lists it, npu-smi does not: it has failed or is not ready"]
        )
    (warning,) = [w for w in plan(hardware)["warnings"] if w["code"] == "W_DEVICE_SICK"]
    first, second = (hardware["accelerators"][place]["pci"] for place in (0, 1))
    assert warning["message"].startswith("2 of 8 devices of h1 cannot be used")
    assert f"device {first}, {second}" in warning["message"]


def test_two_npus_of_eight_that_left_the_bus_are_counted():
    hardware = facts()
    gone = {npu["index"] for npu in hardware["accelerators"][:2]}
    hardware["accelerators"] = hardware["accelerators"][2:]
    hardware["accelerator_links"] = [e for e in hardware["accelerator_links"] if not gone & {e["a"], e["b"]}]
    assert said(plan(hardware)) == {"W_DEVICE_COUNT": (6, "8 or 16")}


def test_more_devices_than_servers_of_ours_have_are_none_too_few():
    hardware = facts()
    npu = hardware["accelerators"][0]
    hardware["accelerator_links"] = []
    hardware["accelerators"] += [{**npu, "pci": f"0000:e{n}:00.0", "index": 8 + n} for n in range(9)]
    assert "W_DEVICE_COUNT" not in said(plan(hardware))


def test_a_health_alarm_names_the_device_and_leaves_it_out():
    hardware = facts()
    npu = hardware["accelerators"][3]
    npu.update(health="Alarm", problems=["npu-smi says Alarm, error code 80E01801"])
    planned = plan(hardware)
    (warning,) = [w for w in planned["warnings"] if w["code"] == "W_DEVICE_SICK"]
    assert f"error code 80E01801 (device {npu['index']})" in warning["message"]
    assert npu["index"] not in planned["groups"][0]["devices"]["h1"]


def process(unit: str | None, gib: int) -> dict[str, Any]:
    return {"pid": 9, "name": "python", "memory_bytes": gib * GIB, "unit": unit}


@pytest.mark.parametrize(
    ("used", "processes", "applied", "found"),
    [
        (6, [], {}, {}),
        (58, [process("vllm-a.service", 56)], {}, {}),  # our own service on a second run
        (58, None, {"slices": {}}, {}),  # nobody says whose it is, and an engine of ours was deployed
        (8, [process("jupyter.service", 5)], {}, {"W_DEVICE_BUSY": ("up to 8.0 GiB", "idle devices")}),
        (58, None, {}, {"W_DEVICE_BUSY": ("up to 58.0 GiB", "idle devices")}),
        (43, [process("jupyter.service", 40)], {}, {"E_DEVICE_BUSY": ("21.0 GiB free", "58.9 GiB free")}),
        (43, [process(None, 40)], {"slices": {}}, {"E_DEVICE_BUSY": ("21.0 GiB free", "58.9 GiB free")}),
        (63, [process("vllm-a.service", 22), process("x.service", 38)], {},
         {"E_DEVICE_BUSY": ("23.0 GiB free", "58.9 GiB free")}),
    ],
)  # fmt: skip
def test_memory_that_others_hold(used, processes, applied, found):
    hardware = facts()
    hardware["accelerators"][0].update(used_bytes=used * GIB, processes=processes)
    planned = plan(hardware, applied=applied)
    assert {code: seen for code, (seen, _needed) in said(planned).items()} == {c: s for c, (s, _n) in found.items()}
    for problem in planned["problems"]:
        assert "python (" in problem["message"]


def pair(**changes: Any) -> list[dict[str, Any]]:
    both = [facts(), facts()]
    for path, value in changes.items():
        put(both[1], path.replace("__", "."), value)
    return both


@pytest.mark.parametrize(
    ("changes", "code", "host", "seen", "needed"),
    [
        ({"hccn__3__link": "DOWN"}, "E_NPU_LINK", "h2", "DOWN on NPU 3", "UP on all"),
        ({"hccn__3__tls": True}, "E_NPU_TLS", "h2", "on for 1 of them, first NPU 3", "off, as for the other 15"),
        ({"hccn__3__address": None}, "W_NPU_NETWORK", "h2",
         "NPU 3 has address none, link UP, health Success", "an address, link UP and health Success on every NPU"),
        ({"hccn__3__health": "Unreachable"}, "W_NPU_NETWORK", "h2",
         "NPU 3 has address 198.51.100.24, link UP, health Unreachable",
         "an address, link UP and health Success on every NPU"),
    ],
)  # fmt: skip
def test_the_network_of_npus_in_a_replica_over_two_hosts(changes, code, host, seen, needed):
    planned = plan(*pair(**changes), model="deepseek-r1-w8a8")
    (entry,) = [e for e in planned["problems"] + planned["warnings"] if "needed" in e]
    assert (entry["code"], entry["host"]) == (code, host)
    assert entry["needed"] == needed
    assert entry["seen"].replace("198.51.100.14", "198.51.100.24") == seen


def test_one_host_alone_needs_no_network_of_its_npus():
    hardware = facts()
    put(hardware, "hccn.*.link", "DOWN")
    put(hardware, "hccn.0.tls", True)
    assert said(plan(hardware)) == {}


def test_hosts_of_an_a3_pod_reach_each_other_without_those_ports():
    both = [facts("atlas-800i-a3"), facts("atlas-800i-a3")]
    put(both[0], "hccn.0.link", "DOWN")
    planned = plan(*both, model="deepseek-r1-w8a8", nodes=2)
    assert planned["ok"], planned["problems"]
    assert set(said(planned)) == {"W_NPU_NETWORK"}


def test_an_idle_gpu_may_slow_its_link_down_and_not_narrow_it():
    hardware = facts("a100-4")
    assert hardware["accelerators"][0]["link"]["speed_gts"] < 16
    hardware["accelerators"][0]["link"]["width"] = 8
    assert said(plan(hardware)) == {"W_PCIE_LINK": ("x8", "x16")}


def test_kunpeng_hosts_without_accelerators_fill_their_memory_channels():
    hardware = facts("taishan-2280-v2")
    hardware["memory"]["modules"] = {"populated_channels": 8, "channels": 16}
    assert said(plan(hardware, model="smollm2-135m-instruct"))["W_MEMORY_CHANNELS"] == (8, 16)
    hardware["memory"]["modules"]["channels"] = None
    assert said(plan(hardware, model="smollm2-135m-instruct"))["W_MEMORY_CHANNELS"] == (8, 16)


def test_a_site_lays_its_own_specification_over_ours():
    catalogue = copy.deepcopy(golden.catalogue())
    catalogue["specifications"]["atlas-a2"]["nic_mbps"] = 100000
    host = {"groups": ["engines", "pool_a"], "request": {"model": "qwen3-8b"}, "hardware": facts()}
    planned = plan_fleet(Inputs({"h1": host}, catalogue, overrides=golden.SERIES, flags=golden.flags()))
    assert said(planned) == {"W_NIC_SPEED": ("25000 Mbit/s", "100000 Mbit/s")}


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({"families": ["a2"], "nic_mpbs": 1}, "nic_mpbs"),
        ({"families": ["a4"]}, "families"),
        ({}, "families"),
        ({"families": ["a2"], "cpu_models": ["x"]}, "families"),
        ({"families": ["a2"], "device_links": ["("]}, "device_links"),
        ({"families": ["a2"], "disk_bytes": {"/": "300 GB"}}, "disk_bytes./"),
        ({"families": ["a2"], "weights_disks": ["tape"]}, "weights_disks"),
    ],
)
def test_a_specification_that_cannot_be_read_is_complained_about(entry, field):
    complaints: list[str] = []
    reader = Reader({**entry, "sources": {"x": "y"}}, "s", lambda path, _seen, _wanted: complaints.append(path))
    specifications.read_specification("s", reader)
    assert f"s.{field}" in complaints


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
PLACES = ("kernel", "clock", "davinci", "davinci.access", "davinci.managers", "memory.modules", "accelerator_links",
          "accelerators.0.link", "accelerators.0.slot", "accelerators.0.processes", "accelerators.0.compatibility",
          "accelerators.0.used_bytes", "hccn.0.speed_mbps", "nics.0.speed_mbps", "disks.0.kind", "disks.0.raid",
          "disks.0.size_bytes", "cpu.cores", "kernel.devel")  # fmt: skip
KEYS = ("owner", "group", "mode", "present", "path", "a", "b", "link", "kind", "unit", "memory_bytes", "name")
BASE = json.dumps(facts())


@given(st.sampled_from(PLACES), ANYTHING | st.lists(st.dictionaries(st.sampled_from(KEYS), ANYTHING), max_size=2))
@settings(max_examples=80, deadline=None)
def test_facts_of_any_form_never_make_the_planner_raise(place, value):
    hardware = json.loads(BASE)
    put(hardware, place, value)
    json.dumps(plan(hardware))
