# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi: the table, what it says of lost GPUs, the head of its screen before and after R610."""

import pytest
from ansible.module_utils.vllm_ansible.hardware import nvidia_smi

HEADER = "index, name, uuid, pci.bus_id, memory.total [MiB], memory.used [MiB], driver_version, mig.mode.current\n"


def test_a_table_is_read_by_its_titles():
    text = HEADER + "1, NVIDIA H100 80GB HBM3, GPU-1, 00000000:04:00.0, 81559, 72459, 580.126.09, Enabled\n"
    assert nvidia_smi.parse_query(text) == [
        {
            "index": 1,
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": "GPU-1",
            "pci": "0000:04:00.0",
            "memory_bytes": 81559 * 2**20,
            "used_bytes": 72459 * 2**20,
            "driver": "580.126.09",
            "mig": True,
            "ecc_uncorrected": None,
            "lost": None,
        }
    ]
    swapped = "pci.bus_id, name, memory.total [MiB]\n00000000:04:00.0, A100, 81920\n"
    assert (nvidia_smi.parse_query(swapped)[0]["name"], nvidia_smi.parse_query(swapped)[0]["index"]) == ("A100", None)


@pytest.mark.parametrize("value", ["[N/A]", "[Not Supported]", "N/A", "[Insufficient Permissions]", ""])
def test_a_value_the_tool_does_not_know_is_none(value):
    gpu = nvidia_smi.parse_query(
        HEADER + f"0, {value}, {value}, 00000000:04:00.0, {value}, {value}, {value}, {value}\n"
    )[0]
    assert [gpu[name] for name in ("name", "uuid", "memory_bytes", "used_bytes", "driver", "mig")] == [None] * 6
    assert gpu["lost"] is None


@pytest.mark.parametrize("value", ["[GPU is lost]", "[Unknown Error]", "ERR!", "[GPU requires reset]"])
def test_a_gpu_that_answers_errors_is_lost(value):
    gpu = nvidia_smi.parse_query(HEADER + f"0, A100, GPU-0, 00000000:04:00.0, {value}, {value}, 580.1, [N/A]\n")[0]
    assert gpu["lost"] == value.strip("[]")
    assert gpu["memory_bytes"] is None


@pytest.mark.parametrize(
    "text",
    [
        "Unable to determine the device handle for GPU 0000:5E:00.0: GPU is lost.  Reboot the system to recover it\n",
        "Unable to determine the device handle for GPU0000:5E:00.0: Unknown Error\n",
        "Unable to determine the device handle for GPU2: 0000:5E:00.0: Unknown Error\nNo devices were found\n",
    ],
)
def test_the_line_about_a_lost_gpu(text):
    (found,) = nvidia_smi.parse_lost(text).items()
    assert found[0] == "0000:5e:00.0"
    assert found[1].startswith(("GPU is lost", "Unknown Error"))


@pytest.mark.parametrize(
    ("line", "driver", "cuda"),
    [
        ("| NVIDIA-SMI 535.129.03   Driver Version: 535.129.03   CUDA Version: 12.2     |", "535.129.03", "12.2"),
        ("| NVIDIA-SMI 550.135      Driver Version: 550.135        CUDA Version: 12.4     |", "550.135", "12.4"),
        ("| NVIDIA-SMI 610.43.02    KMD Version: 610.43.02     CUDA UMD Version: 13.3     |", "610.43.02", "13.3"),
        ("| NVIDIA-SMI 535.129.03   Driver Version: 535.129.03   CUDA Version: N/A      |", "535.129.03", None),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", None, None),
    ],
)
def test_the_head_of_the_screen(line, driver, cuda):
    assert nvidia_smi.parse_banner(line) == {"driver": driver, "cuda": cuda}


def test_the_error_of_a_mismatch_names_the_library():
    text = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n"
    assert nvidia_smi.parse_library_version(text) == "535.161"
    assert nvidia_smi.parse_library_version("") is None


def test_the_field_an_older_tool_refuses():
    text = 'Field "mig.mode.current" is not a valid field to query.\n'
    assert nvidia_smi.parse_unknown_field(text) == "mig.mode.current"
    assert nvidia_smi.parse_unknown_field(None) is None
