# SPDX-License-Identifier: Apache-2.0
"""Role numa_policy on an emulated machine with four NUMA nodes: threads, pages and interrupts where the plan says.

The plan's division is the planner's own, the facts are the guest's, the engine is a stand-in.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.cpulist import parse_cpulist

from lab.labtool.common import Lab
from lab.labtool.guest import Guest
from tools import numa_guest

pytestmark = pytest.mark.guest


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with Guest(Lab.from_environment()).running() as started:
        yield started


@pytest.fixture(scope="module")
def planned(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("guest")
    played = numa_guest.play(guest, folder, "facts")
    assert played.returncode == 0, played.stdout + played.stderr
    return numa_guest.plan(guest, json.loads((folder / "facts.json").read_text())), folder


def test_threads_pages_and_interrupts_are_where_the_plan_says(
    guest: Guest, planned: tuple[dict[str, Any], Path]
) -> None:
    slice_, folder = planned
    (instance,) = slice_["instances"]
    ranks = instance["ranks"]
    assert [(rank["cpus"], rank["memory_node"]) for rank in ranks] == [("2-3", 1), ("4-5", 2), ("6-7", 3)]
    before = guest.ssh("cat /proc/irq/*/smp_affinity_list").stdout

    numa_guest.install(guest, [numa_guest.expand(rank["cpus"]) for rank in ranks])
    played = numa_guest.play(guest, folder, "bind", numa_policy_plan=slice_, guest_workers=len(ranks))
    assert played.returncode == 0, played.stdout + played.stderr

    for rank, entry in enumerate(ranks):
        status = guest.ssh(f"cat /proc/$(pgrep -f '^VLLM::Worker_TP{rank} ')/task/*/status").stdout
        seen = [line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list")]
        assert seen == [entry["cpus"]] * 2, "a worker has two threads"
    assert numa_guest.remote_share(guest, [rank["memory_node"] for rank in ranks]) <= 0.01
    # it asked for all eight CPUs: only the cpuset of its control group keeps it inside
    core = guest.ssh("grep Cpus_allowed_list /proc/$(systemctl show -P MainPID vllm-demo.service)/status").stdout
    assert core.split()[1] == instance["cpus"]

    near = parse_cpulist(slice_["interrupts"][0]["cpus"])
    bound = guest.ssh(
        "for i in /sys/class/net/eth0/device/../msi_irqs/*; do cat /proc/irq/${i##*/}/smp_affinity_list; done"
    )
    assert [int(cpu) for cpu in bound.stdout.split()] == [near[place % 2] for place in range(len(bound.stdout.split()))]

    # a thread that leaves its rank is found, and everything can be taken back
    guest.ssh("taskset -acp 4 $(pgrep -f '^VLLM::Worker_TP0 ')")
    again = numa_guest.play(guest, folder, "verify", numa_policy_plan=slice_)
    assert again.returncode != 0
    assert "VLLM::Worker_TP0) may run on CPU 4, which is no free rank's" in again.stdout
    removed = numa_guest.play(guest, folder, "remove", numa_policy_plan=slice_)
    assert removed.returncode == 0, removed.stdout + removed.stderr
    assert guest.ssh("cat /proc/irq/*/smp_affinity_list").stdout == before
    assert guest.ssh("ls /etc/systemd/system/vllm-demo.service.d").returncode != 0
