# SPDX-License-Identifier: Apache-2.0
"""A recording replays to the same facts and holds nothing that identifies the machine."""

import json
import subprocess
import sys

import pytest
from ansible.module_utils.vllm_ansible.hardware import storage
from ansible.module_utils.vllm_ansible.hardware.facts import gather_hardware

from tools import pythons
from tools.hardware_machines import MACHINES, PATHS, ReplayHost, load_machine, machine_facts
from tools.record_hardware import Recorder, Redactor, keep_listening, write_machine


def record(host, directory, replacements=(), names=("taishan7",)):
    recorder = Recorder(host)
    facts = gather_hardware(recorder, PATHS)
    write_machine(str(directory), recorder, Redactor(names, replacements), ["test"], storage)
    return facts


@pytest.mark.parametrize(
    "name", ["epyc-virtual", "xeon-8480-two-sockets", "atlas-800i-a3", "atlas-300i-duo", "a100-4", "l20-2"]
)
def test_a_recording_replays_to_the_same_facts(tmp_path, name):
    facts = record(load_machine(MACHINES / name), tmp_path / "new")
    assert json.loads(machine_facts(tmp_path / "new")) == facts


def test_what_identifies_the_machine_is_replaced(tmp_path):
    host = load_machine(MACHINES / "taishan-2280-v2")
    mac, eui = "48:57:02:aa:bb:cc", "fd00::4a57:2ff:feaa:bbcc"
    host.files["/sys/class/net/enp125s0f0/address"] = mac + "\n"
    host.commands["ip -j addr"] = (0, json.dumps([{"ifname": "enp125s0f0", "address": mac, "addr_info": [
        {"local": "10.1.2.3", "prefixlen": 24, "scope": "global"}, {"local": eui, "prefixlen": 64, "scope": "global"},
    ]}]), "")  # fmt: skip
    host.files["/etc/os-release"] += 'SITE="taishan7.bank.example"\n'
    host.files["/proc/net/tcp"] += "1: 0100000A:0016 0200000A:C000 01 0:0 0:0 0 0 0 30001 1\n"
    host.files["/proc/self/mountinfo"] += "99 1 0:44 / /data rw shared:1 - cifs //filer/x rw,username=someone\n"
    host.links["/proc/1001/fd/9"] = "/home/someone/private"
    host.files["/proc/1001/fd/9"] = "never read"
    host.commands["systemd-detect-virt"] = (1, "none\n", "GPU-12345678-1234-1234-1234-123456789abc\n")
    record(host, tmp_path / "new", [("10.1.2.3", "192.0.2.1")])
    written = "".join(path.read_text() for path in (tmp_path / "new").rglob("*") if path.is_file())
    for secret in (mac, "2ff:feaa", "10.1.2.3", "taishan7", "0200000A", "30001", "private", "someone", "12345678-1234"):
        assert secret not in written, secret
    replayed = json.loads(machine_facts(tmp_path / "new"))
    assert replayed["nics"][0]["mac"].startswith("02:00:00:00:")
    assert replayed["nics"][0]["addresses"][0] == "192.0.2.1/24"
    assert replayed["listeners"][0]["process"] == "sshd"


def test_what_identifies_a_device_is_replaced(tmp_path):
    host = load_machine(MACHINES / "h200-8")
    host.files["/sys/class/infiniband/mlx5_0/ports/1/gids/0"] = "fe80:0000:0000:0000:5e25:73ff:fe94:212a\n"
    host.files["/sys/class/infiniband/mlx5_1/ports/1/gids/0"] = "fe80:0000:0000:0000:0c42:a103:0065:4f5e\n"
    board = "Serial Number                  : 2102313ABC\nVDie ID                        : 42C711D4 20B03704\n"
    board += "\tAsset Tag: BANK-0815\n"
    host.commands["ofed_info -s"] = (0, "MLNX_OFED_LINUX-5.8:\n" + board, "")
    record(host, tmp_path / "new")
    written = "".join(path.read_text() for path in (tmp_path / "new").rglob("*") if path.is_file())
    for secret in ("5e25", "212a", "0c42", "4f5e", "2102313ABC", "BANK-0815", "42C711D4"):
        assert secret not in written, secret
    gids = [port["gids"][0] for port in json.loads(machine_facts(tmp_path / "new"))["rdma"][:2]]
    assert {(gid["index"], gid["type"]) for gid in gids} == {(0, "IB/RoCE v1")}


def test_a_measured_speed_is_recorded(tmp_path):
    host = load_machine(MACHINES / "taishan-2280-v2")
    host.machine["read_bytes_per_s"] = {"/dev/nvme0n1": 5}
    recorder = Recorder(host)
    gather_hardware(recorder, PATHS, measure_disks=True)
    write_machine(str(tmp_path / "new"), recorder, Redactor((), ()), ["test"], storage)
    assert load_machine(tmp_path / "new").measure_read("/dev/nvme0n1", 1, 1) == 5


def test_the_same_value_gets_the_same_replacement_and_parts_of_words_stay():
    redact = Redactor(["node1", "localhost"], [])
    text = redact("aa:bb:cc:dd:ee:01 AA:BB:CC:DD:EE:01 aa:bb:cc:dd:ee:02 00:00:00:00:00:00 node1 node12 localhost")
    assert text == (
        "02:00:00:00:00:01 02:00:00:00:00:01 02:00:00:00:00:02 00:00:00:00:00:00 recorded-host node12 localhost"
    )


def test_connections_are_dropped_and_listeners_kept():
    head, listening, open_ = "sl\n", "0: a b 0A c\n", "1: a b 01 c\n"
    assert keep_listening(head + listening + open_) == head + listening


def test_errors_of_a_tool_survive_the_recording(tmp_path):
    host = ReplayHost(load_machine(MACHINES / "epyc-virtual").machine, {})
    host.commands = {"systemctl --version": (1, "no newline", "reason\n"), "ip -j addr": (255, "", "unknown\n")}
    record(host, tmp_path / "new")
    assert load_machine(tmp_path / "new").commands == {
        "systemctl --version": (1, "no newline\n", "reason\n"),
        "ip -j addr": (255, "", "unknown\n"),
    }


@pytest.mark.parametrize("version", ["3.6", "3.7", "{}.{}".format(*sys.version_info)])
def test_the_tool_records_this_machine_without_ansible(tmp_path, project_root, version):
    interpreter = pythons.find(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} on this machine")
    command = [interpreter, "-I", "-S", str(project_root / "tools/record_hardware.py"), str(tmp_path / "new")]
    subprocess.run([*command, "--source", "here"], check=True, timeout=60)
    facts = json.loads(machine_facts(tmp_path / "new"))
    assert facts["os"]["python"].startswith(version + ".")
    assert facts["memory"]["total_bytes"] > 2**28
    again = subprocess.run([*command, "--source", "here"], capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 2
    assert "name a new directory" in again.stderr
