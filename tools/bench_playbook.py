#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures playbooks/plan.yml from recorded hardware: one JSON line per fleet size, with the seconds of each stage.

tools/bench_playbook.py [SIZE...]   default 10 100 1000

The fleet is that of tools/bench_plan.py, one recording per host. What is measured is the whole command: inventory,
templates, the planner, what Ansible does with the plan, tables. Exit status 1: a run failed, or 1,000 hosts took longer
than a minute.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import bench_plan  # noqa: E402 - needs the path above

LIMITS = {1000: 60.0}
PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"


def write_site(size: int, folder: Path) -> None:
    """Write an inventory of `size` engine hosts and a build host, and a recording of each, into `folder`."""
    groups: dict[str, Any] = {
        pool: {"hosts": {}, "vars": {"engine_request": request}} for pool, _, request in bench_plan.POOLS
    }
    for name, host in bench_plan.fleet(size).items():
        (folder / f"{name}.json").write_text(json.dumps(host["hardware"]))
        if "request" in host:
            groups[host["groups"][1]]["hosts"][name] = {}
    children = {"engines": {"children": groups}, "build": {"hosts": {"build0001": {}}}}
    (folder / "inventory.yml").write_text(yaml.safe_dump({"all": {"children": children}}))


def measure(size: int) -> dict[str, Any]:
    """Plan one fleet through the playbook; `megabytes` is the resident size of ansible-playbook itself."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_site(size, folder)
        command = [str(PLAYBOOK), "-i", str(folder / "inventory.yml"), "playbooks/plan.yml"]
        command += ["-e", f"deployment_plan_recorded_hardware={folder}"]
        environment = {**os.environ, "VLLM_PROGRESS_SUMMARY": str(folder / "stages.json")}
        with (folder / "output").open("w+") as output:
            start = time.perf_counter()
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
            if status:
                output.seek(0)
                sys.stderr.write(output.read()[-4000:])
        stages = json.loads((folder / "stages.json").read_text())["stages"] if not status else []
    return {
        "hosts": size,
        "seconds": round(seconds, 1),
        "megabytes": round(usage.ru_maxrss / 1024, 1),
        "stages": {stage["name"]: round(stage["seconds"], 1) for stage in stages},
        "failed": bool(status),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=[10, 100, 1000], metavar="SIZE")
    wrong = []
    for size in parser.parse_args().sizes:
        result = measure(size)
        print(json.dumps(result), flush=True)
        limit = LIMITS.get(size, float("inf"))
        if result["failed"] or result["seconds"] > limit:
            wrong.append(f"{size} hosts: " + ("failed" if result["failed"] else f"more than {limit} s"))
    for message in wrong:
        print(message, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
