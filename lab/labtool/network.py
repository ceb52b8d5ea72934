# SPDX-License-Identifier: Apache-2.0
"""The lab's bridge, and the way out for hosts that asked for a package index."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from .common import Lab, LabError, locked, run

FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
# One value for the whole machine, so what it was before the first lab is kept where every checkout finds it.
FORWARD_BEFORE = Path("/run/vlab.ip_forward")
FORWARD_LOCK = Path("/run/vlab.lock")


def next_octet(taken: Iterable[int]) -> int:
    """The lowest free last octet; .1 is the bridge, .2-.10 are left for virtual addresses."""
    used = set(taken)
    for octet in range(11, 255):
        if octet not in used:
            return octet
    raise LabError("All 244 addresses of this lab are taken. Use a second LAB_ID.")


def bridge_owner(lab: Lab) -> str | None:
    """The state folder written on the lab's bridge; None when there is no such bridge."""
    shown = run("ip", "-json", "link", "show", lab.tag, check=False)
    return json.loads(shown.stdout)[0].get("ifalias", "") if not shown.returncode else None


def refuse_foreign(lab: Lab) -> None:
    """Raise LabError when another checkout runs a lab with this LAB_ID."""
    owner = bridge_owner(lab)
    if owner is not None and owner != str(lab.state):
        raise LabError(f"Bridge {lab.tag} belongs to '{owner or 'something else'}'. Set another LAB_ID (1-254).")


def create_bridge(lab: Lab) -> None:
    """Make the bridge that joins the hosts and this machine."""
    if bridge_owner(lab) is None:
        run("ip", "link", "add", lab.tag, "type", "bridge")
        run("ip", "link", "set", lab.tag, "alias", lab.state)
    run("ip", "address", "replace", f"{lab.gateway}/{lab.network.prefixlen}", "dev", lab.tag)
    run("ip", "link", "set", lab.tag, "up")
    if shutil.which("iptables") and run("iptables", "-S", "FORWARD", check=False).stdout.startswith("-P FORWARD DROP"):
        # a container engine's default, which may reach bridged packets too; no accept elsewhere overrules it
        for rule in _forward_rules(lab):
            if run("iptables", "-C", *rule, check=False).returncode:
                run("iptables", "-I", *rule)


def set_way_out(lab: Lab, addresses: Iterable[str]) -> None:
    """Let those addresses, and no others of this lab, reach what this machine reaches."""
    members = ", ".join(sorted(addresses))
    if not members:
        _close_way_out(lab)
        return
    with locked(FORWARD_LOCK):
        if FORWARD.read_text().strip() == "0":
            FORWARD_BEFORE.write_text("0")
            FORWARD.write_text("1")
    # One table of ours, so that removing it leaves the machine's own rules untouched.
    run(
        "nft",
        f"table ip {lab.tag}; delete table ip {lab.tag};"
        f"table ip {lab.tag} {{ set out {{ type ipv4_addr; elements = {{ {members} }} }};"
        f"  chain forward {{ type filter hook forward priority 0;"
        f"    iifname {lab.tag} oifname != {lab.tag} ip saddr != @out drop; }};"
        f"  chain postrouting {{ type nat hook postrouting priority 100;"
        f"    ip saddr @out oifname != {lab.tag} masquerade; }}; }}",
    )  # fmt: skip


def _forward_rules(lab: Lab) -> list[list[str]]:
    return [["FORWARD", direction, lab.tag, "-j", "ACCEPT"] for direction in ("-i", "-o")]


def remove_link(name: str) -> None:
    run("ip", "link", "delete", name, check=False)


def remove(lab: Lab) -> None:
    """Take away bridge and rules."""
    remove_link(lab.tag)
    for rule in _forward_rules(lab):
        while shutil.which("iptables") and not run("iptables", "-D", *rule, check=False).returncode:
            continue
    _close_way_out(lab)


def _close_way_out(lab: Lab) -> None:
    """Remove our table; with the last one, give forwarding its old value back."""
    if not shutil.which("nft"):
        return
    run("nft", "delete", "table", "ip", lab.tag, check=False)
    with locked(FORWARD_LOCK):
        others = [word for word in run("nft", "list", "tables").stdout.split() if word.startswith("vlab")]
        if not others:
            if FORWARD_BEFORE.exists():
                FORWARD.write_text(FORWARD_BEFORE.read_text())
                FORWARD_BEFORE.unlink()
            FORWARD_LOCK.unlink()
