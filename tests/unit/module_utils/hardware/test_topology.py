# SPDX-License-Identifier: Apache-2.0
"""The topology matrices of both vendors."""

import pytest
from ansible.module_utils.vllm_ansible.hardware.bounded import clean
from ansible.module_utils.vllm_ansible.hardware.topology import parse_matrix

from tools.hardware_machines import MACHINES, load_machine


def topology(machine):
    commands = load_machine(MACHINES / machine).commands
    return parse_matrix(clean((commands.get("npu-smi info -t topo") or commands["nvidia-smi topo -m"])[1]))


def test_a2_is_a_full_mesh_with_the_cpus_of_each_npu():
    matrix = topology("atlas-800i-a2")
    assert set(matrix["links"].values()) == {"HCCS"}
    assert len(matrix["links"]) == 28
    assert [matrix["cpus"][f"NPU{number}"] for number in (0, 2, 4, 6)] == ["144-167", "96-119", "0-23", "48-71"]


def test_a3_names_dies_by_physical_id_and_prints_no_cpus():
    matrix = parse_matrix((MACHINES / "captures/a3-topo.partial.txt").read_text())
    assert matrix == {"links": {("Phy-ID12", "Phy-ID13"): "SIO"}, "cpus": {}}


def test_gpus_with_underlined_titles_doubled_tabs_and_nics():
    matrix = topology("h200-8")
    assert len(matrix["links"]) == 28
    assert set(matrix["links"].values()) == {"NV18"}
    assert (matrix["cpus"]["GPU0"], matrix["cpus"]["GPU7"]) == ("0-47,96-143", "48-95,144-191")
    assert topology("l20-2")["links"] == {("GPU0", "GPU1"): "SYS"}
    assert topology("kunpeng-a100-1") == {"links": {}, "cpus": {"GPU0": "64-95"}}


@pytest.mark.parametrize(
    ("text", "links", "cpus"),
    [
        # Pasted with blanks; a title that touches the next one.
        ("GPU0 GPU1    CPU Affinity  NUMA Affinity  GPU NUMA ID\nGPU0  X  NODE 0-15 0 N/A\nGPU1 NODE  X  0-15 0 N/A\n",
         {("GPU0", "GPU1"): "NODE"}, {"GPU0": "0-15", "GPU1": "0-15"}),
        # Before R535 there was no third title, and CPUs may be a list.
        ("\tGPU0\tmlx5_0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0,2,4\t0\nmlx5_0\tPIX\t X \t\t\n",
         {}, {"GPU0": "0,2,4"}),
        # A GPU whose NVLinks are down reaches the others by PCIe, in one direction as printed.
        ("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV18\tNODE\nGPU1\tNV18\t X \tSYS\nGPU2\tNODE\tSYS\t X \n",
         {("GPU0", "GPU1"): "NV18", ("GPU0", "GPU2"): "NODE", ("GPU1", "GPU2"): "SYS"}, {}),
        ("     NPU0     NPU1     NIC0\nNPU0     X        UB       NA\nNPU1     UB       X        NA\n",
         {("NPU0", "NPU1"): "UB"}, {}),
        ("NPU0 NPU3 CPU Affinity\nNPU0 X NA 0-23\nNPU3 NA X 24-47\n", {}, {"NPU0": "0-23", "NPU3": "24-47"}),
        ("", {}, {}), (None, {}, {}), ("NPU0 X HCCS 0-3\n", {}, {}),
    ],
)  # fmt: skip
def test_other_shapes(text, links, cpus):
    assert parse_matrix(text) == {"links": links, "cpus": cpus}
