#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans every case of tests/golden and compares it with the plan stored there.

tools/golden.py [CASE...]            name what differs; exit status 1 if anything does
tools/golden.py --update [CASE...]   store what is planned now

A case is a folder with case.yml and plan.json. case.yml: `description`; `hosts` as vllm_plan takes them, with `machine`
(a folder of tests/fixtures/hardware) and `facts` (laid over it) instead of `hardware`; optionally `models`, `networks`.
The catalogue and the flag list are the real ones; the patch series is fixed, so that a changed patch changes no case.
"""

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, plan_fleet  # noqa: E402 - needs the path above

GOLDEN = ROOT / "tests" / "golden"
MACHINES = ROOT / "tests" / "fixtures" / "hardware"
SERIES = {
    "vllm": {
        "0.32.0": {"backends": {"cpu": {"series_sha256": "0" * 64, "local_version": "cpu.p0"}}},
        "0.23.0": {"backends": {"ascend": {"series_sha256": "1" * 64, "local_version": "ascend.p0"}}},
    },
    "vllm-ascend": {
        "0.23.0.post1": {"backends": {"ascend": {"series_sha256": "2" * 64, "local_version": "p0"}}},
    },
}


def cases() -> list[str]:
    """Return the names of all cases."""
    return sorted(path.parent.name for path in GOLDEN.glob("*/case.yml"))


def merge(base: Any, over: Any) -> Any:
    """Return `base` with `over` laid over it, mappings key by key, everything else replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {**base, **{key: merge(base.get(key), value) for key, value in over.items()}}


CATALOGUE = {
    "rows": ("rows", "rows_ascend", "rows_cuda"),
    "models": ("models",),
    "devices": ("devices",),
    "platforms": ("platforms",),
    "tuning": ("tuning",),
    "specifications": ("specifications",),
    "hdk": ("hdk",),
}  # part -> the files of the role that hold it, each with one variable named after it


@functools.cache
def catalogue() -> dict[str, Any]:
    """Return the catalogue of role deployment_plan, as its variable __deployment_plan_catalogue puts it together."""
    folder = ROOT / "roles" / "deployment_plan" / "vars" / "main"

    def entries(name: str) -> dict[str, Any]:
        return yaml.safe_load((folder / f"{name}.yml").read_text())[f"__deployment_plan_{name}"]

    return {part: {k: v for name in names for k, v in entries(name).items()} for part, names in CATALOGUE.items()}


@functools.cache
def flags() -> dict[str, Any]:
    """Return the recorded flags of every engine version: engine -> version -> content."""
    found: dict[str, Any] = {}
    for path in sorted((ROOT / "engine_overrides").glob("*/*/flags.yml")):
        found.setdefault(path.parts[-3], {})[path.parts[-2]] = yaml.safe_load(path.read_text())
    return found


def inputs(case: dict[str, Any]) -> Inputs:
    """Return what the planner is given for one case.yml."""
    hosts = {}
    for name, host in case["hosts"].items():
        hosts[name] = {key: value for key, value in host.items() if key not in ("machine", "facts")}
        if "machine" in host:
            facts = json.loads((MACHINES / host["machine"] / "facts.json").read_text())
            hosts[name]["hardware"] = merge(facts, host.get("facts", {}))
    own = {key: case[key] for key in ("models", "networks") if key in case}
    return Inputs(hosts, catalogue(), overrides=SERIES, flags=flags(), **own)


def plan(name: str) -> dict[str, Any]:
    """Plan one case."""
    return plan_fleet(inputs(yaml.safe_load((GOLDEN / name / "case.yml").read_text())))


def render(planned: dict[str, Any]) -> str:
    """Return the content of plan.json."""
    return json.dumps(planned, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--update", action="store_true", help="store what is planned now")
    options = parser.parse_args()
    differing = []
    for name in options.cases or cases():
        path, text = GOLDEN / name / "plan.json", render(plan(name))
        if not path.is_file() or path.read_text() != text:
            differing.append(name)
            if options.update:
                path.write_text(text)
            print(f"tests/golden/{name}: {'written' if options.update else 'differs; tools/golden.py --update'}")
    return 1 if differing and not options.update else 0


if __name__ == "__main__":
    sys.exit(main())
