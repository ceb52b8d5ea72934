# SPDX-License-Identifier: Apache-2.0
"""Addresses of NPUs: written, taken over, read back, rolled back. The ports are the stand-in's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vllm_hccn_config
from ansible.module_utils.vllm_ansible.fabric import hccn

from tests.support.ascend import RootedHost
from tests.support.fabric import Fleet

Run = Callable[..., dict[str, Any]]
BY_HAND = "# by hand\nIPv6address_0=fd00::1\naddress_1 = 10.9.9.9\n"


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, 1, 3, settle=False)


@pytest.fixture
def run(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, run_module: Run) -> Run:
    """Run the module on npu01 with the settings of its plan."""

    class OnHost(RootedHost):
        def run(self, arguments: list[str], environment: Any = None, timeout_seconds: int = 60) -> Any:
            assert environment["LD_LIBRARY_PATH"].startswith(arguments[0].partition("/driver/")[0])
            return fleet.run("npu01", arguments)

    monkeypatch.setattr(vllm_hccn_config, "Host", lambda _run_command: OnHost(fleet.root / "npu01"))

    def play(check_mode: bool = False, diff: bool = False, **params: Any) -> dict[str, Any]:
        plan = fleet.plan("npu01")
        wanted = {"devices": plan["devices"], "tls": 0, "install_path": fleet.install_path("npu01"), **params}
        return run_module(vllm_hccn_config, wanted, check_mode=check_mode, diff=diff)

    return play


def file(fleet: Fleet) -> Path:
    return fleet.root / "npu01/etc/hccn.conf"


def address(fleet: Fleet, number: int) -> str:
    return fleet.tool("npu01", "-i", str(number), "-ip", "-g").stdout


def pending(fleet: Fleet) -> Path:
    return fleet.root / "npu01/var/lib/vllm/hccn/pending.json"


def before(fleet: Fleet) -> str:
    return (fleet.root / "npu01/var/lib/vllm/hccn/hccn.conf.before").read_text()


def test_a_bare_host_gets_its_addresses_once(fleet: Fleet, run: Run) -> None:
    planned = run(check_mode=True, diff=True)
    assert planned["changed"] and planned["applied"] == [0, 1, 2] and file(fleet).read_text() == ""
    assert planned["diff"][0]["after"].startswith("address_0=10.0.1.11\nnetmask_0=255.255.0.0\nnetdetect_0=10.0.0.1\n")
    assert planned["diff"][1]["before"].splitlines()[2] == (
        "NPU 2: address=- netmask=- netdetect=- gateway=- mtu=- tls_enable=0".replace(" mtu=-", "")
    )
    assert planned["diff"][1]["after"].splitlines()[2] == (
        "NPU 2: address=10.0.1.13 netmask=255.255.0.0 netdetect=10.0.0.1 gateway=10.0.0.1 tls_enable=0"
    )
    assert run()["changed"]
    assert address(fleet, 2) == "ipaddr:10.0.1.13\nnetmask:255.255.0.0\n"
    again = run()
    assert not again["changed"] and again["differences"] == [] and not run(check_mode=True)["changed"]


def test_what_others_wrote_stays_and_is_shown(fleet: Fleet, run: Run) -> None:
    file(fleet).write_text(BY_HAND + "mtu_2=4200\n")
    result = run()
    assert file(fleet).read_text().startswith(BY_HAND + "mtu_2=4200\n")
    assert result["kept"] == ["IPv6address_0=fd00::1", "address_1 = 10.9.9.9", "mtu_2=4200"]
    assert result["unread"] == ["address_1 = 10.9.9.9"]
    assert before(fleet) == BY_HAND + "mtu_2=4200\n"
    assert file(fleet).stat().st_mode & 0o777 == 0o640


def test_a_hand_edit_of_one_port_is_taken_back_on_that_port_only(fleet: Fleet, run: Run) -> None:
    run()
    text = file(fleet).read_text()
    file(fleet).write_text(text.replace("address_1=10.0.1.12", "address_1=10.0.99.1"))
    result = run()
    assert result["applied"] == [1] and result["differences"] == []
    assert file(fleet).read_text() == text
    fleet.tool("npu01", "-i", "2", "-tls", "-s", "enable", "1")
    result = run()
    assert result["applied"] == [2]
    assert result["differences"] == [{"device": 2, "name": "tls_enable", "wanted": "0", "seen": "1"}]


@pytest.mark.parametrize("fault", ["hccn_refuses", "hccn_stuck"])
def test_settings_that_do_not_take_are_rolled_back(fleet: Fleet, run: Run, fault: str) -> None:
    run()
    text = file(fleet).read_text()
    fleet.machine("npu01", **{fault: "1"})
    devices = [{**entry, "address": f"10.0.7.{entry['id'] + 1}"} for entry in fleet.plan("npu01")["devices"]]
    result = run(devices=devices)
    assert result["failed"] and result["rolled_back"]
    assert ("recovery left with 1: Cmd execute failed!" in result["msg"]) is (fault == "hccn_refuses")
    assert "NPU 1: address is 10.0.1.12 instead of 10.0.7.2" in result["msg"]
    assert file(fleet).read_text() == text
    assert [address(fleet, number).splitlines()[0] for number in (0, 2)] == ["ipaddr:10.0.1.11", "ipaddr:10.0.1.13"]
    assert not pending(fleet).exists()
    fleet.machine("npu01")
    assert not run()["changed"] and run(devices=devices)["changed"]


def test_a_rollback_that_fails_too_says_so_and_is_completed_later(
    fleet: Fleet, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    devices = [{**entry, "address": f"10.0.7.{entry['id'] + 1}"} for entry in fleet.plan("npu01")["devices"]]
    recover = vllm_hccn_config.Ports.recover

    def breaks(self: Any, numbers: list[int]) -> list[str]:
        failures = recover(self, numbers[:1])
        fleet.machine("npu01", hccn_refuses="0 1 2")
        return failures

    monkeypatch.setattr(vllm_hccn_config.Ports, "recover", breaks)
    result = run(devices=devices)
    assert result["failed"] and not result["rolled_back"] and pending(fleet).exists()
    assert "NPU 0: address is 10.0.7.1, was 10.0.1.11" in result["msg"]
    monkeypatch.setattr(vllm_hccn_config.Ports, "recover", recover)
    fleet.machine("npu01")
    assert run()["applied"] == [0, 1, 2] and address(fleet, 0).startswith("ipaddr:10.0.1.11")


def test_what_cannot_be_taken_away_is_said(fleet: Fleet, run: Run) -> None:
    fleet.machine("npu01", hccn_stuck="1")
    result = run()
    assert result["failed"] and result["rolled_back"] and file(fleet).read_text() == ""
    assert "Not taken away, because nothing can, until the next reset: address, gateway" in result["msg"]


def test_power_lost_between_two_ports(fleet: Fleet, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    file(fleet).write_text(BY_HAND)
    recover = vllm_hccn_config.Ports.recover

    def cut(self: Any, numbers: list[int]) -> list[str]:
        recover(self, numbers[:1])
        raise SystemExit(137)

    monkeypatch.setattr(vllm_hccn_config.Ports, "recover", cut)
    with pytest.raises(IndexError):  # it left without an answer
        run()
    assert address(fleet, 0).startswith("ipaddr:10.0.1.11") and "no ip was preset" in address(fleet, 1)
    monkeypatch.setattr(vllm_hccn_config.Ports, "recover", recover)
    assert run(check_mode=True)["changed"]
    result = run()
    assert result["applied"] == [0, 1, 2] and address(fleet, 1).startswith("ipaddr:10.0.1.12")
    assert before(fleet) == BY_HAND, "the file from before the run that was cut off"
    assert not run()["changed"]


def test_without_a_driver(fleet: Fleet, run: Run) -> None:
    assert run(check_mode=True, install_path="/nowhere")["changed"]
    assert (
        "/nowhere/driver/tools/hccn_tool is not there: install the driver first"
        in (run(install_path="/nowhere")["msg"])
    )
    fleet.machine("npu01", uid="1000")
    assert "left with 1: DrvMngGetConsoleLogLevel failed" in run()["msg"]
    assert file(fleet).read_text() == ""


def test_settings_that_cannot_work_are_refused(fleet: Fleet, run: Run) -> None:
    devices = fleet.plan("npu01")["devices"]
    devices[0]["gateway"] = "10.7.0.1"
    devices[1]["address"] = "10.0.1.13"
    devices[2]["netmask"] = "255.255.0.255"
    result = run(devices=devices, check_mode=True)
    assert "NPU 0: the gateway 10.7.0.1 is not in 10.0.0.0/16" in result["msg"]
    assert "NPU 2: 10.0.1.13/255.255.0.255 is no address" in result["msg"]
    devices[2].update(address="10.0.1.13", netmask="255.255.0.0")
    assert "NPU 2 and NPU 1 both have 10.0.1.13" in run(devices=devices)["msg"]


def test_a_note_that_is_damaged_is_no_note(fleet: Fleet, run: Run) -> None:
    run()
    pending(fleet).write_text("{")
    assert not run()["changed"]


class TestFile:
    def test_the_first_line_of_a_name_counts_and_the_others_go(self) -> None:
        text = "address_0=1.1.1.1\nmtu_0=1500\naddress_0=2.2.2.2\n#address_0=3.3.3.3\n"
        assert hccn.parse(text)[("address", 0)] == "1.1.1.1"
        assert hccn.render(text, {("address", 0): "4.4.4.4"}) == "address_0=4.4.4.4\nmtu_0=1500\n#address_0=3.3.3.3\n"

    def test_names_with_numbers_and_underscores(self) -> None:
        assert hccn.parse("multi_qp_mode_12=a=b\nIPv6address_3=fd00::1\n") == {
            ("multi_qp_mode", 12): "a=b", ("IPv6address", 3): "fd00::1",
        }  # fmt: skip

    def test_a_last_line_without_an_end(self) -> None:
        assert hccn.render("mtu_1=9000", {("mtu", 0): "1"}) == "mtu_1=9000\nmtu_0=1\n"

    def test_only_what_is_named_is_wanted(self) -> None:
        device = {"id": 4, "address": "10.0.0.1", "netmask": "255.0.0.0", "gateway": None, "netdetect": None}
        assert set(hccn.wanted_settings([device], None)) == {("address", 4), ("netmask", 4)}
        assert hccn.wanted_settings([device], 0)[("tls_enable", 4)] == "0"

    def test_answers(self) -> None:
        assert hccn.parse_answer("netdetect", "netdetect addr: 10.0.0.1\n") == "10.0.0.1"
        assert hccn.parse_answer("mtu", "mtu:1500\n") == "1500"
        assert hccn.parse_answer("tls_enable", "dev_id:0, tls switch[0](0:disable, 1:enable)") == "0"
        assert json.dumps(hccn.parse_answer("tls_enable", "")) == "null"
