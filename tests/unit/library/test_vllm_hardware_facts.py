# SPDX-License-Identifier: Apache-2.0
"""The module around the probes."""

import json

import pytest
import vllm_hardware_facts
from ansible.module_utils.vllm_ansible.cpulist import parse_cpulist

from tools.hardware_machines import MACHINES


@pytest.mark.parametrize("check_mode", [False, True])
def test_this_machine_is_described(run_module, tmp_path, check_mode):
    wanted = str(tmp_path / "not" / "there")
    result = run_module(vllm_hardware_facts, {"paths": [wanted]}, check_mode=check_mode)
    facts = result["ansible_facts"]["vllm_hardware"]
    assert result["changed"] is False
    assert facts["schema"] == 1
    assert facts["memory"]["total_bytes"] > 2**28
    assert set(parse_cpulist(facts["cpu"]["allowed"])) <= set(parse_cpulist(facts["cpu"]["online"]))
    assert facts["paths"][wanted]["available_bytes"] > 0


def test_disks_are_measured_only_when_asked(run_module, monkeypatch):
    monkeypatch.setattr(vllm_hardware_facts.Host, "measure_read", lambda *_arguments: 7)
    for asked, speeds in ((False, {None}), (True, {7, None})):
        facts = run_module(vllm_hardware_facts, {"measure_disks": asked})["ansible_facts"]["vllm_hardware"]
        assert {disk["read_bytes_per_s"] for disk in facts["disks"]} <= speeds


def test_setup_arguments_are_accepted(run_module):
    result = run_module(
        vllm_hardware_facts,
        {"gather_subset": ["min"], "gather_timeout": 5, "filter": ["x"], "fact_path": "/x", "paths": []},
    )
    assert result["ansible_facts"]["vllm_hardware"]["paths"] == {}


def test_recorded_facts_are_returned_as_they_are(run_module):
    path = MACHINES / "atlas-800i-a2" / "facts.json"
    result = run_module(vllm_hardware_facts, {"recorded": str(path)})
    assert result["ansible_facts"]["vllm_hardware"] == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("text", "part"),
    [(None, "is no readable JSON file"), ("{", "is no readable JSON file"), ("[]", "schema None"),
     ('{"schema": 7}', "schema 7, this version reads 1")],
)  # fmt: skip
def test_a_file_that_is_no_recording_is_refused(run_module, tmp_path, text, part):
    path = tmp_path / "facts.json"
    if text is not None:
        path.write_text(text)
    result = run_module(vllm_hardware_facts, {"recorded": str(path)})
    assert result["failed"]
    assert str(path) in result["msg"]
    assert part in result["msg"]
    assert "Record it again" in result["msg"]
