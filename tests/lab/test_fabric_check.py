# SPDX-License-Identifier: Apache-2.0
"""The fabric check played for eight stand-in hosts, and the role that sets the addresses of their NPUs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.fabric import Fleet

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.lab
CHECK = f"""
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_tasks: {ROOT}/playbooks/tasks/fabric_check.yml
    - ansible.builtin.copy:
        content: "{{{{ fabric_check_report | to_json }}}}"
        dest: "{{{{ report }}}}"
      run_once: true
"""
ROLE = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: roce_fabric, tasks_from: "{{ item }}"}
      loop: "{{ entry | split(',') }}"
"""


def inventory(fleet: Fleet, path: Path, **common: Any) -> Path:
    """Write the hosts with their slices; all of them are this machine."""
    hosts = {
        name: {
            "fabric_check_slice": fleet.plan(name),
            "roce_fabric_plan": fleet.plan(name),
            "roce_fabric_install_path": fleet.install_path(name),
        }
        for name in fleet.hosts
    }
    shared = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **common}
    path.write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}))
    return path


def play(text: str, hosts: Path, folder: Path, *prefix: str, **variables: Any) -> tuple[int, str]:
    (folder / "play.yml").write_text(text)
    command = [
        *prefix,
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        str(hosts),
        str(folder / "play.yml"),
    ]
    for name, value in variables.items():
        command += ["--check"] if name == "check" else ["-e", json.dumps({name: value})]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_one_wrong_link_among_eight_hosts_is_named(tmp_path: Path) -> None:
    # Two NPUs each: every question is a process. Eight of them are in tests/unit/library/test_vllm_fabric_modules.py.
    fleet = Fleet(tmp_path / "fleet", 8, 2)
    hosts = inventory(fleet, tmp_path / "hosts.json")
    fleet.machine("npu05", hccn_tls="0")
    fleet.faults("cut npu03:1")
    path = fleet.root / "npu03/run/ascend-stand-in/hccn-1"
    path.write_text(path.read_text().replace("netdetect=10.0.0.1\n", ""))  # net health does not tell either
    code, text = play(CHECK, hosts, tmp_path, report=str(tmp_path / "report.json"))
    assert code == 0, text
    report = json.loads((tmp_path / "report.json").read_text())
    errors = [entry for entry in report["findings"] if entry["level"] == "error"]
    assert [(entry["code"], entry["ends"], entry["pairs"]) for entry in errors] == [
        ("tls", [["npu05", "0"]], 0), ("port", [["npu03", "1"]], 14)
    ]  # fmt: skip
    assert not report["passed"]
    assert (
        "npu03 NPU 1 (10.0.3.12, switch port 200GE1/0/2) does not reach the ports of other hosts" in report["summary"]
    )
    assert len(report["document"]["pairs"]) == 224 and len(report["summary"].splitlines()) == 3
    assert "Fabric: 8 hosts, 16 ports, 224 pings of pairs" in text


OVERLAID = ("/etc", "/usr/local", "/var", "/run")


def test_addresses_are_set_verified_and_kept(tmp_path: Path) -> None:
    """On this machine's own /etc/hccn.conf, in a mount namespace where that is another file."""
    fleet = Fleet(tmp_path / "fleet", 1, 2, settle=False)
    fleet.install(tmp_path / "hccn_tool", "")
    hosts = inventory(fleet, tmp_path / "hosts.json", roce_fabric_install_path="/usr/local/Ascend")
    data = json.loads(hosts.read_text())
    del data["all"]["hosts"]["npu01"]["roce_fabric_install_path"]
    hosts.write_text(json.dumps(data))
    (tmp_path / "play.yml").write_text(ROLE)
    (tmp_path / "before.yml").write_text("- ansible.builtin.debug: {msg: engines are stopped}\n")
    (tmp_path / "over").mkdir()
    lines = ["set -e", f"mount -t tmpfs tmpfs {tmp_path}/over"]
    for number, folder in enumerate(OVERLAID):
        upper, work = f"{tmp_path}/over/{number}u", f"{tmp_path}/over/{number}w"
        lines.append(f"mkdir {upper} {work}")
        lines.append(f"mount -t overlay over -o lowerdir={folder},upperdir={upper},workdir={work} {folder}")
    lines += [
        "mkdir -p /usr/local/Ascend/driver/tools",
        f"cp {tmp_path}/hccn_tool /usr/local/Ascend/driver/tools/",
        "echo Version=25.5.0 > /usr/local/Ascend/driver/version.info",
        f"cp {fleet.root}/npu01/etc/ascend-stand-in.conf /etc/",
        "printf '# by hand\\nIPv6address_0=fd00::1\\n' > /etc/hccn.conf",
        "set +e",
    ]
    program = f"{Path(sys.executable).parent}/ansible-playbook -i {hosts} {tmp_path}/play.yml"
    edit = "sed -i s/address_1=10.0.1.12/address_1=10.0.1.99/ /etc/hccn.conf"
    before = f"-e roce_fabric_before_change={tmp_path}/before.yml"
    steps = [
        ("main", ":", "--check"), ("main,verify", ":", before), ("verify", edit, ""), ("main,main", ":", before),
    ]  # fmt: skip
    for number, (entry, shell, words) in enumerate(steps):
        lines += [shell, f"{program} -e entry={entry} {words} > {tmp_path}/{number}.out 2>&1"]
        lines.append(f"echo $? > {tmp_path}/{number}.rc")
    lines.append(f"cp /etc/hccn.conf {tmp_path}/result")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", "\n".join(lines)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    texts = [re.sub(r"\s+", " ", (tmp_path / f"{number}.out").read_text()) for number in range(len(steps))]
    codes = [int((tmp_path / f"{number}.rc").read_text()) for number in range(len(steps))]
    changed = [int(match[1]) if (match := re.search(r"changed=(\d+)", text)) else -1 for text in texts]
    assert codes == [0, 0, 2, 0], texts
    assert changed == [1, 1, 0, 1], "the last but one main changed something, the last did not"
    assert "also has: IPv6address_0=fd00::1" in texts[1]
    assert [text.count("engines are stopped") for text in texts] == [0, 1, 0, 1]
    assert "not set as the plan says: NPU 1" in texts[2]
    result = (tmp_path / "result").read_text()
    assert result.startswith("# by hand\nIPv6address_0=fd00::1\naddress_0=10.0.1.11\n") and "10.0.1.99" not in result


SYSTEMCTL = """#!/bin/sh
echo "$@" >> /var/lib/systemctl.log
case "$1" in
show) printf 'Id=roce-fabric.service\\nLoadState=loaded\\nActiveState=active\\n';;
is-enabled) test -e /var/lib/enabled && echo enabled || { echo disabled; exit 1; };;
enable) touch /var/lib/enabled;;
disable) rm -f /var/lib/enabled;;
esac
"""
# Listens as a server and prints a table as a client, which is called with an address.
PERFTEST = """#!/bin/sh
case "$0" in *lat) table='#bytes #iterations t_min[usec] t_typical[usec]\\n2 1000 1.5 1.9';;
*) table='#bytes #iterations BW peak[Gb/sec]  BW average[Gb/sec]\\n65536 5000 97.1 96.4';; esac
for word; do test "$last" = -p && port=$word; last=$word; done
case "$last" in
127.*) printf "$table\\n";;
*) exec python3 -c "import socket, time; s = socket.socket(); s.bind(('', $port)); s.listen(); time.sleep(20)";;
esac
"""
NIC = {"name": "lo", "rdma_device": "rxe0", "port": 1, "mtu": None, "address": None}
PORT = {
    "id": "rxe0", "label": "rxe0 (lo)", "rdma_port": 1, "gid_index": 1, "error": None, "planned": None, "health": None,
    "address": "127.0.0.1", "netmask": "255.0.0.0", "gateway": None, "link": "UP", "tls": None, "mtu": 65536,
    "switch_port": None,
}  # fmt: skip


def test_nics_are_set_at_each_start_and_measured_in_rounds(tmp_path: Path) -> None:
    """STAND-INS for systemctl and perftest, in namespaces of mounts and of the network; the interface is lo."""
    plan = {"backend": "nic", "interfaces": [NIC], "priority": 3, "dscp": 26, "tos": 106, "trust": "dscp"}
    names = {"roce_fabric_plan": plan, "fabric_check_slice": plan, "roce_fabric_lossless": False}
    shared = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **names}
    for count, path in ((1, "one.json"), (2, "two.json")):
        hosts = {f"gpu{number}": {} for number in range(count)}
        (tmp_path / path).write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}))
    (tmp_path / "role.yml").write_text(ROLE)
    (tmp_path / "check.yml").write_text(CHECK)
    for name, text in (("systemctl", SYSTEMCTL), ("ib_write_lat", PERFTEST), ("ib_write_bw", PERFTEST)):
        (tmp_path / name).write_text(text)
    (tmp_path / "vllm-roce").write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps([PORT])}\nEND\n")
    (tmp_path / "over").mkdir()
    lines = ["set -e", "ip link set lo up", f"mount -t tmpfs tmpfs {tmp_path}/over"]
    for number, folder in enumerate(OVERLAID):
        upper, work = f"{tmp_path}/over/{number}u", f"{tmp_path}/over/{number}w"
        lines.append(f"mkdir {upper} {work}")
        lines.append(f"mount -t overlay over -o lowerdir={folder},upperdir={upper},workdir={work} {folder}")
    lines.append(f"install {tmp_path}/systemctl {tmp_path}/ib_write_lat {tmp_path}/ib_write_bw /usr/local/bin/")
    lines.append("mkdir -p /run/systemd/system; set +e; export PATH=/usr/local/bin:$PATH")
    program = str(Path(sys.executable).parent / "ansible-playbook")
    role = f"{program} -i {tmp_path}/one.json {tmp_path}/role.yml -e entry="
    steps = [role + "main --check", role + "main", role + "main,verify"]
    steps.append(
        f"cp {tmp_path}/vllm-roce /usr/local/libexec/vllm/; {program} -i {tmp_path}/two.json {tmp_path}/check.yml"
        f" -e roce_fabric_seconds=1 -e report={tmp_path}/report.json"
    )
    steps.append(role + "remove")
    for number, step in enumerate(steps):
        if number == 2:
            lines.append(f"cat /etc/systemd/system/vllm-.service.d/50-roce-fabric.conf > {tmp_path}/drop-in")
        lines += [f"{{ {step}; }} > {tmp_path}/{number}.out 2>&1", f"echo $? > {tmp_path}/{number}.rc"]
    lines.append(f"ls /usr/local/libexec/vllm /etc/vllm > {tmp_path}/left; cp /var/lib/systemctl.log {tmp_path}/log")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    command = ["unshare", "--mount", "--net", "--propagation", "private", "bash", "-c", "\n".join(lines)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    texts = [(tmp_path / f"{number}.out").read_text() for number in range(len(steps))]
    assert [int((tmp_path / f"{number}.rc").read_text()) for number in range(len(steps))] == [0] * 5, "\n".join(texts)
    changed = [int(match[1]) if (match := re.search(r"changed=(\d+)", text)) else -1 for text in texts]
    assert changed[0] > 0 and changed[1] > 0 and changed[2] == 0 and changed[4] > 0, changed
    drop_in = (tmp_path / "drop-in").read_text()
    assert (
        "ExecStartPre=+/usr/local/libexec/vllm/vllm-roce environment\nEnvironmentFile=-/run/roce-fabric/nccl.env"
        in drop_in
    )
    assert "restart roce-fabric.service" in (tmp_path / "log").read_text()
    assert (
        "vllm-roce" not in (tmp_path / "left").read_text() and "roce_fabric.json" not in (tmp_path / "left").read_text()
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert [entry["code"] for entry in report["findings"]] == ["duplicate"], "both hosts are this machine"
    (row,) = [row for row in report["document"]["pairs"] if row["kind"] == "measure"]
    assert (row["host"], row["peer"], row["latency_us"], row["bandwidth_gbps"]) == ("gpu0", "gpu1", 1.9, 96.4)
