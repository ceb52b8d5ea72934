# SPDX-License-Identifier: Apache-2.0
"""The catalogue files of role deployment_plan: their schemas, their sources, and what they have to agree with."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ansible.module_utils.vllm_ansible.plan import catalogue as catalogue_code
from ansible.module_utils.vllm_ansible.plan import (
    devices,
    hdk,
    models,
    nvidia,
    platforms,
    specifications,
    tuning,
    versions,
)

from tools import golden

FOLDER = golden.ROOT / "roles" / "deployment_plan"
FILES = sorted(path.stem for path in (FOLDER / "vars" / "main").glob("*.yml") if path.stem != "inputs")
PART_OF = {name: part for part, names in golden.CATALOGUE.items() for name in names}
RAW = golden.catalogue()
ENTRIES = [(part, name) for part in RAW for name in RAW[part]]
FIELDS = {
    "rows": catalogue_code.ROW_KEYS,
    "devices": devices.DEVICE_KEYS,
    "platforms": platforms.PLATFORM_KEYS,
    "tuning": tuning.TUNING_KEYS,
    "specifications": specifications.SPECIFICATION_KEYS,
    "hdk": hdk.HDK_KEYS,
    "gpu_drivers": nvidia.DRIVER_KEYS,
    "gpu_repositories": nvidia.REPOSITORY_KEYS,
    "cuda_toolkits": nvidia.TOOLKIT_KEYS,
    "models": frozenset(models.Model._fields) - {"name", "shape"} | {"sources", "unverified"},
}
# What an entry is called and how this project marks it needs no source; `plugin` is sourced with its version.
NO_SOURCE = {
    "rows": {
        "engine", "version", "backend", "default", "requires_series", "status", "plugin", "unverified", "sources",
        "mla_block_tokens",
    },
    "devices": {"backend", "family", "models", "because", "unverified", "sources"},
    "platforms": {"os", "version", "label", "unverified", "sources"},
    "tuning": {"profile", "families", "architectures", "priority", "unverified", "sources"},
    "specifications": {"families", "link", "cpu_models", "architectures", "unverified", "sources"},
    "hdk": {"unverified", "sources"},
    "gpu_drivers": {"unverified", "sources"},
    "gpu_repositories": {"unverified", "sources"},
    "cuda_toolkits": {"unverified", "sources"},
    "models": {
        "architecture", "weights", "license", "dtype", "size_bytes", "convert", "source", "unverified", "sources",
    },
}  # fmt: skip


def validator(part: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((FOLDER / "files" / "schemas" / f"{part}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def complaints(part: str, entries: dict[str, Any]) -> list[str]:
    return [f"{list(error.absolute_path)}: {error.message}" for error in validator(part).iter_errors(entries)]


def test_every_catalogue_file_is_known():
    assert set(FILES) == set(PART_OF)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_valid(name):
    content = yaml.safe_load((FOLDER / "vars" / "main" / f"{name}.yml").read_text())
    assert list(content) == [f"__deployment_plan_{name}"]
    assert complaints(PART_OF[name], content[f"__deployment_plan_{name}"]) == []


@pytest.mark.parametrize("part", RAW)
def test_a_schema_refuses_what_has_no_source(part):
    for name in RAW[part]:
        entry = {**RAW[part][name]}
        assert complaints(part, {name: entry}) == []
        del entry["sources"]
        assert any("'sources' is a required property" in c for c in complaints(part, {name: entry}))
        assert complaints(part, {name: {**entry, "sources": {}}})


@pytest.mark.parametrize("part", RAW)
def test_a_schema_knows_the_fields_that_are_read(part):
    assert set(validator(part).schema["additionalProperties"]["properties"]) == FIELDS[part]


@pytest.mark.parametrize(
    ("part", "name", "path", "value"),
    [
        ("rows", "vllm-ascend-0.23.0.post1", ("drivers",), []),
        ("rows", "vllm-ascend-0.23.0.post1", ("drivers",), ["25.2 or so?"]),
        ("rows", "vllm-ascend-0.23.0.post1", ("drivres",), ["25.2.X"]),
        ("rows", "vllm-ascend-0.23.0.post1", ("families",), ["a4"]),
        ("rows", "vllm-ascend-0.23.0.post1", ("versions", "cann"), "nine"),
        ("rows", "vllm-ascend-0.23.0.post1", ("memory", "utilisation"), 1.2),
        ("rows", "vllm-ascend-0.18.0", ("status",), "installable"),
        ("rows", "vllm-ascend-0.23.0.post1", ("cxx_abi",), 2),
        ("rows", "vllm-ascend-0.23.0.post1", ("chips",), {}),
        ("hdk", "hdk-25.5.0", ("families",), {}),
        ("hdk", "hdk-25.5.0", ("families", "a2", "firmware"), "newest"),
        ("hdk", "hdk-25.5.0", ("families", "a2"), {"firmware": "7.8.0.5.201"}),
        ("rows", "vllm-0.32.0-cpu", ("memory",), {}),
        ("rows", "vllm-0.32.0-cuda", ("versions",), {"torch": "2.13.0"}),
        ("devices", "h200", ("pci",), ["10DE:2335"]),
        ("devices", "h200", ("supported",), False),
        ("devices", "ascend-a2", ("quantisations",), ["int3"]),
        ("platforms", "kylin-v10-lance", ("families", "riscv64"), ["a2"]),
        ("models", "deepseek-r1", ("quantisation", "method"), "nf4"),
        ("models", "deepseek-r1", ("config",), {}),
        ("models", "smollm2-135m-instruct", ("size_bytes",), 0),
        ("tuning", "nvidia", ("sysctl",), {"vm.swappiness": 0}),
        ("tuning", "nvidia", ("profile",), "fast"),
        ("gpu_drivers", "nvidia-580.126.09", ("flavours", "hopper"), "nouveau"),
        ("gpu_drivers", "nvidia-580.126.09", ("version",), "newest"),
        ("gpu_repositories", "rhel9", ("architectures", "aarch64"), "aarch64"),
        ("gpu_repositories", "rhel9", ("kind",), "yum"),
        ("cuda_toolkits", "cuda-12.8", ("version",), "12.8.1"),
        ("specifications", "atlas-a2", ("pcie_width",), 12),
        ("specifications", "atlas-a2", ("cpu_models",), ["Kunpeng-920"]),
        ("specifications", "kunpeng-920", ("families",), ["a4"]),
        ("specifications", "atlas-a3", ("weights_disks",), ["tape"]),
    ],
)
def test_a_schema_refuses_what_is_wrong(part, name, path, value):
    entry = copy.deepcopy(RAW[part][name])
    node = entry
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    assert complaints(part, {name: entry})


@pytest.mark.parametrize(("part", "name"), ENTRIES)
def test_every_value_has_a_source_and_every_source_a_value(part, name):
    entry = RAW[part][name]
    missing = set(entry) - NO_SOURCE[part] - set(entry["sources"])
    assert missing == set(), "where do these values come from?"
    assert all(len(text) > 9 for text in entry["sources"].values())
    assert set(entry["sources"]) <= set(entry), "these have no value here"


@pytest.mark.parametrize(("part", "name"), ENTRIES)
def test_what_is_unverified_is_a_field(part, name):
    entry = RAW[part][name]
    known = FIELDS[part] | (set(entry.get("memory", {})) if part == "rows" else set())
    assert set(entry.get("unverified", {})) <= known


@pytest.mark.parametrize(
    ("version", "cann", "torch", "torch_npu", "triton", "python"),
    [
        ("0.23.0", "9.1.0", "2.10.0", "2.10.0.post4", "3.2.2", ">=3.10, <3.13"),
        ("0.18.0", "8.5.1", "2.9.0", "2.9.0.post1+git4c901a4", "3.2.0.dev20260322", ">=3.10, <3.12"),
        ("0.13.0", "8.5.0", "2.8.0", "2.8.0.post2", "3.2.0", ">=3.10, <3.12"),
        ("0.11.0", "8.3.RC2", "2.7.1", "2.7.1.post1", None, ">=3.9, <3.12"),
        ("0.9.1", "8.2.RC1", "2.5.1", "2.5.1.post1", None, ">=3.9, <3.12"),
        ("0.7.3", "8.1.RC1", "2.5.1", "2.5.1", None, ">=3.9, <3.12"),
    ],
)
def test_every_final_release_of_the_plugin_is_a_row(version, cann, torch, torch_npu, triton, python):
    """The release matrix of vllm-ascend, typed in once more."""
    rows = [r for r in RAW["rows"].values() if (r["backend"], r["version"]) == ("ascend", version)]
    (row,) = [r for r in rows if "a2" in r["families"]]
    found = row["versions"]
    assert row["plugin_version"].split(".post")[0] == version
    assert (found["cann"], found["nnal"], found["torch"], found["torch_npu"]) == (cann, cann, torch, torch_npu)
    assert found.get("triton_ascend") == triton
    assert row["python"] == python


@pytest.mark.parametrize(
    ("version", "inside", "outside"),
    [
        ("0.23.0", "25.2.0 25.3.rc1 25.5.1 26.0.rc1 25.7.rc1.6 26.1.0", "25.0.rc1.1 24.1.0 26.0.rc2 27.0.0"),
        ("0.18.0", "25.0.rc1.1 25.2.0 25.3.rc1 25.5.0", "24.1.0 26.0.rc1"),
        ("0.13.0", "25.0.rc1.1 25.2.0 25.3.rc1 25.5.0", "24.1.0 26.0.rc1"),
        ("0.11.0", "25.3.rc1", "25.2.0 25.5.0"),
        ("0.9.1", "25.2.0 25.0.rc1.1 24.1.0 24.1.rc3.7 24.1.rc2", "25.2.1 25.3.rc1 23.0.3"),
        ("0.7.3", "25.0.rc1", "24.1.0 25.2.0"),
    ],
)
def test_the_drivers_of_every_release(version, inside, outside):
    """Release notes of CANN, typed in once more as drivers that are and are not named there."""
    for row in RAW["rows"].values():
        if (row["backend"], row["version"]) == ("ascend", version):
            assert [d for d in inside.split() if not versions.matches(d, row["drivers"])] == []
            assert [d for d in outside.split() if versions.matches(d, row["drivers"])] == []


@pytest.mark.parametrize("name", RAW["rows"])
def test_the_flags_of_a_rows_engine_are_recorded(name):
    row = RAW["rows"][name]
    document = golden.flags()[row["engine"]][row["version"]]
    assert (document["engine"], document["version"]) == (row["engine"], row["version"])
    assert set(row["flags"]) <= set(document["flags"])
    assert all("choices" in document["flags"][flag] for flag in row.get("flag_choices", {}))
    assert {"gpu-memory-utilization", "quantization", "tensor-parallel-size"} <= set(document["flags"])


def test_every_family_of_a_row_has_a_device_and_every_supported_device_a_row():
    supported = {d["family"] for d in RAW["devices"].values() if d.get("supported", True)}
    served = {family for row in RAW["rows"].values() for family in row.get("families", [])}
    assert supported == served


def test_only_one_device_answers_to_a_pci_id_without_a_name_or_their_memory_differs():
    for pci in {p for d in RAW["devices"].values() for p in d["pci"]}:
        same = {name: d for name, d in RAW["devices"].items() if pci in d["pci"]}
        assert len({(d["family"], d["backend"]) for d in same.values()}) == 1, pci


def load_as_ansible(tmp_path: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """The role's variable __deployment_plan_catalogue, as Ansible makes it."""
    target = tmp_path / "catalogue.json"
    tasks = [
        {"ansible.builtin.include_vars": {"dir": str(FOLDER / "vars" / "main")}},
        {"ansible.builtin.copy": {"content": "{{ __deployment_plan_catalogue | to_json }}", "dest": str(target)}},
    ]
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}
    playbook = tmp_path / "play.yml"
    playbook.write_text(yaml.safe_dump([play]))
    run = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), str(playbook), "-e",
         json.dumps({"deployment_plan_catalogue_overrides": overrides, "ansible_python_interpreter": sys.executable})],
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, capture_output=True, text=True, check=False, cwd=golden.ROOT,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(target.read_text())


def test_ansible_puts_the_same_catalogue_together_and_lays_the_sites_values_over_it(tmp_path):
    over = {
        "rows": {"vllm-ascend-0.18.0": {"drivers": ["26.0.X"], "unverified": {"drivers": None}}},
        "models": {"deepseek-r1": {"source": {"type": "path", "path": "/srv/models/deepseek-r1"}}},
    }
    found = load_as_ansible(tmp_path, over)
    assert found == golden.merge(RAW, over)
    read: list[str] = []
    result = catalogue_code.read_catalogue(found, None, lambda code, field, seen, wanted: read.append(field))
    (row,) = [row for row in result.rows if row.name == "vllm-ascend-0.18.0"]
    assert read == []
    assert row.drivers == ("26.0.X",)
    assert "drivers" not in row.unverified
    assert "comm_bytes" in row.unverified
    assert result.models["deepseek-r1"].fetchable
    assert not result.models["deepseek-v3"].fetchable
