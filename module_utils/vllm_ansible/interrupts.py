# SPDX-License-Identifier: Apache-2.0
"""Which CPU answers which interrupt of a PCI function: what should be, what /proc/irq says, how it was before.

One interrupt goes to one CPU: with several the kernel of most machines uses the first all the same.
"""

import json
import re
from typing import Any, Dict

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist, parse_cpulist, read_cpulist

RECORD = "/var/lib/vllm/interrupts.json"
BALANCER = "irqbalance.service"


def parse_interrupts(text):
    """Return {number: the line's last word} of a /proc/interrupts; that word is the name the driver gave (``mlx5_3``,
    ``sq_send_trigger_irq``), the last of them where several share the line."""
    found = {}
    for line in (text or "").splitlines():
        match = re.match(r"\s*(\d+):\s.*\s(\S+)\s*\Z", line)
        if match:
            found[int(match.group(1))] = match.group(2)
    return found


def numbers_of(host, pci):
    """Return the interrupts of a PCI function in the order of their numbers, [] when there is no such function."""
    directory = f"/sys/bus/pci/devices/{pci}"
    numbers = [int(name) for name in host.list_directory(directory + "/msi_irqs") if name.isdigit()]
    line = (host.read(directory + "/irq") or "").strip()
    return sorted(numbers) or ([int(line)] if line.isdigit() and line != "0" else [])


def desired(host, functions):
    """Return ({number: CPU}, [message, …]): where each interrupt of `functions` belongs, and what cannot be found.

    Args:
        functions: [{"pci", "cpus": CPU list, "action": name or None}]; see the module's documentation.
    """
    names = parse_interrupts(host.read("/proc/interrupts"))
    wanted, missing = {}, []
    for function in functions:
        pci, action = function["pci"], function["action"]
        numbers, cpus = numbers_of(host, pci), parse_cpulist(function["cpus"])
        if action:
            first = next((number for number in numbers if names.get(number) == action), None)
            numbers = [number for number in numbers if first is not None and number in (first, first + 1)]
        if not numbers:
            what = f"no interrupt called {action}" if action else "no interrupts"
            missing.append(f"{pci} has {what}: its driver is not loaded, or it is another device.")
        for place, number in enumerate(numbers):
            wanted[number] = cpus[place % len(cpus)]
    return wanted, missing


def affinity(host, number):
    """Return the CPUs that may answer an interrupt as a list in canonical form, or None."""
    cpus = read_cpulist(host.read(f"/proc/irq/{number}/smp_affinity_list"))
    return None if cpus is None else format_cpulist(cpus)


def balanced(host):
    """Tell whether irqbalance runs: it moves interrupts every few seconds, so two would own them."""
    answer = host.run(["systemctl", "is-active", BALANCER])
    return answer is not None and answer[1].strip() == "active"


def read_record(host):
    """Return {"boot", "before": {number: CPU list}, "fixed": [number, …]} as the module last wrote it.

    Interrupts get other numbers, and their own CPUs back, at each boot: a record of another one is empty. `fixed` are
    those that the kernel lets nobody move.
    """
    boot = (host.read("/proc/sys/kernel/random/boot_id") or "").strip()
    empty: Dict[str, Any] = {"boot": boot, "before": {}, "fixed": []}
    try:
        record = json.loads(host.read(RECORD) or "")
        before = {int(number): format_cpulist(parse_cpulist(cpus)) for number, cpus in record["before"].items()}
        fixed = [int(number) for number in record["fixed"]]
    except (AttributeError, KeyError, TypeError, ValueError):
        return empty
    return {"boot": boot, "before": before, "fixed": fixed} if record.get("boot") == boot else empty


def render_record(record):
    """Return the text of a record."""
    return json.dumps(record, indent=1, sort_keys=True) + "\n"


def plan_changes(current, wanted, record):
    """Return {number: CPU list to write}: what differs, and what is wanted no more and goes back to where it was.

    Args:
        current: {number: CPU list or None} of every number in `wanted` and in the record.
        wanted: {number: CPU}.
    """
    target = dict(record["before"])
    target.update({number: str(cpu) for number, cpu in wanted.items() if number not in record["fixed"]})
    return {number: cpus for number, cpus in sorted(target.items()) if current.get(number) not in (None, cpus)}
