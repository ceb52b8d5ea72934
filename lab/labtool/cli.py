# SPDX-License-Identifier: Apache-2.0
"""Command line of the lab tool."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from . import commands as do
from . import interpreters, systems
from .common import EXIT_FAILED, EXIT_USAGE, Lab, LabError, locked


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="lab", description="Real systemd hosts on this machine. LAB_ID (1-254, default 77) keeps labs apart."
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, function: Callable[[Lab, argparse.Namespace], None], summary: str,
        locks: bool = True, names: str = "", timeout: int = 0,
    ) -> argparse.ArgumentParser:  # fmt: skip
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(function=function, locks=locks)
        if names:
            command.add_argument("names", nargs=names, metavar="NAME")
        if timeout:
            command.add_argument("--timeout", type=float, default=timeout, help="seconds (default %(default)s)")
        return command

    command = add("up", do.up, "boot hosts and wait until they answer", names="+", timeout=120)
    text = "give new host NAME this old Python and no other; exit status 3 when this machine has none"
    command.add_argument("--python", action="append", default=[], metavar="VERSION=NAME", help=text)
    text = "give new hosts this machine's package indexes and the way to them"
    command.add_argument("--registry", action="store_true", help=text)
    text = "what new hosts are (default %(default)s); the Kylin ones are stand-ins, docs/lab.md says how far"
    command.add_argument("--os", choices=systems.SYSTEMS, default=systems.DEBIAN, help=text)
    command.add_argument("--kernel", default="", metavar="VERSION", help="kernel that new Kylin hosts start with")
    text = "machine name that new Kylin hosts report (default x86_64)"
    command.add_argument("--machine", choices=systems.MACHINES, default="", help=text)
    command.add_argument("--npu", choices=systems.NPUS, help="stand-ins of NPUs on the PCI bus of new hosts")
    text = "what is awkward about new Kylin hosts; may be repeated"
    command.add_argument("--trap", action="append", choices=systems.TRAPS, default=[], help=text)
    command.add_argument("--open", action="store_true", help="as `open`, from the first boot of new hosts")
    command = add("down", do.down, "switch hosts off and remove them with their disks", names="*", timeout=30)
    command.add_argument("--all", action="store_true", help="the whole lab, also what a crash left behind")
    add("status", do.status, "list the hosts", locks=False)
    add("reboot", do.reboot, "reboot hosts in order and wait", names="+", timeout=120)
    add("kill", do.kill, "cut the power of hosts; `up` starts them again with their disks", names="+")
    add("open", do.open_hosts, "make vm.* and kernel.* sysctls writable (they are the whole machine's!)", names="+")
    command = add("exec", do.execute, "run a command in a host: exec NAME -- COMMAND …", locks=False)
    command.add_argument("name")
    command.add_argument("command", nargs="+")
    add("inventory", do.inventory, "print the Ansible inventory (also kept in the lab's folder)", locks=False)
    add("console", do.console, "print a host's console", locks=False).add_argument("name")
    add("deps", do.deps, "install missing Debian packages", locks=False)
    add("purge", do.purge, "remove the base trees", locks=False)
    hidden = commands.add_parser("_keep")  # without help it is not listed
    hidden.set_defaults(function=do.keep, locks=False)
    hidden.add_argument("name")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status (1 failed, 2 wrong use, 3 no such Python)."""
    options = parser().parse_args(argv)
    try:
        if getattr(options, "python", None) is not None:
            options.python = interpreters.parse_requests(options.python)
        if options.function is do.down and options.all == bool(options.names):
            raise LabError("Name the hosts, or write --all.", EXIT_USAGE)
        if os.geteuid():
            raise LabError("The lab mounts and makes namespaces: run it as root.")
        lab = Lab.from_environment()
        if options.locks:
            with locked(lab.lock):
                options.function(lab, options)
        else:
            options.function(lab, options)
    except (LabError, TimeoutError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return getattr(error, "code", EXIT_FAILED)
    return 0
