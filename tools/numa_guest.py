#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What binding changes on an emulated machine with four NUMA nodes: share of remote memory, off and on, in one run.

tools/numa_guest.py          needs qemu-system-x86_64, the lab's base tree and Debian's mirror; about a minute

Four workers of a stand-in engine (lab/vendor/numa_engine.py), one for each of four devices that are said to lie on one
node each. Off: the unit as it is. On: role numa_policy with the plan's division. Remote is what lies on another node
than the worker's device. No engine fits into the guest, so there is no first-token time.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lab.labtool.common import Lab  # noqa: E402 - found only through the line above
from lab.labtool.guest import Guest  # noqa: E402 - found only through the line above
from tools.hardware_machines import import_module_utils  # noqa: E402 - found only through the line above

UNIT = """[Service]
ExecStart=/usr/bin/python3 /root/numa_engine.py {lists}
"""


def plan(guest: Guest, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the slice of role numa_policy: four devices, one on each node, of which the engine has the last three, so
    that one that asks for the whole machine would be seen outside; the NIC's interrupts go to the first node."""
    import_module_utils()
    from ansible.module_utils.vllm_ansible.cpulist import format_cpulist
    from ansible.module_utils.vllm_ansible.plan import topology
    from ansible.module_utils.vllm_ansible.plan.facts import Accelerator, read_hardware
    from ansible.module_utils.vllm_ansible.plan.findings import Findings

    hardware = read_hardware(facts, "guest", Findings())
    assert hardware is not None
    assert topology.distances_hold(hardware.nodes), hardware.nodes
    devices = [Accelerator("npu", "stand-in", 1, node.number, place) for place, node in enumerate(hardware.nodes)]
    near = topology.near_devices(hardware.nodes, devices, set())
    ranks = [
        {"device": place, "cpus": format_cpulist(cpus), "memory_node": topology.memory_node(hardware.nodes, cpus)}
        for place, cpus in enumerate(near)
    ]
    cpus, nodes = [cpu for rank in near[1:] for cpu in rank], [rank["memory_node"] for rank in ranks[1:]]
    instance = {"name": "demo", "cpus": format_cpulist(cpus), "memory_nodes": format_cpulist(nodes), "ranks": ranks[1:]}
    pci = guest.ssh("basename $(readlink -f /sys/class/net/eth0/device/..)").stdout.strip()
    return {"instances": [instance], "interrupts": [{"pci": pci, "cpus": format_cpulist(near[0])}]}


def play(guest: Guest, folder: Path, tags: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run tests/guest/numa.yml against the guest."""
    inventory, extra = folder / "inventory.json", folder / "extra.json"
    inventory.write_text(json.dumps(guest.inventory()))
    extra.write_text(json.dumps({"guest_folder": str(folder), **variables}))
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(inventory), "-e", f"@{extra}"]
    return subprocess.run(
        [*argv, "-t", tags, str(ROOT / "tests/guest/numa.yml")],
        cwd=ROOT, env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip


def install(guest: Guest, lists: list[str]) -> None:
    """Put the stand-in engine and its unit onto the guest."""
    for target, text in (
        ("/root/numa_engine.py", (ROOT / "lab/vendor/numa_engine.py").read_text()),
        ("/etc/systemd/system/vllm-demo.service", UNIT.format(lists=" ".join(lists))),
    ):
        guest.ssh(f"cat > {target} <<'END'\n{text}\nEND")
    guest.ssh("systemctl daemon-reload")


def expand(cpus: str) -> str:
    """Return a CPU list without ranges, as the stand-in reads it."""
    from ansible.module_utils.vllm_ansible.cpulist import parse_cpulist

    return ",".join(str(cpu) for cpu in parse_cpulist(cpus))


def settle(guest: Guest, count: int) -> None:
    """Wait until `count` workers have touched their memory."""
    for _attempt in range(60):
        if guest.ssh("grep -c . /run/numa_engine").stdout.strip() == str(count):
            return
        time.sleep(0.5)
    raise SystemExit(f"the stand-in engine is not ready: {guest.ssh('systemctl status vllm-demo.service').stdout}")


def remote_share(guest: Guest, nodes: list[int]) -> float:
    """Return the share of the workers' anonymous memory that lies on other nodes than `nodes` says, by rank."""
    from ansible.module_utils.vllm_ansible.binding import parse_numa_maps

    remote = total = 0
    for rank, node in enumerate(nodes):
        found = guest.ssh(f"cat /proc/$(pgrep -f '^VLLM::Worker_TP{rank} ')/numa_maps")
        pages = parse_numa_maps(found.stdout)
        total += sum(pages.values())
        remote += sum(pages.values()) - pages.get(node, 0)
    return remote / total if total else 1.0


def main() -> None:
    guest = Guest(Lab.from_environment())
    start = time.monotonic()
    with guest.running(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        booted = time.monotonic()
        facts = play(guest, folder, "facts")
        assert facts.returncode == 0, facts.stdout + facts.stderr
        slice_ = plan(guest, json.loads((folder / "facts.json").read_text()))
        ranks = slice_["instances"][0]["ranks"]
        nodes = [rank["memory_node"] for rank in ranks]
        install(guest, ["-" for _rank in ranks])
        guest.ssh("systemctl restart vllm-demo.service")
        settle(guest, len(ranks))
        off = remote_share(guest, nodes)
        guest.ssh("systemctl stop vllm-demo.service")
        install(guest, [expand(rank["cpus"]) for rank in ranks])
        bound = play(guest, folder, "bind", numa_policy_plan=slice_, guest_workers=len(ranks))
        assert bound.returncode == 0, bound.stdout + bound.stderr
        settle(guest, len(ranks))
        on = remote_share(guest, nodes)
    json.dump(
        {
            "remote_share_off": round(off, 4),
            "remote_share_on": round(on, 4),
            "boot_seconds": round(booted - start, 1),
            "seconds": round(time.monotonic() - start, 1),
            "level": "stand-in engine, emulated machine",
        },
        sys.stdout,
        indent=1,
    )
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
