# SPDX-License-Identifier: Apache-2.0
"""Parsers of vendor tools: every published layout is read, and no damaged output makes one raise."""

import re

import pytest
from ansible.module_utils.vllm_ansible.binding import parse_dropin, parse_numa_maps
from ansible.module_utils.vllm_ansible.hardware import network, npu_smi, nvidia_smi
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.hardware_machines import MACHINES, load_machine

CAPTURES = {path.name: path.read_text() for path in sorted((MACHINES / "captures").glob("*.txt"))}
ATLAS = {command: output for command, (_, output, _) in load_machine(MACHINES / "atlas-800i-a2").commands.items()}
GIB = 2**30
NVIDIA = (
    "index, name, pci.bus_id, memory.total [MiB], driver_version\n"
    "0, NVIDIA H100 80GB HBM3, 00000000:04:00.0, 81559, 580.126.09\n1, [N/A], 00000000:05:00.0, [N/A], [N/A]\n"
)
NUMA_MAPS = "7f00 bind:1 anon=13 dirty=13 N0=3 N1=10 kernelpagesize_kB=4\n7f10 bind:1 file=/x anon=1 N0=9\n"


def chips(name):
    return [
        (chip["npu"], chip["name"], chip["chip"], chip["phy_id"], chip["pci"], chip["memory_bytes"])
        for chip in npu_smi.parse_info(CAPTURES[name])["chips"]
    ]


@pytest.mark.parametrize("name", ["a3-24.1.rc3.7-info.partial.txt", "a3-26.0.rc2-info.partial.txt"])
def test_a3_has_two_chips_with_a_bus_each(name):
    assert chips(name) == [
        (0, "Ascend910", 0, 0, "0000:9d:00.0", 64 * GIB),
        (0, "Ascend910", 1, 1, "0000:9f:00.0", 64 * GIB),
    ]
    assert npu_smi.parse_info(CAPTURES[name])["version"] in name


def test_310p_has_no_hbm_column_and_two_chips_on_one_bus():
    assert chips("310p3-duo-25.2.0-info.partial.txt") == [
        (2, "310P3", 0, 0, "0000:01:00.0", 44280 * 2**20),
        (2, "310P3", 1, 1, "0000:01:00.0", 43693 * 2**20),
    ]


def test_a_value_may_touch_the_slash_and_processes_are_no_chips():
    busy = re.sub(r"2654 / 32768", "26838/ 32768", ATLAS["npu-smi info"]).replace(
        "| No running processes found in NPU 0                                                            |",
        "| 0       0                 | 139667        | python                   | 30780                   |",
    )
    idle = npu_smi.parse_info(ATLAS["npu-smi info"])["chips"]
    assert [chip["used_bytes"] >> 20 for chip in idle] == [2654] * 7 + [2653]
    expected = [dict(chip, used_bytes=26838 << 20) for chip in idle[:7]] + idle[7:]
    assert npu_smi.parse_info(busy)["chips"] == expected


def test_910a_uses_its_hbm_not_the_memory_of_its_control_processor():
    text = ATLAS["npu-smi info"].replace("0    / 0          2654 / 32768", "2387 / 13553      18   / 32768")
    assert npu_smi.parse_info(text)["chips"][0]["memory_bytes"] == 32 * GIB


def test_the_mapping_leaves_out_management_controllers():
    assert npu_smi.parse_mapping(ATLAS["npu-smi info -m"]) == [
        {"npu": number, "chip": 0, "logic_id": number, "phy_id": None, "name": "910B4"} for number in range(8)
    ]
    assert npu_smi.parse_list(ATLAS["npu-smi info -l"]) == {"total": 8, "npus": dict.fromkeys(range(8), 1)}


def test_the_driver_version_file():
    assert npu_smi.parse_version_info("Version=25.3.rc1\nascendhal_version=7.35.23\n") == "25.3.rc1"
    assert npu_smi.parse_version_info("") is npu_smi.parse_version_info(None) is None


def test_numa_maps_count_private_memory_by_page_size():
    assert parse_numa_maps(NUMA_MAPS) == {0: 3 * 4096, 1: 10 * 4096}
    huge = "7f00 default anon=2 huge N0=2 kernelpagesize_kB=2048\n8000 default anon=1 N1=1 kernelpagesize_kB=64\n"
    assert parse_numa_maps(huge) == {0: 2 * 2048 * 1024, 1: 64 * 1024}


@st.composite
def damaged(draw, texts):
    """One of the texts with pieces cut out, doubled or replaced by noise."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 200)))
        piece = draw(st.sampled_from(["", text[start:end] * 2, "|", "\n", " / ", "-", "NA"]) | st.text(max_size=20))
        text = text[:start] + piece + text[end:]
    return text


@settings(deadline=None)  # machines that run tests are busy
@given(damaged([*CAPTURES.values(), ATLAS["npu-smi info"]]))
def test_damaged_npu_smi_info_gives_only_well_formed_chips(text):
    info = npu_smi.parse_info(text)
    for chip in info["chips"]:
        assert isinstance(chip["npu"], int)
        assert isinstance(chip["chip"], int)
        assert isinstance(chip["name"], str)
        assert chip["memory_bytes"] is None or chip["memory_bytes"] > 0
        assert chip["pci"] is None or re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", chip["pci"])


@settings(deadline=None)
@given(damaged([ATLAS["npu-smi info -m"], ATLAS["npu-smi info -l"]]))
def test_damaged_npu_smi_lists_never_raise(text):
    assert all(isinstance(chip["npu"], int) and chip["name"] != "Mcu" for chip in npu_smi.parse_mapping(text))
    assert all(isinstance(number, int) for number in npu_smi.parse_list(text)["npus"])


@settings(deadline=None)
@given(damaged([NVIDIA]))
def test_damaged_nvidia_smi_never_raises(text):
    assert all(gpu["memory_bytes"] is None or gpu["memory_bytes"] > 0 for gpu in nvidia_smi.parse_query(text))


@settings(deadline=None)
@given(damaged([load_machine(MACHINES / "epyc-virtual").commands["ip -j addr"][1]]))
def test_damaged_ip_output_never_raises(text):
    addresses = network.parse_ip_json(text)
    assert addresses is None or all(isinstance(found, list) for found in addresses.values())


@settings(deadline=None)
@given(st.text())
def test_drop_ins_and_numa_maps_may_hold_anything(text):
    assert set(parse_dropin(text)) == {"managed", "cpus", "memory_nodes"}
    assert isinstance(parse_numa_maps(text), dict)
