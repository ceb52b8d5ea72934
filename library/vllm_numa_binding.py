#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_numa_binding
short_description: Bind an engine instance to CPUs and memory nodes
version_added: 0.1.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Owns the drop-in C(20-numa.conf) of the unit C(vllm-<instance>.service), with C(CPUAffinity=), with C(AllowedCPUs=)
    where control groups of version 2 have cpusets, and, on a host with more than one NUMA node that has memory, with
    C(NUMAPolicy=bind) and C(NUMAMask=).
  - Refuses CPUs that do not exist, are offline, isolated or outside the cpuset of system services, and nodes without
    memory, before it writes anything.
  - Neither reloads systemd nor restarts the unit. A binding applies from the next start of the unit.
  - M(vllm_numa_binding_info) tells whether what runs obeys the binding.
attributes:
  check_mode:
    support: full
    description: Every check is made and the outcome foretold, nothing is written.
  diff_mode:
    support: full
    description: Shows the drop-in before and after.
options:
  instance:
    description: Name of the instance, the part of the unit's name after C(vllm-).
    type: str
    required: true
  cpus:
    description: CPUs as the kernel lists them, for example V(0-3,8). Required with O(state=present).
    type: str
  memory_nodes:
    description:
      - NUMA nodes that memory may come from, for example V(0) or V(0-1). Without it the kernel decides.
      - Checked, but not written on a host where only one node has memory.
    type: str
  state:
    description: Whether the binding exists.
    type: str
    choices: [present, absent]
    default: present
  unit_directory:
    description: Where drop-in directories of units lie.
    type: path
    default: /etc/systemd/system
"""

EXAMPLES = r"""
- name: Bind the engine to the first NUMA node
  vllm_numa_binding:
    instance: smollm
    cpus: 0-31
    memory_nodes: "0"
  register: binding

- name: Let systemd read it
  ansible.builtin.systemd_service:
    daemon_reload: true
  when: binding.reload_required

- name: Remove the binding
  vllm_numa_binding:
    instance: smollm
    state: absent
"""

RETURN = r"""
path:
  description: The drop-in.
  returned: always
  type: str
  sample: /etc/systemd/system/vllm-smollm.service.d/20-numa.conf
cpus:
  description: The bound CPUs in the shortest list form, null with O(state=absent).
  returned: always
  type: str
  sample: 0-31
memory_nodes:
  description: The bound nodes, null where memory is not bound.
  returned: always
  type: str
  sample: "0"
reload_required:
  description:
    - Whether systemd has yet to read the drop-in. True after a change, and also when an earlier run was cut off
      between its change and its reload.
  returned: always
  type: bool
"""

import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import binding
from ansible.module_utils.vllm_ansible.hardware.cpu import cpuset_version
from ansible.module_utils.vllm_ansible.host import Host


def desired_text(module, host):
    """Return the (cpus, memory_nodes, text) that should be; fails the module when the host cannot be bound so."""
    if module.params["state"] == "absent":
        return None, None, None
    wanted, problems = binding.resolve_binding(
        module.params["cpus"], module.params["memory_nodes"], binding.gather_topology(host)
    )
    if problems:
        module.fail_json(
            msg=f"Cannot bind instance {module.params['instance']}: {' '.join(problems)}", problems=problems
        )
    cpus, memory_nodes = wanted
    return cpus, memory_nodes, binding.render_dropin(cpus, memory_nodes, cpuset=cpuset_version(host) == 2)


def main():
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "cpus": {"type": "str"},
            "memory_nodes": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "unit_directory": {"type": "path", "default": binding.UNIT_DIRECTORY},
        },
        required_if=[("state", "present", ["cpus"])],
        supports_check_mode=True,
    )
    instance = module.params["instance"]
    if not re.match(r"[A-Za-z0-9_.-]+\Z", instance):
        module.fail_json(msg=f"instance {instance!r} is no part of a unit name. Use letters, digits, '_', '.' and '-'.")
    host = Host(module.run_command)
    path = binding.dropin_path(instance, module.params["unit_directory"])
    cpus, memory_nodes, desired = desired_text(module, host)
    changes = binding.plan_changes(host.read(path), desired)
    if changes["changed"] and not module.check_mode:
        try:
            if desired is None:
                host.remove(path)
            else:
                host.write_atomically(path, desired)
        except OSError as error:
            module.fail_json(msg=f"Cannot change {path}: {error.strerror}. Free the disk or become root and run again.")
    module.exit_json(
        changed=changes["changed"],
        diff=dict(changes["diff"], before_header=path, after_header=path),
        path=path,
        cpus=cpus,
        memory_nodes=memory_nodes,
        reload_required=changes["changed"] or binding.reload_is_due(host, binding.unit_name(instance)),
    )


if __name__ == "__main__":
    main()
