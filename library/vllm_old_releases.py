#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_old_releases
short_description: Keep some old engine releases on a host and remove the rest
version_added: 0.1.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Removes installed releases except the current one, those an instance's link C(current) or C(previous) names, and
    the newest O(keep) others.
  - Folders that were not installed from an artefact are never touched.
options:
  path:
    description: Folder of the releases.
    type: path
    required: true
  instances:
    description: Folder with one folder per instance that holds the links C(current) and C(previous).
    type: path
    required: true
  current:
    description: Name of the release that was just installed.
    type: str
    required: true
  keep:
    description: How many other releases to keep.
    type: int
    default: 2
attributes:
  check_mode:
    support: full
    description: Tells what would be removed, and removes nothing.
  diff_mode:
    support: full
    description: Shows the names in the folder before and after.
"""

EXAMPLES = r"""
- name: Keep two old releases
  vllm_old_releases:
    path: /opt/vllm/releases
    instances: /opt/vllm/instances
    current: vllm-0.32.0-cpu-x86_64-0123456789ab
    keep: 2
"""

RETURN = r"""
kept:
  description: Names of the releases that stay.
  returned: success
  type: list
  elements: str
removed:
  description: Names of the releases that were, or in check mode would be, removed.
  returned: success
  type: list
  elements: str
"""

import glob
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import artefact, installation


def plan_removals(installed, protected, keep):
    """Names to remove. `installed`: {name: time of installation}; `protected`: names that stay in any case."""
    others = sorted(
        (name for name in installed if name not in protected), key=lambda name: (installed[name], name), reverse=True
    )
    return sorted(others[max(keep, 0) :])


def read_installed(path):
    """{name: time of installation} of the artefacts installed in `path`."""
    found = {}
    for name in os.listdir(path) if os.path.isdir(path) else ():
        receipt = os.path.join(path, name, artefact.RECEIPT)
        if not name.startswith(".") and installation.read_receipt(os.path.join(path, name)) is not None:
            found[name] = os.path.getmtime(receipt)
    return found


def read_protected(path, instances):
    """Names of the releases in `path` that an instance's link leads to, also when the link's target is gone."""
    names = set()
    for link in glob.glob(os.path.join(instances, "*", "*")):
        if os.path.basename(link) not in ("current", "previous"):
            continue
        target = os.path.realpath(link)
        if os.path.dirname(target) == os.path.realpath(path):
            names.add(os.path.basename(target))
    return names


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "instances": {"type": "path", "required": True},
            "current": {"type": "str", "required": True},
            "keep": {"type": "int", "default": 2},
        },
        supports_check_mode=True,
    )
    params = module.params
    installed = read_installed(params["path"])
    removed = plan_removals(
        installed, read_protected(params["path"], params["instances"]) | {params["current"]}, params["keep"]
    )
    kept = sorted(set(installed) - set(removed))
    if not module.check_mode:
        try:
            for name in removed:
                installation.remove_tree(os.path.join(params["path"], name))
        except OSError as error:
            module.fail_json(msg="could not remove an old release from {0}: {1}".format(params["path"], error))
    result = {"changed": bool(removed), "kept": kept, "removed": removed}
    if module._diff:
        result["diff"] = {
            "before": "".join(name + "\n" for name in sorted(kept + removed)),
            "after": "".join(name + "\n" for name in kept),
        }
    module.exit_json(**result)


if __name__ == "__main__":
    main()
