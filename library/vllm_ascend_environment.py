#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_ascend_environment
short_description: Write what set_env.sh sets into a file for systemd
version_added: 0.2.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Sources the C(set_env.sh) of CANN's toolkit and of NNAL once, in an environment of their own, and writes the
    variables they set as an C(EnvironmentFile) of systemd.
  - Empty entries of search paths, which would mean the working directory of the service, are left out.
options:
  path:
    description: The file.
    type: path
    required: true
  state:
    description: Whether the file should be there.
    type: str
    choices: [present, absent]
    default: present
  install_path:
    description: Where the vendor's software lies.
    type: path
    default: /usr/local/Ascend
  cxx_abi:
    description:
      - Which build of NNAL's transformer library is used; the C++ ABI that torch was built with
        (C(torch._C._GLIBCXX_USE_CXX11_ABI)). Required for O(state=present).
    type: int
    choices: [0, 1]
  libraries:
    description: Directories that C(LD_LIBRARY_PATH) has to name.
    type: list
    elements: str
    default:
      - /usr/local/Ascend/driver/lib64
      - /usr/local/Ascend/driver/lib64/common
      - /usr/local/Ascend/driver/lib64/driver
attributes:
  check_mode:
    description: On a host where the toolkit or NNAL is not installed yet, says that the file would change.
    support: full
  diff_mode:
    description: Shows the file before and after.
    support: full
"""

EXAMPLES = r"""
- name: Write the environment of CANN
  vllm_ascend_environment:
    path: /etc/vllm/ascend.env
    cxx_abi: 1
"""

RETURN = r"""
differs:
  description: Whether the file was not, or in check mode is not, what it should be.
  returned: success
  type: bool
variables:
  description: The variables; empty where the scripts are not there yet.
  returned: O(state=present)
  type: dict
missing:
  description: Scripts that are not there; only check mode comes back with any.
  returned: O(state=present)
  type: list
  elements: str
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.host import Host
from ansible.module_utils.vllm_ansible.run_package import environment, installed
from ansible.module_utils.vllm_ansible.run_package.packages import PackageError

DRIVER = "/usr/local/Ascend/driver/lib64"
# Without them nothing of CANN, and of NNAL, is found.
REQUIRED = ["ASCEND_HOME_PATH", "ATB_HOME_PATH"]
HEADER = "Written by vllm-ansible from CANN's set_env.sh. Changes are overwritten."

ARGUMENTS = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "install_path": {"type": "path", "default": "/usr/local/Ascend"},
    "cxx_abi": {"type": "int", "choices": [0, 1]},
    "libraries": {"type": "list", "elements": "str", "default": [DRIVER, DRIVER + "/common", DRIVER + "/driver"]},
}


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS, supports_check_mode=True, required_if=[("state", "present", ["cxx_abi"])]
    )
    params = module.params
    host = Host(module.run_command)
    before = host.read(params["path"])
    result: Dict[str, Any] = {}
    after = None
    if params["state"] == "present":
        root = params["install_path"].rstrip("/")
        toolkit = installed.set_env(host, root)
        nnal = root + "/nnal/atb/set_env.sh"
        missing = [] if toolkit else [root + "/ascend-toolkit/set_env.sh"]
        missing += [] if host.exists(nnal) else [nnal]
        result = {"missing": missing, "variables": {}}
        if missing and not module.check_mode:
            module.fail_json(
                msg="{0} is not there. Install CANN's toolkit and NNAL first.".format(" and ".join(missing)), **result
            )
        if not missing:
            # The abi is named, else the script asks the Python it finds, which is not the engine's.
            scripts = [[host.real_path(toolkit)], [host.real_path(nnal), "--cxx_abi={0}".format(params["cxx_abi"])]]
            try:
                variables = environment.resolve(scripts, dict(environment.BASE), REQUIRED)
                variables = environment.with_libraries(variables, params["libraries"])
                after = environment.render(variables, HEADER)
                result["variables"] = variables
            except PackageError as error:
                module.fail_json(msg=str(error), **result)
    result["changed"] = result["differs"] = before != after or bool(result.get("missing"))
    if result["changed"] and not module.check_mode:
        if after is None:
            host.remove(params["path"])
        else:
            host.write_atomically(params["path"], after)
    if module._diff:
        result["diff"] = {
            "before_header": params["path"],
            "after_header": params["path"],
            "before": before or "",
            "after": after or "",
        }
    module.exit_json(**result)


if __name__ == "__main__":
    main()
