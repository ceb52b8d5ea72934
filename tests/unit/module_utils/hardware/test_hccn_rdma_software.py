# SPDX-License-Identifier: Apache-2.0
"""The NPUs' own network, RDMA ports and the versions in vendors' files."""

import pytest
from ansible.module_utils.vllm_ansible.hardware import hccn, rdma, software
from ansible.module_utils.vllm_ansible.hardware.facts import gather_hardware

from tools.hardware_machines import MACHINES, load_machine

TLS = (
    "dev_id:0, tls switch[0](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset), "
    "tls alarm time threshold[60]days\n"
)


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (hccn.parse_address, "ipaddr:10.0.0.1\nnetmask:255.0.0.0\n", {"address": "10.0.0.1", "netmask": "255.0.0.0"}),
        (hccn.parse_address, "Get ipconf failed, because no ip was preset there!", {"address": None, "netmask": None}),
        (hccn.parse_address, "ipaddr:999.1.1.1\n", {"address": None, "netmask": None}),
        (hccn.parse_gateway, "default gateway:10.0.0.1, Iface:eth0\n", "10.0.0.1"),
        (hccn.parse_gateway, "Get gateway failed, because no gateway was preset there!", None),
        (hccn.parse_link, "link status: UP\n", "UP"),
        (hccn.parse_link, "link status: DOWN\n", "DOWN"),
        (hccn.parse_link, "", None),
        (hccn.parse_health, "net health status: Success\n", "Success"),
        (hccn.parse_health, "net health status: Receive timeout\n", "Receive timeout"),
        (hccn.parse_health, None, None),
        (hccn.parse_tls, TLS, False),
        (hccn.parse_tls, TLS.replace("switch[0]", "switch[1]"), True),
        (hccn.parse_tls, "error", None),
        (rdma.parse_state, "4: ACTIVE\n", "ACTIVE"),
        (rdma.parse_state, "5: LinkUp", "LinkUp"),
        (rdma.parse_state, None, None),
        (software.parse_atb_version, " Ascend-cann-atb : 8.2.RC2\n Ascend-cann-atb Version : 8.2.B030\n", "8.2.RC2"),
        (software.parse_cuda_version, '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}', "12.4.1"),
        (software.parse_cuda_version, "CUDA Version 10.2.89\n", "10.2.89"),
        (software.parse_cuda_version, '{"cuda": ["12.4"]}', None),
        (software.parse_cuda_version, "[" * 100000, None),
        (software.parse_fabric_manager, "\n\n\tFabric Manager version is : 535.161.08\n", "535.161.08"),
        (software.parse_fabric_manager, "error", None),
        (software.parse_library, "libnvidia-ml.so.580.126.09", "580.126.09"),
        (software.parse_library, "/usr/lib64/libnvidia-ml.so.1", None),
        (software.parse_library, None, None),
        (software.parse_ofed, "MLNX_OFED_LINUX-5.8-1.1.2.1:\n", "MLNX_OFED_LINUX-5.8-1.1.2.1"),
        (software.parse_ofed, "OFED-internal-24.10-0.7.0:\n", "OFED-internal-24.10-0.7.0"),
        (software.parse_ofed, "command failed\n", None),
        (software.parse_ofed, "", None),
    ],
)  # fmt: skip
def test_single_answers(parse, text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "driver", "kind"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n", "535.129.03", "proprietary"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.126.09  (x)\n", "580.126.09", "open"),
        ("GCC version: 12\n", None, None),
        (None, None, None),
    ],
)  # fmt: skip
def test_the_loaded_kernel_module(text, driver, kind):
    assert software.parse_module_version(text) == {"driver": driver, "kernel_module": kind}


def test_the_record_of_a_cann_package():
    text = "package_name=Atlas-A3-cann-kernels\nversion=8.3.RC2\npath=/opt/x\n"
    assert software.parse_install_info(text) == {"kind": "kernels", "version": "8.3.RC2", "path": "/opt/x"}
    assert software.parse_install_info("package_name=Ascend-cann-toolkit\n") is None


def test_the_configuration_file_of_the_npus_network():
    text = "address_0=10.0.0.1\nnetmask_0=255.255.255.0\ngateway_12=nonsense\nmtu_0=4200\naddress_x=1.1.1.1\n"
    assert hccn.parse_configuration(text) == {
        0: {"address": "10.0.0.1", "netmask": "255.255.255.0", "gateway": None},
        12: {"address": None, "netmask": None, "gateway": None},
    }


def test_without_hccn_tool_the_configuration_file_is_what_is_known():
    atlas = load_machine(MACHINES / "atlas-800i-a2")
    atlas.commands = {command: answer for command, answer in atlas.commands.items() if "hccn_tool" not in command}
    facts = gather_hardware(atlas)
    assert [entry["code"] for entry in facts["warnings"]] == ["W_HCCN_TOOL"]
    assert facts["hccn"][7] == {
        "index": 7, "device": 7, "address": "198.51.100.18", "netmask": "255.255.255.0", "gateway": "198.51.100.1",
        "link": None, "health": None, "tls": None, "speed_mbps": None,
    }  # fmt: skip


def test_ports_are_asked_for_by_physical_id_and_the_tool_wins_over_the_file():
    atlas = load_machine(MACHINES / "atlas-800i-a3")
    atlas.commands[f"{hccn.TOOL} -i 15 -ip -g"] = (0, "ipaddr:203.0.113.5\nnetmask:255.255.0.0\n", "")
    atlas.commands[f"{hccn.TOOL} -i 15 -link -g"] = (0, "link status: DOWN\n", "")
    atlas.commands[f"{hccn.TOOL} -i 15 -tls -g"] = (0, TLS.replace("switch[0]", "switch[1]"), "")
    last = gather_hardware(atlas)["hccn"][15]
    assert (last["device"], last["address"], last["netmask"], last["link"], last["tls"]) == (
        15, "203.0.113.5", "255.255.0.0", "DOWN", True,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["atlas-300i-pro", "atlas-300i-duo", "h200-8", "xeon-8480-two-sockets"])
def test_other_devices_have_no_such_port(name):
    assert gather_hardware(load_machine(MACHINES / name))["hccn"] == []


def test_rdma_ports_name_their_gids_in_use():
    host = load_machine(MACHINES / "h200-8")
    ports = "/sys/class/infiniband/mlx5_0/ports/1"
    host.files[f"{ports}/gids/4"] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
    host.files[f"{ports}/gids/10"] = "0000:0000:0000:0000:0000:ffff:cb00:7163\n"
    host.files[f"{ports}/gids/x"] = "nonsense\n"
    port = gather_hardware(host)["rdma"][0]
    assert [gid["index"] for gid in port["gids"]] == [0, 1, 2, 3, 10]
    assert port["gids"][3] == {
        "index": 3, "gid": "0000:0000:0000:0000:0000:ffff:cb00:710a", "type": "RoCE v2", "netdev": "ens1np0",
    }  # fmt: skip
    assert port["gids"][4]["type"] is None, "the kernel refuses to read the type of some entries"
    assert (port["netdev"], port["numa_node"], port["rate_gbps"], port["state"]) == ("ens1np0", 0, 400.0, "ACTIVE")


def test_a_soft_roce_device_has_no_pci_function():
    host = load_machine(MACHINES / "kylin-v10-kunpeng")
    host.links["/sys/class/infiniband/rxe0"] = "../../devices/virtual/infiniband/rxe0"
    host.files["/sys/class/infiniband/rxe0/ports/1/state"] = "1: DOWN\n"
    host.files["/sys/class/infiniband/rxe0/ports/1/rate"] = "2.5 Gb/sec (1X SDR)\n"
    (port,) = gather_hardware(host)["rdma"]
    assert (port["pci"], port["numa_node"], port["state"], port["rate_gbps"], port["gids"]) == (
        None,
        None,
        "DOWN",
        2.5,
        [],
    )


def test_cann_packages_are_listed_once_in_both_layouts():
    new = gather_hardware(load_machine(MACHINES / "atlas-800t-a2"))["software"]["ascend"]
    assert (new["driver"], new["firmware"]) == ("25.5.0", "7.8.0.5.201")
    assert [(entry["kind"], entry["version"], entry["path"]) for entry in new["cann"]] == [
        ("910b-ops", "8.5.0", "/usr/local/Ascend/cann-8.5.0"),
        ("toolkit", "8.5.0", "/usr/local/Ascend/cann-8.5.0"),
        ("nnal", "8.5.0", "/usr/local/Ascend/nnal/atb/8.5.0"),
    ]
    old = gather_hardware(load_machine(MACHINES / "atlas-800i-a3-old"))["software"]["ascend"]["cann"]
    assert [(entry["kind"], entry["version"]) for entry in old] == [("toolkit", "8.3.RC1")]


def test_a_driver_installed_elsewhere_is_found_by_its_record():
    host = load_machine(MACHINES / "kylin-v10-kunpeng")
    host.files["/etc/ascend_install.info"] = "UserName=x\nDriver_Install_Path_Param=/opt/huawei\n"
    host.files["/opt/huawei/driver/version.info"] = "Version=25.2.0\n"
    assert gather_hardware(host)["software"]["ascend"]["driver"] == "25.2.0"


def test_nvidia_software():
    h200 = gather_hardware(load_machine(MACHINES / "h200-8"))
    assert h200["nvswitches"] == 4
    assert h200["software"]["nvidia"]["fabric_manager"] == {"version": "580.126.09", "active": True}
    assert h200["software"]["ofed"] == "OFED-internal-24.10-0.7.0"
    host = load_machine(MACHINES / "h200-8")
    host.commands["systemctl is-active nvidia-fabricmanager"] = (3, "inactive\n", "")
    assert gather_hardware(host)["software"]["nvidia"]["fabric_manager"]["active"] is False
    l20 = gather_hardware(load_machine(MACHINES / "l20-2"))["software"]["nvidia"]
    assert [entry["version"] for entry in l20["cuda_toolkits"]] == ["12.8.1", "13.0.1"]
    assert (l20["cuda"], l20["kernel_module"], l20["fabric_manager"]) == ("13.3", "open", None)


def test_the_drivers_libraries_and_a_loaded_nouveau_are_seen_without_the_module():
    host = load_machine(MACHINES / "kylin-v10-kunpeng")
    host.links["/usr/lib64/libnvidia-ml.so.1"] = "libnvidia-ml.so.580.126.09"
    host.files["/sys/module/nouveau/refcnt"] = "1\n"
    found = software.gather_software(host)["nvidia"]
    assert (found["driver"], found["library"], found["nouveau"]) == (None, "580.126.09", True)


def test_a_host_without_such_software_is_not_warned_about_it():
    facts = gather_hardware(load_machine(MACHINES / "kylin-v10-kunpeng"))
    assert facts["warnings"] == []
    assert facts["software"] == {
        "ascend": {"driver": None, "firmware": None, "cann": []},
        "nvidia": {
            "driver": None, "kernel_module": None, "library": None, "nouveau": False, "cuda": None, "cuda_toolkits": [],
            "fabric_manager": None,
        },
        "ofed": None,
    }  # fmt: skip
