# SPDX-License-Identifier: Apache-2.0
"""Reading the catalogue: every entry of the role can be used, an unusable one is named and left out."""

import pytest
from ansible.module_utils.vllm_ansible.plan.catalogue import choose_row, read_catalogue

from tools import golden

RAW = golden.catalogue()
ASCEND = RAW["rows"]["vllm-ascend-0.23.0.post1"]


def read(raw: dict) -> tuple:
    complaints: list[str] = []
    catalogue = read_catalogue(raw, None, lambda code, field, seen, wanted: complaints.append(f"{code} {field}"))
    return catalogue, complaints


def test_every_entry_can_be_used():
    catalogue, complaints = read(RAW)
    assert complaints == []
    assert [len(catalogue.rows), len(catalogue.models)] == [len(RAW["rows"]), len(RAW["models"])]
    assert [len(catalogue.devices.all), len(catalogue.platforms)] == [len(RAW["devices"]), len(RAW["platforms"])]
    assert len(catalogue.tuning) == len(RAW["tuning"])
    assert len(catalogue.hdk) == len(RAW["hdk"])


def test_rows_and_models_are_enough():
    catalogue, complaints = read({"rows": {"r": ASCEND}, "models": {}})
    assert complaints == []
    assert (catalogue.devices.all, catalogue.platforms, catalogue.tuning) == ((), (), ())


@pytest.mark.parametrize("part", RAW)
def test_an_entry_without_sources_is_refused(part):
    name = sorted(RAW[part])[0]
    entry = {key: value for key, value in RAW[part][name].items() if key != "sources"}
    catalogue, complaints = read({"rows": {}, part: {"x": entry}})
    if part == "models":  # those of a site need none; the schema asks those of the project for them
        assert complaints == []
    else:
        assert f"E_CATALOGUE catalogue.{part}.x.sources" in complaints
        assert catalogue.rows == ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"drivers": ["about 25"]}, "drivers"),
        ({"drivres": ["25.2.X"]}, "drivres"),
        ({"python": "three"}, "python"),
        ({"versions": {"cann": "nine"}}, "cann"),
        ({"versions": {"cann": 9.1}}, "versions.cann"),
        ({"plugin_version": "first"}, "plugin_version"),
        ({"features": {"graph": {"driver": "new"}}}, "features"),
        ({"families": []}, "families"),
        ({"families": ["a2", "a9"]}, "families"),
        ({"status": "installable", "unverified": {}}, "release_bytes"),
        ({"cxx_abi": "1"}, "cxx_abi"),
        ({"chips": {"a2": "910b"}}, "chips"),
        ({"status": "perhaps"}, "status"),
        ({"quantisations": ["int3"]}, "quantisations"),
        ({"memory": {"utilisation": 1.5}}, "memory.utilisation"),
        ({"memory": {"utilisation": "0.9"}}, "memory.utilisation"),
        ({"memory": {"graph": 1}}, "memory.graph"),
        ({"unverified": {"color": "never seen"}}, "unverified"),
        ({"machines": {"aarch64": {"isa": []}}}, "machines.aarch64.glibc"),
    ],
)
def test_an_unusable_row_is_named_and_left_out(change, field):
    catalogue, complaints = read({"rows": {"x": {**ASCEND, **change}}})
    assert catalogue.rows == ()
    assert f"E_CATALOGUE catalogue.rows.x.{field}" in complaints


def test_what_nobody_published_is_absent():
    catalogue, _ = read(RAW)
    by_name = {row.name: row for row in catalogue.rows}
    assert "graph_bytes" not in by_name["vllm-ascend-0.23.0.post1"].memory
    assert by_name["vllm-0.32.0-cuda"].memory["utilisation"] == 0.92
    assert by_name["vllm-ascend-0.9.1"].memory["utilisation"] == 0.9


def test_the_cpu_rows_stay_what_the_cpu_backend_expects():
    catalogue = read(RAW)[0]
    for version in (None, "0.32.0"):
        assert choose_row(catalogue, "cpu", version, "x86_64").name == "vllm-0.32.0-cpu"
        assert choose_row(catalogue, "cpu", version, "aarch64").name == "vllm-0.32.0-cpu-aarch64"
        assert choose_row(catalogue, "cpu", version, "riscv64").name == "vllm-0.32.0-cpu", (
            "its check says what is wrong"
        )
    assert choose_row(catalogue, "cpu", "0.1.0", "x86_64") is None
    assert {row.status for row in catalogue.rows if row.default and row.backend == "cpu"} == {"installable"}


def test_a_plugin_adds_to_the_choices_of_a_flag():
    catalogue = read(RAW)[0]
    (row,) = [row for row in catalogue.rows if row.name == "vllm-ascend-0.9.1"]
    known = golden.flags()["vllm"]["0.9.1"]["flags"]
    assert "ascend" not in known["quantization"]["choices"]
    assert "ascend" in row.flags_with_choices(known)["quantization"]["choices"]
    assert "ascend" not in known["quantization"]["choices"]
    assert row.flags_with_choices({"port": {}}) == {"port": {}}
