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


def test_npus_that_share_a_node_each_have_cpus_of_it():
    hardware = machine("atlas-800i-a2")
    near = topology.near_devices(hardware.nodes, hardware.accelerators, set())
    for own, cpus in zip(topology.homes(hardware.nodes, hardware.accelerators), near, strict=True):
        assert topology.nodes_of(hardware.nodes, cpus) == [own, own + 1]  # type: ignore[operator]


def test_threads_of_a_core_stay_together():
    hardware = machine("h200-8")
    near = topology.near_devices(hardware.nodes, hardware.accelerators, set(), hardware.threads_per_core)
    assert near[0] == [*range(12), *range(96, 108)]
    assert near[7] == [*range(84, 96), *range(180, 192)]


FAR = [
    Node(0, tuple(range(8)), 1, ((0, 10), (1, 21))),
    Node(1, tuple(range(8, 16)), 1, ((0, 21), (1, 10))),
]


@pytest.mark.parametrize(("least", "expected"), [(2, range(8)), (5, range(16))])
def test_gpus_all_on_one_node_take_the_other_socket_only_when_they_need_it(least, expected):
    near = topology.near_devices(FAR, [device(number, 0) for number in range(2)], set(), 1, least)
    assert sorted(cpu for cpus in near for cpu in cpus) == list(expected)


def test_devices_nobody_knows_a_node_of_are_not_all_put_on_node_0():
    near = topology.near_devices(FAR, [device(number) for number in range(4)], set())
    assert [topology.nodes_of(FAR, cpus) for cpus in near] == [[0], [0], [1], [1]]


@pytest.mark.parametrize(
    "distances",
    [
        (((0, 10), (1, 10)), ((0, 10), (1, 10))),
        (((0, 10), (1, 20)), ((0, 21), (1, 10))),
        (((0, 20), (1, 10)), ((0, 10), (1, 20))),
        (((0, 10), (1, 0)), ((0, 0), (1, 10))),
        ((), ()),
    ],
)
def test_distances_that_cannot_be_true_decide_nothing(distances):
    nodes = [Node(number, (2 * number, 2 * number + 1), 1, known) for number, known in enumerate(distances)]
    assert not topology.distances_hold(nodes)
    assert topology.near_devices(nodes, [device(0, 0)], set()) == [[0, 1, 2, 3]]
    assert topology.memory_node(nodes, [2, 3]) == 1


def test_a_worker_on_a_node_without_memory_uses_the_nearest_that_has_some():
    nodes = [Node(n, (n,), n % 2, tuple((m, d) for m, d in enumerate(row))) for n, row in enumerate(
        [[10, 12, 20, 22], [12, 10, 22, 24], [20, 22, 10, 12], [22, 24, 12, 10]])]  # fmt: skip
    assert [topology.memory_node(nodes, [n]) for n in range(4)] == [1, 1, 3, 3]
    assert topology.memory_node([Node(0, (0,), 0)], [0]) is None


def test_isolated_and_forbidden_cpus_are_in_no_plan():
    hardware = machine("atlas-800i-a2", cpu={"isolated": "8-23", "allowed": "0-95"})
    assert hardware.cpus == (*range(8), *range(24, 96))


def pools(name: str, allowed: list[int], running: list[int], sliced: bool) -> dict[int, list[int]]:
    hardware = machine(name)
    return topology.engine_pools(hardware.nodes, hardware.accelerators, running, allowed, sliced)


@pytest.mark.parametrize(
    ("name", "own"),
    [("atlas-800i-a2", [6, 6, 4, 4, 0, 0, 2, 2]), ("atlas-800t-a2", [6, 0, 6, 0, 4, 2, 4, 2])],
)
def test_pools_of_an_a2_are_a_node_each_on_the_npus_own_socket(name, own):
    found = pools(name, list(range(192)), list(range(8)), False)
    seen: list[int] = []
    for number, node in enumerate(own):
        # the second NPU of a node gets the node beside it
        start = 24 * (node + seen.count(node))
        assert found[number] == list(range(start, start + 24))
        seen.append(node)


def test_an_npu_without_a_cpu_of_its_own_node_is_not_bound():
    assert pools("atlas-800i-a2", list(range(24, 48)), [4], False) == {}


def test_npus_of_other_engines_have_their_part_of_a_cpuset_too():
    found = pools("atlas-800i-a2", [*range(12), *range(24, 36)], [4], False)
    assert found == {4: list(range(12))}


def test_an_a3_is_sliced_by_number_over_all_of_its_dies():
    assert pools("atlas-800i-a3", list(range(320)), [15, 0], True) == {
        15: list(range(300, 320)),
        0: list(range(20)),
    }
    assert {len(cpus) for cpus in pools("atlas-800i-a3", list(range(20)), [0, 15], True).values()} == {1, 2}


def test_what_is_left_on_an_a3_divides_without_crossing_a_node():
    hardware = machine("atlas-800i-a3")
    reserved = topology.reserved_for_slices(hardware.nodes, 16)
    assert reserved == tuple(cpu for start in range(0, 320, 40) for cpu in (start, start + 1))
    allowed = [cpu for cpu in range(320) if cpu not in reserved]
    for cpus in pools("atlas-800i-a3", allowed, list(range(16)), True).values():
        assert len(topology.nodes_of(hardware.nodes, cpus)) == 1


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
