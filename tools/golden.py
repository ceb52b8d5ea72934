#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans every case of tests/golden and compares it with the plan stored there.

tools/golden.py [CASE...]            name what differs; exit status 1 if anything does
tools/golden.py --update [CASE...]   store what is planned now

A case is a folder with case.yml and plan.json. case.yml: `description`; `hosts` as vllm_plan takes them, with `machine`
(a folder of tests/fixtures/hardware) and `facts` (laid over it) instead of `hardware`; optionally `models`, `networks`;
with `units: true` the unit, the engine's arguments and its environment are stored too, for each instance of each host.
The catalogue and the flag list are the real ones; the patch series is fixed, so that a changed patch changes no case.
"""

import argparse
import functools
import importlib.machinery
import importlib.util
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import ansible.module_utils
import jinja2
import yaml

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, plan_fleet  # noqa: E402 - needs the path above
from ansible.module_utils.vllm_ansible.units import service  # noqa: E402 - needs the path above

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
    "gpu_drivers": ("gpu_drivers",),
    "gpu_repositories": ("gpu_repositories",),
    "cuda_toolkits": ("cuda_toolkits",),
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


# What role ascend_cann writes with the packages of lab/vendor, recorded there.
ASCEND_ENVIRONMENT = """\
ASCEND_HOME_PATH=/usr/local/Ascend/cann
ATB_HOME_PATH=/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1
"""
ROLE = ROOT / "roles" / "engine_service"


@functools.cache
def supervisor() -> types.ModuleType:
    """Return the supervisor of role engine_service as a module."""
    loader = importlib.machinery.SourceFileLoader("golden_supervisor", str(ROLE / "files" / "vllm-supervisor"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = dont_write
    return module


def unit(planned: dict[str, Any]) -> str:
    """Return the unit file of one instance of a slice, as role engine_service asks vllm_service_unit for it."""
    given = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    spec = {
        key: given["engine_service_" + key]
        for key in (
            "user",
            "group",
            "restart_burst",
            "restart_interval_seconds",
            "stop_timeout_seconds",
            "watchdog_seconds",
        )
    }
    spec.update({key: planned[key] for key in (
        "served_model_name", "listen_address", "port", "model_size_bytes", "memory_max_bytes", "shared_memory_bytes",
        "devices", "allowed_networks",
    )})  # fmt: skip
    spec.update(
        instance=planned["name"], read_bytes_per_s=None, environment_file=planned.get("environment_file"),
        supplementary_groups=planned.get("supplementary_groups", []),
        key_handover=planned.get("key_handover", "credential"),
        spans_hosts=bool({"data-parallel-address", "master-addr"}.intersection(planned["flags"])),
    )  # fmt: skip
    assert service.check(spec) == []
    return service.render(spec)


def start(planned: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment that the supervisor starts the engine of an instance with."""
    environment = jinja2.Environment(keep_trailing_newline=True)
    environment.filters["to_nice_json"] = json.dumps
    variables = {
        "__engine_service_instance": planned, "engine_service_idle_canary_seconds": 10,
        "__engine_service_model": {"directory": f"/var/lib/vllm/models/{planned['model']}/DIGEST"},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "ascend.env"
        settings.write_text(ASCEND_ENVIRONMENT)
        if planned.get("environment_file"):
            variables["__engine_service_instance"] = {**planned, "environment_file": str(settings)}
        path = Path(folder) / "instance.json"
        template = (ROLE / "templates" / "instance.json.j2").read_text()
        path.write_text(environment.from_string(template).render(variables))
        instance = supervisor().Instance.load(str(path))
        inherited = dict(line.split("=", 1) for line in ASCEND_ENVIRONMENT.splitlines())
        arguments = instance.engine_command(f"/run/credentials/vllm-{planned['name']}.service/api-key")
        return arguments[1:], instance.engine_environment(inherited)


def units(planned: dict[str, Any]) -> dict[str, str]:
    """Return file name -> content of what each host's instances are started with."""
    found = {}
    for host, entry in planned["hosts"].items():
        for instance in entry["slices"].get("engine_service", {}).get("instances", []):
            arguments, environment = start(instance)
            name = f"{host}.{instance['name']}"
            found[name + ".service"] = unit(instance)
            found[name + ".arguments"] = "".join(word + "\n" for word in arguments)
            found[name + ".environment"] = "".join(f"{key}={environment[key]}\n" for key in sorted(environment))
    return found


def files(name: str) -> dict[str, str]:
    """Return everything that is stored for a case: file name below its folder -> content."""
    planned = plan(name)
    case = yaml.safe_load((GOLDEN / name / "case.yml").read_text())
    more = units(planned) if case.get("units") else {}
    return {"plan.json": render(planned), **{"units/" + file: text for file, text in more.items()}}


def stored(name: str) -> dict[str, str]:
    """Return what is stored for a case, as `files` returns what it should be."""
    folder = GOLDEN / name
    paths = [*folder.glob("plan.json"), *folder.glob("units/*")]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--update", action="store_true", help="store what is planned now")
    options = parser.parse_args()
    differing = []
    for name in options.cases or cases():
        wanted, found = files(name), stored(name)
        if found != wanted:
            differing.append(name)
            for file in set(found) - set(wanted) if options.update else ():
                (GOLDEN / name / file).unlink()
            for file, text in wanted.items() if options.update else ():
                (GOLDEN / name / file).parent.mkdir(exist_ok=True)
                (GOLDEN / name / file).write_text(text)
            print(f"tests/golden/{name}: {'written' if options.update else 'differs; tools/golden.py --update'}")
    return 1 if differing and not options.update else 0


if __name__ == "__main__":
    sys.exit(main())
