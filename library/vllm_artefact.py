#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_artefact
short_description: Install an artefact as one immutable directory
version_added: 0.1.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Unpacks an artefact of vllm-ansible (an engine release or a model) into a directory that appears at once and whole.
  - The file, each of its parts and the unpacked tree are compared with their digests before the directory appears.
    A wrong digest, a file cut short or a file system that is too small change nothing.
  - A host that holds the artefact already needs no file; see C(changed) in check mode.
  - What interrupted installations left beside O(dest) is removed. An installation that still runs is waited for.
options:
  dest:
    description: The directory. Its name is part of the file system's content, so it usually carries the digest.
    type: path
    required: true
  sha256:
    description: Digest of the artefact file. Required for O(state=present).
    type: str
  src:
    description: The artefact file on the host. May be absent when O(dest) holds the artefact already.
    type: path
  state:
    description: Whether the directory should be there.
    type: str
    choices: [present, absent]
    default: present
  verify:
    description:
      - How to look at a directory that is there.
      - V(quick) compares the recorded digest and number and size of the files, V(full) reads every byte.
    type: str
    choices: [quick, full]
    default: quick
  progress_path:
    description: File to which the module writes what it is doing.
    type: path
attributes:
  check_mode:
    support: full
    description: O(src) need not be there in check mode.
  diff_mode:
    support: full
    description: Shows the digest of the artefact that is installed before and after.
"""

EXAMPLES = r"""
- name: Install an engine release
  vllm_artefact:
    src: /var/cache/vllm/vllm-0.32.0-cpu-x86_64.artefact.tar
    sha256: "{{ artefact.sha256 }}"
    dest: "/opt/vllm/releases/{{ artefact.release_id }}"

- name: Remove a release
  vllm_artefact:
    dest: /opt/vllm/releases/vllm-0.31.0-cpu-x86_64-0123456789ab
    state: absent
"""

RETURN = r"""
directory:
  description: The directory.
  returned: success
  type: str
action:
  description: What the module did or, in check mode, would do.
  returned: success
  type: str
  sample: install
problems:
  description: What was wrong with the directory before.
  returned: O(state=present)
  type: list
  elements: str
leftovers:
  description: Hidden names of interrupted installations beside the directory that were, or would be, removed.
  returned: O(state=present)
  type: list
  elements: str
size_bytes:
  description: Bytes in the directory; null in check mode when it is not there.
  returned: O(state=present)
  type: int
read_bytes_per_s:
  description: How fast the disk gave back the largest files right after the installation; null when unknown.
  returned: O(state=present)
  type: int
tree_sha256:
  description: Digest of the tree.
  returned: O(state=present)
  type: str
metadata:
  description: What the artefact says about its content.
  returned: O(state=present)
  type: dict
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import artefact, installation
from ansible.module_utils.vllm_ansible.progress import Progress

ARGUMENTS = {
    "dest": {"type": "path", "required": True},
    "sha256": {"type": "str"},
    "src": {"type": "path"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
    "progress_path": {"type": "path"},
}


def describe(directory):
    """The returned facts about an installed directory; empty values where there is none."""
    receipt = installation.read_receipt(directory)
    try:
        with open(os.path.join(directory, artefact.MANIFEST)) as stream:
            manifest = json.load(stream)
    except (OSError, ValueError):
        manifest = {}
    return {
        "size_bytes": manifest.get("unpacked_bytes"),
        "tree_sha256": manifest.get("tree_sha256"),
        "metadata": manifest.get("metadata", {}),
        "read_bytes_per_s": (receipt or {}).get("read_bytes_per_s"),
    }


def ensure_present(params, check_mode):
    """Install unless the directory is sound; returns the module's result."""
    directory, sha256 = params["dest"], params["sha256"].lower()
    action = "replace" if os.path.lexists(directory) else "install"
    problems = installation.verify(directory, sha256, full=params["verify"] == "full")
    if problems and not check_mode:
        if not params["src"]:
            raise artefact.ArtefactError("{0}. Set src to the artefact file.".format("; ".join(problems)))
        installation.install(params["src"], sha256, directory, Progress(params["progress_path"]).update)
    leftovers = installation.find_leftovers(os.path.dirname(directory))
    if not check_mode:
        installation.remove_leftovers(os.path.dirname(directory))
    result = {
        "changed": bool(problems or leftovers),
        "leftovers": leftovers,
        "action": action if problems else "none",
        "directory": directory,
        "problems": problems,
    }
    result.update(describe(directory))
    return result


def ensure_absent(params, check_mode):
    """Remove the directory if it is an installed artefact; returns the module's result."""
    directory = params["dest"]
    present = os.path.lexists(directory)
    if present and installation.read_receipt(directory) is None:
        raise artefact.ArtefactError(
            "{0} was not installed from an artefact; it is not removed. Remove it by hand if it should go.".format(
                directory
            )
        )
    if present and not check_mode:
        installation.remove_tree(directory)
    return {"changed": present, "action": "remove" if present else "none", "directory": directory}


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS, supports_check_mode=True, required_if=[("state", "present", ["sha256"])]
    )
    params = dict(module.params, dest=os.path.abspath(module.params["dest"]))
    ensure = ensure_present if params["state"] == "present" else ensure_absent
    before = (installation.read_receipt(params["dest"]) or {}).get("artefact_sha256")
    try:
        result = ensure(params, module.check_mode)
    except artefact.ArtefactError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="{0}: {1}".format(params["dest"], error))
    if module._diff:
        after = params["sha256"] if params["state"] == "present" else None
        result["diff"] = {
            "before_header": params["dest"],
            "after_header": params["dest"],
            "before": "artefact: {0}\n".format(before),
            "after": "artefact: {0}\n".format(after),
        }
    module.exit_json(**result)


if __name__ == "__main__":
    main()
