#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the planner: one JSON line per fleet size, each in a process of its own.

tools/bench_plan.py [SIZE...]   the planner alone, as the module calls it; default 10 100 1000 10000
(tools/bench_playbook.py measures playbooks/plan.yml)

The fleet alternates machines of tests/fixtures/hardware: Atlas A2 in groups of two, Atlas A3, GPU servers, two-socket
CPU servers with one engine per socket, small virtual hosts. Exit status 1: a plan had problems, or a limit was missed
(1,000 hosts within 10 s and 1 GB, 10,000 within 60 s and 4 GB, time per host at most doubled from 100 to 1,000).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import golden  # noqa: E402 - needs the path above

FIXTURES = ROOT / "tests" / "fixtures" / "hardware"
POOLS = (
    ("pool_a2", "atlas-800t-a2", {"model": "deepseek-r1-w8a8"}),
    ("pool_a3", "atlas-800i-a3", {"model": "deepseek-r1-w8a8"}),
    ("pool_gpu", "a100-4", {"model": "deepseek-r1-distill-llama-70b"}),
    ("pool_large", "xeon-8480-two-sockets", {"model": "deepseek-v3-tiny-random", "replicas_per_host": 2}),
    ("pool_small", "epyc-virtual", {"model": "smollm2-135m-instruct"}),
)
# One file system with room for a model of 671 billion parameters and its artefact.
DISKS = {"disks": [{"mount": "/", "available_bytes": 8 * 1024**4}], "paths": {}}
LIMITS = {1000: (10.0, 1000.0), 10000: (60.0, 4000.0)}


def fleet(size: int) -> dict[str, Any]:
    """Return `size` engine hosts and a build host, as `vllm_plan` takes them."""
    recordings = {name: json.loads((FIXTURES / name / "facts.json").read_text()) for _, name, _ in POOLS}
    hosts: dict[str, Any] = {"build0001": {"groups": ["build"], "hardware": recordings["epyc-virtual"]}}
    for number in range(size):
        pool, machine, request = POOLS[number % len(POOLS)]
        address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
        nics = [{"name": "eth0", "addresses": [address + "/8"]}]
        facts = {**recordings[machine], **DISKS, "default_address": address, "nics": nics}
        hosts[f"host{number:05d}"] = {"groups": ["engines", pool], "request": request, "hardware": facts}
    return hosts


def measure_planner(size: int) -> dict[str, Any]:
    """Plan one fleet in this process: JSON text in, JSON text out, as the module does. Seconds are CPU time: planning
    waits for nothing, so on an idle machine that is how long it takes, and other work does not change it."""
    text = json.dumps(fleet(size))
    catalogue, flags = golden.catalogue(), golden.flags()
    start = time.process_time()
    plan = golden.plan_fleet(golden.Inputs(json.loads(text), catalogue, overrides=golden.SERIES, flags=flags))
    json.dumps(plan)
    seconds = time.process_time() - start
    return {**line(size, seconds, resource.RUSAGE_SELF), "problems": len(plan["problems"])}


def line(size: int, seconds: float, who: int) -> dict[str, Any]:
    """Return one measurement; `megabytes` is the largest resident size of one process."""
    peak = resource.getrusage(who).ru_maxrss / 1024
    return {"hosts": size, "seconds": round(seconds, 3), "megabytes": round(peak, 1)}


def missed(results: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the planner's own measurements."""
    wrong = [f"{r['hosts']} hosts: the plan has problems" for r in results if r["problems"]]
    for result in results:
        seconds, megabytes = LIMITS.get(result["hosts"], (float("inf"), float("inf")))
        if result["seconds"] > seconds or result["megabytes"] > megabytes:
            wrong.append(f"{result['hosts']} hosts: more than {seconds} s or {megabytes} MB")
    per_host = {r["hosts"]: r["seconds"] / r["hosts"] for r in results}
    if {100, 1000} <= set(per_host) and per_host[1000] > 2 * per_host[100]:
        wrong.append("growth is not linear: a host costs more than twice as much among 1,000 as among 100")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, metavar="SIZE")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_planner(options.sizes[0])))
        return 0
    results = []
    for size in options.sizes or [10, 100, 1000, 10000]:
        command = [sys.executable, __file__, "--one", str(size)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ).stdout
        print(output.strip(), flush=True)
        results.append(json.loads(output))
    wrong = missed(results)
    for message in wrong:
        print(message, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
