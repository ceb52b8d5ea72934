# SPDX-License-Identifier: Apache-2.0
"""Whole machines whose devices, drivers or users are not as they should be."""

import pytest
from ansible.module_utils.vllm_ansible.hardware import nvidia_smi
from ansible.module_utils.vllm_ansible.hardware.facts import gather_hardware

from tools.hardware_machines import MACHINES, load_machine

NO_DRIVER = (MACHINES / "captures/npu-smi-no-driver.txt").read_text()
QUERY = " ".join(nvidia_smi.query())
MODALIAS = "/sys/bus/pci/devices/{}/modalias"


@pytest.fixture
def machine():
    return lambda name: load_machine(MACHINES / name)


def codes(facts):
    return [entry["code"] for entry in facts["warnings"]]


def by_index(facts, key):
    return {entry["index"]: entry[key] for entry in facts["accelerators"]}


def edit(host, command, *replacements):
    code, output, error = host.commands[command]
    for old, new in replacements:
        assert old in output
        output = output.replace(old, new)
    host.commands[command] = (code, output, error)


@pytest.mark.parametrize(
    ("name", "buses", "nodes"),
    [
        ("atlas-800i-a2", "c1 c2 81 82 01 02 41 42", [6, 6, 4, 4, 0, 0, 2, 2]),
        ("atlas-800t-a2", "c1 01 c2 02 81 41 82 42", [6, 0, 6, 0, 4, 2, 4, 2]),
    ],
)
def test_both_wirings_of_an_a2(machine, name, buses, nodes):
    facts = gather_hardware(machine(name))
    addresses, found, cpus = (by_index(facts, key) for key in ("pci", "numa_node", "cpus"))
    assert [addresses[number][5:7] for number in range(8)] == buses.split()
    assert [found[number] for number in range(8)] == nodes
    assert [cpus[number] for number in range(8)] == [f"{24 * node}-{24 * node + 23}" for node in nodes]
    assert {link["link"] for link in facts["accelerator_links"]} == {"HCCS"}


@pytest.mark.parametrize("name", ["atlas-800i-a3", "atlas-800i-a3-old"])
def test_an_a3_has_sixteen_dies_on_eight_boards(machine, name):
    facts = gather_hardware(machine(name))
    assert by_index(facts, "board") == {die: die // 2 for die in range(16)}
    assert by_index(facts, "chip") == {die: die % 2 for die in range(16)}
    assert by_index(facts, "phy_id") == {die: die for die in range(16)}
    assert {entry["memory_bytes"] for entry in facts["accelerators"]} == {64 * 2**30}
    links = {(link["a"], link["b"]): link["link"] for link in facts["accelerator_links"]}
    assert len(links) == 120
    assert (links[(0, 1)], links[(1, 2)], links[(14, 15)]) == ("SIO", "HCCS_SW", "SIO")
    assert [port["device"] for port in facts["hccn"]] == list(range(16))


def test_npu_ids_follow_slots_and_the_runtime_counts_from_zero(machine):
    (npu,) = gather_hardware(machine("atlas-300i-pro"))["accelerators"]
    assert (npu["board"], npu["index"], npu["phy_id"], npu["subsystem"]) == (6, 0, 0, "0200:0100")
    duo = gather_hardware(machine("atlas-300i-duo"))["accelerators"]
    assert [(npu["board"], npu["chip"], npu["index"], npu["numa_node"]) for npu in duo] == [
        (2, 0, 0, 0), (2, 1, 1, 0), (5, 0, 2, 2), (5, 1, 3, 2),
    ]  # fmt: skip


def test_without_a_mapping_the_physical_id_is_the_index(machine):
    host = machine("atlas-800i-a3")
    del host.commands["npu-smi info -m"]
    assert sorted(by_index(gather_hardware(host), "pci")) == list(range(16))


def test_a_missing_npu_leaves_a_gap_and_the_others_keep_their_ports(machine):
    host = machine("atlas-800t-a2")
    del host.files[MODALIAS.format("0000:c2:00.0")]  # NPU 2 fell off the bus before the host booted
    lines = host.commands["npu-smi info"][1].splitlines(keepends=True)
    host.commands["npu-smi info"] = (0, "".join(lines[:12] + lines[15:]), "")
    rows = "".join(f"{npu}  0  {place}  Ascend 910B3\n" for place, npu in enumerate((0, 1, 3, 4, 5, 6, 7)))
    host.commands["npu-smi info -m"] = (0, "NPU ID  Chip ID  Chip Logic ID  Chip Name\n" + rows, "")
    edit(host, "npu-smi info -l", (": 8\n", ": 7\n"))
    facts = gather_hardware(host)
    assert facts["warnings"] == []
    assert by_index(facts, "board") == {0: 0, 1: 1, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7}
    assert [(port["index"], port["device"]) for port in facts["hccn"]][2] == (2, 3)
    assert len(facts["accelerator_links"]) == 21


def test_sick_npus_stay_listed_with_what_is_wrong(machine):
    host = machine("atlas-800t-a2")
    lines = host.commands["npu-smi info"][1].splitlines(keepends=True)
    for place, health in ((6, "Alarm   "), (9, "Critical"), (12, "Warning ")):
        lines[place] = lines[place].replace("OK      ", health)
    host.commands["npu-smi info"] = (0, "".join(lines), "")
    host.commands["npu-smi info -t health -i 0 -c 0"] = (
        0, "Health Status : Alarm\nError Code : 80E01801\nError Information : HBM multi bit ecc\n", "",
    )  # fmt: skip
    facts = gather_hardware(host)
    assert [by_index(facts, "health")[number] for number in range(4)] == ["Alarm", "Critical", "Warning", "OK"]
    problems = by_index(facts, "problems")
    assert problems[0] == ["npu-smi says Alarm, error code 80E01801, HBM multi bit ecc"]
    assert problems[1] == ["npu-smi says Critical"]
    assert problems[3] == []
    assert codes(facts) == ["W_NPU_SICK"] * 3


def test_an_npu_the_driver_lost_stays_listed(machine):
    host = machine("atlas-800i-a2")
    lines = host.commands["npu-smi info"][1].splitlines(keepends=True)
    host.commands["npu-smi info"] = (0, "".join(lines[:6] + lines[9:]), "")  # without NPU 0
    facts = gather_hardware(host)
    lost = [entry for entry in facts["accelerators"] if entry["health"] == "Lost"]
    assert [(entry["pci"], entry["index"], bool(entry["problems"])) for entry in lost] == [("0000:c1:00.0", None, True)]
    assert codes(facts) == ["W_NPU_COUNT", "W_NPU_LOST"]
    assert len(facts["hccn"]) == 7


def test_memory_that_the_overview_does_not_show_is_asked_for(machine):
    host = machine("atlas-800i-a2")
    edit(host, "npu-smi info", ("2653 / 32768", "NA   / NA   "))
    usages = (MACHINES / "captures/910a-usages.txt").read_text()
    host.commands["npu-smi info -t usages -i 7"] = (0, usages, "")
    assert by_index(gather_hardware(host), "memory_bytes")[7] == 31129 * 2**20


def test_a_bus_that_the_overview_does_not_show_is_asked_for(machine):
    host = machine("atlas-300i-pro")
    edit(host, "npu-smi info", ("0000:84:00.0", "NA          "))
    (npu,) = gather_hardware(host)["accelerators"]
    assert (npu["pci"], npu["model"], npu["health"]) == ("0000:84:00.0", "310P3", "OK")


def test_a_950_is_asked_without_a_chip(machine):
    host = machine("atlas-300i-pro")
    host.files[MODALIAS.format("0000:61:00.0")] = "pci:v000019E5d0000D806sv000019E5sd00000001bc12sc00i00\n"
    del host.files[MODALIAS.format("0000:84:00.0")]
    text = (MACHINES / "captures/950-25.7.rc1.6-info.partial.txt").read_text().replace("OK   ", "Alarm")
    host.commands = {"npu-smi info": (0, text, ""), "npu-smi info -t health -i 0": (0, "Error Code : 17\n", "")}
    (npu,) = gather_hardware(host)["accelerators"]
    assert (npu["index"], npu["health"], npu["problems"]) == (0, "Alarm", ["npu-smi says Alarm, error code 17"])


def test_an_upgrade_without_a_reboot_and_a_firmware_that_does_not_match(machine):
    host = machine("atlas-300i-pro")
    host.files["/usr/local/Ascend/driver/version.info"] = "Version=25.5.0\n"
    edit(host, "npu-smi info -t board -i 6", (": OK", ": NOK"))
    facts = gather_hardware(host)
    assert codes(facts) == ["W_NPU_FIRMWARE", "W_NPU_REBOOT"]
    assert (facts["accelerators"][0]["driver"], facts["software"]["ascend"]["driver"]) == ("25.3.rc1", "25.5.0")


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (None, ["W_NPU_TOOL"]),
        ((0, NO_DRIVER, ""), ["W_NPU_DRIVER"]),
        ((255, "", NO_DRIVER), ["W_NPU_DRIVER"]),
        ((0, "", ""), ["W_NPU_DRIVER"]),
        ((124, "", ""), ["W_NPU_DRIVER", "W_TOOL_HANGS"]),
        ((137, "", ""), ["W_NPU_DRIVER", "W_TOOL_HANGS"]),
    ],
)
def test_npus_without_a_working_tool_are_still_listed(machine, answer, wanted):
    host = machine("atlas-800i-a2")
    host.commands["npu-smi info"] = answer
    facts = gather_hardware(host)
    assert codes(facts) == wanted
    assert [(npu["health"], npu["model"], npu["driver"]) for npu in facts["accelerators"]] == [
        (None, None, "25.0.rc1.1")
    ] * 8, "what nobody could say is no verdict"
    assert facts["hccn"] == facts["accelerator_links"] == []


def test_a_node_the_firmware_does_not_name_follows_from_the_cpus(machine):
    host = machine("atlas-800t-a2")
    for path in [path for path in host.files if path.endswith("/numa_node")]:
        host.files[path] = "-1\n"
    for path in [path for path in host.files if path.endswith("/local_cpulist")]:
        host.files[path] = "0-191\n"
    facts = gather_hardware(host)
    assert [by_index(facts, "numa_node")[number] for number in range(8)] == [6, 0, 6, 0, 4, 2, 4, 2]


def test_a_mig_gpu_is_marked(machine):
    host = machine("a100-4")
    edit(host, QUERY, ("41:00.0, 81920, 4, 580.65.06, Disabled", "41:00.0, 81920, 87, 580.65.06, Enabled"))
    facts = gather_hardware(host)
    assert by_index(facts, "mig") == {0: False, 1: True, 2: False, 3: False}
    assert facts["warnings"] == []


def test_uncorrectable_errors_make_a_gpu_sick(machine):
    host = machine("a100-4")
    edit(host, QUERY, ("81:00.0, 81920, 4, 580.65.06, Disabled, 0", "81:00.0, 81920, 4, 580.65.06, Disabled, 3"))
    facts = gather_hardware(host)
    assert (by_index(facts, "health")[2], by_index(facts, "ecc_uncorrected")[2]) == ("Warning", 3)
    assert codes(facts) == ["W_GPU_SICK"]


@pytest.mark.parametrize(
    "answer",
    [
        # The tool lists the rest, names the GPU in a line, or in its values, and in some versions nothing else.
        lambda text: (0, "".join(line for line in text.splitlines(True) if "81:00" not in line), ""),
        lambda text: (15, "".join(line for line in text.splitlines(True) if "81:00" not in line),
                      "Unable to determine the device handle for GPU0000:81:00.0: GPU is lost.\n"),
        lambda text: (0, text.replace("81:00.0, 81920, 4", "81:00.0, [GPU is lost], [GPU is lost]"), ""),
    ],
)  # fmt: skip
def test_a_lost_gpu_stays_listed_and_the_others_are_known(machine, answer):
    host = machine("a100-4")
    host.commands[QUERY] = answer(host.commands[QUERY][1])
    facts = gather_hardware(host)
    assert codes(facts) == ["W_GPU_LOST"]
    assert [(gpu["pci"], gpu["health"]) for gpu in facts["accelerators"]] == [
        ("0000:01:00.0", "OK"), ("0000:41:00.0", "OK"), ("0000:81:00.0", "Lost"), ("0000:c1:00.0", "OK"),
    ]  # fmt: skip
    assert facts["accelerators"][2]["problems"]


def test_a_lost_gpu_may_silence_the_tool(machine):
    host = machine("a100-4")
    host.commands[QUERY] = (15, "Unable to determine the device handle for GPU 0000:81:00.0: GPU is lost.\n", "")
    facts = gather_hardware(host)
    assert {gpu["health"] for gpu in facts["accelerators"]} == {"Lost"}
    assert codes(facts) == ["W_GPU_LOST"] * 4


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ((18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n", ""),
         "535.161; the loaded kernel module is 580.65.06: reboot or reload the modules"),
        ((9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", ""), "communicate"),
        ((6, "No devices were found\n", ""), "No devices were found"),
        ((255, "", ""), "exit status 255"),
    ],
)  # fmt: skip
def test_gpus_without_a_working_driver_are_still_listed(machine, answer, part):
    host = machine("a100-4")
    host.commands[QUERY] = answer
    facts = gather_hardware(host)
    assert codes(facts) == ["W_GPU_DRIVER"]
    assert part in facts["warnings"][0]["message"]
    assert [(gpu["health"], gpu["model"]) for gpu in facts["accelerators"]] == [(None, None)] * 4


def test_fields_an_older_tool_does_not_know_are_left_out(machine):
    host = machine("centos7-gpu")
    answer = host.commands.pop(QUERY)
    fields = list(nvidia_smi.FIELDS)
    for field in ("ecc.errors.uncorrected.volatile.total", "mig.mode.current"):
        host.commands[" ".join(nvidia_smi.query(fields))] = (2, f'Field "{field}" is not a valid field to query.\n', "")
        fields.remove(field)
    rows = [line.rsplit(", ", 2)[0] + "\n" for line in answer[1].splitlines()]
    host.commands[" ".join(nvidia_smi.query(fields))] = (0, "".join(rows), "")
    facts = gather_hardware(host)
    assert codes(facts) == ["W_IP_TOOL"]
    assert [(gpu["model"], gpu["mig"], gpu["health"]) for gpu in facts["accelerators"]] == [
        ("NVIDIA A100 80GB PCIe", None, "OK")
    ] * 4


def test_pci_links_of_devices_and_nics(machine):
    facts = gather_hardware(machine("h200-8"))
    idle = {"speed_gts": 2.5, "width": 16, "max_speed_gts": 32.0, "max_width": 16}
    assert facts["accelerators"][0]["link"] == idle
    assert {nic["name"]: nic["device_id"] for nic in facts["nics"]}["ens1np0"] == "15b3:1021"
    nics = {nic["name"]: nic["link"] for nic in facts["nics"]}
    assert nics["ens1np0"] == {"speed_gts": 32.0, "width": 16, "max_speed_gts": 32.0, "max_width": 16}
    host = machine("h200-8")
    directory = "/sys/bus/pci/devices/0000:1b:00.0"
    for name, text in (("current_link_speed", "Unknown"), ("current_link_width", "255"), ("max_link_speed", "8 GT/s")):
        host.files[f"{directory}/{name}"] = text + "\n"
    link = gather_hardware(host)["accelerators"][0]["link"]
    assert link == {"speed_gts": None, "width": None, "max_speed_gts": 8.0, "max_width": 16}
    assert gather_hardware(machine("centos7-gpu"))["accelerators"][0]["link"] is None
