#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how the time of a fabric check grows: one JSON line per fleet of STAND-IN hosts, all on this machine.

tools/bench_fabric.py [--devices N] [--pairs all|same] [HOSTS...]   default 8 devices, all pairs, 2 4 8 hosts

``seconds`` is what ansible-playbook took, ``pings`` the pairs tried in both directions, ``pings_per_port`` those that
follow one another: on a fleet the time grows with it, linearly in hosts. Here all hosts share the processors, so it
grows with ``pings``; the stand-in answers at once where a port waits for the network. The figures tell what the check
itself costs.
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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.fabric import Fleet  # noqa: E402 - needs the path above

PLAYBOOK = f"""
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_tasks: {ROOT}/playbooks/tasks/fabric_check.yml
    - ansible.builtin.copy:
        content: "{{{{ fabric_check_report | to_json }}}}"
        dest: "{{{{ report }}}}"
      run_once: true
"""


def measure(hosts: int, devices: int, pairs: str, folder: Path) -> dict[str, Any]:
    """Play the check once; raises when it failed."""
    fleet = Fleet(folder / "fleet", hosts, devices)
    listed = {
        name: {"fabric_check_slice": fleet.plan(name), "roce_fabric_install_path": fleet.install_path(name)}
        for name in fleet.hosts
    }
    shared = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "roce_fabric_pairs": pairs}
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": listed, "vars": shared}}))
    (folder / "play.yml").write_text(PLAYBOOK)
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        f"{folder}/hosts.json",
        f"{folder}/play.yml",
    ]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    start = time.monotonic()
    done = subprocess.run(
        [*command, "-e", f"report={folder}/report.json"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - start
    if done.returncode != 0:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-1000:])
    report = json.loads((folder / "report.json").read_text())
    pings = len(report["document"]["pairs"])
    return {
        "level": "stand-in", "hosts": hosts, "devices": devices, "pairs": pairs, "pings": pings,
        "pings_per_port": pings // (hosts * devices),
        "seconds": round(seconds, 1), "milliseconds_per_ping": round(seconds * 1000 / pings, 1),
        "passed": report["passed"],
    }  # fmt: skip


def main() -> int:
    """Entry point; exit status 1 when a sound fleet does not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", nargs="*", type=int, default=[2, 4, 8])
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--pairs", choices=["all", "same"], default="all")
    arguments = parser.parse_args()
    passed = True
    for hosts in arguments.hosts:
        with tempfile.TemporaryDirectory(prefix="bench-fabric-") as folder:
            line = measure(hosts, arguments.devices, arguments.pairs, Path(folder))
        print(json.dumps(line), flush=True)
        passed = passed and line["passed"]
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
