#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_hardware_facts
short_description: Describe the hardware of an inference host
version_added: 0.1.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Returns what a host is (CPU topology and instruction sets, NUMA nodes, memory, file systems, network interfaces,
    listening ports, accelerators) as C(ansible_facts.vllm_hardware), the input of M(vllm_plan).
  - Facts describe and never decide. A tool or file that is missing makes a value null and adds a warning; it never
    fails the module.
  - Reads C(/proc) and C(/sys), and enriches accelerators with the vendor's own tool where that is installed.
  - Without root, the owner of a listening port and, on some driver versions, the state of NPUs stay unknown.
attributes:
  check_mode:
    support: full
    description: The module only reads.
  diff_mode:
    support: none
    description: Nothing changes.
options:
  paths:
    description:
      - Paths whose file system matters to the installation. A path need not exist, its nearest existing parent counts.
    type: list
    elements: path
    default: [/opt/vllm, /var/cache/vllm, /var/lib/vllm]
  recorded:
    description:
      - Path of a file with facts recorded earlier, on the machine the module runs on. The file is returned as it is,
        after a check of its schema, and the machine is not looked at.
      - Meant for planning without hosts, with C(delegate_to=localhost).
    type: path
  gather_subset:
    description: Accepted and ignored, so that the module can stand in C(ansible_facts_modules).
    type: list
    elements: str
    default: [all]
  gather_timeout:
    description: Accepted and ignored, as O(gather_subset).
    type: int
    default: 10
  filter:
    description: Accepted and ignored, as O(gather_subset).
    type: list
    elements: str
    default: []
  fact_path:
    description: Accepted and ignored, as O(gather_subset).
    type: path
    default: /etc/ansible/facts.d
"""

EXAMPLES = r"""
- name: Describe the host
  vllm_hardware_facts:
  become: true

- name: Plan for a host that does not exist yet
  vllm_hardware_facts:
    recorded: "{{ playbook_dir }}/machines/atlas-800i-a2/facts.json"
  delegate_to: localhost
"""

RETURN = r"""
ansible_facts:
  description: The facts, under one key. Numbers of memory are bytes.
  returned: always
  type: dict
  contains:
    vllm_hardware:
      description: The hardware facts.
      type: dict
      returned: always
      contains:
        schema:
          description: Version of this structure.
          type: int
          sample: 1
          returned: always
        architecture:
          description: Machine name of the kernel.
          type: str
          sample: aarch64
          returned: always
        os:
          description:
            - C(id), C(version_id), C(version), C(name) of os-release; C(kernel), C(glibc), C(python) (the one that ran
              the module), C(init) (name of process 1), C(systemd) (a number), C(virtualization) (null on bare metal).
          type: dict
          returned: always
        cpu:
          description:
            - C(vendor), C(model); C(sockets), C(cores) and C(threads) of the whole machine, online ones only;
              C(online) and C(allowed) (by the cpuset that binds system services) as CPU lists; C(isa), the instruction
              set extensions that every CPU has, by the kernel's names.
          type: dict
          returned: always
        numa:
          description:
            - C(nodes), each with C(id), C(cpus) (a CPU list, online ones), C(memory_bytes) (0 without memory) and
              C(distances) by node id. Ids may have gaps.
          type: dict
          returned: always
        memory:
          description:
            - C(total_bytes), C(available_bytes), C(swap_total_bytes), C(page_size_bytes), C(hugepages) (C(size_bytes),
              C(total), C(free) per size) and C(cgroup_limit_bytes), the limit that binds system services, null if none.
          type: dict
          returned: always
        disks:
          description: Mounted file systems with C(mount), C(device), C(fstype), C(size_bytes), C(available_bytes).
          type: list
          elements: dict
          returned: always
        paths:
          description: Per path asked for, the C(mount) it lies on and the C(available_bytes) there.
          type: dict
          returned: always
        nics:
          description:
            - Interfaces that are hardware or have an address, with C(name), C(mac), C(state), C(mtu), C(speed_mbps),
              C(driver), C(numa_node), C(addresses) (with prefix, no link-local ones) and C(pci).
          type: list
          elements: dict
          returned: always
        default_address:
          description: IPv4 address of the interface of the default route, or null.
          type: str
          returned: always
        listeners:
          description: Listening TCP sockets with C(address), C(port) and, seen by root only, C(unit) and C(process).
          type: list
          elements: dict
          returned: always
        accelerators:
          description:
            - NPUs and GPUs, one entry per chip, with C(kind), C(vendor), C(pci), C(device_id), C(index) (the number
              the runtime's visible-devices variable uses), C(model), C(memory_bytes), C(numa_node), C(health),
              C(driver).
          type: list
          elements: dict
          returned: always
        warnings:
          description: What could not be learnt, each with C(code) and C(message).
          type: list
          elements: dict
          returned: always
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.hardware.facts import SCHEMA, gather_hardware
from ansible.module_utils.vllm_ansible.host import Host


def load_recorded(text, path):
    """Return the facts in a recorded file.

    Raises:
        ValueError: the text is no facts of this schema; the message says what to do.
    """
    try:
        facts = json.loads(text or "")
    except ValueError as error:
        raise ValueError(f"{path} is no readable JSON file ({error}). Record it again or correct the path.") from error
    schema = facts.get("schema") if isinstance(facts, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path} has hardware facts schema {schema!r}, this version reads {SCHEMA}. Record it again.")
    return facts


def main():
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": ["/opt/vllm", "/var/cache/vllm", "/var/lib/vllm"]},
            "recorded": {"type": "path"},
            "gather_subset": {"type": "list", "elements": "str", "default": ["all"]},
            "gather_timeout": {"type": "int", "default": 10},
            "filter": {"type": "list", "elements": "str", "default": []},
            "fact_path": {"type": "path", "default": "/etc/ansible/facts.d"},
        },
        supports_check_mode=True,
    )
    host = Host(module.run_command)
    recorded = module.params["recorded"]
    if recorded:
        try:
            facts = load_recorded(host.read(recorded), recorded)
        except ValueError as error:
            module.fail_json(msg=str(error))
    else:
        facts = gather_hardware(host, module.params["paths"])
    module.exit_json(changed=False, ansible_facts={"vllm_hardware": facts})


if __name__ == "__main__":
    main()
