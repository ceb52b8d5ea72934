# SPDX-License-Identifier: Apache-2.0
"""Every machine of tests/fixtures/hardware, replayed: its committed facts are what the probes make of it."""

import json

import pytest
from ansible.module_utils.vllm_ansible.cpulist import parse_cpulist

from tools.hardware_machines import MACHINES, machine_facts

# The emulated guest has no network, and el7's ip tool no JSON; everything else is known of every machine.
KNOWN_WARNINGS = {
    "atlas-800t-a2-bare": ["W_NPU_TOOL"],
    "qemu-four-nodes": ["W_NO_DEFAULT_ADDRESS"],
    "centos7-gpu": ["W_IP_TOOL"],
}

NAMES = sorted(path.parent.name for path in MACHINES.glob("*/machine.json"))


@pytest.mark.parametrize("name", NAMES)
def test_committed_facts_are_what_the_probes_return(name):
    committed = (MACHINES / name / "facts.json").read_text()
    assert machine_facts(MACHINES / name) == committed, "run: python tools/hardware_machines.py"


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_is_consistent_and_says_where_it_comes_from(name):
    machine = json.loads((MACHINES / name / "machine.json").read_text())
    facts = json.loads((MACHINES / name / "facts.json").read_text())
    assert machine["provenance"] == ("reconstructed" if "hardware" in machine else "recorded")
    assert machine["sources"]
    node_cpus = [cpu for node in facts["numa"]["nodes"] for cpu in parse_cpulist(node["cpus"])]
    assert sorted(node_cpus) == parse_cpulist(facts["cpu"]["online"]), "each CPU belongs to exactly one node"
    assert sum(node["memory_bytes"] for node in facts["numa"]["nodes"]) <= facts["memory"]["total_bytes"]
    # An A3's firmware names no node.
    nodes = {node["id"] for node in facts["numa"]["nodes"]} | ({None} if "a3" in name else set())
    assert {entry["numa_node"] for entry in facts["accelerators"]} <= nodes
    assert [entry["code"] for entry in facts["warnings"]] == KNOWN_WARNINGS.get(name, [])


def test_the_ascend_server_shows_eight_npus_with_memory_node_and_runtime_number():
    facts = json.loads((MACHINES / "atlas-800i-a2" / "facts.json").read_text())
    npus = {entry["index"]: entry for entry in facts["accelerators"]}
    assert {number: npus[number]["pci"][5:7] for number in npus} == {
        0: "c1", 1: "c2", 2: "81", 3: "82", 4: "01", 5: "02", 6: "41", 7: "42",
    }  # fmt: skip
    assert [npus[number]["numa_node"] for number in range(8)] == [6, 6, 4, 4, 0, 0, 2, 2]
    assert {entry["model"] for entry in facts["accelerators"]} == {"910B4"}
    assert {entry["memory_bytes"] for entry in facts["accelerators"]} == {32 * 2**30}
    assert {(entry["driver"], entry["health"]) for entry in facts["accelerators"]} == {("25.0.rc1.1", "OK")}


def test_a_kernel_shows_a_node_without_memory_and_distances():
    facts = json.loads((MACHINES / "qemu-four-nodes" / "facts.json").read_text())
    nodes = facts["numa"]["nodes"]
    assert [node["cpus"] for node in nodes] == ["0-1", "2-3", "4-5", "6-7"]
    assert [node["memory_bytes"] > 0 for node in nodes] == [True, True, True, False]
    assert nodes[1]["distances"] == {"0": 12, "1": 10, "2": 22, "3": 24}


def test_a_kunpeng_with_64_kib_pages_is_described_as_such():
    facts = json.loads((MACHINES / "taishan-2280-v2" / "facts.json").read_text())
    assert facts["memory"]["page_size_bytes"] == 65536
    assert [entry["size_bytes"] for entry in facts["memory"]["hugepages"]] == [2 * 2**20, 512 * 2**20]
    assert (facts["cpu"]["model"], facts["cpu"]["sockets"], facts["cpu"]["cores"]) == ("Kunpeng-920", 2, 128)
    assert facts["numa"]["nodes"][1]["distances"] == {"0": 12, "1": 10, "2": 22, "3": 24}
    assert (facts["os"]["version_id"], facts["os"]["version"]) == ("V10", "V10 (Lance)")
