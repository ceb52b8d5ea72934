# SPDX-License-Identifier: Apache-2.0
"""The catalogue in role deployment_plan: complete, and every entry says where it comes from."""

import pytest
from ansible.module_utils.vllm_ansible.plan.catalogue import choose_row, read_catalogue
from ansible.module_utils.vllm_ansible.plan.models import DTYPE_BYTES

from tools import golden

RAW = golden.catalogue()
ENTRIES = [(part, name) for part in ("rows", "models") for name in RAW[part]]


def read(raw: dict) -> tuple:
    complaints: list[str] = []
    catalogue = read_catalogue(raw, None, lambda code, field, seen, wanted: complaints.append(f"{code} {field}"))
    return catalogue, complaints


def test_every_entry_can_be_used():
    catalogue, complaints = read(RAW)
    assert complaints == []
    assert len(catalogue.rows) + len(catalogue.models) == len(ENTRIES)


@pytest.mark.parametrize(("part", "name"), ENTRIES)
def test_every_entry_has_sources_for_fields_it_has(part, name):
    entry = RAW[part][name]
    assert entry["sources"], "where do these values come from?"
    assert set(entry["sources"]) <= set(entry)
    assert all(len(text) > 20 for text in entry["sources"].values())


def test_a_row_without_sources_is_refused():
    row = {key: value for key, value in RAW["rows"]["vllm-0.32.0-cpu"].items() if key != "sources"}
    catalogue, complaints = read({"rows": {"r": row}, "models": {}})
    assert catalogue.rows == ()
    assert "E_CATALOGUE catalogue.rows.r.sources" in complaints


@pytest.mark.parametrize("name", RAW["models"])
def test_stated_sizes_agree_with_the_dimensions(name):
    model = read(RAW)[0].models[name]
    assert model.size_bytes == pytest.approx(model.shape.parameters() * DTYPE_BYTES[model.dtype], rel=0.01)


def test_rows_are_chosen_by_backend_and_version():
    catalogue = read(RAW)[0]
    assert choose_row(catalogue, "cpu", None).name == "vllm-0.32.0-cpu"
    assert choose_row(catalogue, "cpu", "0.32.0").name == "vllm-0.32.0-cpu"
    assert choose_row(catalogue, "cpu", "0.1.0") is None
    assert choose_row(catalogue, "ascend", None) is None


def test_row_flags_exist_in_the_engine():
    for row in read(RAW)[0].rows:
        assert set(row.flags) <= set(golden.flags()[row.engine][row.version]["flags"])
