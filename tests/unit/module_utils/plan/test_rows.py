# SPDX-License-Identifier: Apache-2.0
"""Which row a machine gets, and why not a newer one."""

import json

import pytest
from ansible.module_utils.vllm_ansible.plan import facts, platforms, rows, tuning
from ansible.module_utils.vllm_ansible.plan.catalogue import Catalogue, read_catalogue
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.rows import MachineFacts

from tools import golden

RAW = golden.catalogue()


def catalogue(more_rows=None) -> Catalogue:
    read: list[str] = []
    raw = {**RAW, "rows": {**RAW["rows"], **(more_rows or {})}}
    found = read_catalogue(raw, None, lambda code, field, seen, wanted: read.append(field))
    assert read == []
    return found


CATALOGUE = catalogue()
A2 = MachineFacts(
    families=("a2",), driver="25.5.1", os_id="openEuler", os_version="22.03", os_label="22.03 LTS",
    architecture="aarch64", glibc="2.34", page_size_bytes=4096,
)  # fmt: skip
KYLIN = A2._replace(os_id="kylin", os_version="V10", os_label="V10 (Lance)", glibc="2.28", page_size_bytes=65536)
GPU = MachineFacts(
    families=("ampere",), driver="580.126.09", os_id="ubuntu", os_version="22.04", os_label="22.04.5 LTS",
    architecture="x86_64", glibc="2.35", page_size_bytes=4096,
)  # fmt: skip
SLES = GPU._replace(
    os_id="sles", os_version="15.6", os_label="15-SP6"
)  # none of NVIDIA's repositories in the catalogue
UBUNTU = GPU._replace(families=("a2",), driver="")
CPU = MachineFacts(architecture="x86_64", glibc="2.36", page_size_bytes=4096, isa=frozenset({"avx2"}))
KUNPENG = MachineFacts(
    architecture="aarch64", glibc="2.28", page_size_bytes=65536, isa=frozenset({"asimd", "asimddp", "asimdhp"})
)


@pytest.mark.parametrize(
    ("backend", "machine", "row"),
    [
        ("ascend", A2, "vllm-ascend-0.23.0.post1"),
        ("ascend", A2._replace(families=("a3",), driver="26.0.rc1"), "vllm-ascend-0.23.0.post1"),
        ("ascend", A2._replace(driver="25.7.RC1"), "vllm-ascend-0.23.0.post1"),  # the same as 26.0.RC1
        ("ascend", A2._replace(driver="25.3.rc1"), "vllm-ascend-0.23.0.post1"),
        ("ascend", A2._replace(driver="25.0.rc1.1"), "vllm-ascend-0.23.0.post1"),  # it will be replaced
        ("ascend", A2._replace(driver="23.0.3"), "vllm-ascend-0.23.0.post1"),
        ("ascend", A2._replace(driver="25.0.rc1.1", driver_pinned=True), "vllm-ascend-0.18.0"),
        ("ascend", A2._replace(driver="24.1.rc3.7", driver_pinned=True), "vllm-ascend-0.9.1"),
        (
            "ascend",
            A2._replace(driver="25.0.rc1.1", os_label="22.03 (LTS-SP1)"),
            "vllm-ascend-0.18.0",
        ),  # none is offered
        ("ascend", A2._replace(families=("a3",), driver="24.1.rc3.7"), None),  # 0.9.1 is made for the A2
        ("ascend", A2._replace(driver="26.0.rc2"), None),  # nothing is downgraded unasked
        ("ascend", A2._replace(driver="?"), None),
        ("ascend", A2._replace(driver=""), "vllm-ascend-0.23.0.post1"),  # it will be installed
        ("ascend", A2._replace(families=("310p",)), "vllm-ascend-0.23.0.post1-310p"),
        ("ascend", A2._replace(families=("950",)), "vllm-ascend-0.23.0.post1-950"),
        ("ascend", A2._replace(families=("a1",)), None),
        ("ascend", A2._replace(families=("a2", "310p")), None),
        ("ascend", A2._replace(architecture="riscv64"), None),
        ("ascend", KYLIN, "vllm-ascend-0.23.0.post1"),
        ("ascend", KYLIN._replace(page_size_bytes=16384), None),
        ("cuda", GPU, "vllm-0.32.0-cuda"),
        ("cuda", GPU._replace(driver=""), "vllm-0.32.0-cuda"),
        ("cuda", GPU._replace(driver="535.129.03"), "vllm-0.32.0-cuda"),  # it is replaced
        ("cuda", GPU._replace(driver="470.57.02", os_version="24.04"), "vllm-0.32.0-cuda"),
        ("cuda", GPU._replace(driver="535.129.03", driver_pinned=True), "vllm-0.18.0-cuda"),
        ("cuda", SLES._replace(driver="535.129.03"), "vllm-0.18.0-cuda"),
        ("cuda", SLES._replace(driver="535.129.03", glibc="2.29"), None),
        ("cuda", SLES._replace(driver="470.57.02"), None),
        ("cuda", SLES._replace(driver=""), None),
        ("cuda", GPU._replace(driver="", os_id="rocky", os_version="9.6"), "vllm-0.32.0-cuda"),
        ("cuda", GPU._replace(driver="", os_id="debian", os_version="12", architecture="aarch64"), None),
        ("cuda", GPU._replace(families=("volta",)), "vllm-0.18.0-cuda"),
        ("cuda", GPU._replace(families=("ampere", "volta"), driver=""), "vllm-0.18.0-cuda"),
        ("cuda", GPU._replace(families=("blackwell",)), "vllm-0.32.0-cuda"),
        # Kylin V10 on x86: the newest wheels are the ones that load there
        ("cuda", GPU._replace(os_id="kylin", glibc="2.28"), "vllm-0.32.0-cuda"),
        ("cuda", GPU._replace(os_id="kylin", glibc="2.28", driver="550.163.01"), None),
        # el7
        ("cuda", GPU._replace(os_id="centos", os_version="7", glibc="2.17"), None),
        ("cuda", KYLIN._replace(families=("ampere",), driver="580.126.09"), "vllm-0.32.0-cuda"),
        ("cpu", CPU, "vllm-0.32.0-cpu"),
        ("cpu", CPU._replace(isa=frozenset({"sse4_2"})), None),
        ("cpu", KUNPENG, "vllm-0.32.0-cpu-aarch64"),
        ("cpu", KUNPENG._replace(isa=frozenset({"asimd"})), None),
    ],
)
def test_the_newest_row_that_fits_everything(backend, machine, row):
    chosen = rows.choose(CATALOGUE, backend, None, machine)
    assert (chosen.row.name if chosen.row else None) == row
    assert chosen.row is not None or chosen.rejected


@pytest.mark.parametrize(
    ("backend", "machine", "reason", "seen", "set_to"),
    [
        ("ascend", A2._replace(driver="26.0.rc2"), "CANN 9.1.0 needs driver 25.2.X", "26.0.rc2",
         "or 26.1.0.X, or to replace it engine_driver: 25.5.0"),
        ("ascend", A2._replace(driver="?"), "CANN 9.1.0 needs driver 25.2.X", "?", "or to replace it"),
        ("ascend", A2._replace(driver="27.0.0", driver_pinned=True), "CANN 9.1.0 needs driver", "27.0.0", "instead"),
        ("ascend", A2._replace(families=("a1",)), "does not run on a1 (vllm-ascend does not", "a1", "a3"),
        ("ascend", A2._replace(page_size_bytes=16384), "memory pages of 4096 or 65536 bytes", "16384", "4096"),
        ("ascend", A2._replace(driver="", os_label="22.03 (LTS-SP1)"), "no driver for a2 is offered", "openEuler 22.03",
         "kylin-v10-lance"),
        ("cuda", SLES._replace(driver="470.57.02"), "CUDA 13.0.3 needs driver 580.65.06 or newer", "470.57.02", "580"),
        ("cuda", SLES._replace(driver=""), "NVIDIA has no driver packages for sles 15", "sles 15", "gpu_repositories"),
        ("cuda", GPU._replace(glibc="2.17"), "needs glibc 2.28 or newer", "2.17", "container"),
        ("cuda", GPU._replace(architecture="ppc64le"), "is made for aarch64, x86_64", "ppc64le", "x86_64"),
        ("cpu", CPU._replace(isa=frozenset()), "needs the instructions avx2", "none", "a CPU with avx2"),
    ],
)  # fmt: skip
def test_a_rejected_row_says_why_and_what_would_fit(backend, machine, reason, seen, set_to):
    rejected = rows.choose(CATALOGUE, backend, None, machine).rejected
    assert any(reason in r.reason and seen in r.seen and set_to in r.set_to for r in rejected), rejected
    assert all(r.row in RAW["rows"] for r in rejected)
    assert all(r.field.startswith("vllm_hardware.") or r.field == "engine_driver" for r in rejected)


def test_every_reason_of_a_row_is_given_at_once():
    machine = SLES._replace(driver="470.57.02", glibc="2.17")
    rejected = rows.choose(CATALOGUE, "cuda", "0.32.0", machine).rejected
    assert {r.field for r in rejected} == {"vllm_hardware.os.glibc", "vllm_hardware.accelerators.driver"}


def test_rows_for_other_devices_are_not_mentioned():
    chosen = rows.choose(CATALOGUE, "ascend", None, A2._replace(driver="25.0.rc1.1", driver_pinned=True))
    assert [r.row for r in chosen.rejected] == ["vllm-ascend-0.23.0.post1"]


@pytest.mark.parametrize(
    ("pinned", "row"),
    [
        ("0.23.0", "vllm-ascend-0.23.0.post1"),  # the engine's version
        ("0.23.0.post1", "vllm-ascend-0.23.0.post1"),  # the plugin's
        ("0.13.0", "vllm-ascend-0.13.0"),
        ("0.12.0", None),
        ("0.23", "vllm-ascend-0.23.0.post1"),
        ("newest", None),
    ],
)
def test_a_pin_means_the_engine_or_the_plugin(pinned, row):
    chosen = rows.choose(CATALOGUE, "ascend", pinned, A2)
    assert (chosen.row.name if chosen.row else None) == row
    assert chosen.rejected == ()


def test_a_pinned_row_that_does_not_fit_is_not_replaced():
    chosen = rows.choose(CATALOGUE, "ascend", "0.23.0", A2._replace(driver="26.0.rc2"))
    assert chosen.row is None
    assert {r.row for r in chosen.rejected} == {"vllm-ascend-0.23.0.post1"}


def test_candidates_only_when_pinned():
    newest = RAW["rows"]["vllm-ascend-0.23.0.post1"]
    candidate = {**newest, "version": "0.24.0", "plugin_version": "0.24.0rc1"}
    same = {**newest, "plugin_version": "0.23.0rc1"}
    more = catalogue({"c": candidate, "s": same})
    assert rows.choose(more, "ascend", None, A2).row.name == "vllm-ascend-0.23.0.post1"
    assert rows.choose(more, "ascend", "0.24.0rc1", A2).row.name == "c"
    assert rows.choose(more, "ascend", "0.23.0rc1", A2).row.name == "s"
    assert rows.choose(more, "ascend", "0.23.0", A2).row.name == "vllm-ascend-0.23.0.post1"
    assert rows.choose(more, "ascend", "0.24.0", A2).row is None


def test_ten_comes_after_nine():
    newer = {**RAW["rows"]["vllm-0.32.0-cuda"], "version": "0.100.0"}
    assert rows.choose(catalogue({"n": newer}), "cuda", None, GPU).row.name == "n"


def test_what_is_unverified_is_said():
    cautions = rows.choose(CATALOGUE, "ascend", "0.18.0", A2).cautions
    assert any(c.startswith("drivers: the range of CANN 8.5.0") for c in cautions)


@pytest.mark.parametrize(
    ("driver", "missing"),
    [("25.2.0", [("full_graph", "driver", ">=25.5.1")]), ("25.5.1", []), ("26.0.rc1", []), ("", [])],
)
def test_features_below_their_floor(driver, missing):
    row = rows.choose(CATALOGUE, "ascend", "0.23.0", A2).row
    assert rows.missing_features(row, driver) == missing
    old = row._replace(versions={**row.versions, "cann": "8.3.RC2"})
    assert ("full_graph", "cann", ">=8.5.0") in rows.missing_features(old, driver)


@pytest.mark.parametrize(
    ("os_id", "version_id", "label", "name"),
    [
        ("kylin", "V10", "V10 (Lance)", "kylin-v10-lance"),
        ("kylin", "V10", "V10 (Tercel)", "kylin-v10-tercel"),
        ("kylin", "V10", "V10 (Halberd)", "kylin-v10-halberd"),
        ("kylin", "V10", "V10", None),  # which service pack is not known
        ("kylin", "v10", "v10 SP1", None),  # the desktop edition
        ("openEuler", "22.03", "22.03 LTS", "openeuler-22.03lts"),
        ("openEuler", "22.03", "22.03 (LTS-SP4)", "openeuler-22.03lts-sp4"),
        ("openEuler", "22.03", "22.03 (LTS-SP3)", None),
        ("ubuntu", "22.04", "22.04.4 LTS (Jammy Jellyfish)", "ubuntu-22.04.4"),
        ("ubuntu", "22.04", "22.04.1 LTS (Jammy Jellyfish)", "ubuntu-22.04"),
        ("centos", "7", "7 (Core)", "centos-7.6"),
        ("debian", "12", "12 (bookworm)", None),
    ],
)
def test_a_platform_is_found_by_what_os_release_says(os_id, version_id, label, name):
    found = platforms.find(CATALOGUE.platforms, os_id, version_id, label)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("machine", "fits"),
    [
        (KYLIN._replace(driver=""), True),
        (KYLIN._replace(driver="", os_label="V10 (Tercel)"), False),
        (KYLIN._replace(driver="", os_label="V10 (Tercel)", families=("310p",)), True),
        (KYLIN._replace(driver="", families=("a3",)), False),
        (KYLIN._replace(driver="", os_label="V10 (Halberd)", families=("a3",)), True),
        (KYLIN._replace(driver="25.5.1", families=("a3",)), True),  # somebody installed one: it runs
        (KYLIN._replace(driver="", os_id=""), True),  # planned before the machine is there
        (A2._replace(driver="", os_label="22.03 (LTS-SP4)", architecture="x86_64"), False),
        (UBUNTU, True),
        (UBUNTU._replace(os_label="22.04.4 LTS (Jammy Jellyfish)"), True),  # listed for aarch64 only
    ],
)
def test_a_driver_that_is_not_installed_has_to_be_offered_for_the_system(machine, fits):
    assert bool(rows.choose(CATALOGUE, "ascend", None, machine).row) is fits


def test_facts_of_a_recorded_machine():
    recorded = json.loads((golden.MACHINES / "atlas-800i-a2" / "facts.json").read_text())
    hardware = facts.read_hardware(recorded, "npu01", Findings())
    found = rows.facts_of(hardware, ["a2", "a2"], "25.0.rc1.1")
    assert found.families == ("a2",)
    assert (found.os_id, found.os_version, found.os_label) == ("openEuler", "22.03", "22.03 LTS")
    assert (found.architecture, found.page_size_bytes) == ("aarch64", 4096)
    assert rows.choose(CATALOGUE, "ascend", None, found).row.name == "vllm-ascend-0.23.0.post1"


@pytest.mark.parametrize(
    ("families", "architecture", "name"),
    [
        (("a2",), "aarch64", "ascend-kunpeng"),
        (("310p",), "x86_64", "ascend-x86"),
        (("hopper",), "x86_64", "nvidia"),
        ((), "aarch64", "kunpeng"),
        ((), "x86_64", "x86-cpu"),
        ((), "riscv64", None),
    ],
)
def test_a_tuning_profile_per_platform(families, architecture, name):
    found = tuning.choose(CATALOGUE.tuning, families, architecture)
    assert (found.name if found else None) == name
    assert found is None or found.sysctl["kernel.numa_balancing"] == "0"
