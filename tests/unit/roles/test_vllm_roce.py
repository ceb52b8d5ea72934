# SPDX-License-Identifier: Apache-2.0
"""The program that sets NICs, on a pretended /sys with two of them. The tools' layouts are those of the manuals."""

import importlib.util
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLAN = {
    "interfaces": [
        {"name": "ens3f0np0", "rdma_device": "mlx5_0", "port": 1, "mtu": 9000, "address": "10.1.0.1"},
        {"name": "ens3f1np1", "rdma_device": "mlx5_1", "port": 1, "mtu": None, "address": None},
    ],
    "priority": 3, "dscp": 26, "tos": 106, "trust": "dscp", "lossless": True, "gid_index": False,
    "socket_interface": "",
}  # fmt: skip
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


class Machine:
    """A host with two ports of one card; `tools` says which of mlnx_qos and dcb there is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tools = {"mlnx_qos", "ip"}
        self.ports: dict[str, dict[str, Any]] = {}
        self.stuck: set[str] = set()
        self.calls: list[list[str]] = []
        for number in range(2):
            name, pci = f"ens3f{number}np{number}", f"0000:3b:00.{number}"
            self.interface(name, pci, f"b8:ce:f6:00:00:0{number}")
            self.gids(f"mlx5_{number}", name, f"10.1.0.{number + 1}")
        self.plan()

    def write(self, path: str, text: str) -> None:
        (self.root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path.lstrip("/")).write_text(text)

    def plan(self, **changes: Any) -> None:
        self.write("/etc/vllm/roce_fabric.json", json.dumps({**PLAN, **changes}))

    def interface(self, name: str, pci: str, mac: str) -> None:
        for file, text in (("address", mac), ("mtu", "1500"), ("operstate", "up")):
            self.write(f"/sys/class/net/{name}/{file}", text + "\n")
        (self.root / f"sys/class/net/{name}/device").symlink_to(f"../../../{pci}")
        for side in ("roce_np", "roce_rp"):
            self.write(f"/sys/class/net/{name}/ecn/{side}/enable/3", "0\n")
        self.ports[name] = {"trust": "pcp", "pfc": "0,0,0,0,0,0,0,0", "dscp": {26: 3}}

    def gids(self, device: str, name: str, address: str, first: int = 0) -> None:
        """The usual table: v1 and v2 of the link-local address, then v1 and v2 of the IPv4 address."""
        ports = f"/sys/class/infiniband/{device}/ports/1"
        octets = [int(part) for part in address.split(".")]
        mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*octets)
        table = [("fe80:0000:0000:0000:bace:f6ff:fe00:0000", "IB/RoCE v1"), ("fe80:0000:0000:0000:bace:f6ff:fe00:0000",
                 "RoCE v2"), (mapped, "IB/RoCE v1"), (mapped, "RoCE v2")]  # fmt: skip
        for index in range(first):
            self.write(f"{ports}/gids/{index}", ZERO + "\n")
        for index, (gid, kind) in enumerate(table, first):
            self.write(f"{ports}/gids/{index}", gid + "\n")
            self.write(f"{ports}/gid_attrs/types/{index}", kind + "\n")
            self.write(f"{ports}/gid_attrs/ndevs/{index}", name + "\n")
        self.write(f"{ports}/state", "4: ACTIVE\n")
        self.write(f"/sys/class/infiniband/{device}/tc/1/traffic_class", "Global tclass=0\n")

    def rename(self, old: str, new: str) -> None:
        (self.root / f"sys/class/net/{old}").rename(self.root / f"sys/class/net/{new}")
        self.ports[new] = self.ports.pop(old)

    def reboot(self) -> None:
        """What a reboot does to the settings."""
        for name, port in self.ports.items():
            port.update(trust="pcp", pfc="0,0,0,0,0,0,0,0")
            self.write(f"/sys/class/net/{name}/mtu", "1500\n")

    def run(self, *argv: str) -> tuple[int, str] | None:
        """The tools; a port in `stuck` takes nothing."""
        self.calls.append(list(argv))
        if argv[0] not in self.tools:
            return None
        if argv[0] == "ip" and argv[1] == "link":
            self.write(f"/sys/class/net/{argv[4]}/mtu", argv[6] + "\n")
            return 0, ""
        if argv[0] == "ip":
            number = sorted(self.ports).index(argv[-1]) + 1
            return 0, f"2: {argv[-1]}    inet 10.1.0.{number}/24 brd 10.1.0.255 scope global {argv[-1]}"
        return self.mlnx_qos(*argv) if argv[0] == "mlnx_qos" else self.dcb(*argv)

    def mlnx_qos(self, *argv: str) -> tuple[int, str]:
        if argv[1] == "--version":
            return 0, ""
        port, words = self.ports[argv[2]], dict(zip(argv[3::2], argv[4::2], strict=True))
        if argv[2] not in self.stuck:
            port["trust"] = words.get("--trust", port["trust"])
            port["pfc"] = words.get("--pfc", port["pfc"])
            if "--dscp2prio" in words:
                _, dscp, priority = words["--dscp2prio"].split(",")
                port["dscp"][int(dscp)] = int(priority)
        rows = ["DCBX mode: OS controlled", f"Priority trust state: {port['trust']}", "dscp2prio mapping:"]
        rows += [f"\tprio:{priority} dscp:31,{dscp:02},25," for dscp, priority in port["dscp"].items()]
        rows += ["PFC configuration:", "\tpriority    0   1   2   3   4   5   6   7"]
        return 0, "\n".join([*rows, "\tenabled     " + port["pfc"].replace(",", "   "), "tc: 0 ratelimit: unlimited"])

    def dcb(self, *argv: str) -> tuple[int, str]:
        words = [word for word in argv if word != "-N"]
        if words[1] == "-V":
            return 0, ""
        port = self.ports[words[4]]
        if words[1:3] == ["pfc", "set"]:
            port["pfc"] = ",".join("1" if f"{number}:on" in words else "0" for number in range(8))
        if words[1:3] == ["app", "replace"]:
            port["dcb"] = words[6]
        flags = " ".join(f"{n}:{'on' if v == '1' else 'off'}" for n, v in enumerate(port["pfc"].split(",")))
        if words[1] == "pfc":
            return 0, f"pfc-cap 8 macsec-bypass off delay 0\nprio-pfc {flags}"
        return 0, f"dscp-prio {port['dcb']}" if "dcb" in port else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def roce(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, on the machine."""
    loader = SourceFileLoader("vllm_roce", str(ROOT / "roles/roce_fabric/files/vllm-roce"))
    spec = importlib.util.spec_from_loader("vllm_roce", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", str(machine.root))
    monkeypatch.setattr(module, "run", machine.run)
    return module


def call(roce: Any, capsys: pytest.CaptureFixture[str], action: str) -> tuple[int, list[str]]:
    code = roce.main([action])
    return code, capsys.readouterr().out.splitlines()


def environment(machine: Machine) -> dict[str, str]:
    lines = (machine.root / "run/roce-fabric/nccl.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("tool", ["mlnx_qos", "dcb"])
def test_settings_come_back_after_a_reboot(machine: Machine, roce: Any, capsys: Any, tool: str) -> None:
    machine.tools = {tool, "ip"}
    assert call(roce, capsys, "record") == (0, [])
    code, lines = call(roce, capsys, "check")
    assert code == 1 and "ens3f0np0: mtu is 1500 instead of 9000" in lines
    assert "ens3f0np0: pfc is 0,0,0,0,0,0,0,0 instead of 0,0,0,1,0,0,0,0" in lines
    assert (
        "ens3f1np1: traffic class is 0 instead of 106" in lines and "ens3f1np1: ecn roce_np is 0 instead of 1" in lines
    )
    assert call(roce, capsys, "apply") == (0, [])
    machine.calls.clear()
    assert call(roce, capsys, "check") == (0, [])
    machine.reboot()
    assert call(roce, capsys, "check")[0] == 1
    assert call(roce, capsys, "apply") == (0, [])


def test_another_priority_is_mapped(machine: Machine, roce: Any, capsys: Any) -> None:
    machine.plan(priority=5)
    for name in list(machine.ports):
        for side in ("roce_np", "roce_rp"):
            machine.write(f"/sys/class/net/{name}/ecn/{side}/enable/5", "0\n")
    assert call(roce, capsys, "apply") == (0, [])
    assert machine.ports["ens3f0np0"]["dscp"] == {26: 5} and machine.ports["ens3f0np0"]["pfc"] == "0,0,0,0,0,1,0,0"


def test_what_does_not_take_is_named(machine: Machine, roce: Any, capsys: Any) -> None:
    machine.stuck = {"ens3f1np1"}
    code, lines = call(roce, capsys, "apply")
    assert code == 1 and lines == [
        "ens3f1np1: trust is pcp instead of dscp", "ens3f1np1: pfc is 0,0,0,0,0,0,0,0 instead of 0,0,0,1,0,0,0,0"
    ]  # fmt: skip


def test_without_a_tool_and_without_priorities(machine: Machine, roce: Any, capsys: Any) -> None:
    machine.tools = {"ip"}
    code, lines = call(roce, capsys, "apply")
    assert code == 1 and "Neither mlnx_qos (MLNX_OFED, DOCA-Host) nor dcb (iproute2) is installed" in lines[0]
    machine.plan(lossless=False)
    assert call(roce, capsys, "apply") == (0, [])
    assert (machine.root / "sys/class/net/ens3f0np0/mtu").read_text() == "9000\n"


def test_a_renamed_nic_is_named_and_nothing_else_is_set(machine: Machine, roce: Any, capsys: Any) -> None:
    call(roce, capsys, "record")
    machine.rename("ens3f0np0", "eth7")
    machine.calls.clear()
    code, lines = call(roce, capsys, "apply")
    assert code == 1
    assert lines[0].startswith(
        "The interface ens3f0np0 (PCI 0000:3b:00.0, MAC b8:ce:f6:00:00:00) is called eth7 now. Give it its name back"
    )
    assert not any("eth7" in word for words in machine.calls for word in words)
    assert call(roce, capsys, "environment")[1] == lines[:1]
    assert json.loads(call(roce, capsys, "state")[1][0])[0]["error"] == lines[0]


def test_names_that_changed_places(machine: Machine, roce: Any, capsys: Any) -> None:
    call(roce, capsys, "record")
    machine.rename("ens3f0np0", "x")
    machine.rename("ens3f1np1", "ens3f0np0")
    machine.rename("x", "ens3f1np1")
    lines = call(roce, capsys, "check")[1]
    assert "ens3f0np0 (PCI 0000:3b:00.0" in lines[0] and "is called ens3f1np1 now" in lines[0]
    assert "ens3f1np1 (PCI 0000:3b:00.1" in lines[1] and "is called ens3f0np0 now" in lines[1]


def test_a_card_that_is_gone_or_another_one(machine: Machine, roce: Any, capsys: Any) -> None:
    call(roce, capsys, "record")
    link = machine.root / "sys/class/net/ens3f1np1/device"
    link.unlink()
    link.symlink_to("../../../0000:5e:00.0")
    assert "was PCI 0000:3b:00.1, MAC b8:ce:f6:00:00:01 and is PCI 0000:5e:00.0" in call(roce, capsys, "check")[1][-1]
    assert "roce_fabric_accept_interfaces" in call(roce, capsys, "check")[1][-1]
    call(roce, capsys, "record")
    assert call(roce, capsys, "apply") == (0, [])
    machine.rename("ens3f1np1", "x")
    assert call(roce, capsys, "record") == (1, ["There is no interface ens3f1np1, only ens3f0np0, x."])


def test_a_gid_that_moved_is_followed(machine: Machine, roce: Any, capsys: Any) -> None:
    machine.plan(gid_index=True)
    assert call(roce, capsys, "environment") == (0, [])
    assert environment(machine) == {
        "NCCL_IB_GID_INDEX": "3", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "NCCL_IB_TC": "106",
        "NCCL_SOCKET_IFNAME": "=ens3f0np0,ens3f1np1",
    }  # fmt: skip
    for number in range(2):
        machine.gids(f"mlx5_{number}", f"ens3f{number}np{number}", f"10.1.0.{number + 1}", first=2)
    assert call(roce, capsys, "environment") == (0, []) and environment(machine)["NCCL_IB_GID_INDEX"] == "5"
    state = json.loads(call(roce, capsys, "state")[1][0])
    assert [port["gid_index"] for port in state] == [5, 5]
    assert state[0]["address"] == "10.1.0.1" and state[0]["netmask"] == "255.255.255.0" and state[0]["link"] == "UP"


def test_gids_at_different_places(machine: Machine, roce: Any, capsys: Any) -> None:
    machine.gids("mlx5_1", "ens3f1np1", "10.1.0.2", first=2)
    call(roce, capsys, "environment")
    assert "NCCL_IB_GID_INDEX" not in environment(machine), "a new NCCL finds it by itself"
    machine.plan(gid_index=True)
    code, lines = call(roce, capsys, "environment")
    assert code == 1 and "differs between interfaces (ens3f0np0: 3, ens3f1np1: 5)" in lines[0]


def test_the_address_of_the_plan_counts_among_several(machine: Machine, roce: Any) -> None:
    machine.gids("mlx5_0", "ens3f0np0", "10.1.0.1", first=4)  # below it: the table from before, with the same address
    machine.gids("mlx5_0", "ens3f0np0", "192.0.2.7")
    assert roce.gid_index({**PLAN["interfaces"][0]}) == 7  # type: ignore[index]
    assert roce.gid_index({**PLAN["interfaces"][0], "address": None}) == 3  # type: ignore[index]


def test_no_gid(machine: Machine, roce: Any, capsys: Any) -> None:
    machine.write("/sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/3", "other\n")
    code, lines = call(roce, capsys, "environment")
    assert code == 1 and lines == [
        "mlx5_1 port 1 has no RoCE v2 GID with an IPv4 address of ens3f1np1: give the interface its address."
    ]


def test_a_link_that_is_down(machine: Machine, roce: Any, capsys: Any) -> None:
    machine.write("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n")
    assert [port["link"] for port in json.loads(call(roce, capsys, "state")[1][0])] == ["UP", "DOWN"]


def test_without_settings(machine: Machine, roce: Any, capsys: Any) -> None:
    machine.write("/etc/vllm/roce_fabric.json", "{")
    with pytest.raises(SystemExit) as caught:
        roce.main(["check"])
    assert caught.value.code == 2 and "run the role roce_fabric" in capsys.readouterr().out


def test_usage(roce: Any, capsys: Any) -> None:
    assert call(roce, capsys, "nothing")[0] == 2
