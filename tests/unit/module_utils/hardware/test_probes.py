# SPDX-License-Identifier: Apache-2.0
"""The probes on hosts that are not like the next one: each case changes one thing of a recorded machine."""

import json
import re

import pytest
from ansible.module_utils.vllm_ansible.hardware import nvidia_smi, pci, storage
from ansible.module_utils.vllm_ansible.hardware.cgroup import parse_cgroups, unit_of
from ansible.module_utils.vllm_ansible.hardware.cpu import parse_cpuinfo
from ansible.module_utils.vllm_ansible.hardware.facts import gather_hardware
from ansible.module_utils.vllm_ansible.hardware.listeners import parse_tcp
from ansible.module_utils.vllm_ansible.hardware.memory import parse_meminfo
from ansible.module_utils.vllm_ansible.hardware.network import parse_proc_addresses
from ansible.module_utils.vllm_ansible.hardware.operating_system import parse_os_release
from ansible.module_utils.vllm_ansible.hardware.storage import parse_mountinfo

from tools.hardware_machines import MACHINES, PATHS, ReplayHost, load_machine

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"


@pytest.fixture
def epyc():
    return load_machine(MACHINES / "epyc-virtual")


@pytest.fixture
def taishan():
    return load_machine(MACHINES / "taishan-2280-v2")


@pytest.fixture
def xeon():
    return load_machine(MACHINES / "xeon-8480-two-sockets")


@pytest.fixture
def atlas():
    return load_machine(MACHINES / "atlas-800i-a2")


def gather(host):
    return gather_hardware(host, PATHS)


def codes(facts):
    return {entry["code"] for entry in facts["warnings"]}


def test_a_host_that_shows_nothing_is_described_with_nulls_and_warnings():
    machine = {
        "system": {"machine": "riscv64", "kernel": "6", "page_size": 4096, "glibc": None, "python": "3", "euid": 0}
    }
    facts = gather(ReplayHost(machine, {}))
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cpu"]["sockets"] is None
    assert facts["memory"]["total_bytes"] is None
    assert facts["disks"] == facts["nics"] == facts["listeners"] == facts["accelerators"] == []
    assert codes(facts) >= {"W_CPU_TOPOLOGY", "W_CPU_ISA", "W_NUMA", "W_MEMORY", "W_OS_RELEASE", "W_PATH", "W_IP_TOOL"}


@pytest.mark.parametrize("name", ["epyc-virtual", "taishan-2280-v2", "atlas-800i-a2"])
def test_any_single_file_may_be_missing_or_garbled(name):
    host = load_machine(MACHINES / name)
    # One processor stands for all of them.
    paths = [path for path in host.files if not path.startswith(tuple(f"{CPU}/cpu{n}" for n in range(1, 10)))]
    for path in paths:
        for text in (None, "", "\x00\ufffd nonsense 0-\n"):
            files = dict(host.files)
            if text is None:
                del files[path]
            else:
                files[path] = text
            facts = gather(ReplayHost(host.machine, files, host.links, host.commands))
            assert json.loads(json.dumps(facts)) == facts
            assert facts["schema"] == 1


def test_offline_cpus_count_nowhere(xeon):
    xeon.files[f"{CPU}/online"] = "0-55,112-167\n"
    facts = gather(xeon)
    assert (facts["cpu"]["sockets"], facts["cpu"]["cores"], facts["cpu"]["threads"]) == (1, 56, 112)
    assert facts["cpu"]["allowed"] == "0-55,112-167"
    assert [node["cpus"] for node in facts["numa"]["nodes"]] == ["0-55,112-167", ""]


def test_hyperthreads_are_threads_not_cores(xeon):
    cpu = gather(xeon)["cpu"]
    assert (cpu["sockets"], cpu["cores"], cpu["threads"]) == (2, 112, 224)
    assert {"amx_bf16", "avx512_bf16", "avx512f"} <= set(cpu["isa"])


def test_node_numbers_may_have_gaps_and_distances_follow_the_online_nodes(taishan):
    taishan.files[f"{NODE}/online"] = "0,2\n"
    taishan.files[f"{NODE}/node0/distance"] = "10 20\n"
    taishan.files[f"{NODE}/node2/distance"] = "20 10\n"
    nodes = gather(taishan)["numa"]["nodes"]
    assert [(node["id"], node["distances"]) for node in nodes] == [(0, {"0": 10, "2": 20}), (2, {"0": 20, "2": 10})]


def test_a_node_without_memory_and_a_node_without_cpus(taishan):
    taishan.files[f"{NODE}/node1/meminfo"] = "Node 1 MemTotal:       0 kB\n"
    taishan.files[f"{NODE}/node3/cpulist"] = "\n"
    nodes = gather(taishan)["numa"]["nodes"]
    assert nodes[1]["memory_bytes"] == 0
    assert nodes[3]["cpus"] == ""


def test_a_kernel_without_numa_is_one_node(epyc):
    del epyc.files[f"{NODE}/online"]
    facts = gather(epyc)
    assert facts["numa"]["nodes"] == [
        {"id": 0, "cpus": "0-1", "memory_bytes": facts["memory"]["total_bytes"], "distances": {"0": 10}}
    ]
    assert codes(facts) == {"W_NUMA"}


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        ({}, "0-127"),
        ({"/proc/self/status": "Cpus_allowed_list:\t0-7\n"}, "0-7"),
        # The session is pinned to housekeeping CPUs, services are not.
        (
            {"/proc/self/status": "Cpus_allowed_list:\t0-7\n", "/sys/fs/cgroup/cpuset.cpus.effective": "0-127\n"},
            "0-127",
        ),
        ({"/sys/fs/cgroup/system.slice/cpuset.cpus.effective": "8-127\n"}, "8-127"),
        ({"/sys/fs/cgroup/system.slice/cpuset.cpus.effective": "\n"}, "0-127"),
    ],
)
def test_allowed_cpus_are_those_of_a_system_service(taishan, files, allowed):
    taishan.files["/proc/1/cgroup"] = "0::/init.scope\n"
    taishan.files.update(files)
    assert gather(taishan)["cpu"]["allowed"] == allowed


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/init.scope\n", {"/sys/fs/cgroup/system.slice/memory.max": "max\n"}, None),
        ("0::/init.scope\n", {"/sys/fs/cgroup/system.slice/memory.max": "1073741824\n"}, 2**30),
        ("0::/init.scope\n", {"/sys/fs/cgroup/user.slice/memory.max": "1073741824\n"}, None),
        ("4:memory:/box\n", {"/sys/fs/cgroup/memory/box/memory.limit_in_bytes": "2147483648\n"}, 2**31),
        ("4:memory:/\n", {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("0::/a/b\n", {"/sys/fs/cgroup/a/memory.max": "5\n", "/sys/fs/cgroup/a/b/memory.max": "7\n"}, 5),
    ],
)
def test_the_memory_limit_is_that_of_a_system_service(taishan, cgroup, files, limit):
    taishan.files["/proc/1/cgroup"] = cgroup
    taishan.files.update(files)
    assert gather(taishan)["memory"]["cgroup_limit_bytes"] == limit


def test_addresses_without_the_ip_tool(epyc):
    with_tool = gather(epyc)
    del epyc.commands["ip -j addr"]
    epyc.files["/proc/net/fib_trie"] = (
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 192.0.2.0\n        /24 link UNICAST\n"
        "     |-- 192.0.2.2\n        /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\n"
    )
    epyc.files["/proc/net/if_inet6"] = (
        "fd000000000000000000000000000002 04 40 00 80     eth0\n"
        "fe80000000000000000000fffe000001 04 40 20 80     eth0\n00000000000000000000000000000001 01 80 10 80       lo\n"
    )
    without = gather(epyc)
    assert codes(without) == {"W_IP_TOOL"}
    assert without["nics"] == with_tool["nics"]
    assert without["default_address"] == with_tool["default_address"] == "192.0.2.2"


def test_an_old_ip_tool_without_json_counts_as_none(epyc):
    epyc.commands["ip -j addr"] = (255, "", 'Option "-j" is unknown, try "ip -help".\n')
    assert "W_IP_TOOL" in codes(gather(epyc))


def test_the_default_address_is_that_of_the_cheapest_default_route(taishan):
    taishan.commands["ip -j addr"] = (0, json.dumps([
        {"ifname": name, "addr_info": [{"local": address, "prefixlen": 24, "scope": "global"}]}
        for name, address in (("enp125s0f0", "192.0.2.21"), ("enp125s0f1", "198.51.100.7"))
    ]), "")  # fmt: skip
    taishan.files["/proc/net/route"] += "enp125s0f1\t00000000\t016433C6\t0003\t0\t0\t50\t00000000\t0\t0\t0\n"
    assert gather(taishan)["default_address"] == "198.51.100.7"
    taishan.files["/proc/net/route"] = taishan.files["/proc/net/route"].splitlines()[0]
    facts = gather(taishan)
    assert facts["default_address"] is None
    assert codes(facts) == {"W_NO_DEFAULT_ADDRESS"}


def test_bare_virtual_interfaces_are_left_out_and_addressed_ones_are_listed(taishan):
    for name in ("veth12", "bond0"):
        taishan.links[f"/sys/class/net/{name}"] = f"../../devices/virtual/net/{name}"
        taishan.files[f"/sys/class/net/{name}/mtu"] = "9000\n"
    taishan.commands["ip -j addr"] = (
        0, '[{"ifname":"bond0","addr_info":[{"local":"192.0.2.9","prefixlen":24,"scope":"global"}]}]', "",
    )  # fmt: skip
    nics = {nic["name"]: nic for nic in gather(taishan)["nics"]}
    assert sorted(nics) == ["bond0", "enp125s0f0", "enp125s0f1"]
    assert nics["bond0"]["addresses"] == ["192.0.2.9/24"]
    assert nics["enp125s0f1"]["speed_mbps"] is None, "-1 while the link is down"
    assert (nics["enp125s0f0"]["pci"], nics["enp125s0f0"]["driver"]) == ("0000:7d:00.0", "hns3")


def test_a_listener_names_its_unit(taishan):
    assert gather(taishan)["listeners"] == [
        {"address": "0.0.0.0", "port": 22, "unit": "sshd.service", "process": "sshd"}
    ]


def test_an_ordinary_user_sees_the_port_but_not_its_owner(taishan):
    taishan.machine["system"] = dict(taishan.machine["system"], euid=1000)
    del taishan.links["/proc/1001/fd/3"]
    facts = gather(taishan)
    assert facts["listeners"] == [{"address": "0.0.0.0", "port": 22, "unit": None, "process": None}]
    assert codes(facts) == {"W_NOT_ROOT"}


def test_root_is_not_told_to_become_root_because_of_a_kernel_socket(taishan):
    del taishan.links["/proc/1001/fd/3"]
    assert codes(gather(taishan)) == set()


def test_a_path_lies_on_its_nearest_existing_parent_behind_links(taishan):
    taishan.machine["real_paths"] = {"/opt/vllm": "/var/lib/vllm/opt"}
    paths = gather(taishan)["paths"]
    assert paths["/opt/vllm"]["mount"] == "/var/lib/vllm"
    assert paths["/var/cache/vllm"]["mount"] == "/"


def test_disks_are_listed_once_and_without_container_layers(taishan):
    taishan.files["/proc/self/mountinfo"] += (
        "90 1 8:1 /srv /mnt/with\\040blank rw - xfs /dev/sda3 rw\n"
        "91 1 0:50 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw\n92 1 0:51 / /run rw - tmpfs tmpfs rw\n"
        "94 1 8:9 / /run/host/incoming rw - ext4 /dev/sdz rw\n"
        "93 1 0:52 / /data rw shared:1 master:2 - nfs4 filer:/export rw\n"
    )
    assert [disk["mount"] for disk in gather(taishan)["disks"]] == ["/", "/data", "/var/lib/vllm"]


def test_an_ordinary_user_is_told_that_npu_smi_wants_root(atlas):
    atlas.machine["system"] = dict(atlas.machine["system"], euid=1000)
    atlas.commands["npu-smi info"] = (0, (MACHINES / "captures/npu-smi-no-driver.txt").read_text(), "")
    messages = [entry["message"] for entry in gather(atlas)["warnings"]]
    assert any("use become" in message for message in messages)


def test_gpus_are_display_controllers_of_nvidia_and_a_switch_is_none(xeon):
    for address, device, kind in (("4e", "2330", "0302"), ("5e", "2330", "0302"), ("6e", "22A3", "0680")):
        xeon.files[f"/sys/bus/pci/devices/0000:{address}:00.0/modalias"] = (
            f"pci:v000010DEd0000{device}sv000010DEsd00001600bc{kind[:2]}sc{kind[2:]}i00\n"
        )
        xeon.files[f"/sys/bus/pci/devices/0000:{address}:00.0/numa_node"] = "1\n"
    without = gather(xeon)
    assert [(gpu["kind"], gpu["model"], gpu["numa_node"]) for gpu in without["accelerators"]] == [("gpu", None, 1)] * 2
    assert codes(without) == {"W_GPU_TOOL"}
    command = " ".join(nvidia_smi.query())
    xeon.commands[command] = (0, (
        "index, name, pci.bus_id, memory.total [MiB], driver_version\n"
        "0, NVIDIA H100 80GB HBM3, 00000000:4E:00.0, 81559, 580.126.09\n"
        "1, NVIDIA H100 80GB HBM3, 00000000:5E:00.0, [N/A], 580.126.09\n"
    ), "")  # fmt: skip
    gpus = gather(xeon)["accelerators"]
    assert [(gpu["index"], gpu["memory_bytes"], gpu["driver"]) for gpu in gpus] == [
        (0, 81559 * 2**20, "580.126.09"), (1, None, "580.126.09"),
    ]  # fmt: skip


def test_an_isa_extension_counts_only_when_every_processor_has_it():
    text = "processor : 0\nflags : avx2 avx512f\n\nprocessor : 1\nflags : avx2\n\n"
    assert parse_cpuinfo(text)["isa"] == {"avx2"}


@pytest.mark.parametrize(
    ("implementer", "part", "vendor", "model"),
    [
        ("0x48", "0xd01", "HiSilicon", "Kunpeng-920"),
        ("0x41", "0xd4f", "ARM", "Neoverse-V2"),
        ("0x48", "0xd06", "HiSilicon", "0x48:0xd06"),
        ("0x99", "0x001", "0x99", "0x99:0x001"),
    ],
)
def test_arm_processors_are_named_from_their_numbers(implementer, part, vendor, model):
    info = parse_cpuinfo(f"processor : 0\nCPU implementer : {implementer}\nCPU part : {part}\n")
    assert (info["vendor"], info["model"]) == (vendor, model)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/ssh.service\n", "ssh.service"),
        ("1:name=systemd:/system.slice/vllm-a.service/payload\n0::/\n", "vllm-a.service"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", "session-3.scope"),
        ("0::/\n", None),
        ("", None),
    ],
)
def test_the_unit_of_a_process(text, unit):
    assert unit_of(text) == unit


def test_small_parsers():
    assert parse_cgroups("3:cpu,cpuacct:/x\n0::/y\nbroken\n") == {"cpu": "/x", "cpuacct": "/x", "": "/y"}
    assert parse_meminfo("MemTotal:  2 kB\nHugePages_Total:   7\nNode 0 MemFree: 1 kB\nbad\n") == {
        "MemTotal": 2048, "HugePages_Total": 7, "MemFree": 1024,
    }  # fmt: skip
    assert parse_os_release("NAME='A \\$B'\nID=kylin\n# x\n") == {"NAME": "A $B", "ID": "kylin"}
    assert parse_mountinfo("1 2 8:1 / /a rw - ext4 /dev/x rw\nshort\n")[0]["mount"] == "/a"
    assert parse_proc_addresses(None, None, None) == {}
    header = "  sl  local_address\n"
    six = "0: 00000000000000000000000001000000:1F40 0:0 0A 0:0 0:0 0 0 0 77\n"
    mapped = "1: 0000000000000000FFFF00000100007F:0016 0:0 0A 0:0 0:0 0 0 0 78\n"
    established = "2: 0100007F:0016 0100007F:9999 01 0:0 0:0 0 0 0 79\n"
    assert parse_tcp(header + six + mapped + established) == [
        {"address": "::1", "port": 8000, "inode": 77},
        {"address": "127.0.0.1", "port": 22, "inode": 78},
    ]


@pytest.mark.parametrize(
    ("text", "address"),
    [("0000:C1:00.0", "0000:c1:00.0"), ("00000000:04:00.0", "0000:04:00.0"), ("00010000:04:00.0", "10000:04:00.0"),
     ("NA", None), ("", None), (None, None)],
)  # fmt: skip
def test_pci_addresses_of_tools_become_those_of_sysfs(text, address):
    assert pci.normalise_address(text) == address


@pytest.mark.parametrize(
    ("link", "address"),
    [
        ("../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0", "0000:00:03.0"),
        ("../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1/net/ens1f1", "0000:3b:00.1"),
        ("../../devices/virtual/net/lo", None),
        (None, None),
    ],
)
def test_the_pci_function_behind_a_sysfs_link(link, address):
    assert pci.function_of_link(link) == address


def test_read_speeds_are_null_unless_asked_for_and_measured_once_a_device(taishan):
    taishan.machine["read_bytes_per_s"] = {"/dev/nvme0n1": 2_900_000_000}
    assert {disk["read_bytes_per_s"] for disk in gather(taishan)["disks"]} == {None}
    taishan.files["/proc/self/mountinfo"] += (
        "95 1 0:44 /x /srv rw - btrfs /dev/nvme0n1 rw\n93 1 0:52 / /data rw - nfs4 filer:/export rw\n"
    )
    asked = []
    measure = taishan.measure_read
    taishan.measure_read = lambda device, *limits: asked.append((device, *limits)) or measure(device, *limits)
    facts = gather_hardware(taishan, PATHS, measure_disks=True)
    assert {disk["mount"]: disk["read_bytes_per_s"] for disk in facts["disks"]} == {
        "/": None, "/data": None, "/srv": 2_900_000_000, "/var/lib/vllm": 2_900_000_000,
    }  # fmt: skip
    assert sorted(asked) == [("/dev/nvme0n1", 512 << 20, 2), ("/dev/sda3", 512 << 20, 2)]
    assert [entry["code"] for entry in facts["warnings"]] == ["W_DISK_SPEED"] * 2


def test_slow_disks_do_not_hold_up_the_facts(taishan, monkeypatch):
    for number in range(40):
        taishan.files["/proc/self/mountinfo"] += (
            f"{200 + number} 1 9:{number} / /m{number} rw - xfs /dev/m{number} rw\n"
        )
    clock = iter(range(0, 100000, 3))
    monkeypatch.setattr(storage.time, "monotonic", lambda: next(clock))
    asked = []
    taishan.measure_read = lambda device, *limits: asked.append(device) or 1
    gather_hardware(taishan, PATHS, measure_disks=True)
    assert 5 <= len(asked) <= 10


def test_every_warning_is_documented_with_the_module(project_root):
    sources = "".join(path.read_text() for path in (project_root / "module_utils/vllm_ansible/hardware").glob("*.py"))
    documentation = (project_root / "library/vllm_hardware_facts.py").read_text()
    codes = set(re.findall(r'"(W_[A-Z_]+)"', sources))
    assert len(codes) > 20
    assert codes == set(re.findall(r"C\((W_[A-Z_]+)\)", documentation))


def test_every_fact_of_a_device_is_documented_with_the_module(project_root):
    documentation = (project_root / "library/vllm_hardware_facts.py").read_text()
    for name in ("atlas-800i-a3", "h200-8"):
        facts = gather(load_machine(MACHINES / name))
        for part in ("accelerators", "hccn", "rdma", "accelerator_links", "nics", "disks"):
            for key in facts[part][0] if facts[part] else ():
                assert f"{key}:" in documentation or f"C({key})" in documentation, (part, key)


def test_facts_of_a_host_stay_small():
    for path in MACHINES.glob("*/facts.json"):
        assert len(json.dumps(json.loads(path.read_text()), separators=(",", ":"))) < 24_000, path
