# SPDX-License-Identifier: Apache-2.0
"""Texts the lab writes: inventory, ssh client files, host files. Pure functions."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Host:
    """What is remembered of one host (hosts/NAME/host.json)."""

    name: str
    octet: int
    address: str
    base: str  # the tree below its disk, or several, the uppermost first: "layer:tree"
    python: str = ""  # "3.7" when it has that interpreter only
    registry: bool = False
    system: str = "debian-12"
    traps: list[str] = field(default_factory=list)
    binds: list[list[str]] = field(default_factory=list)  # [outside, inside], read-only

    @property
    def interpreter(self) -> str:
        """What Ansible is to use: on Kylin the old Python is the system's own."""
        return f"/usr/bin/python{self.python}" if self.python and self.system == "debian-12" else "/usr/bin/python3"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def inventory(hosts: Sequence[Host], ssh_config: str) -> str:
    """Ansible inventory (YAML) of the hosts."""
    lines = ["---", "all:", "  hosts:" if hosts else "  hosts: {}"]
    for host in hosts:
        lines += [
            f"    {host.name}:",
            f"      ansible_host: {host.address}",
            f"      ansible_python_interpreter: {host.interpreter}",
        ]
    lines += ["  vars:", "    ansible_user: root", f"    ansible_ssh_common_args: -F '{ssh_config}'"]
    return "\n".join(lines) + "\n"


def ssh_config(hosts: Sequence[Host], folder: str) -> str:
    """Client configuration: names work as well as addresses, and host keys are always checked."""
    lines = []
    for host in hosts:
        lines += [
            f"Host {host.name} {host.address}",
            f"  HostName {host.address}",
            "  User root",
            f"  IdentityFile {folder}/id",
            "  IdentitiesOnly yes",
            f"  UserKnownHostsFile {folder}/known_hosts",
            "  GlobalKnownHostsFile none",
            "  StrictHostKeyChecking yes",
            "  LogLevel ERROR",
            "",
        ]
    return "\n".join(lines)


def known_hosts(hosts: Sequence[Host], keys: dict[str, str]) -> str:
    """`keys` maps a host's name to its public host key line ("ssh-ed25519 AAAA…")."""
    return "".join(f"{h.name},{h.address} {' '.join(keys[h.name].split()[:2])}\n" for h in hosts)


def etc_hosts(hosts: Sequence[Host], before: str = "") -> str:
    """A host's /etc/hosts: our lines are replaced, others are kept."""
    kept = [line for line in before.splitlines() if not line.endswith("# lab")]
    ours = ["127.0.0.1 localhost", "::1 localhost", *(f"{h.address} {h.name}" for h in hosts)]
    return "".join(f"{line}\n" for line in [*(f"{line} # lab" for line in ours), *kept])


def networkd(host: Host, prefix: int, gateway: str) -> str:
    return (
        f"[Match]\nName=host0\n\n[Network]\nAddress={host.address}/{prefix}\n"
        f"Gateway={gateway}\nLinkLocalAddressing=no\n"
    )
