# SPDX-License-Identifier: Apache-2.0
import pytest
import vllm_reserved_ports

KEY = "net.ipv4.ip_local_reserved_ports"


@pytest.fixture
def host(tmp_path, monkeypatch):
    (tmp_path / "sysctl.d").mkdir()
    live = tmp_path / "live"
    live.write_text("7\n")
    monkeypatch.setattr(vllm_reserved_ports, "LIVE", str(live))
    monkeypatch.setattr(vllm_reserved_ports, "DIRECTORIES", (str(tmp_path / "sysctl.d"),))
    return tmp_path


def run(run_module, host, *ports, **options):
    path = host / "sysctl.d/99-zz-vllm-reserved-ports.conf"
    return run_module(vllm_reserved_ports, {"ports": list(ports), "path": str(path)}, **options), path


def test_what_others_reserved_is_merged(host, run_module):
    (host / "sysctl.d/50-hccl.conf").write_text(f"# ours\nnet/ipv4/ip_local_reserved_ports=60000-60031\n-{KEY} = 9\n")
    result, path = run(run_module, host, "8000", "8001")
    assert result["changed"]
    assert result["reserved"] == "7,9,8000-8001,60000-60031"
    assert (host / "live").read_text() == "7,9,8000-8001,60000-60031\n"
    assert path.read_text().splitlines()[-1] == f"{KEY} = 9,8000-8001,60000-60031"
    assert not run(run_module, host, "8000", "8001")[0]["changed"]


def test_ports_that_left_the_plan_go_and_others_stay(host, run_module):
    run(run_module, host, "8000", "8001")
    result, _ = run(run_module, host, "8001")
    assert result["reserved"] == "7,8001"
    result, path = run(run_module, host)
    assert result["reserved"] == "7"
    assert not path.exists()
    assert not run(run_module, host)[0]["changed"]


def test_check_mode_writes_nothing(host, run_module):
    result, path = run(run_module, host, "8000", check_mode=True, diff=True)
    assert result["changed"]
    assert result["diff"][1]["after"] == "7,8000\n"
    assert not path.exists()
    assert (host / "live").read_text() == "7\n"


def test_a_lost_kernel_value_is_written_again(host, run_module):
    run(run_module, host, "8000")
    (host / "live").write_text("\n")
    result, _ = run(run_module, host, "8000")
    assert result["changed"]
    assert (host / "live").read_text() == "8000\n"


def test_a_kernel_that_cannot_be_written_is_reported(host, run_module, monkeypatch):
    monkeypatch.setattr(vllm_reserved_ports.os, "access", lambda path, mode: False)
    result, path = run(run_module, host, "8000")
    assert result["changed"]
    assert not result["live_written"]
    assert result["reserved"] == "7"
    assert path.exists()
    assert not run(run_module, host, "8000")[0]["changed"]


def test_a_wrong_port_is_named(host, run_module):
    result, _ = run(run_module, host, "http")
    assert result["failed"]
    assert "'http' is neither a port nor a range" in result["msg"]
