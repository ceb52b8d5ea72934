# SPDX-License-Identifier: Apache-2.0
"""Which device of the catalogue an accelerator of the facts is."""

import json

import pytest
from ansible.module_utils.vllm_ansible.plan.catalogue import read_catalogue
from ansible.module_utils.vllm_ansible.plan.devices import Devices
from ansible.module_utils.vllm_ansible.plan.facts import Accelerator

from tools import golden

MIB = 1024**2
DEVICES = read_catalogue(golden.catalogue(), None, lambda *complaint: None).devices


def seen(device_id=None, model=None, **more):
    return {"device_id": device_id, "model": model, "memory_bytes": None, **more}


@pytest.mark.parametrize(
    ("accelerator", "name", "memory"),
    [
        (seen("19e5:d802", "910B3"), "ascend-a2", 65536),
        (seen("19e5:d802", "910B2C"), "ascend-a2", 65536),
        (seen("19e5:d802", "910B4"), "ascend-a2-32g", 32768),
        (seen("19e5:d802", "Ascend 910B4"), "ascend-a2-32g", 32768),
        (seen("19e5:d802", "910B4-1"), "ascend-a2-910b4-1", 65536),
        (seen("19e5:d803", "Ascend910"), "ascend-a3", 65536),
        (seen("19e5:d803", None, soc="ascend910_9391"), "ascend-a3", 65536),
        (seen("19e5:d803"), "ascend-a3", 65536),
        (seen("19e5:d500", "310P3", subsystem="0200:0100"), "ascend-310p", 21525),
        (seen("19e5:d500", "310P3", subsystem="0200:0110"), "ascend-310p-duo", 43693),
        (seen("19e5:d500", "310P3", memory_bytes=44280 * MIB), "ascend-310p-duo", 43693),
        (seen("19e5:d500", "310P3", memory_bytes=21525 * MIB), "ascend-310p", 21525),
        (seen("19e5:d801", "910ProB"), "ascend-a1", 32768),
        (seen("10de:2335", "NVIDIA H200"), "h200", 143771),
        (seen("10DE:20B2"), "a100-80g", 81920),
        (seen("10de:26ba", "NVIDIA L20"), "l20", 46068),
        # no id, as in recordings that others typed: the name has to be enough
        (seen(None, "NVIDIA A100-SXM4-80GB"), "a100-80g", 81920),
        (seen(None, "910B4"), "ascend-a2-32g", 32768),
        # a name nobody knows does not hide what the id says
        (seen("10de:2330", "NVIDIA H100 of tomorrow"), "h100-80g", 81559),
        # no driver yet: the boards with this id differ in memory, so it is unknown
        (seen("19e5:d802"), "ascend-a2", 0),
        (seen("19e5:d802", memory_bytes=32768 * MIB), "ascend-a2-32g", 32768),
    ],
)
def test_a_device_is_identified(accelerator, name, memory):
    device = DEVICES.identify(accelerator)
    assert (device.name, device.memory_bytes) == (name, memory * MIB)


@pytest.mark.parametrize(
    "accelerator",
    [
        seen(),
        seen("10de:ffff"),
        seen("19e5:a222", "HNS"),
        seen(None, "910B"),
        seen(None, "Radeon"),
        seen(None, ".*"),
        {},
    ],
)
def test_what_is_not_in_the_catalogue_is_no_device(accelerator):
    assert DEVICES.identify(accelerator) is None


def test_a2_and_a3_are_told_apart_by_the_id_not_the_name():
    assert DEVICES.identify(seen("19e5:d802", "Ascend910")).family == "a2"
    assert DEVICES.identify(seen("19e5:d803", "910B3")).family == "a3"


def test_the_planners_own_accelerators_are_understood_too():
    fields = dict.fromkeys(Accelerator._fields)
    npu = Accelerator(**{**fields, "kind": "npu", "model": "910B4", "memory_bytes": 32768 * MIB})
    assert DEVICES.identify(npu).name == "ascend-a2-32g"


def test_unsupported_devices_say_why():
    assert "A2, A3" in DEVICES.identify(seen("19e5:d801")).because
    assert all(device.supported or device.because for device in DEVICES.all)


@pytest.mark.parametrize(
    ("name", "runs", "not_runs"),
    [
        ("ascend-a2", {"bf16", "w8a8", "w4a8"}, {"fp8", "awq", "gptq"}),
        ("ascend-310p", {"fp16", "w8a8"}, {"bf16", "fp8"}),
        ("h200", {"bf16", "fp8", "w8a8", "awq"}, {"w4a8"}),
        ("t4", {"fp16", "w8a8", "awq"}, {"bf16"}),
        ("v100-32g", {"fp16", "gptq"}, {"bf16", "awq", "w8a8", "fp8"}),
    ],
)
def test_what_a_device_computes_in(name, runs, not_runs):
    (device,) = [d for d in DEVICES.all if d.name == name]
    assert runs <= set(device.quantisations)
    assert not not_runs & set(device.quantisations)
    assert ("bfloat16" in device.dtypes) == ("bf16" in device.quantisations)


@pytest.mark.parametrize("machine", sorted(path.parent.name for path in golden.MACHINES.glob("*/facts.json")))
def test_every_accelerator_of_a_recorded_machine_is_known(machine):
    facts = json.loads((golden.MACHINES / machine / "facts.json").read_text())
    for accelerator in facts["accelerators"]:
        device = DEVICES.identify(accelerator)
        assert device is not None, accelerator
        assert device.kind == accelerator["kind"]


def test_an_empty_catalogue_knows_nothing():
    assert Devices().identify(seen("19e5:d802", "910B3")) is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"models": ["(910b"]}, "models"),
        ({"family": "a9"}, "family"),
        ({"supported": False}, "because"),
        ({"memory": 1}, "memory"),
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"sources": {}}, "sources"),
        ({"quantisations": ["int3"]}, "quantisations"),
        ({"models": None}, "models"),
    ],
)
def test_an_unusable_entry_is_complained_about_and_left_out(change, field):
    entry = {**golden.catalogue()["devices"]["h200"], **change}
    read: list[str] = []
    found = read_catalogue(
        {"rows": {}, "devices": {"d": entry}}, None, lambda code, path, was, wanted: read.append(path)
    )
    assert read == ["catalogue.devices.d." + field]
    assert found.devices.all == ()
