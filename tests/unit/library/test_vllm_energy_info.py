# SPDX-License-Identifier: Apache-2.0
"""Energy counters in the layout of the kernel's powercap documentation; the numbers are invented."""

import pytest
import vllm_energy_info
from ansible.module_utils.vllm_ansible import energy
from ansible.module_utils.vllm_ansible.host import Host

RANGE = 262143328850


@pytest.fixture
def zones(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "ROOT", str(tmp_path))

    def put(zone: str, name: str, microjoules: int) -> None:
        folder = tmp_path / zone
        folder.mkdir(exist_ok=True)
        (folder / "name").write_text(name + "\n")
        (folder / "energy_uj").write_text(f"{microjoules}\n")
        (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")

    return put


def read(run_module, **params):
    return run_module(vllm_energy_info, params, check_mode=True)


def test_joules_of_the_packages_with_a_turned_counter(run_module, zones, tmp_path):
    (tmp_path / "intel-rapl").mkdir()  # the control type, which counts nothing
    zones("intel-rapl:0", "package-0", RANGE - 1_000_000)
    zones("intel-rapl:0:0", "dram", 5)
    zones("intel-rapl:1", "package-1", 7)
    zones("intel-rapl:2", "psys", 7)
    zones("intel-rapl-mmio:0", "package-0", 7)
    before = read(run_module)
    assert before["joules"] is None and len(before["counters"]) == 5
    zones("intel-rapl:0", "package-0", 2_000_000)
    zones("intel-rapl:0:0", "dram", 9_000_000)
    zones("intel-rapl:1", "package-1", 500_007)
    zones("intel-rapl:2", "psys", 90_000_007)
    zones("intel-rapl-mmio:0", "package-0", 90_000_007)
    assert read(run_module, since=before["counters"])["joules"] == 3.5


def test_a_host_that_counts_nothing(run_module, zones):
    assert read(run_module) == {"changed": False, "counters": [], "joules": None, **read(run_module)}
    assert energy.joules([], energy.read(Host())) is None


def test_a_zone_that_went_away_gives_no_number(run_module, zones):
    gone = [{"zone": "intel-rapl:0", "name": "package-0", "microjoules": 1, "range_microjoules": RANGE}]
    assert read(run_module, since=gone)["joules"] is None
    assert "not the counters" in read(run_module, since=[{"a": 1}])["msg"]
