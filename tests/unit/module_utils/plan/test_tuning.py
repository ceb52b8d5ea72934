# SPDX-License-Identifier: Apache-2.0
"""What the operating system of a host is tuned to: the platform's profile, with the site's own values."""

import json
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, plan_fleet

from tools import golden

MODELS = {"cpu": "smollm2-135m-instruct", "npu": "qwen3-8b", "gpu": "qwen3-8b"}


def plan(machine: str, tuning: Any = None, **facts: Any) -> dict[str, Any]:
    hardware = golden.merge(json.loads((golden.MACHINES / machine / "facts.json").read_text()), facts)
    kind = hardware["accelerators"][0]["kind"] if hardware["accelerators"] else "cpu"
    own = {"groups": ["engines", "pool_a", "build"], "request": {"model": MODELS[kind]}, "hardware": hardware}
    hosts = {"host1": {**own, "tuning": tuning}}
    return plan_fleet(Inputs(hosts, golden.catalogue(), overrides=golden.SERIES, flags=golden.flags()))


def tuned(machine: str, tuning: Any = None, **facts: Any) -> dict[str, Any]:
    planned = plan(machine, tuning, **facts)
    assert planned["ok"], planned["problems"]
    return planned["hosts"]["host1"]["slices"].get("tuned_profile", {})


@pytest.mark.parametrize(
    ("machine", "profile", "irqbalance"),
    [
        ("atlas-800t-a2", "vllm-ascend", "stop"),
        ("h200-8", "vllm-nvidia", "keep"),
        ("taishan-2280-v2", "vllm-kunpeng", "keep"),
        ("xeon-8480-two-sockets", "vllm-cpu", "keep"),
    ],
)
def test_each_kind_of_host_has_its_profile(machine, profile, irqbalance):
    found = tuned(machine)
    assert (found["profile"], found["irqbalance"], found["governor"]) == (profile, irqbalance, "performance")
    assert found["sysctls"]["kernel.numa_balancing"] == "0"
    assert (found["hugepages"], found["reserved_ports"], found["banned_cpus"]) == ([], "", "")


@pytest.mark.parametrize(
    ("release", "there"),
    [("4.19.90-52.22.v2207.ky10.aarch64", True), ("5.10.0-60.aarch64", True), ("5.13.0-1", False), ("6.6.0-1", False)],
)
def test_a_setting_that_newer_kernels_do_not_have_is_not_set_there(release, there):
    found = tuned("taishan-2280-v2", kernel={"release": release})
    assert ("kernel.sched_migration_cost_ns" in found["sysctls"]) is there


@pytest.mark.parametrize("virtualization", ["systemd-nspawn", "docker", "podman"])
def test_nothing_is_set_in_a_container_which_has_no_kernel_of_its_own(virtualization):
    assert tuned("epyc-virtual", os={"virtualization": virtualization}) == {}
    assert tuned("epyc-virtual", os={"virtualization": "kvm"}) != {}


def test_a_site_sets_what_it_wants_or_nothing():
    assert tuned("h200-8", {"enabled": False}) == {}
    found = tuned("h200-8", {
        "sysctls": {"vm.swappiness": 10, "net.core.somaxconn": "4096"}, "transparent_hugepages": "keep",
        "governor": "", "irqbalance": "banned", "banned_cpus": "0-7",
    })  # fmt: skip
    assert found["sysctls"]["vm.swappiness"] == "10"
    assert found["sysctls"]["net.core.somaxconn"] == "4096"
    assert (found["transparent_hugepages"], found["governor"]) == (None, None)
    assert (found["irqbalance"], found["banned_cpus"]) == ("banned", "0-7")


@pytest.mark.parametrize(
    ("machine", "wish", "pages"),
    [
        ("h200-8", {"gib": 3}, (2048, 1536, None)),
        ("kunpeng-a100-1", {"gib": 3}, (524288, 6, None)),
        ("kunpeng-a100-1", {"size_kib": 2048, "count": 5, "node": 1}, (2048, 5, 1)),
        ("h200-8", {"size_kib": 1048576, "count": 4, "node": 0}, (1048576, 4, 0)),
    ],
)
def test_huge_pages_have_the_sizes_of_the_kernel(machine, wish, pages):
    (found,) = tuned(machine, {"hugepages": [wish]})["hugepages"]
    assert (found["size_kib"], found["count"], found["node"]) == pages


@pytest.mark.parametrize(
    ("tuning", "code"),
    [
        ({"hugepages": [{"size_kib": 524288, "count": 1}]}, "E_HUGEPAGES"),
        ({"hugepages": [{"gib": 1, "node": 9}]}, "E_HUGEPAGES"),
        ({"hugepages": [{"gib": 1500}]}, "E_HUGEPAGES"),
        ({"hugepages": [{"count": 1}]}, "E_REQUEST_VALUE"),
        ({"hugepages": [{"gib": 1, "size": 2}]}, "E_REQUEST_VALUE"),
        ({"sysctl": {}}, "E_REQUEST_VALUE"),
        ({"sysctls": {"vm.swappiness": [1]}}, "E_REQUEST_VALUE"),
        ({"transparent_hugepages": "sometimes"}, "E_REQUEST_VALUE"),
        ({"irqbalance": "banned", "banned_cpus": "a-b"}, "E_REQUEST_VALUE"),
        ({"banned_cpus": "0-3"}, "E_REQUEST_VALUE"),
        ("fast", "E_REQUEST_VALUE"),
    ],
)
def test_what_cannot_be_set_is_a_problem(tuning, code):
    assert [p["code"] for p in plan("h200-8", tuning)["problems"]] == [code]
