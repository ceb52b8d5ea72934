# SPDX-License-Identifier: Apache-2.0
"""CPUs near devices: both wirings of an A2, an A3 whose tool names no node, GPUs on two sockets."""

import json
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan import topology
from ansible.module_utils.vllm_ansible.plan.facts import Accelerator, Hardware, Node, read_hardware
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from hypothesis import given
from hypothesis import strategies as st

from tools import golden


def machine(name: str, **over: Any) -> Hardware:
    facts = json.loads((golden.MACHINES / name / "facts.json").read_text())
    found = read_hardware(golden.merge(facts, over), name, Findings())
    assert found is not None
    return found


def device(number: int, node: int | None = None, cpus: tuple[int, ...] = ()) -> Accelerator:
    return Accelerator("npu", "x", 1, node, number, cpus)


@pytest.mark.parametrize("name", ["atlas-800i-a2", "atlas-800t-a2"])
def test_an_a2_gives_each_npu_a_quarter_of_its_node_and_the_one_beside_it(name):
    hardware = machine(name)
    near = topology.near_devices(hardware.nodes, hardware.accelerators, set())
    home = topology.homes(hardware.nodes, hardware.accelerators)
    assert sorted(home) == [0, 0, 2, 2, 4, 4, 6, 6]
    assert {len(cpus) for cpus in near} == {24}
    assert sorted(cpu for cpus in near for cpu in cpus) == list(range(192))
    for own, cpus in zip(home, near, strict=True):
        assert own is not None
        # the odd nodes hold no NPU: each joins the node of its socket
        assert set(topology.nodes_of(hardware.nodes, cpus)) <= {own, own + 1}


def test_an_a3_whose_tool_calls_all_cpus_near_is_divided_in_order():
    hardware = machine("atlas-800i-a3")
    assert set(topology.homes(hardware.nodes, hardware.accelerators)) == {None}
    near = topology.near_devices(hardware.nodes, hardware.accelerators, set())
    assert [len(cpus) for cpus in near] == [20] * 16
    assert near[0] == list(range(20))


def test_gpus_get_the_cpus_of_their_socket():
    hardware = machine("h200-8")
    near = topology.near_devices(hardware.nodes, hardware.accelerators, set())
    home = topology.homes(hardware.nodes, hardware.accelerators)
    for own, cpus in zip(home, near, strict=True):
        assert topology.nodes_of(hardware.nodes, cpus) == [own]


def test_the_topology_tool_counts_more_than_the_bus_unless_it_names_several_nodes():
    nodes = [Node(0, (0, 1), 1), Node(1, (2, 3), 1)]
    assert topology.homes(nodes, [device(0, 0, (2, 3)), device(1, 1, (0, 1, 2)), device(2, 7)]) == [1, 1, None]


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.lists(st.one_of(st.none(), st.integers(0, 7)), max_size=10),
    st.sets(st.integers(0, 40)),
)
def test_no_cpu_is_given_twice_or_taken_from_others(sizes, homes, taken):
    numbers = iter(range(1000))
    nodes = [Node(i, tuple(next(numbers) for _ in range(size)), 1) for i, size in enumerate(sizes)]
    devices = [device(i, home) for i, home in enumerate(homes)]
    near = topology.near_devices(nodes, devices, taken)
    assert len(near) == len(devices)
    given_out = [cpu for cpus in near for cpu in cpus]
    assert len(given_out) == len(set(given_out))
    assert not taken.intersection(given_out)
    assert set(given_out) <= {cpu for node in nodes for cpu in node.cpus}
