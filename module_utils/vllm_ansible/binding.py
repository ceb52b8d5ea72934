# SPDX-License-Identifier: Apache-2.0
"""Binding of one engine instance to CPUs and memory nodes: the drop-in's text, what may be asked for, what is live.

CPUs are kernel lists such as ``0-3,8`` (see :mod:`ansible.module_utils.vllm_ansible.cpulist`), memory nodes likewise.
"""

import re
from typing import Any, Dict, List, Optional

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist, parse_cpulist, read_cpulist
from ansible.module_utils.vllm_ansible.hardware.cgroup import parse_cgroups
from ansible.module_utils.vllm_ansible.hardware.cpu import allowed_cpus, isolated_cpus, online_cpus, status_field
from ansible.module_utils.vllm_ansible.hardware.memory import gather_nodes

UNIT_DIRECTORY = "/etc/systemd/system"
_FILE = "20-numa.conf"
_MARK = "# Ansible managed: vllm_numa_binding"
_DIRECTORY = re.compile(r"vllm-(.+)\.service\.d\Z")

# What a bound process may hold outside its nodes before that counts: bind is strict, but the kernel keeps a few pages
# of a process (the vdso, pages shared with its parent before exec) where they were.
_TOLERATED_FRACTION = 0.01

# Title of a worker process (vllm/v1/executor/multiproc_executor.py): VLLM::Worker_TP0, VLLM::Worker_DP1_TP0_EP4.
_WORKER = "VLLM::Worker"


def unit_name(instance):
    """Return the unit of an instance."""
    return f"vllm-{instance}.service"


def dropin_path(instance, unit_directory=UNIT_DIRECTORY):
    """Return the path of the drop-in that binds an instance."""
    return f"{unit_directory}/{unit_name(instance)}.d/{_FILE}"


def render_dropin(cpus, memory_nodes, cpuset=False):
    """Return the drop-in's text; ``memory_nodes`` of None leaves the memory policy to the kernel.

    ``cpuset``: whether control groups can hold the engine inside these CPUs also where it binds its threads itself.
    """
    # The empty assignment takes back what the unit itself may say: systemd would otherwise add the two sets.
    lines = [_MARK, "[Service]", "CPUAffinity=", f"CPUAffinity={cpus}"]
    if cpuset:
        lines += ["AllowedCPUs=", f"AllowedCPUs={cpus}"]
    if memory_nodes is not None:
        lines += ["NUMAPolicy=bind", f"NUMAMask={memory_nodes}"]
    return "\n".join(lines) + "\n"


def parse_dropin(text):
    """Return {"managed", "cpus", "memory_nodes"} of a drop-in; the lists in canonical form, None when not set."""
    values = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        numbers = read_cpulist(value) if equals else None
        if numbers is not None:
            values[name.strip()] = format_cpulist(numbers) or None
    return {
        "managed": text.startswith(_MARK),
        "cpus": values.get("CPUAffinity"),
        "memory_nodes": values.get("NUMAMask"),
    }


def plan_changes(current, desired):
    """Compare the text of a drop-in with the one it should have; None stands for "no file".

    Returns:
        {"changed": bool, "diff": {"before": text, "after": text}}.
    """
    return {"changed": current != desired, "diff": {"before": current or "", "after": desired or ""}}


def gather_topology(host):
    """Return what can be bound to.

    Returns:
        {"present", "online", "allowed", "isolated": [CPU, …], "nodes": {id: bytes or None}}.
    """
    online = online_cpus(host)
    present = read_cpulist(host.read("/sys/devices/system/cpu/present"))
    nodes = gather_nodes(host, lambda code, message: None)
    return {
        "present": present or online,
        "online": online,
        "allowed": allowed_cpus(host),
        "isolated": isolated_cpus(host),
        "nodes": {node["id"]: node["memory_bytes"] for node in nodes},
    }


def resolve_binding(cpus, memory_nodes, topology):
    """Check a wanted binding against a host.

    Args:
        cpus: CPU list.
        memory_nodes: list of nodes, or None for no memory binding.
        topology: see :func:`gather_topology`.
    Returns:
        ((cpus, memory_nodes) in canonical form, [message, …]); with messages the binding must not be applied. The
        memory nodes are None where the host has no more than one node with memory: there is nothing to choose.
    """
    problems = []

    def numbers(option, text):
        try:
            found = parse_cpulist(text)
        except ValueError as error:
            problems.append(f"{option}: {error}.")
            return set()
        if not found:
            problems.append(f"{option} is empty. Name at least one, for example 0.")
        return set(found)

    wanted = numbers("cpus", cpus)
    isolated = set(topology["isolated"])
    usable = set(topology["allowed"]) - isolated
    for bad, what in (
        (wanted - set(topology["present"]), f"this host has only {format_cpulist(topology['present'])}"),
        (wanted & set(topology["present"]) - set(topology["online"]), "offline"),
        (
            wanted & set(topology["online"]) - usable - isolated,
            "outside the cpuset that system services may use",
        ),
        (wanted & isolated, "isolated: the kernel spreads no threads over them"),
    ):
        if bad:
            problems.append(
                f"cpus={cpus}: CPU {format_cpulist(bad)} cannot be used ({what}). "
                f"Set cpus to CPUs among {format_cpulist(usable)}."
            )
    nodes = None
    if memory_nodes is not None:
        nodes = numbers("memory_nodes", memory_nodes)
        with_memory = {node for node, size in topology["nodes"].items() if size}
        for bad, what in (
            (nodes - set(topology["nodes"]), f"this host has only node {format_cpulist(topology['nodes'])}"),
            (nodes & set(topology["nodes"]) - with_memory, "without memory"),
        ):
            if bad:
                problems.append(
                    f"memory_nodes={memory_nodes}: node {format_cpulist(bad)} cannot be used ({what}). "
                    f"Set memory_nodes to nodes among {format_cpulist(with_memory)}."
                )
        if len(with_memory) <= 1:
            nodes = None
    return (format_cpulist(wanted), None if nodes is None else format_cpulist(nodes)), problems


def list_dropins(host, unit_directory=UNIT_DIRECTORY):
    """Return {instance: drop-in (see :func:`parse_dropin`)} of every binding on the host."""
    found = {}
    for name in host.list_directory(unit_directory):
        match = _DIRECTORY.match(name)
        text = host.read(f"{unit_directory}/{name}/{_FILE}")
        if match and text is not None:
            found[match.group(1)] = parse_dropin(text)
    return found


def reload_is_due(host, units):
    """Tell whether systemd says that files of these loaded units (a name or a glob) are newer than what it has read."""
    answer = host.run(["systemctl", "show", "--property=NeedDaemonReload", units])
    return answer is not None and "NeedDaemonReload=yes" in answer[1].splitlines()


def parse_numa_maps(text):
    """Return {node: bytes} of the anonymous memory in a /proc/<pid>/numa_maps.

    Pages of files do not count: the page cache is shared, and lies where the first reader was.
    """
    nodes: Dict[int, int] = {}
    for line in (text or "").splitlines():
        if not re.search(r"\sanon=", line) or re.search(r"\sfile=", line):
            continue
        size = re.search(r"\skernelpagesize_kB=(\d+)", line)
        for node, pages in re.findall(r"\sN(\d+)=(\d+)", line):
            count = int(pages) * (int(size.group(1)) if size else 4) * 1024
            nodes[int(node)] = nodes.get(int(node), 0) + count
    return nodes


def read_live(host, instance, with_memory):
    """Return the threads of an instance's unit, and the memory of its processes if ``with_memory``.

    Returns:
        {"threads": [{"pid", "tid", "name", "cpus"}], "anonymous_bytes": {node: bytes} or None (unreadable or not
        asked for), "workers": [{"pid", "title", "cpus": all CPUs its threads may run on, "anonymous_bytes"}]}. A
        thread that ends meanwhile is left out.
    """
    threads: List[Dict[str, Any]] = []
    workers: List[Dict[str, Any]] = []
    memory: Optional[Dict[int, int]] = None
    unit = unit_name(instance)
    for pid in sorted(int(name) for name in host.list_directory("/proc") if name.isdigit()):
        groups = parse_cgroups(host.read(f"/proc/{pid}/cgroup")).values()
        if not any(unit in path.split("/") for path in groups):
            continue
        own = []
        for tid in sorted(int(name) for name in host.list_directory(f"/proc/{pid}/task") if name.isdigit()):
            status = host.read(f"/proc/{pid}/task/{tid}/status")
            cpus = status_field(status, "Cpus_allowed_list")
            if cpus is not None:
                own.append({"pid": pid, "tid": tid, "name": status_field(status, "Name"), "cpus": cpus})
        threads += own
        maps = host.read(f"/proc/{pid}/numa_maps") if with_memory else None
        nodes = None if maps is None else parse_numa_maps(maps)
        if nodes is not None:
            memory = memory or {}
            for node, size in nodes.items():
                memory[node] = memory.get(node, 0) + size
        title = (host.read(f"/proc/{pid}/cmdline") or "").split("\0")[0].strip()
        if title.startswith(_WORKER) and own:
            cpus = {cpu for thread in own for cpu in read_cpulist(thread["cpus"]) or ()}
            workers.append({"pid": pid, "title": title, "cpus": format_cpulist(cpus), "anonymous_bytes": nodes})
    return {"threads": threads, "anonymous_bytes": memory, "workers": workers}


def match_workers(ranks, workers):
    """Give each worker process the rank on whose CPUs it runs.

    Args:
        ranks: [{"cpus": CPU list, "memory_node"}] of the plan.
        workers: see :func:`read_live`.
    Returns:
        ([{"pid", "title", "cpus", "rank": number or None, "remote_fraction": share of its anonymous memory on other
        nodes than the rank's, None where unknown}], [message, …]).
    """
    free, found, problems = list(range(len(ranks))), [], []
    for worker in workers:
        cpus, nodes = set(parse_cpulist(worker["cpus"])), worker["anonymous_bytes"] or {}
        rank = next((number for number in free if cpus <= set(parse_cpulist(ranks[number]["cpus"]))), None)
        remote = None
        if rank is None:
            problems.append(
                f"process {worker['pid']} ({worker['title']}) may run on CPU {worker['cpus']}, which is no free rank's "
                f"({'; '.join(entry['cpus'] for entry in ranks)}): the engine did not bind it. Look for its reason in "
                "the journal of the unit."
            )
        else:
            free.remove(rank)
            node, total = ranks[rank]["memory_node"], sum(nodes.values())
            if total and node is not None:
                remote = round(1 - nodes.get(node, 0) / total, 4)
        found.append(
            {
                "pid": worker["pid"],
                "title": worker["title"],
                "cpus": worker["cpus"],
                "rank": rank,
                "remote_fraction": remote,
            }
        )
    return found, problems


def judge_live(instance, cpus, memory_nodes, live):
    """Compare what runs with a binding.

    Returns:
        {"strays": threads that may run elsewhere, "elsewhere_bytes": anonymous memory on other nodes or None,
        "problems": [message, …]}.
    """
    unit, problems = unit_name(instance), []
    remedy = f"A binding applies from the next start: restart {unit}"
    if not live["threads"]:
        problems.append(f"{unit} has no process: its binding cannot be verified. Start it first.")
    bound = set(parse_cpulist(cpus))
    strays = [thread for thread in live["threads"] if not set(read_cpulist(thread["cpus"]) or [-1]) <= bound]
    for thread in strays:
        problems.append(
            f"thread {thread['tid']} ({thread['name']}) of process {thread['pid']} in {unit} may run on CPU "
            f"{thread['cpus']}, bound is {cpus}. {remedy}; if it stays, the engine itself moves its threads."
        )
    memory, elsewhere = live["anonymous_bytes"], None
    if memory_nodes is not None and memory is not None:
        nodes = set(parse_cpulist(memory_nodes))
        elsewhere = sum(size for node, size in memory.items() if node not in nodes)
        if elsewhere > _TOLERATED_FRACTION * sum(memory.values()):
            seen = ", ".join(f"node {node}: {size} bytes" for node, size in sorted(memory.items()))
            problems.append(f"memory of {unit} lies outside node {memory_nodes} ({seen}). {remedy}.")
    elif memory_nodes is not None and live["threads"]:
        problems.append(f"/proc/<pid>/numa_maps of {unit} cannot be read: run as root, on a kernel with NUMA.")
    return {"strays": strays, "elsewhere_bytes": elsewhere, "problems": problems}
