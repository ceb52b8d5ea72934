# SPDX-License-Identifier: Apache-2.0
"""Machines of tests/fixtures/hardware: load one, replay it to the hardware probes, write its facts.json again.

A machine is a directory::

    machine.json   {"provenance": "recorded" | "reconstructed", "sources": […], "system": {…}, "usage": {path: {…}},
                    "real_paths": {path: path}, "existing": [path, …], "links": {path: target},
                    "access": {path: {"owner", "group", "mode"}},
                    "read_bytes_per_s": {device: number}, "hardware": {…} (reconstructed machines only)}
    root/…         files the probes read: all of a recorded machine, the vendors' own of a reconstructed one
    commands/*.txt per command "$ argv", "rc N", then what the tool printed; after a line "--- stderr" its errors
    facts.json     what the probes make of it, generated: python tools/hardware_machines.py

A recorded machine comes from tools/record_hardware.py. A reconstructed one was never seen: its ``hardware`` is taken
from the named sources and written out here as the files a kernel would show.
"""

import json
import posixpath
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MACHINES = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "hardware"
PATHS = ("/opt/vllm", "/var/cache/vllm", "/var/lib/vllm")


class ReplayHost:
    """Answers like ``module_utils/vllm_ansible/host.py`` from recorded data.

    Args:
        machine: machine.json.
        files: path to text.
        links: path to target.
        commands: "argv joined by blanks" to (rc, stdout, stderr).
    """

    def __init__(
        self,
        machine: Mapping[str, Any],
        files: Mapping[str, str],
        links: Mapping[str, str] | None = None,
        commands: Mapping[str, tuple[int, str, str]] | None = None,
    ) -> None:
        self.machine = dict(machine)
        self.files = dict(files)
        self.links = dict(links or {})
        self.commands = dict(commands or {})

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def list_directory(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        known = [*self.files, *self.links, *self.machine.get("access", ()), *self.machine.get("existing", ())]
        return sorted({name[len(prefix) :].split("/")[0] for name in known if name.startswith(prefix)})

    def read_link(self, path: str) -> str | None:
        return self.links.get(path)

    def exists(self, path: str) -> bool:
        return path in self.machine.get("existing", ()) or path in self.files or bool(self.list_directory(path))

    def access(self, path: str) -> dict[str, str] | None:
        return self.machine.get("access", {}).get(path)

    def real_path(self, path: str) -> str:
        return self.machine.get("real_paths", {}).get(path, path)

    def usage(self, path: str) -> dict[str, int] | None:
        usage = self.machine.get("usage", {})
        while path not in usage and path not in ("/", ""):
            path = posixpath.dirname(path)
        return usage.get(path)

    def system(self) -> dict[str, Any]:
        return self.machine["system"]

    def measure_read(self, device: str, limit_bytes: int, limit_seconds: float) -> int | None:
        return self.machine.get("read_bytes_per_s", {}).get(device)

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, timeout_seconds: float = 60
    ) -> Any:
        return self.commands.get(" ".join(arguments))


def load_machine(directory: Path) -> ReplayHost:
    """Load a machine directory; a reconstructed machine's files are written out in memory."""
    machine = json.loads((directory / "machine.json").read_text())
    files: dict[str, str] = {}
    links: dict[str, str] = machine.get("links", {})
    if "hardware" in machine:
        files, written = reconstruct(machine["hardware"])
        links = {**written, **links}
    root = directory / "root"
    for path in sorted(root.rglob("*")):
        if path.is_file():
            files["/" + path.relative_to(root).as_posix()] = path.read_text()
    commands: dict[str, tuple[int, str, str]] = {}
    for path in sorted((directory / "commands").glob("*.txt")):
        commands.update(parse_captures(path.read_text()))
    return ReplayHost(machine, files, links, commands)


def parse_captures(text: str) -> dict[str, tuple[int, str, str]]:
    """Return command line -> (rc, stdout, stderr) of a file in commands/."""
    commands = {}
    for capture in re.split(r"^(?=\$ .+\nrc \d+$)", text, flags=re.MULTILINE)[1:]:
        command, code, rest = capture.split("\n", 2)
        output, _, error = rest.partition("--- stderr\n")
        commands[command.removeprefix("$ ")] = (int(code.removeprefix("rc ")), output, error)
    return commands


def reconstruct(hardware: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Write a description out as the files and links a kernel would show.

    Returns:
        ({path: text}, {link: target}).
    """
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    cpu, nodes = hardware["cpu"], hardware["nodes"]
    count = cpu["sockets"] * cpu["cores_per_socket"] * cpu["threads_per_core"]
    per_socket = count // cpu["sockets"]
    cores = count // cpu["threads_per_core"]
    cpus = "/sys/devices/system/cpu"
    files[f"{cpus}/online"] = f"0-{count - 1}\n"
    blocks = []
    for number in range(count):
        blocks.append("\n".join([f"processor\t: {number}", *(f"{k}\t: {v}" for k, v in cpu["cpuinfo"].items())]))
        # Sockets count cores of theirs first; hyperthreads are numbered after all cores, as firmware does.
        core = number % cores
        socket = core // (cores // cpu["sockets"])
        threads = ",".join(str(core + cores * thread) for thread in range(cpu["threads_per_core"]))
        files[f"{cpus}/cpu{number}/topology/thread_siblings_list"] = threads + "\n"
        first = socket * per_socket // cpu["threads_per_core"]
        siblings = [
            f"{first + cores * thread}-{first + cores * thread + cores // cpu['sockets'] - 1}"
            for thread in range(cpu["threads_per_core"])
        ]
        files[f"{cpus}/cpu{number}/topology/core_siblings_list"] = ",".join(siblings) + "\n"
    files["/proc/cpuinfo"] = "\n\n".join(blocks) + "\n\n"
    files["/sys/devices/system/node/online"] = ",".join(str(node["id"]) for node in nodes) + "\n"
    for node in nodes:
        directory = f"/sys/devices/system/node/node{node['id']}"
        files[f"{directory}/cpulist"] = node["cpus"] + "\n"
        files[f"{directory}/distance"] = " ".join(str(distance) for distance in node["distances"]) + "\n"
        files[f"{directory}/meminfo"] = f"Node {node['id']} MemTotal:       {node['memory_kib']} kB\n"
    total = sum(node["memory_kib"] for node in nodes)
    files["/proc/meminfo"] = (
        f"MemTotal:       {total} kB\nMemAvailable:   {total * 97 // 100} kB\n"
        f"SwapTotal:      {hardware['swap_kib']} kB\n"
    )
    for size in hardware["hugepages_kib"]:
        for name in ("nr_hugepages", "free_hugepages"):
            files[f"/sys/kernel/mm/hugepages/hugepages-{size}kB/{name}"] = "0\n"
    files["/etc/os-release"] = "".join(f'{name}="{value}"\n' for name, value in hardware["os_release"].items())
    files["/proc/1/comm"] = "systemd\n"
    files["/proc/1/cgroup"] = "1:name=systemd:/init.scope\n"
    files["/proc/self/status"] = f"Cpus_allowed_list:\t0-{count - 1}\n"
    files["/proc/self/mountinfo"] = "".join(
        f"{30 + number} 1 8:{number + 1} / {disk['mount']} rw - {disk['fstype']} {disk['device']} rw\n"
        for number, disk in enumerate(hardware["disks"])
    )
    for function in hardware["pci"]:
        directory = f"/sys/bus/pci/devices/{function['address']}"
        vendor, device = function["id"].upper().split(":")
        sub_vendor, sub_device = function.get("subsystem", "0000:0000").upper().split(":")
        base, sub = function["class"][:2].upper(), function["class"][2:4].upper()
        files[f"{directory}/modalias"] = (
            f"pci:v0000{vendor}d0000{device}sv0000{sub_vendor}sd0000{sub_device}bc{base}sc{sub}i00\n"
        )
        files[f"{directory}/numa_node"] = f"{function['numa_node']}\n"
        near = [node["cpus"] for node in nodes if function["numa_node"] in (node["id"], -1)]
        files[f"{directory}/local_cpulist"] = ",".join(near) + "\n"
        if "link" in function:
            for name, (speed, width) in zip(("current", "max"), function["link"], strict=True):
                files[f"{directory}/{name}_link_speed"] = f"{speed} GT/s PCIe\n"
                files[f"{directory}/{name}_link_width"] = f"{width}\n"
        if "slot" in function:
            port = f"{function['address'][:5]}{int(function['address'][5:7], 16) - 1:02x}:1f.0"
            links[directory] = f"../../../devices/pci0000:00/{port}/{function['address']}"
            for name, value in zip(("speed", "width"), function["slot"], strict=True):
                files[f"/sys/bus/pci/devices/{port}/max_link_{name}"] = f"{value}\n"
    files.update(kernel_files(hardware["os_release"]["NAME"], hardware.get("kernels", {})))
    routes = ["Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"]
    for nic in hardware["nics"]:
        directory = f"/sys/class/net/{nic['name']}"
        links[directory] = f"../../devices/pci0000:00/{nic['pci']}/net/{nic['name']}"
        links[f"{directory}/device/driver"] = f"../../../../bus/pci/drivers/{nic['driver']}"
        for name in ("address", "operstate", "mtu", "speed"):
            files[f"{directory}/{name}"] = f"{nic[name]}\n"
        if nic.get("default_route"):
            routes.append(f"{nic['name']}\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0")
    files["/proc/net/route"] = "\n".join(routes) + "\n"
    files["/proc/net/tcp"] = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20001 1 0 100 0\n"
    )
    for device in hardware.get("rdma", ()):
        links[f"/sys/class/infiniband/{device['name']}"] = (
            f"../../devices/pci0000:00/{device['pci']}/infiniband/{device['name']}"
        )
        directory = f"/sys/class/infiniband/{device['name']}/ports/1"
        for name in ("state", "phys_state", "rate", "link_layer"):
            files[f"{directory}/{name}"] = device[name] + "\n"
        for gid in device["gids"]:
            for place, name in (("gids", "gid"), ("gid_attrs/types", "type"), ("gid_attrs/ndevs", "netdev")):
                files[f"{directory}/{place}/{gid['index']}"] = gid[name] + "\n"
    links["/proc/1001/fd/3"] = "socket:[20001]"
    files["/proc/1001/comm"] = "sshd\n"
    files["/proc/1001/cgroup"] = "1:name=systemd:/system.slice/sshd.service\n"
    return files, links


def kernel_files(system: str, kernels: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of installed kernels on an rpm system and GRUB's menu of them, the default one saved by title.

    Args:
        kernels: {"installed": [release, …], "devel": [release, …], "default": release}.
    """
    files = {}
    for release in kernels.get("installed", ()):
        files[f"/lib/modules/{release}/modules.order"] = ""
        files[f"/boot/vmlinuz-{release}"] = ""
    for release in kernels.get("devel", ()):
        files[f"/usr/src/kernels/{release}/Makefile"] = ""
    if kernels:
        files["/var/lib/rpm/Packages"] = ""
        files["/boot/grub2/grubenv"] = f"# GRUB Environment Block\nsaved_entry={system} ({kernels['default']})\n####"
        files["/boot/grub2/grub.cfg"] = 'set default="${saved_entry}"\n' + "".join(
            f"menuentry '{system} ({release})' --class gnu-linux $menuentry_id_option 'gnulinux-{release}' {{\n"
            f"\tlinux\t/vmlinuz-{release} root=/dev/mapper/root ro\n}}\n"
            for release in kernels["installed"]
        )
    return files


def machine_facts(directory: Path) -> str:
    """Return the text of a machine's facts.json."""
    from ansible.module_utils.vllm_ansible.hardware.facts import gather_hardware

    return json.dumps(gather_hardware(load_machine(directory), PATHS), indent=1) + "\n"


def import_module_utils() -> None:
    """Make ``ansible.module_utils.vllm_ansible`` importable in a script that was started by hand."""
    import ansible.module_utils

    ansible.module_utils.__path__.append(str(MACHINES.parents[2] / "module_utils"))


if __name__ == "__main__":
    import_module_utils()
    for description in sorted(MACHINES.glob("*/machine.json")):
        target = description.parent / "facts.json"
        text = machine_facts(description.parent)
        if not target.exists() or target.read_text() != text:
            target.write_text(text)
            sys.stdout.write(f"wrote {target.relative_to(MACHINES)}\n")
