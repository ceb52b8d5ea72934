# SPDX-License-Identifier: Apache-2.0
"""Addresses for the ports of NPUs, and the NICs and the class of traffic between GPU hosts."""

import json
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan.fabric import read_fabric
from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, plan_fleet

from tools import golden

RANGE = {"devices": "10.20.0.0/24"}
ROOM = {
    "paths": {"/var/lib/vllm": {"available_bytes": 2**42}, "/var/cache/vllm": {"mount": "/d", "available_bytes": 2**42}}
}


def host(number: int, machine: str = "atlas-800t-a2", model: str = "qwen3-8b", pool: str = "a", **more: Any) -> Any:
    facts = golden.merge(json.loads((golden.MACHINES / machine / "facts.json").read_text()), ROOM)
    facts = golden.merge(facts, more.pop("facts", {}))
    own = {"groups": ["engines", f"pool_{pool}"], "request": {"model": model}, "hardware": facts}
    return {**own, "address": f"198.51.100.{number}", "fabric": RANGE, **more}


def plan(hosts: dict[str, Any]) -> dict[str, Any]:
    hosts = {**hosts, "build01": {"groups": ["build"]}}
    return plan_fleet(Inputs(hosts, golden.catalogue(), overrides=golden.SERIES, flags=golden.flags()))


def addresses(planned: dict[str, Any]) -> dict[str, list[str]]:
    assert planned["ok"], planned["problems"]
    found = {name: entry["slices"].get("roce_fabric") for name, entry in planned["hosts"].items()}
    return {name: [d["address"] for d in part["devices"]] for name, part in found.items() if part}


def test_addresses_are_given_in_the_order_of_names_and_a_host_at_the_end_moves_none():
    hosts = {"npu10": host(1), "npu2": host(2)}
    first = addresses(plan(hosts))
    assert first["npu2"] == [f"10.20.0.{n}" for n in range(1, 9)]
    assert first["npu10"] == [f"10.20.0.{n}" for n in range(9, 17)]
    more = addresses(plan({"npu11": host(3), **hosts}))
    assert {name: more[name] for name in first} == first
    assert more["npu11"][0] == "10.20.0.17"


def test_a_host_that_is_left_out_or_cannot_be_read_keeps_its_place():
    hosts = {"a": host(1), "b": host(2), "c": host(3)}
    whole = addresses(plan(hosts))
    hosts["b"] = {**hosts["b"], "hardware": None, "left_out": True}
    assert addresses(plan(hosts)) == {"a": whole["a"], "c": whole["c"]}


def test_gateway_and_edges_of_a_subnet_are_no_devices():
    fabric = {"devices": "10.20.0.0/28", "gateway": "10.20.0.1", "netdetect": "10.20.0.3"}
    (found,) = addresses(plan({"a": host(1, fabric=fabric)})).values()
    assert found == [f"10.20.0.{n}" for n in (2, *range(4, 11))]
    part = plan({"a": host(1, fabric={**fabric, "netdetect": None})})["hosts"]["a"]["slices"]["roce_fabric"]
    assert {(d["netdetect"], d["netmask"]) for d in part["devices"]} == {("10.20.0.1", "255.255.255.240")}


@pytest.mark.parametrize(("machine", "count"), [("atlas-800t-a2", 8), ("atlas-800i-a3", 16)])
def test_devices_are_named_by_their_physical_number(machine, count):
    part = plan({"a": host(1, machine)})["hosts"]["a"]["slices"]["roce_fabric"]
    assert [device["id"] for device in part["devices"]] == list(range(count))
    assert part["tls"] is None


@pytest.mark.parametrize("tls", [0, 1, False, True])
def test_a_wish_for_the_switch_of_tls_settles_a_difference_among_the_hosts(tls):
    on = [
        {"index": n, "device": n, "address": "10.0.0.1", "link": "UP", "health": "Success", "tls": True}
        for n in range(8)
    ]
    off = [{**port, "tls": False} for port in on]
    hosts = {
        name: host(n, model="deepseek-r1-w8a8", facts={"hccn": ports}, fabric=None)
        for n, (name, ports) in enumerate((("a", on), ("b", off)), 1)
    }
    assert [p["code"] for p in plan(hosts)["problems"]] == ["E_NPU_TLS"]
    for entry in hosts.values():
        entry["fabric"] = {**RANGE, "tls": tls}
    planned = plan(hosts)
    assert planned["ok"], planned["problems"]
    assert planned["hosts"]["a"]["slices"]["roce_fabric"]["tls"] == int(tls)
    assert "W_NPU_NETWORK" not in {w["code"] for w in planned["warnings"]}


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"devices": "10.0.0.0/33"}, "devices"),
        ({"devices": "10.0.0.9-10.0.0.1", "netmask": "255.255.255.0"}, "devices"),
        ({"devices": "10.0.0.9-10.0.1.1", "netmask": "255.255.255.0"}, "devices"),
        ({"devices": "10.0.0.1-10.0.0.9"}, "devices"),
        ({"devices": ["10.0.0.0/24", 7]}, "devices"),
        ({"devices": "fd00::/64"}, "devices"),
        ({"gateway": "gw"}, "gateway"),
        ({"priority": 8}, "priority"),
        ({"dscp": -1}, "dscp"),
        ({"mtu": 20}, "mtu"),
        ({"tls": 2}, "tls"),
        ({"interfaces": "eth0"}, "interfaces"),
        ({"device": "10.0.0.0/24"}, "device"),
        ("10.0.0.0/24", ""),
    ],
)
def test_what_is_no_fabric_is_complained_about(raw, field):
    bad: list[str] = []
    read_fabric(raw, lambda where, seen, wanted: bad.append(where))
    assert bad == ["engine_fabric" + ("." + field if field else "")]


def pair(**fabric: Any) -> dict[str, Any]:
    own = {"machine": "h200-8", "model": "deepseek-v3.1", "request": {"model": "deepseek-v3.1", "nodes": 2}}
    return {name: host(n, **own, fabric=fabric or None) for n, name in enumerate("ab", 1)}


@pytest.mark.parametrize(
    ("fabric", "found"),
    [
        ({}, (3, 26, 106)),
        ({"dscp": 24}, (3, 24, 98)),
        ({"priority": 4}, (4, 32, 130)),
        ({"priority": 5, "dscp": 46}, (5, 46, 186)),
        ({"dscp": 0}, (0, 0, 2)),
    ],
)
def test_priority_dscp_and_tos_belong_together(fabric, found):
    part = plan(pair(**fabric))["hosts"]["a"]["slices"]["roce_fabric"]
    assert (part["priority"], part["dscp"], part["tos"]) == found
    assert len(part["interfaces"]) == 8
    assert {i["mtu"] for i in part["interfaces"]} == {9000}


def test_nccl_is_told_of_ports_and_class_and_of_no_place_in_the_table_of_gids():
    hosts = pair(interfaces=["ens2np0"])
    environment = plan(hosts)["hosts"]["b"]["slices"]["engine_service"]["instances"][0]["environment"]
    assert (environment["NCCL_IB_HCA"], environment["NCCL_IB_TC"]) == ("=mlx5_1:1", "106")
    assert "NCCL_IB_GID_INDEX" not in environment
    for entry in hosts.values():
        entry["request"] = {**entry["request"], "extra_env": {"NCCL_IB_TC": "96"}}
    environment = plan(hosts)["hosts"]["b"]["slices"]["engine_service"]["instances"][0]["environment"]
    assert environment["NCCL_IB_TC"] == "96", "a person's own value stays"


def test_a_single_gpu_host_is_left_alone_unless_its_site_says_otherwise():
    alone = host(1, "h200-8", fabric=None)
    assert "roce_fabric" not in plan({"a": alone})["hosts"]["a"]["slices"]
    assert "roce_fabric" in plan({"a": {**alone, "fabric": {}}})["hosts"]["a"]["slices"]
