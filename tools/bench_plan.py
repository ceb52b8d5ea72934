#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the planner: one JSON line per fleet size, each in a process of its own.

tools/bench_plan.py [SIZE...]            the planner alone, as the module calls it; default 10 100 1000
tools/bench_plan.py --ansible [SIZE...]  playbooks/plan.yml from recorded hardware: inventory, templates, transport

The fleet alternates the recorded x86 machines of tests/fixtures/hardware: small virtual hosts with one engine, and
two-socket servers with one engine per socket. Exit status 1: a plan had problems, or a limit of docs/benchmarks.md was
missed (1,000 hosts within 10 s and 1 GB, time per host at most doubled from 100 to 1,000).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures" / "hardware"
POOLS = (
    ("pool_small", "epyc-virtual", {"model": "smollm2-135m-instruct"}),
    ("pool_large", "xeon-8480-two-sockets", {"model": "deepseek-v3-tiny-random", "replicas_per_host": 2}),
)
LIMITS = {1000: (10.0, 1000.0)}


def fleet(size: int) -> dict[str, Any]:
    """Return `size` engine hosts and a build host, as `vllm_plan` takes them."""
    recordings = {name: json.loads((FIXTURES / name / "facts.json").read_text()) for _, name, _ in POOLS}
    hosts: dict[str, Any] = {"build0001": {"groups": ["build"], "hardware": recordings["epyc-virtual"]}}
    for number in range(size):
        pool, machine, request = POOLS[number % len(POOLS)]
        address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
        facts = {**recordings[machine], "default_address": address, "nics": [{"addresses": [address + "/8"]}]}
        hosts[f"host{number:04d}"] = {"groups": ["engines", pool], "request": request, "hardware": facts}
    return hosts


def engine_documents(name: str) -> dict[str, Any]:
    """Return `name` (manifest.yml or flags.yml) of every engine version: engine -> version -> content."""
    found: dict[str, Any] = {}
    for path in sorted((ROOT / "engine_overrides").glob(f"*/*/{name}")):
        found.setdefault(path.parts[-3], {})[path.parts[-2]] = yaml.safe_load(path.read_text())
    return found


def measure_planner(size: int) -> dict[str, Any]:
    """Plan one fleet in this process: JSON text in, JSON text out, as the module does."""
    import ansible.module_utils

    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))
    from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, plan_fleet

    sys.path.insert(0, str(ROOT))
    from tools.golden import catalogue

    text = json.dumps(fleet(size))
    settings = {"overrides": engine_documents("manifest.yml"), "flags": engine_documents("flags.yml")}
    entries = catalogue()
    start = time.perf_counter()
    plan = plan_fleet(Inputs(json.loads(text), entries, **settings))
    json.dumps(plan)
    seconds = time.perf_counter() - start
    return {**line(size, seconds, resource.RUSAGE_SELF), "problems": len(plan["problems"])}


def measure_ansible(size: int) -> dict[str, Any]:
    """Run playbooks/plan.yml over one fleet from recordings and measure the whole command."""
    hosts = fleet(size)
    with tempfile.TemporaryDirectory() as folder:
        groups: dict[str, Any] = {pool: {"hosts": {}, "vars": {"engine_request": r}} for pool, _, r in POOLS}
        for name, host in hosts.items():
            Path(folder, f"{name}.json").write_text(json.dumps(host["hardware"]))
            if "request" in host:
                groups[host["groups"][1]]["hosts"][name] = {}
        inventory = {"all": {"children": {"engines": {"children": groups}, "build": {"hosts": {"build0001": {}}}}}}
        Path(folder, "inventory.yml").write_text(yaml.safe_dump(inventory))
        command = ["ansible-playbook", "-i", f"{folder}/inventory.yml", "playbooks/plan.yml"]
        command += ["-e", f"deployment_plan_recorded_hardware={folder}"]
        start = time.perf_counter()
        run = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        seconds = time.perf_counter() - start
    if run.returncode:
        sys.stderr.write(run.stdout[-4000:])
    return {**line(size, seconds, resource.RUSAGE_CHILDREN), "through": "ansible", "problems": run.returncode}


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
    parser.add_argument("sizes", nargs="*", type=int, default=[10, 100, 1000], metavar="SIZE")
    parser.add_argument("--ansible", action="store_true", help="measure playbooks/plan.yml instead")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure = measure_ansible if options.ansible else measure_planner
        print(json.dumps(measure(options.sizes[0])))
        return 0
    results = []
    for size in options.sizes:
        command = [sys.executable, __file__, "--one", str(size)] + (["--ansible"] if options.ansible else [])
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ).stdout
        print(output.strip(), flush=True)
        results.append(json.loads(output))
    wrong = [f"{r['hosts']} hosts failed" for r in results if r["problems"]] if options.ansible else missed(results)
    for message in wrong:
        print(message, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
