#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_docker_runtime
short_description: Add a runtime to Docker's daemon.json and keep everything else in it
version_added: 0.2.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Puts one runtime into C(daemon.json) or takes it out. Other keys, their order and the indentation stay, and so do
    the arguments of an entry of that name.
  - Refuses a file that is not valid JSON or has a key twice, instead of writing it anew.
  - A file that changes is kept beside the new one.
options:
  name:
    description: Name of the runtime.
    type: str
    default: nvidia
  program:
    description: The runtime's program.
    type: str
    default: nvidia-container-runtime
  default:
    description: Whether it becomes the default runtime. With V(false) the default stays what it is.
    type: bool
    default: false
  path:
    description: The file.
    type: path
    default: /etc/docker/daemon.json
  state:
    description: Whether the runtime should be there.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Says what would change.
    support: full
  diff_mode:
    description: Shows the file before and after.
    support: full
"""

EXAMPLES = r"""
- name: Let Docker start containers with GPUs
  vllm_docker_runtime:
  notify: Reload Docker
"""

RETURN = r"""
right:
  description: Whether the file already was as asked for.
  returned: always
  type: bool
backup_file:
  description: Where the file as it was is kept.
  returned: when a file changed
  type: str
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import docker_settings
from ansible.module_utils.vllm_ansible.host import Host

ARGUMENTS = {
    "name": {"type": "str", "default": "nvidia"},
    "program": {"type": "str", "default": "nvidia-container-runtime"},
    "default": {"type": "bool", "default": False},
    "path": {"type": "path", "default": "/etc/docker/daemon.json"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params, host = module.params, Host(module.run_command)
    path = host.real_path(params["path"])
    before = host.read(path) or ""
    try:
        if params["state"] == "present":
            after = docker_settings.with_runtime(before, params["name"], params["program"], params["default"])
        else:
            after = docker_settings.without_runtime(before, params["name"])
    except docker_settings.SettingsError as error:
        module.fail_json(
            msg="{0} is left as it is: {1}. Docker would not start with it either; repair it and run again.".format(
                path, error
            )
        )
    result: Dict[str, Any] = {"changed": after != before, "right": after == before}
    if module._diff:
        result["diff"] = {"before_header": path, "after_header": path, "before": before, "after": after}
    if result["changed"] and not module.check_mode:
        mode = 0o644
        if host.exists(path):
            result["backup_file"] = module.backup_local(path)
            mode = int(host.access(path)["mode"], 8)
        host.write_atomically(path, after, mode)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
