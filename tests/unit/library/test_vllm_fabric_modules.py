# SPDX-License-Identifier: Apache-2.0
"""Probing a fleet of stand-in hosts and reporting on it, module by module."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vllm_fabric_probe
import vllm_fabric_report

from tests.support.fabric import Fleet
from tests.unit.module_utils.fabric.test_outputs import BANDWIDTH, LATENCY, NCCL

Run = Callable[..., dict[str, Any]]


class Ascend:
    """Runs the modules as the playbook does."""

    def __init__(self, fleet: Fleet, run_module: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fleet, self._run, self._patch = fleet, run_module, monkeypatch

    def probe(self, name: str, action: str, **params: Any) -> dict[str, Any]:
        fleet = self.fleet

        class OnHost:
            def __init__(self, _run_command: Any) -> None:
                pass

            def run(self, arguments: list[str], environment: Any = None, timeout_seconds: int = 60) -> Any:
                return fleet.run(name, arguments)

        self._patch.setattr(vllm_fabric_probe, "Host", OnHost)
        wanted = {"action": action, "backend": "ascend", "name": name, "devices": fleet.plan(name)["devices"],
                  "install_path": fleet.install_path(name), **params}  # fmt: skip
        return self._run(vllm_fabric_probe, wanted)

    def check(self, **params: Any) -> dict[str, Any]:
        ports = {name: self.probe(name, "state")["ports"] for name in self.fleet.hosts}
        seen = [self.probe(name, "ping", fleet=ports, **params) for name in self.fleet.hosts]
        found = {field: [result[field] for result in seen] for field in ("pings", "unasked")}
        hosts = {"hosts": list(ports), "ports": list(ports.values())}
        return self._run(vllm_fabric_report, {**hosts, **found, "seconds": 1.5})


@pytest.fixture
def ascend(tmp_path: Path, run_module: Run, monkeypatch: pytest.MonkeyPatch) -> Ascend:
    return Ascend(Fleet(tmp_path, 4, 3), run_module, monkeypatch)


def errors(report: dict[str, Any]) -> list[tuple[str, list[list[str]]]]:
    return [(entry["code"], entry["ends"]) for entry in report["findings"] if entry["level"] == "error"]


def test_a_sound_fleet_passes(ascend: Ascend) -> None:
    report = ascend.check()
    assert report["passed"] and report["findings"] == [] and not report["changed"]
    assert len(report["document"]["pairs"]) == 4 * 3 * 9 and report["document"]["hosts"]["npu02"][1]["mtu"] == 1500
    assert "npu04    9/9   9/9   9/9     -" in report["table"]
    assert json.dumps(report["document"])


@pytest.mark.slow
def test_one_wrong_link_among_eight_hosts_with_eight_npus(tmp_path: Path, run_module: Run, monkeypatch: Any) -> None:
    ascend = Ascend(Fleet(tmp_path, 8, 8), run_module, monkeypatch)
    ascend.fleet.faults("cut npu03:5")
    path = ascend.fleet.root / "npu03/run/ascend-stand-in/hccn-5"
    path.write_text(path.read_text().replace("netdetect=10.0.0.1\n", ""))  # net health does not tell
    report = ascend.check()
    assert len(report["document"]["pairs"]) == 3584 and errors(report) == [("port", [["npu03", "5"]])]
    assert "npu03 NPU 5 (10.0.3.16, switch port 200GE1/0/6) does not reach the ports of other" in report["summary"]
    assert len(report["table"].splitlines()) < 15


@pytest.mark.parametrize(
    ("faults", "found"),
    [
        (["down npu02:1"], [("link", [["npu02", "1"]])]),
        (["cut npu02:1"], [("health", [["npu02", "1"]])]),
        (["cut npu01:2 npu03:0"], [("pair", [["npu01", "2"], ["npu03", "0"]])]),
        (["cut npu01:* npu03:*"], [("hosts", [])]),
        (["lossy npu04:0"], [("loss", [["npu04", "0"]])]),
    ],
)
def test_a_fault_of_the_fabric_is_named(ascend: Ascend, faults: list[str], found: Any) -> None:
    ascend.fleet.faults(*faults)
    report = ascend.check()
    assert errors(report) == found and not report["passed"]


def test_a_host_with_the_address_of_another(ascend: Ascend) -> None:
    ascend.fleet.tool("npu03", "-i", "2", "-ip", "-s", "address", "10.0.1.12", "netmask", "255.255.0.0")
    report = ascend.check()
    assert errors(report) == [("address", [["npu03", "2"]]), ("duplicate", [["npu01", "1"], ["npu03", "2"]])]


def test_pairs_of_one_number_and_the_time_limit(ascend: Ascend) -> None:
    assert len(ascend.check(pairs="same")["document"]["pairs"]) == 4 * 3 * 3
    report = ascend.check(time_limit=-1)
    assert [entry["code"] for entry in report["findings"]] == ["unfinished"] and "108 pairs" in report["summary"]


def test_a_port_starts_at_another_place_than_its_neighbour(ascend: Ascend) -> None:
    ports = {name: [{"id": i, "address": f"{name}.{i}"} for i in range(3)] for name in ascend.fleet.hosts}
    plan = vllm_fabric_probe.targets({"fleet": ports, "name": "npu01", "pairs": "all"}, ports["npu01"])
    firsts = [mine[0] for _port, mine in plan]
    assert len({address for _peer, _port, address in firsts}) == 3 and len({peer for peer, *_rest in firsts}) == 1
    assert all(len(mine) == 9 for _port, mine in plan)


def test_without_a_driver(ascend: Ascend) -> None:
    (ascend.fleet.root / "npu01/usr/local/Ascend/driver/version.info").unlink()
    ports = ascend.probe("npu01", "state")["ports"]
    assert "DrvMngGetConsoleLogLevel failed" in ports[0]["error"]
    assert "install the driver" in ascend.probe("npu01", "state", install_path="/nowhere")["ports"][0]["error"]


class Nics:
    """Two hosts with two NICs each, as their tools answer."""

    def __init__(self) -> None:
        self.answers = {"ib_write_lat": (0, LATENCY, ""), "ib_write_bw": (0, BANDWIDTH, "")}
        self.commands: list[list[str]] = []

    def ports(self, name: str) -> list[dict[str, Any]]:
        return [
            {"id": f"mlx5_{n}", "label": f"mlx5_{n} (ens{n})", "rdma_port": 1, "gid_index": 3, "error": None,
             "planned": None, "address": f"10.{n}.0.{name[-1]}", "netmask": "255.255.0.0", "gateway": None,
             "link": "UP", "health": None, "tls": None, "mtu": 9000, "switch_port": None}
            for n in range(2)
        ]  # fmt: skip

    def run(self, name: str, arguments: list[str]) -> tuple[int, str, str] | None:
        self.commands.append(arguments)
        if arguments[-1] == "state":
            return 0, json.dumps(self.ports(name)), ""
        if arguments[0] == "ping":
            return 0, "3 packets transmitted, 3 received, 0% packet loss", ""
        return self.answers[arguments[0]]


@pytest.fixture
def nics(run_module: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    fleet = Nics()
    table = {name: fleet.ports(name) for name in ("gpu1", "gpu2")}

    def probe(name: str, action: str, **params: Any) -> dict[str, Any]:
        class OnHost:
            def __init__(self, _run_command: Any) -> None:
                pass

            def run(self, arguments: list[str], environment: Any = None, timeout_seconds: int = 60) -> Any:
                return fleet.run(name, arguments)

        monkeypatch.setattr(vllm_fabric_probe, "Host", OnHost)
        return run_module(
            vllm_fabric_probe, {"action": action, "backend": "nic", "name": name, "fleet": table, **params}
        )

    return fleet, probe


def test_nics_are_pinged_from_their_own_address(nics: Any) -> None:
    fleet, probe = nics
    assert [port["id"] for port in probe("gpu1", "state")["ports"]] == ["mlx5_0", "mlx5_1"]
    assert len(probe("gpu1", "ping")["pings"]) == 4
    pings = [command for command in fleet.commands if command[0] == "ping"]
    assert ["ping", "-n", "-c", "3", "-i", "0.2", "-W", "1", "-I", "10.1.0.1", "10.0.0.2"] in pings


def test_one_host_serves_and_the_other_measures(nics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, probe = nics
    fleet.answers["setsid"] = (0, "", "")
    monkeypatch.setattr(vllm_fabric_probe, "listening", lambda: {18515, 18516, 18517, 18518})
    probe("gpu1", "serve")
    assert fleet.commands == [["/usr/local/libexec/vllm/vllm-roce", "state"]]
    assert probe("gpu2", "measure")["measures"] == []
    probe("gpu2", "serve", seconds=2)
    started = [command for command in fleet.commands if command[0] == "setsid"]
    assert [" ".join(command[6:]) for command in started] == [
        "timeout 68 ib_write_lat -d mlx5_0 -i 1 -x 3 -p 18515 -F -n 1000",
        "timeout 68 ib_write_bw -d mlx5_0 -i 1 -x 3 -p 18516 -F --report_gbits -D 2",
        "timeout 68 ib_write_lat -d mlx5_1 -i 1 -x 3 -p 18517 -F -n 1000",
        "timeout 68 ib_write_bw -d mlx5_1 -i 1 -x 3 -p 18518 -F --report_gbits -D 2",
    ]
    measures = probe("gpu1", "measure", seconds=2)["measures"]
    assert measures[1] == {"port": "mlx5_1", "peer": "gpu2", "peer_port": "mlx5_1", "latency_us": 1.86,
                           "bandwidth_gbps": 96.42, "error": None}  # fmt: skip
    client = "ib_write_bw -d mlx5_1 -i 1 -x 3 -p 18518 -F --report_gbits -D 2 10.1.0.2"
    assert client in [" ".join(command) for command in fleet.commands]
    assert probe("gpu1", "measure", round=1)["measures"] == []


def test_a_measurement_that_fails_says_why(nics: Any) -> None:
    fleet, probe = nics
    fleet.answers["ib_write_lat"] = (1, "", "Couldn't connect to 10.0.0.2:18515\nUnable to open file")
    row = probe("gpu1", "measure")["measures"][0]
    assert (
        row["error"] == "ib_write_lat gave no figure: Couldn't connect to 10.0.0.2:18515" and row["latency_us"] is None
    )


def test_without_the_role(nics: Any) -> None:
    fleet, probe = nics
    fleet.run = lambda _name, _arguments: None
    assert "Run the role roce_fabric" in probe("gpu1", "state")["msg"]


@pytest.mark.parametrize(
    ("output", "least", "words"),
    [
        (NCCL, 90.0, None),
        (NCCL, 100.0, "all_reduce reaches 93.4512 GB/s of 100.0"),
        ("mpirun: not found", 0.0, "The all_reduce test gave no result"),
        (NCCL.replace("values : 0", "values : 2"), 0.0, "computed wrong values"),
    ],
)
def test_all_reduce_has_a_floor(run_module: Run, output: str, least: float, words: str | None) -> None:
    wanted = {"all_reduce_output": output, "all_reduce_gbytes": least}
    report = run_module(vllm_fabric_report, {"hosts": [], "ports": [], **wanted})
    assert report["passed"] is (words is None) and (words or "") in report["summary"]


def test_a_host_without_results_is_named(run_module: Run) -> None:
    report = run_module(vllm_fabric_report, {"hosts": ["npu01", "npu02"], "ports": [[], None], "pings": [[], None]})
    assert report["summary"].startswith("ERROR: npu02 gave no results") and report["document"]["hosts"]["npu02"] is None
