#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_numa_binding_info
short_description: Tell which CPUs and memory nodes engine instances are bound to, and whether they obey
version_added: 0.1.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Lists the bindings that M(vllm_numa_binding) wrote and compares each with the threads and the memory of the running
    unit, as the kernel shows them in C(/proc).
  - Run it as root, otherwise the memory of the processes cannot be read.
attributes:
  check_mode:
    support: full
    description: The module only reads.
  diff_mode:
    support: none
    description: Nothing changes.
options:
  instances:
    description:
      - The bindings that should be. For these, a drop-in that is missing or differs, and a unit that does not run, are
        problems too.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the instance.
        type: str
        required: true
      cpus:
        description: CPUs as the kernel lists them.
        type: str
        required: true
      memory_nodes:
        description: NUMA nodes as the kernel lists them, null when memory is not bound.
        type: str
      ranks:
        description:
          - Where the engine puts each worker. Each worker process that names itself so is looked for on the CPUs of a
            rank with a device; the workers of a CPU engine bind some of their threads only and are not.
        type: list
        elements: dict
        default: []
        suboptions:
          device:
            description: Number of the rank's device, null without.
            type: int
          cpus:
            description: CPUs of the worker.
            type: str
            required: true
          memory_node:
            description: NUMA node of its memory.
            type: int
  unit_directory:
    description: Where drop-in directories of units lie.
    type: path
    default: /etc/systemd/system
"""

EXAMPLES = r"""
- name: Look at every binding of the host
  vllm_numa_binding_info:
  register: numa

- name: Stop when a thread strays
  ansible.builtin.assert:
    that: numa.problems == []
    fail_msg: "{{ numa.problems | join(' ') }}"
"""

RETURN = r"""
bindings:
  description: One entry per binding, on the host or asked for, in the order of their names.
  returned: always
  type: list
  elements: dict
  contains:
    instance:
      description: Name of the instance.
      type: str
      returned: always
    path:
      description: The drop-in.
      type: str
      returned: always
    managed:
      description: Whether M(vllm_numa_binding) wrote the drop-in; null without one.
      type: bool
      returned: always
    cpus:
      description: The CPUs that the threads were compared with.
      type: str
      returned: always
    memory_nodes:
      description: The nodes that the memory was compared with, null when memory is not bound.
      type: str
      returned: always
    threads:
      description: Number of threads that run in the unit, 0 when it does not run.
      type: int
      returned: always
    strays:
      description: Threads that may run on other CPUs, each with C(pid), C(tid), C(name), C(cpus).
      type: list
      elements: dict
      returned: always
    anonymous_bytes:
      description: Memory of the unit's processes per node, without file pages. Null when memory is not bound.
      type: dict
      returned: always
    elsewhere_bytes:
      description: How much of it lies on other nodes. Up to one per cent is tolerated.
      type: int
      returned: always
    workers:
      description:
        - Worker processes, each with C(pid), C(title), C(cpus) that its threads may use, C(rank) on whose CPUs it runs
          (null when on no free one's), and C(remote_fraction), the share of its memory on other nodes than the rank's.
      type: list
      elements: dict
      returned: always
    problems:
      description: What is wrong and what to do, empty when all is well.
      type: list
      elements: str
      returned: always
problems:
  description: The problems of all bindings together.
  returned: always
  type: list
  elements: str
reload_required:
  description: Whether systemd has yet to read files of an engine's unit, for example after an earlier run was cut off.
  returned: always
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import binding
from ansible.module_utils.vllm_ansible.host import Host


def describe_binding(host, instance, dropin, expected, ranks, unit_directory):
    """Return one entry of ``bindings``.

    Args:
        dropin: what the host has (see binding.parse_dropin), or None.
        expected: (cpus, memory_nodes) that should be, or None when nothing was asked for.
        ranks: those of the plan that have a device.
    """
    path = binding.dropin_path(instance, unit_directory)
    present = (dropin["cpus"], dropin["memory_nodes"]) if dropin else None
    cpus, memory_nodes = expected or present or (None, None)
    problems = []
    if expected and expected != present:
        seen = f"has cpus={present[0]} memory_nodes={present[1]}" if present else "does not exist"
        wanted = f"cpus={cpus} memory_nodes={memory_nodes}"
        problems.append(f"{path} {seen}, expected is {wanted}. Apply the binding and restart the unit.")
    live = binding.read_live(host, instance, memory_nodes is not None or bool(ranks))
    judged = cpus is not None and (expected or live["threads"])
    verdict = binding.judge_live(instance, cpus, memory_nodes, live) if judged else {}
    workers, astray = binding.match_workers(ranks, live["workers"]) if ranks else ([], [])
    return {
        "instance": instance,
        "path": path,
        "managed": dropin["managed"] if dropin else None,
        "cpus": cpus,
        "memory_nodes": memory_nodes,
        "threads": len(live["threads"]),
        "strays": verdict.get("strays", []),
        "anonymous_bytes": live["anonymous_bytes"],
        "elsewhere_bytes": verdict.get("elsewhere_bytes"),
        "workers": workers,
        "problems": problems + verdict.get("problems", []) + astray,
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "instances": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "cpus": {"type": "str", "required": True},
                    "memory_nodes": {"type": "str"},
                    "ranks": {
                        "type": "list",
                        "elements": "dict",
                        "default": [],
                        "options": {
                            "device": {"type": "int"},
                            "cpus": {"type": "str", "required": True},
                            "memory_node": {"type": "int"},
                        },
                    },
                },
            },
            "unit_directory": {"type": "path", "default": binding.UNIT_DIRECTORY},
        },
        supports_check_mode=True,
    )
    host = Host(module.run_command)
    directory = module.params["unit_directory"]
    topology = binding.gather_topology(host)
    expected, ranks = {}, {}
    for wanted in module.params["instances"]:
        resolved, problems = binding.resolve_binding(wanted["cpus"], wanted["memory_nodes"], topology)
        if problems:
            module.fail_json(msg=f"No binding for instance {wanted['name']}: {' '.join(problems)}", problems=problems)
        expected[wanted["name"]] = resolved
        ranks[wanted["name"]] = [rank for rank in wanted["ranks"] if rank["device"] is not None]
    dropins = binding.list_dropins(host, directory)
    bindings = [
        describe_binding(host, name, dropins.get(name), expected.get(name), ranks.get(name, []), directory)
        for name in sorted(set(dropins) | set(expected))
    ]
    module.exit_json(
        changed=False,
        bindings=bindings,
        problems=[problem for entry in bindings for problem in entry["problems"]],
        reload_required=binding.reload_is_due(host, binding.unit_name("*")),
    )


if __name__ == "__main__":
    main()
