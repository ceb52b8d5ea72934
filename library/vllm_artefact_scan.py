#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_artefact_scan
short_description: Compare a release with the host it is meant for
version_added: 0.2.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Says which files of a release cannot be loaded on a host, because of its processor, its C or C++ library, its page
    size, or because a package's wheel was made for another system.
  - Of an artefact it reads what the build recorded, so that nothing is unpacked; of a directory it reads every file.
  - Changes nothing and runs nothing of the release.
options:
  path:
    description: The artefact, or the directory of a release or of any tree with C(bin/python3).
    type: path
    required: true
  target:
    description: What the host offers. What is absent is not compared.
    type: dict
    required: true
    suboptions:
      architecture:
        description: Processor architecture, as C(uname -m) says it.
        type: str
      glibc:
        description: Version of the C library.
        type: str
      glibcxx:
        description: Highest C(GLIBCXX) version of the system's libstdc++; not needed when the release brings its own.
        type: str
      page_size:
        description: Page size in bytes.
        type: int
      python:
        description: Major and minor version of the release's Python.
        type: str
  exceptions:
    description: Findings to accept, as pattern of the file to reason.
    type: dict
    default: {}
  report_only:
    description: Return the findings instead of failing.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: The module only looks.
  diff_mode:
    support: none
    description: There is nothing that could differ.
"""

EXAMPLES = r"""
- name: Compare a release with Kylin V10 on Kunpeng before it is copied
  vllm_artefact_scan:
    path: /srv/artefacts/vllm-ascend-0.23.0.post1-a2-aarch64-0f2c.artefact.tar
    target: {architecture: aarch64, glibc: "2.28", glibcxx: 3.4.24, page_size: 65536}
    exceptions:
      llguidance-*.dist-info: the files themselves need glibc 2.28
"""

RETURN = r"""
findings:
  description: What does not fit.
  returned: success
  type: list
  elements: dict
  contains:
    file:
      description: Path in the release, or name of the package's folder.
      type: str
    what:
      description: What was compared.
      type: str
    seen:
      description: What the host offers.
      type: str
    needed:
      description: What the file needs.
      type: str
excused:
  description: Findings that an exception names, with its RV(ignore:reason).
  returned: success
  type: list
  elements: dict
requires:
  description: What the release needs of a host.
  returned: success
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import artefact
from ansible.module_utils.vllm_ansible.build import scan

ARGUMENTS = {
    "path": {"type": "path", "required": True},
    "target": {
        "type": "dict",
        "required": True,
        "options": {
            "architecture": {"type": "str"},
            "glibc": {"type": "str"},
            "glibcxx": {"type": "str"},
            "page_size": {"type": "int"},
            "python": {"type": "str"},
        },
    },
    "exceptions": {"type": "dict", "default": {}},
    "report_only": {"type": "bool", "default": False},
}


def requirements(path):
    """What the release at `path` needs. Raises ArtefactError."""
    if os.path.isdir(path):
        return scan.requirements(path)
    found = artefact.read_manifest(path)["metadata"].get("requires")
    if not isinstance(found, dict) or found.get("schema") != scan.SCHEMA:
        raise artefact.ArtefactError(
            "{0} does not say what it needs of a host. Build it again with this version.".format(path)
        )
    return found


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    path, target = module.params["path"], dict(module.params["target"])
    target["machine"] = target.pop("architecture")
    try:
        needs = requirements(path)
        found, excused = scan.findings(needs, target, module.params["exceptions"])
    except (artefact.ArtefactError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    result = {"findings": found, "excused": excused, "requires": needs}
    if found and not module.params["report_only"]:
        module.fail_json(
            msg="{0} cannot run on this host: {1}. Take a release whose Python and packages were made for it "
            "(engine_build_runtime_provider, the row's lock), or name what is harmless in exceptions.".format(
                os.path.basename(path.rstrip("/")), scan.sentences(found)
            ),
            **result,
        )
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
