# SPDX-License-Identifier: Apache-2.0
"""Which TCP ports are taken, and by whom."""

import ipaddress
import re
from typing import Dict

from ansible.module_utils.vllm_ansible.hardware.cgroup import unit_of
from ansible.module_utils.vllm_ansible.hardware.values import word

_LISTEN = "0A"


def parse_tcp(text):
    """Return the listening sockets of a /proc/net/tcp or tcp6: address, port, inode."""
    sockets = []
    for line in (text or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        try:
            address, port = fields[1].split(":")
            raw = bytes.fromhex(address)
            # The kernel prints 32-bit words in the host's byte order: little-endian on x86-64 and on aarch64.
            words = b"".join(bytes(reversed(raw[start : start + 4])) for start in range(0, len(raw), 4))
            parsed = ipaddress.ip_address(words)
            # ::ffff:127.0.0.1 takes the port of 127.0.0.1, and Python versions differ in how they write it.
            parsed = getattr(parsed, "ipv4_mapped", None) or parsed
            sockets.append({"address": str(parsed), "port": int(port, 16), "inode": int(fields[9])})
        except ValueError:
            continue
    return sockets


def gather_listeners(host, warn):
    """Return the ``listeners`` facts; unit and process are null for what this user may not see."""
    sockets = parse_tcp(host.read("/proc/net/tcp")) + parse_tcp(host.read("/proc/net/tcp6"))
    owners = _owners(host, {socket["inode"] for socket in sockets})
    if host.system()["euid"] != 0 and len(owners) < len(sockets):
        warn("W_NOT_ROOT", "not run as root: who owns a listening port, and some devices, cannot be seen; use become")
    unique = {}
    for socket in sockets:
        pid = owners.get(socket["inode"])
        process = host.read(f"/proc/{pid}/comm") if pid is not None else None
        entry = {
            "address": socket["address"],
            "port": socket["port"],
            "unit": unit_of(host.read(f"/proc/{pid}/cgroup")) if pid is not None else None,
            "process": word(process),
        }
        unique[(entry["port"], entry["address"], str(entry["unit"]), str(entry["process"]))] = entry
    return [unique[key] for key in sorted(unique)]


def _owners(host, inodes):
    """Return {inode: lowest pid} of the processes that hold these sockets."""
    owners: Dict[int, int] = {}
    if not inodes:
        return owners
    for pid in sorted(int(name) for name in host.list_directory("/proc") if name.isdigit()):
        for descriptor in host.list_directory(f"/proc/{pid}/fd"):
            match = re.match(r"socket:\[(\d+)\]\Z", host.read_link(f"/proc/{pid}/fd/{descriptor}") or "")
            if match and int(match.group(1)) in inodes:
                owners.setdefault(int(match.group(1)), pid)
    return owners
