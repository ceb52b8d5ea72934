#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_energy_info
short_description: Read the energy counters of a host
version_added: 0.1.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Reads the counters of the kernel's powercap framework (RAPL on x86) and, with the counters of an earlier call, tells
    the joules between the two.
  - Hosts without such counters, such as those with Kunpeng processors, have an empty list and no joules.
attributes:
  check_mode:
    support: full
    description: It only reads.
  diff_mode:
    support: none
    description: It only reads.
options:
  since:
    description: RV(counters) of an earlier call.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Read the counters before the work
  vllm_energy_info:
  register: before

- name: Tell the joules of the work
  vllm_energy_info:
    since: "{{ before.counters }}"
"""

RETURN = r"""
counters:
  description: The counters.
  returned: success
  type: list
  elements: dict
  contains:
    zone:
      description: Zone of the framework, such as C(intel-rapl:0).
      type: str
    name:
      description: What it counts, such as C(package-0).
      type: str
    microjoules:
      description: The counter.
      type: int
    range_microjoules:
      description: Where it starts again from 0.
      type: int
joules:
  description: Energy of the processor packages since O(since), null when that cannot be told.
  returned: success
  type: float
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import energy
from ansible.module_utils.vllm_ansible.host import Host


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={"since": {"type": "list", "elements": "dict", "default": []}}, supports_check_mode=True
    )
    try:
        counters = energy.read(Host())
        joules = energy.joules(module.params["since"], counters)
    except (KeyError, TypeError, ValueError) as error:
        module.fail_json(msg="since: not the counters of an earlier call: {0!r}".format(error))
    module.exit_json(changed=False, counters=counters, joules=joules)


if __name__ == "__main__":
    main()
