# SPDX-License-Identifier: Apache-2.0
"""npu-smi in every published layout."""

import pytest
from ansible.module_utils.vllm_ansible.hardware import npu_smi

from tools.hardware_machines import MACHINES, load_machine

CAPTURES = {path.name: path.read_text() for path in sorted((MACHINES / "captures").glob("*.txt"))}
A2 = {command: output for command, (_, output, _) in load_machine(MACHINES / "atlas-800i-a2").commands.items()}
MIB = 2**20


def chips(text):
    return [
        (chip["npu"], chip["name"], chip["chip"], chip["phy_id"], chip["pci"], chip["used_bytes"], chip["memory_bytes"])
        for chip in npu_smi.parse_info(text)["chips"]
    ]


def test_a2_has_one_chip_per_npu_and_no_physical_id():
    found = chips(A2["npu-smi info"])
    assert len(found) == 8
    assert found[:2] == [
        (0, "910B4", 0, None, "0000:c1:00.0", 2654 * MIB, 32768 * MIB),
        (1, "910B4", 0, None, "0000:c2:00.0", 2654 * MIB, 32768 * MIB),
    ]


@pytest.mark.parametrize(
    ("name", "version", "used"),
    [
        ("a3-24.1.rc3.7-info.partial.txt", "24.1.rc3.7", (3397, 3186)),
        ("a3-26.0.rc2-info.partial.txt", "26.0.rc2", (3419, 2874)),
    ],
)
def test_a3_has_two_chips_with_a_bus_each_in_both_widths(name, version, used):
    assert npu_smi.parse_info(CAPTURES[name])["version"] == version
    assert chips(CAPTURES[name]) == [
        (0, "Ascend910", 0, 0, "0000:9d:00.0", used[0] * MIB, 65536 * MIB),
        (0, "Ascend910", 1, 1, "0000:9f:00.0", used[1] * MIB, 65536 * MIB),
    ]


def test_310p_has_no_hbm_column_and_two_chips_on_one_bus():
    assert chips(CAPTURES["310p3-duo-25.2.0-info.partial.txt"]) == [
        (2, "310P3", 0, 0, "0000:01:00.0", 1529 * MIB, 44280 * MIB),
        (2, "310P3", 1, 1, "0000:01:00.0", 1412 * MIB, 43693 * MIB),
    ]


def test_950_has_no_column_for_chips():
    assert chips(CAPTURES["950-25.7.rc1.6-info.partial.txt"]) == [
        (0, "Ascend950PR", 0, None, "0000:61:00.0", 5239 * MIB, 131072 * MIB)
    ]


def test_a_bus_that_is_not_printed_is_none_and_the_chip_stays():
    text = CAPTURES["950-25.7.rc1.6-info.partial.txt"].replace("0000:61:00.0", "NA          ")
    assert chips(text) == [(0, "Ascend950PR", 0, None, None, 5239 * MIB, 131072 * MIB)]


def test_910a_uses_its_hbm_not_the_memory_of_its_control_processor():
    text = A2["npu-smi info"].replace("0    / 0          2654 / 32768", "2387 / 13553      18   / 32768")
    assert chips(text)[0][5:] == (18 * MIB, 32768 * MIB)


def test_values_may_touch_the_slash_and_huge_pages_may_be_in_use():
    text = (
        A2["npu-smi info"]
        .replace("2654 / 32768", "26838/ 32768")
        .replace("0    / 0             |", "18047 / 18047     |")
    )
    assert chips(text)[0][5:] == (26838 * MIB, 32768 * MIB)
    assert len(chips(text)) == 8


def test_columns_are_found_by_their_titles_wherever_they_stand():
    swapped = []
    for line in A2["npu-smi info"].splitlines():
        cells = line.split("|")
        swapped.append("|".join([cells[0], cells[2], cells[1], *cells[3:]]) if len(cells) == 5 else line)
    assert chips("\n".join(swapped)) == chips(A2["npu-smi info"])


def test_health_words_are_taken_as_they_are_printed():
    text = A2["npu-smi info"].replace("| OK            | 87.2", "| Alarm         | 87.2")
    assert [chip["health"] for chip in npu_smi.parse_info(text)["chips"]] == ["Alarm", *["OK"] * 7]


def test_processes_are_no_chips_and_a_repeated_chip_counts_once():
    busy = A2["npu-smi info"].replace(
        "| No running processes found in NPU 0                                                            |",
        "| 0       0                 | 139667        | python                   | 30780                   |",
    )
    assert chips(busy) == chips(A2["npu-smi info"])
    assert chips(A2["npu-smi info"] * 2) == chips(A2["npu-smi info"])


def test_a_row_without_its_partner_gives_no_chip_and_breaks_no_other():
    lines = A2["npu-smi info"].splitlines()
    without_second_row = lines[:7] + lines[8:]
    assert [chip[0] for chip in chips("\n".join(without_second_row))] == [1, 2, 3, 4, 5, 6, 7]
    without_first_row = lines[:6] + lines[7:]
    assert [chip[0] for chip in chips("\n".join(without_first_row))] == [1, 2, 3, 4, 5, 6, 7]


def test_a_cell_with_too_few_words_is_unknown_not_shifted():
    text = A2["npu-smi info"].replace(
        "| 0           0    / 0          2653 / 32768         |", "| 2653 / 32768         |"
    )
    assert [chip[6] for chip in chips(text)] == [32768 * MIB] * 7 + [None]


def test_absurd_numbers_are_no_numbers():
    a3 = CAPTURES["a3-26.0.rc2-info.partial.txt"]
    assert chips(a3.replace("| 0     0 ", "| 0     -1"))[0][3] is None
    assert [chip[2] for chip in chips(a3.replace("| 1     1 ", "| -1    1 "))] == [0]
    text = A2["npu-smi info"].replace("2653 / 32768", "2653 / " + "9" * 5000)
    assert chips(text)[7][6] is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (A2["npu-smi info -m"], [(number, 0, number, None, "910B4") for number in range(8)]),
        (
            load_machine(MACHINES / "atlas-800i-a3").commands["npu-smi info -m"][1],
            [(die // 2, die % 2, die, die, "Ascend910") for die in range(16)],
        ),
        # The 950: a slot, no logic id.
        (
            "NPU ID   Slot ID   Chip ID   Chip Phy-ID   Chip Name\n3   1   0   4   Ascend950\n",
            [(3, 0, 4, 4, "Ascend950")],
        ),
        # A chip that is not ready has no logic id.
        ("NPU ID  Chip ID  Chip Logic ID  Chip Name\n5  0  -  Ascend 910B3\n", [(5, 0, None, None, "910B3")]),
        ("", []),
        (None, []),
    ],
)
def test_the_mapping_leaves_out_management_controllers(text, expected):
    found = npu_smi.parse_mapping(text)
    assert [(c["npu"], c["chip"], c["logic_id"], c["phy_id"], c["name"]) for c in found] == expected


def test_the_list_of_npus():
    assert npu_smi.parse_list(A2["npu-smi info -l"]) == {"total": 8, "npus": dict.fromkeys(range(8), 1)}
    assert npu_smi.parse_list(None) == {"total": None, "npus": {}}


def test_board_health_and_usages():
    assert npu_smi.parse_board(CAPTURES["910a-board.txt"]) == {
        "driver": "23.0.5",
        "firmware": "7.1.0.7.220",
        "compatibility": "OK",
        "pci": "0000:61:00.0",
    }
    assert npu_smi.parse_health(CAPTURES["910a-health.txt"]) == {"status": "OK", "code": None, "information": None}
    assert npu_smi.parse_usages(CAPTURES["910a-usages.txt"]) == {0: {"memory_bytes": 31129 * MIB, "used_bytes": 0}}
    ddr = "DDR Capacity(MB) : 21534\nDDR Usage Rate(%) : 10\nChip ID : 0\nDDR Capacity(MB) : 21534\nChip ID : 1\n"
    assert npu_smi.parse_usages(ddr) == {
        0: {"memory_bytes": 21534 * MIB, "used_bytes": 21534 * MIB // 10},
        1: {"memory_bytes": 21534 * MIB, "used_bytes": None},
    }
    assert npu_smi.parse_usages("HBM Capacity(MB) : 131072\nHBM Usage Rate(%) : 4\n")[0]["memory_bytes"] == 131072 * MIB
    assert npu_smi.parse_usages("") == npu_smi.parse_usages(None) == {}


def test_the_version_files():
    assert npu_smi.parse_version_info("Version=25.3.rc1\nascendhal_version=7.35.23\n") == "25.3.rc1"
    assert npu_smi.parse_version_info("") is npu_smi.parse_version_info(None) is None
