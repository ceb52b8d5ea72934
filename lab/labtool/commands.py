# SPDX-License-Identifier: Apache-2.0
"""What each command does."""

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..vendor import kernel_packages
from . import base, cgroup, interpreters, network, registry, render, systems
from .common import EXIT_USAGE, NAME, Lab, LabError, missing_tools, run, unmount_below, write_atomically
from .machine import Machine, load, wait_until

TOOLS = (
    ("mmdebstrap", "mmdebstrap"),
    ("systemd-nspawn", "systemd-container"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
)
# What lab/vendor builds packages with; no host needs it.
KYLIN_TOOLS = (*kernel_packages.TOOLS, ("gcc", "gcc libc6-dev"), ("rpm", "rpm"))
VENDOR_TOOLS = (("makeself", "makeself"), *KYLIN_TOOLS)
CONSOLE_TAIL = 30


def tell_all(lab: Lab, machines: Sequence[Machine]) -> None:
    """Bring inventory, ssh files, every host's /etc/hosts and the way out in line with the hosts there are."""
    hosts = [m.host for m in machines]
    keys = {m.host.name: (m.folder / "host_key.pub").read_text() for m in machines}
    write_atomically(lab.inventory, render.inventory(hosts, str(lab.ssh_config)))
    write_atomically(lab.ssh_config, render.ssh_config(hosts, str(lab.state)))
    write_atomically(lab.state / "known_hosts", render.known_hosts(hosts, keys))
    for machine in machines:
        machine.write_hosts_file(hosts)
    network.set_way_out(lab, [h.address for h in hosts if h.registry])


def create(lab: Lab, name: str, options: argparse.Namespace, octets: list[int]) -> Machine:
    """Make a new host's disk and record; nothing is left of it when that fails."""
    octet = network.next_octet(octets)
    version = options.python.get(name, "")
    python = interpreters.find(version) if version else None
    tree = base.base_tree(lab, bool(options.kylin and options.kylin.server))
    host = render.Host(name, octet, lab.address(octet), str(tree), version, options.registry)
    if options.kylin:
        layer, repository = systems.ensure(lab.store, options.kylin, tree)
        host = dataclasses.replace(host, base=f"{layer}:{tree}", system=options.os, traps=list(options.kylin.traps))
        host.binds.append([str(repository), systems.REPOSITORY])
    machine = Machine(lab, host)
    if machine.folder.exists():  # a crash came between its disk and its record
        machine.discard()
    machine.mount()
    try:
        machine.furnish()
        if python:
            interpreters.install(python, machine.root, alone=not options.kylin)
            host.binds.extend([str(outside), inside] for outside, inside in interpreters.binds(python))
        if options.npu:
            systems.give_npus(machine.root, options.npu)
        if options.registry:
            host.binds.extend(registry.install(machine.root))
        write_atomically(machine.folder / "host.json", json.dumps(host.as_dict(), indent=1) + "\n")
    except BaseException:
        machine.discard()
        raise
    if options.open:
        machine.open()
    return machine


def up(lab: Lab, options: argparse.Namespace) -> None:
    """Boot the named hosts; those already up are left alone, those switched off keep their disk."""
    started = time.monotonic()
    for name in options.names:
        if not NAME.match(name):
            raise LabError(f"Host name is '{name}'. Use small letters, digits and inner hyphens.", EXIT_USAGE)
    if stray := set(options.python) - set(options.names):
        raise LabError(f"--python names {sorted(stray)}, which this call does not bring up.", EXIT_USAGE)
    options.kylin = systems.choose(options.os, options.kernel, options.machine, options.trap)
    if options.kylin and options.kylin.server:
        give_kylin_its_python(options)
    if missing := missing_tools(TOOLS + (KYLIN_TOOLS if options.kylin else ())):
        raise LabError(f"Missing Debian packages: {' '.join(missing)}. Run `lab/lab deps`.")
    for version in set(options.python.values()):
        interpreters.find(version)  # before anything is made
    network.refuse_foreign(lab)
    base.ensure(lab, bool(options.kylin and options.kylin.server))
    known = {m.host.name: m for m in load(lab)}
    created: list[Machine] = []
    booting: list[Machine] = []
    try:
        lab.state.mkdir(parents=True, exist_ok=True)
        if not (lab.state / "id.pub").exists():
            (lab.state / "id").unlink(missing_ok=True)
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", lab.tag, "-f", lab.state / "id")
        network.create_bridge(lab)
        for name in dict.fromkeys(options.names):
            if name not in known:
                created.append(create(lab, name, options, [m.host.octet for m in known.values()]))
                known[name] = created[-1]
            known[name].mount()
        tell_all(lab, load(lab))
        for name in dict.fromkeys(options.names):
            if not known[name].running():
                booting.append(known[name])
                known[name].start()
        wait_all(lab, [known[n] for n in dict.fromkeys(options.names)], options.timeout)
    except BaseException:
        for machine in booting:
            show_console(machine)
            machine.cut_power()
        for machine in created:
            machine.discard()
        if load(lab):
            tell_all(lab, load(lab))
        else:
            remove_all(lab)
        raise
    print(f"{len(booting)} booted, {len(set(options.names)) - len(booting)} already up, "
          f"in {time.monotonic() - started:.1f} s")  # fmt: skip


def give_kylin_its_python(options: argparse.Namespace) -> None:
    """The server edition's Python is 3.7; where this machine has none, its hosts keep the tree's, and that is said."""
    try:
        interpreters.find(systems.PYTHON)
    except LabError as error:
        print(f"Kylin hosts get the tree's own Python: {error}", flush=True)
        return
    for name in options.names:
        options.python.setdefault(name, systems.PYTHON)


def wait_all(lab: Lab, machines: Sequence[Machine], timeout: float, unlike: dict[str, int] | None = None) -> None:
    """Wait, for all at once, until each has booted; say which units failed where not all is well."""
    deadline = time.monotonic() + timeout
    with ThreadPoolExecutor(max_workers=max(1, len(machines))) as pool:
        states = list(pool.map(lambda m: m.wait_ready(deadline, (unlike or {}).get(m.host.name)), machines))
    for machine, state in zip(machines, states, strict=True):
        if state == "degraded":
            failed = run("ssh", "-F", lab.ssh_config, machine.host.name,
                         "systemctl list-units --state=failed --plain --no-legend", check=False).stdout  # fmt: skip
            print(f"{machine.host.name} is degraded:\n{failed}", end="")


def show_console(machine: Machine) -> None:
    lines = machine.console.read_text(errors="replace").splitlines() if machine.console.exists() else []
    tail = "\n".join(f"  {line}" for line in lines[-CONSOLE_TAIL:])
    print(f"console of {machine.host.name}, last {CONSOLE_TAIL} lines:\n{tail}", file=sys.stderr)


def down(lab: Lab, options: argparse.Namespace) -> None:
    """Switch hosts off in order and remove them with their disks; the last one takes the lab with it."""
    network.refuse_foreign(lab)
    machines = load(lab)
    chosen = machines if options.all else pick(machines, options.names)
    for machine in chosen:
        machine.request_power_off()
    for machine in chosen:
        if not machine.wait_off(options.timeout):
            machine.cut_power()
        machine.discard()
    if len(chosen) == len(machines):
        remove_all(lab)
    else:
        tell_all(lab, load(lab))


def remove_all(lab: Lab) -> None:
    """Remove every trace of the lab, also one a crashed call left without a record; safe to repeat."""
    cgroup.cut_power(lab.tag)
    for link in Path("/sys/class/net").glob(f"vb-{lab.machine(0)[:-1]}*"):
        network.remove_link(link.name)
    network.remove(lab)
    unmount_below(lab.state)
    # a namespace may end a moment after its last process
    if not wait_until(lambda: not cgroup.folders(lab.tag) or try_remove_groups(lab), 10):
        raise LabError(f"Cannot remove {', '.join(map(str, cgroup.folders(lab.tag)))}: still in use.")
    if lab.state.exists():
        shutil.rmtree(lab.state)
    lab.lock.unlink(missing_ok=True)


def try_remove_groups(lab: Lab) -> bool:
    try:
        cgroup.remove(lab.tag)
    except OSError:
        return False
    return True


def pick(machines: Sequence[Machine], names: Sequence[str]) -> list[Machine]:
    """The named hosts; LabError naming the unknown ones."""
    known = {m.host.name: m for m in machines}
    if unknown := [n for n in names if n not in known]:
        raise LabError(f"No host {', '.join(unknown)} in this lab. There are: {', '.join(known) or 'none'}.")
    return [known[n] for n in names]


def status(lab: Lab, _: argparse.Namespace) -> None:
    for machine in load(lab):
        host = machine.host
        marks = [host.system] * (host.system != systems.DEBIAN) + [f"trap:{trap}" for trap in host.traps]
        marks += [f"python{host.python}"] * bool(host.python) + ["registry"] * host.registry
        print(f"{host.name:20} {host.address:15} {'on' if machine.running() else 'off':4}{' '.join(marks)}".rstrip())


def reboot(lab: Lab, options: argparse.Namespace) -> None:
    """Reboot in order and wait until the hosts are back."""
    machines = pick(load(lab), options.names)
    before = {m.host.name: m.leader() or 0 for m in machines}
    for machine in machines:
        machine.reboot()
    wait_all(lab, machines, options.timeout, before)


def kill(lab: Lab, options: argparse.Namespace) -> None:
    """Cut the power; `up` starts the host again with its disk."""
    for machine in pick(load(lab), options.names):
        machine.cut_power()


def open_hosts(lab: Lab, options: argparse.Namespace) -> None:
    for machine in pick(load(lab), options.names):
        machine.open()


def execute(lab: Lab, options: argparse.Namespace) -> None:
    """Run a command in a host by ssh; its exit status becomes ours."""
    pick(load(lab), [options.name])
    terminal = ["-t"] if sys.stdin.isatty() else []
    os.execvp("ssh", ["ssh", *terminal, "-F", str(lab.ssh_config), options.name, "--", shlex.join(options.command)])


def inventory(lab: Lab, _: argparse.Namespace) -> None:
    print(render.inventory([m.host for m in load(lab)], str(lab.ssh_config)), end="")


def console(lab: Lab, options: argparse.Namespace) -> None:
    for machine in pick(load(lab), [options.name]):
        print(machine.console.read_text(errors="replace"), end="")


def deps(_: Lab, __: argparse.Namespace) -> None:
    """Install the Debian packages the lab needs, those that are missing."""
    if missing := missing_tools(TOOLS + VENDOR_TOOLS):
        environment = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"]
        run(*environment, "update")
        run(*environment, "install", "--yes", "--no-install-recommends", *missing)
    print(f"installed: {' '.join(missing)}" if missing else "nothing missing")


def purge(lab: Lab, _: argparse.Namespace) -> None:
    base.purge(lab)


def keep(lab: Lab, options: argparse.Namespace) -> None:
    raise SystemExit(pick(load(lab), [options.name])[0].keep())
