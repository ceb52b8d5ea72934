# SPDX-License-Identifier: Apache-2.0
"""What a person reads about a fleet of eight hosts with eight NPUs each in which something is wrong."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.fabric import diagnosis

HOSTS = [f"npu{number:02}" for number in range(1, 9)]
NO_BOUNDS: dict[str, Any] = {"latency_us": None, "bandwidth_gbps": None}
Passes = Callable[[tuple[str, int], tuple[str, int]], Any]


def port(host: str, number: int) -> dict[str, Any]:
    address = f"10.0.{HOSTS.index(host) + 1}.{11 + number}"
    return {
        "id": str(number), "label": f"NPU {number}", "address": address, "planned": address, "netmask": "255.255.0.0",
        "gateway": None, "link": "UP", "health": "Success", "tls": 0, "mtu": 1500, "error": None,
        "switch_port": f"200GE1/{host[-1]}/{number + 1}",
    }  # fmt: skip


def fleet(passes: Passes = lambda _source, _target: 3, hosts: list[str] = HOSTS, ports: int = 8) -> dict[str, Any]:
    """Results of hosts; `passes(source, target)` is how many of three packets get an answer."""

    def ping(host: str, number: int, peer: str, other: int) -> dict[str, Any]:
        received = passes((host, number), (peer, other))
        return {"port": str(number), "peer": peer, "peer_port": str(other), "sent": 3, "received": received,
                "milliseconds": [0.05] * received}  # fmt: skip

    return {
        host: {
            "ports": [port(host, number) for number in range(ports)],
            "pings": [
                ping(host, number, peer, other)
                for peer in hosts if peer != host for number in range(ports) for other in range(ports)
            ],
            "measures": [],
        }
        for host in hosts
    }  # fmt: skip


def without(*ends: tuple[str, int]) -> Passes:
    return lambda source, target: 0 if source in ends or target in ends else 3


GOOD = fleet()


@pytest.fixture
def good() -> dict[str, Any]:
    return copy.deepcopy(GOOD)


def codes(results: dict[str, Any], **bounds: float) -> list[tuple[str, list[list[str]]]]:
    return [(entry["code"], entry["ends"]) for entry in diagnosis.diagnose(results, {**NO_BOUNDS, **bounds})]


def test_a_good_fleet_has_no_findings(good: dict[str, Any]) -> None:
    assert diagnosis.diagnose(good, NO_BOUNDS) == []
    text = diagnosis.table(good, [], 12.3)
    assert text.startswith("Fabric: 8 hosts, 64 ports, 3584 pings of pairs, 12 s\n")
    assert "No fault found." in text and len(text.splitlines()) == 13
    assert "npu01      - 64/64" in text


def test_one_wrong_link_among_eight_hosts_is_named_with_its_switch_port() -> None:
    results = fleet(without(("npu03", 5)))
    (found,) = diagnosis.diagnose(results, NO_BOUNDS)
    assert found["code"] == "port" and found["ends"] == [["npu03", "5"]] and found["pairs"] == 56
    assert found["what"].startswith("npu03 NPU 5 (10.0.3.16, switch port 200GE1/3/6) does not reach the ports of other")
    text = diagnosis.table(results, [found])
    assert len(text.splitlines()) == 13, "not one line for each pair that failed"
    assert "npu03  56/64 56/64     -" in text


def test_a_link_that_is_down_explains_its_pairs(good: dict[str, Any]) -> None:
    results = fleet(without(("npu03", 5)))
    results["npu03"]["ports"][5].update(link="DOWN", health="Fault")
    (found,) = diagnosis.diagnose(results, NO_BOUNDS)
    assert (found["code"], found["pairs"]) == ("link", 56)
    assert "Check cable, optical module and the switch's port" in found["todo"]


def test_health_that_is_not_success(good: dict[str, Any]) -> None:
    good["npu02"]["ports"][1]["health"] = "Init"
    good["npu04"]["ports"][0]["health"] = "Unreachable"
    assert [(f["code"], f["level"], f["ends"]) for f in diagnosis.diagnose(good, NO_BOUNDS)] == [
        ("health", "warning", [["npu02", "1"]]), ("health", "error", [["npu04", "0"]])
    ]  # fmt: skip


def test_one_tls_switch_that_differs(good: dict[str, Any]) -> None:
    good["npu07"]["ports"][2]["tls"] = 1
    (found,) = diagnosis.diagnose(good, NO_BOUNDS)
    assert found["code"] == "tls" and found["ends"] == [["npu07", "2"]]
    assert found["what"] == (
        "npu07 NPU 2 (10.0.7.13, switch port 200GE1/7/3): the TLS switch is on, on 63 other ports it is off"
    )


def test_one_mtu_that_differs(good: dict[str, Any]) -> None:
    good["npu01"]["ports"][0]["mtu"] = 9000
    assert codes(good) == [("mtu", [["npu01", "0"]])]


def test_an_address_of_two_ports() -> None:
    results = fleet(without(("npu02", 0), ("npu08", 7)))
    results["npu02"]["ports"][0]["address"] = results["npu02"]["ports"][0]["planned"] = "10.0.8.18"
    (found,) = diagnosis.diagnose(results, NO_BOUNDS)
    assert found["code"] == "duplicate" and found["ends"] == [["npu02", "0"], ["npu08", "7"]]
    assert found["pairs"] == 2 * 56 - 1


def test_an_address_in_the_wrong_subnet() -> None:
    results = fleet(without(("npu05", 4)))
    results["npu05"]["ports"][4].update(address="10.9.5.15", planned="10.9.5.15")
    (found,) = diagnosis.diagnose(results, NO_BOUNDS)
    assert found["code"] == "subnet" and found["pairs"] == 56
    assert "its network is 10.9.0.0/16, that of 7 other ports of this number is 10.0.0.0/16" in found["what"]


def test_a_network_of_its_own_behind_a_gateway_is_a_warning(good: dict[str, Any]) -> None:
    for entry in good["npu05"]["ports"]:
        entry.update(netmask="255.255.255.0", gateway="10.0.5.1")
    found = diagnosis.diagnose(good, NO_BOUNDS)
    assert {entry["level"] for entry in found} == {"warning"} and len(found) == 8


def test_another_address_than_the_plan_has(good: dict[str, Any]) -> None:
    good["npu05"]["ports"][4].update(address="10.0.5.99")
    good["npu06"]["ports"][1].update(address=None)
    good["npu07"]["ports"][0].update(error="hccn_tool left with 1: no answer")
    assert codes(good) == [
        ("address", [["npu05", "4"]]), ("address", [["npu06", "1"]]), ("tool", [["npu07", "0"]])
    ]  # fmt: skip


def test_a_host_that_gave_no_results() -> None:
    results = fleet(lambda source, target: 0 if target[0] == "npu06" else 3)
    results["npu06"] = None
    (found,) = diagnosis.diagnose(results, NO_BOUNDS)
    assert found["code"] == "host" and found["hosts"] == ["npu06"] and found["pairs"] == 8 * 56
    assert "npu06 NPU" not in diagnosis.table(results, [found])


def test_only_one_direction() -> None:
    results = fleet(lambda source, _target: 0 if source == ("npu02", 3) else 3)
    (found,) = diagnosis.diagnose(results, NO_BOUNDS)
    assert found["code"] == "port" and "its own pings get no answer, those of the others do" in found["what"]
    assert "netmask, gateway and ARP" in found["todo"]
    results = fleet(lambda source, target: 0 if (source, target) == (("npu02", 3), ("npu05", 1)) else 3)
    (found,) = diagnosis.diagnose(results, NO_BOUNDS)
    assert found["code"] == "pair" and "(only pings of npu02 NPU 3" in found["what"]


def test_two_ends_that_nothing_tells_apart() -> None:
    results = fleet(without(("npu02", 3)), HOSTS[:2])
    for result in results.values():
        result["pings"] = [ping for ping in result["pings"] if ping["port"] == ping["peer_port"]]
    (found,) = diagnosis.diagnose(results, NO_BOUNDS)
    assert "no other pair tells which of them it is" in found["what"] and found["todo"].startswith("Check both cables")
    assert found["ends"] == [["npu01", "3"], ["npu02", "3"]]


def test_larger_things() -> None:
    def between(left: set[str], right: set[str]) -> Passes:
        return lambda s, t: 0 if {s[0], t[0]} & left and {s[0], t[0]} & right and s[0] != t[0] else 3

    everything = set(HOSTS)
    for passes, code, words in [
        (between({"npu04"}, everything), "host", "No port of npu04 reaches another host"),
        (between({"npu04"}, {"npu06"}), "hosts", "Nothing passes between npu04 and npu06; both reach the others"),
        (
            between(set(HOSTS[:4]), set(HOSTS[4:])),
            "apart",
            "{npu01, npu02, npu03, npu04} | {npu05, npu06, npu07, npu08}",
        ),
        (between(everything, everything), "everywhere", "No port reaches a port of another host"),
        (lambda s, t: 3 if s[1] == t[1] else 0, "rails", "each number is a network of its own"),
    ]:
        (found,) = diagnosis.diagnose(fleet(passes), NO_BOUNDS)
        assert found["code"] == code and words in found["what"] and not found["ends"]


def test_loss() -> None:
    bad = ("npu02", 3)
    results = fleet(lambda source, target: 2 if bad in (source, target) else 3)
    (found,) = diagnosis.diagnose(results, NO_BOUNDS)
    assert found["code"] == "loss" and found["ends"] == [["npu02", "3"]]
    assert "Some packets are lost on 56 pairs of npu02 NPU 3" in found["what"]


def test_pings_that_were_not_tried(good: dict[str, Any]) -> None:
    good["npu01"]["unasked"] = 17
    assert [entry["what"] for entry in diagnosis.diagnose(good, NO_BOUNDS)] == [
        "17 pairs were not tried: the time for pings was used up"
    ]


def test_many_single_pairs_are_counted() -> None:
    results = fleet(lambda s, t: 0 if (HOSTS.index(s[0]) + s[1] * 3 + HOSTS.index(t[0]) * 5 + t[1]) % 17 == 0 else 3)
    found = diagnosis.diagnose(results, NO_BOUNDS)
    assert len(found) > 100
    lines = diagnosis.findings_lines(found)
    assert len(lines) == 21 and lines[-1] == f"… and {len(found) - 20} more single pairs; the report lists them."


def test_a_large_fleet_shows_only_hosts_with_a_fault() -> None:
    hosts = [f"npu{number:02}" for number in range(1, 21)]
    HOSTS[:], saved = hosts, HOSTS[:]
    try:
        results = fleet(without(("npu19", 0)), hosts, ports=1)
    finally:
        HOSTS[:] = saved
    text = diagnosis.table(results, diagnosis.diagnose(results, NO_BOUNDS))
    assert "The matrix shows hosts with a pair that failed (16)." in text and len(text.splitlines()) < 25


class TestMeasures:
    def measured(self, results: dict[str, Any], slow: tuple[str, int], **values: Any) -> dict[str, Any]:
        for one, host in enumerate(HOSTS):
            for peer in HOSTS[one + 1 :]:
                for number in range(8):
                    row = {"port": str(number), "peer": peer, "peer_port": str(number), "latency_us": 2.1,
                           "bandwidth_gbps": 96.5, "error": None}  # fmt: skip
                    row.update(values if slow in ((host, number), (peer, number)) else {})
                    results[host]["measures"].append(row)
        return results

    @pytest.mark.parametrize(
        ("values", "code", "words"),
        [
            ({"latency_us": 7.25}, "latency", "of 7 pairs of {0} is not within 5.0 µs: 7.25 µs at worst"),
            ({"bandwidth_gbps": 48.0}, "bandwidth", "of 7 pairs of {0} is not within 90.0 Gb/s: 48.0 Gb/s at worst"),
            ({"error": "Failed to modify QP"}, "rdma", "RDMA does not work on 7 pairs of {0}: Failed to modify QP"),
        ],
    )
    def test_one_slow_port_is_named(self, good: dict[str, Any], values: Any, code: str, words: str) -> None:
        results = self.measured(good, ("npu06", 2), **values)
        bounds = {"latency_us": 5.0, "bandwidth_gbps": 90.0}
        (found,) = diagnosis.diagnose(results, bounds)
        assert (
            found["code"] == code
            and found["ends"] == [["npu06", "2"]]
            and words.format("npu06 NPU 2 (10.0.6.13, switch port 200GE1/6/3)") in found["what"]
        )
        assert (
            diagnosis.diagnose(self.measured(copy.deepcopy(GOOD), ("", 0)), {"latency_us": 5.0, "bandwidth_gbps": 90.0})
            == []
        )

    def test_everything_slow_is_one_finding(self, good: dict[str, Any]) -> None:
        results = self.measured(good, ("", 0))
        (found,) = diagnosis.diagnose(results, {"latency_us": 1.0, "bandwidth_gbps": None})
        assert "of 224 pairs of the whole network is not within 1.0 µs" in found["what"]
        assert "RDMA per pair (µs, Gb/s):" in diagnosis.table(results, [found])


def test_rows_for_a_machine(good: dict[str, Any]) -> None:
    rows = diagnosis.pairs_of(good)
    assert len(rows) == 3584
    assert rows[0]["from"] == "npu01 NPU 0 (10.0.1.11, switch port 200GE1/1/1)" and rows[0]["kind"] == "ping"
