#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_interrupts
short_description: Bind the interrupts of devices and network cards to CPUs
version_added: 0.1.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Sets which CPU answers each interrupt of PCI functions, in C(/proc/irq), and puts back what was there before when a
    function is not named any more. What was there is kept in C(/var/lib/vllm/interrupts.json).
  - Leaves everything as it is while C(irqbalance) runs, which moves interrupts itself, and says so.
  - The kernel forgets it all at a reboot, and so does this module.
  - In check mode it tells whether every interrupt is where it belongs.
attributes:
  check_mode:
    support: full
    description: Nothing is written.
  diff_mode:
    support: full
    description: Shows the CPUs of each interrupt before and after.
options:
  functions:
    description: The PCI functions whose interrupts are bound, all of them; others go back to where they were.
    type: list
    elements: dict
    default: []
    suboptions:
      pci:
        description: Address of the function.
        type: str
        required: true
      cpus:
        description: CPUs as the kernel lists them. The first interrupt goes to the first CPU, the next to the next.
        type: str
        required: true
      action:
        description: Name in C(/proc/interrupts); only the interrupt of that name and the next number are bound.
        type: str
"""

EXAMPLES = r"""
- name: Bind the interrupts of an NPU and of a network card
  vllm_interrupts:
    functions:
      - {pci: "0000:c1:00.0", cpus: 145-146, action: sq_send_trigger_irq}
      - {pci: "0000:bd:00.0", cpus: 96-119}

- name: Give them back
  vllm_interrupts:
"""

RETURN = r"""
interrupts:
  description: CPU of each bound interrupt by number.
  returned: always
  type: dict
  sample: {"24": 2, "25": 3}
moved:
  description: Numbers that were, or would be, moved or given back.
  returned: always
  type: list
  elements: int
fixed:
  description: Numbers that the kernel lets nobody move.
  returned: always
  type: list
  elements: int
missing:
  description: Functions without the interrupts that were asked for.
  returned: always
  type: list
  elements: str
irqbalance:
  description: Whether irqbalance runs, so that nothing was bound.
  returned: always
  type: bool
"""

import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import interrupts
from ansible.module_utils.vllm_ansible.cpulist import format_cpulist, parse_cpulist
from ansible.module_utils.vllm_ansible.hardware.cpu import online_cpus
from ansible.module_utils.vllm_ansible.host import Host


def check(module, host):
    """Fail the module when a function cannot be bound as it says."""
    online, problems = online_cpus(host), []
    for function in module.params["functions"]:
        try:
            cpus = parse_cpulist(function["cpus"])
        except ValueError as error:
            problems.append(f"cpus of {function['pci']}: {error}.")
            continue
        if not re.match(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z", function["pci"]):
            problems.append(f"pci={function['pci']} is no address such as 0000:c1:00.0.")
        if not cpus or not set(cpus) <= set(online):
            problems.append(
                f"cpus={function['cpus']} of {function['pci']} cannot answer interrupts. "
                f"Set cpus to CPUs among {format_cpulist(online)}, which run."
            )
    if problems:
        module.fail_json(msg="Cannot bind interrupts: " + " ".join(problems), problems=problems)


def write(path, text):
    """Write a value to a file of the kernel; False when it refuses this value."""
    try:
        with open(path, "w", encoding="ascii") as stream:
            stream.write(text)
    except OSError:
        return False
    return True


def apply(module, host, changes, wanted, record, current):
    """Write the changes and the record; return the numbers that moved."""
    moved = []
    for number, cpus in changes.items():
        if write(f"/proc/irq/{number}/smp_affinity_list", cpus):
            moved.append(number)
            if number in wanted:
                record["before"].setdefault(number, current[number])
        elif number in wanted:
            record["fixed"].append(number)
    for number in [number for number in record["before"] if number not in wanted]:
        if number in moved or number not in changes:
            del record["before"][number]
    try:
        if record["before"] or record["fixed"]:
            host.write_atomically(interrupts.RECORD, interrupts.render_record(record), 0o600)
        elif host.exists(interrupts.RECORD):
            host.remove(interrupts.RECORD)
    except OSError as error:
        module.fail_json(msg=f"Cannot change {interrupts.RECORD}: {error.strerror}. Free the disk or become root.")
    return moved


def main():
    module = AnsibleModule(
        argument_spec={
            "functions": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "pci": {"type": "str", "required": True},
                    "cpus": {"type": "str", "required": True},
                    "action": {"type": "str"},
                },
            },
        },
        supports_check_mode=True,
    )
    host = Host(module.run_command)
    check(module, host)
    busy = interrupts.balanced(host)
    record = interrupts.read_record(host)
    found, missing = interrupts.desired(host, module.params["functions"])
    # irqbalance has taken over what was bound: nothing is to be put back either
    wanted = {} if busy else found
    if busy:
        record["before"] = {}
    current = {number: interrupts.affinity(host, number) for number in sorted(set(wanted) | set(record["before"]))}
    changes = interrupts.plan_changes(current, wanted, record)
    moved = list(changes) if module.check_mode else apply(module, host, changes, wanted, record, current)
    module.exit_json(
        changed=bool(moved),
        diff={
            "before": "".join(f"{number}: {current[number]}\n" for number in moved),
            "after": "".join(f"{number}: {changes[number]}\n" for number in moved),
            "before_header": "/proc/irq",
            "after_header": "/proc/irq",
        },
        interrupts={str(number): cpu for number, cpu in wanted.items() if number not in record["fixed"]},
        moved=moved,
        fixed=sorted(record["fixed"]),
        missing=missing,
        irqbalance=busy,
    )


if __name__ == "__main__":
    main()
