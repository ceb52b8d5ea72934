#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_nvidia_driver_info
short_description: Compare NVIDIA's driver on a host with the plan
version_added: 0.2.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Tells which packages of the driver are installed, which kernel module is built for the running kernel and which is
    loaded, what forbids an installation and what waits for a reboot.
  - With O(ask_gpus), also asks C(nvidia-smi) and the fabric manager, and names what is wrong with what to do.
  - Run it as root.
attributes:
  check_mode:
    support: full
    description: The module only reads.
  diff_mode:
    support: none
    description: Nothing changes.
options:
  version:
    description: Full version of the driver, such as V(580.126.09).
    type: str
    required: true
  flavour:
    description: Whether the kernel module is the open or the proprietary one.
    type: str
    choices: [open, proprietary]
    required: true
  manager:
    description: Whose packages the driver's are; V(dnf) also where only C(yum) is there.
    type: str
    choices: [apt, dnf]
    required: true
  packages:
    description: Packages that have to be installed in this version.
    type: list
    elements: str
    default: []
  gpus:
    description: How many GPUs there have to be. Without it they are not counted.
    type: int
  nvswitch:
    description: Whether the GPUs are joined by NVSwitch, so that the fabric manager has to run in exactly this version.
    type: bool
    default: false
  modules_signed:
    description: Whether modules that are built on the host are signed with a key that Secure Boot accepts.
    type: bool
    default: false
  ask_gpus:
    description: Whether the driver and its services are asked too.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Look at the driver
  vllm_nvidia_driver_info:
    version: 580.126.09
    flavour: open
    manager: apt
    packages: [nvidia-open-580, nvidia-fabricmanager]
    gpus: 8
    nvswitch: true
    ask_gpus: true
  register: driver

- name: Stop when something is wrong
  ansible.builtin.assert:
    that: driver.findings == []
    fail_msg: "{{ driver.findings | map(attribute='seen') | join('; ') }}"
"""

RETURN = r"""
kernel:
  description: Release of the running kernel.
  returned: always
  type: str
installed:
  description: Version of each installed package of a driver, by name.
  returned: always
  type: dict
missing:
  description: Those of O(packages) that are not installed in this version.
  returned: always
  type: list
  elements: str
strays:
  description: Packages of a driver of another version.
  returned: always
  type: list
  elements: str
built:
  description: Version of the kernel module for the running kernel, null when there is none.
  returned: always
  type: str
loaded:
  description: Version of the loaded kernel module, null when none is loaded.
  returned: always
  type: str
loaded_flavour:
  description: V(open) or V(proprietary), null when none is loaded.
  returned: always
  type: str
nouveau:
  description: Whether nouveau is loaded.
  returned: always
  type: bool
secure_boot:
  description: Whether Secure Boot is on.
  returned: always
  type: bool
right:
  description: Whether packages and kernel module are those of the plan.
  returned: always
  type: bool
blockers:
  description: Why the driver cannot be installed now.
  returned: always
  type: list
  elements: dict
  contains: &finding
    code:
      description: A word for the kind of finding.
      type: str
    seen:
      description: What was seen.
      type: str
    todo:
      description: What to do.
      type: str
headers_package:
  description: The package of headers that has to be installed with the driver, null when none has to.
  returned: always
  type: str
pending:
  description: What waits for a reboot.
  returned: always
  type: list
  elements: str
findings:
  description: What is wrong.
  returned: with O(ask_gpus)
  type: list
  elements: dict
  contains: *finding
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.hardware import nvidia_driver
from ansible.module_utils.vllm_ansible.host import Host

ARGUMENTS = {
    "version": {"type": "str", "required": True},
    "flavour": {"type": "str", "choices": ["open", "proprietary"], "required": True},
    "manager": {"type": "str", "choices": ["apt", "dnf"], "required": True},
    "packages": {"type": "list", "elements": "str", "default": []},
    "gpus": {"type": "int"},
    "nvswitch": {"type": "bool", "default": False},
    "modules_signed": {"type": "bool", "default": False},
    "ask_gpus": {"type": "bool", "default": False},
}


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    host = Host(module.run_command)
    wanted = nvidia_driver.Wanted(**{name: module.params[name] for name in nvidia_driver.Wanted._fields})
    seen = nvidia_driver.ask(host, wanted)
    blockers, headers_package = nvidia_driver.before(host, seen, wanted)
    result = dict(
        seen,
        right=nvidia_driver.is_right(seen, wanted),
        blockers=blockers,
        headers_package=headers_package,
        pending=nvidia_driver.pending(seen, wanted),
        changed=False,
    )
    if module.params["ask_gpus"]:
        result["findings"] = nvidia_driver.verify(host, seen, wanted)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
