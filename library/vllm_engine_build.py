#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_engine_build
short_description: Build an engine with our patches into one relocatable artefact
version_added: 0.1.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Patches the engine's source, builds its wheel around the compiled kernels of the upstream's own wheel, puts it
    together with its packages and a Python of its own into one directory tree, and packs that into one file.
  - The artefact of given inputs is built once. The inputs are the patches, the source, the lock files, the Python
    runtime and the code of the builder; RV(inputs) names all of them.
  - A run that was killed leaves nothing behind that the next one trusts.
  - The packed release is unpacked in another folder and its kernels are called before it counts as built.
  - Packages come from where pip and apt are configured to take them from.
options:
  build:
    description: Name of the build, which begins the name of the release.
    type: str
    required: true
  engine:
    description: Name of the engine's source distribution.
    type: str
    default: vllm
  version:
    description: Version of the engine.
    type: str
    required: true
  backend:
    description: What the engine computes on.
    type: str
    default: cpu
  architecture:
    description:
      - Processor architecture of the hosts. For O(backend=cpu) it must be that of the build machine.
      - For O(backend=ascend) a release of another architecture is assembled from wheels; nothing in it is run here.
    type: str
    required: true
  row:
    description: Name of the version row, as recorded in the artefact.
    type: str
    required: true
  row_directory:
    description:
      - Folder with the row's C(build.txt) and C(runtime.txt) and, for O(backend=cpu), C(engine.txt) and C(kernels.txt).
      - For O(backend=ascend) C(engine-ARCHITECTURE.txt), C(index.txt), C(exceptions.txt) and C(host-libraries.txt).
    type: path
    required: true
  overrides_directory:
    description: Folder of the engine version in C(engine_overrides).
    type: path
    required: true
  series_sha256:
    description: Digest of the patch series that the plan was made for.
    type: str
    required: true
  result_sha256:
    description: Digest of the patched files, from C(manifest.yml).
    type: str
    required: true
  source_sha256:
    description: Digest of the engine's source archive, from C(manifest.yml).
    type: str
    required: true
  local_version:
    description: Local part of the version the wheel gets, from C(manifest.yml).
    type: str
    required: true
  plugin:
    description: Name of the engine's plugin, for O(backend=ascend) C(vllm-ascend).
    type: str
  plugin_version:
    description: Version of the plugin.
    type: str
  plugin_overrides_directory:
    description: Folder of the plugin version in C(engine_overrides).
    type: path
  plugin_series_sha256:
    description: Digest of the plugin's patch series that the plan was made for.
    type: str
  plugin_result_sha256:
    description: Digest of the plugin's patched files, from its C(manifest.yml).
    type: str
  plugin_source_sha256:
    description: Digest of the plugin's source archive, from its C(manifest.yml).
    type: str
  plugin_local_version:
    description: Local part of the version the plugin gets, from its C(manifest.yml).
    type: str
  soc_version:
    description: The SoC that the plugin's wheel has to be made for, such as C(ascend910b1).
    type: str
  index_urls:
    description: Package indexes beside the configured one, for the packages in C(index.txt).
    type: list
    elements: str
    default: []
  wheel_directories:
    description: Folders of wheels on the build machine, for the packages in C(index.txt).
    type: list
    elements: path
    default: []
  target:
    description:
      - What the hosts offer, compared with every file of the release before it is packed.
      - Keys C(glibc), C(glibcxx) and C(page_size) in bytes; what is absent is not compared.
    type: dict
    default: {}
  scan_exceptions:
    description: Findings of that comparison to accept, as pattern of the file to reason.
    type: dict
    default: {}
  python:
    description: Interpreter of the row's Python version, with C(venv) and C(pip), that runs the build.
    type: path
    default: /usr/bin/python3
  python_version:
    description: Major and minor version of the release's Python.
    type: str
    default: "3.11"
  runtime_provider:
    description:
      - Where the release's Python comes from.
      - V(debian) takes the packages of the build machine's Debian that C(runtime.txt) names, also those of another
        architecture.
      - V(archive) takes O(runtime_archive), for hosts whose glibc is older than Debian's.
      - V(prefix) takes the interpreter in O(runtime_prefix) and the libraries that it loads on the build machine.
    type: str
    choices: [debian, archive, prefix]
    default: debian
  refresh_runtime:
    description:
      - Take the newest versions of the runtime's Debian packages that apt knows, instead of those of the first build.
    type: bool
    default: false
  runtime_prefix:
    description: Installation prefix of an interpreter.
    type: path
  runtime_archive:
    description: A tar file with a relocatable Python, C(bin/pythonX.Y) and C(lib/pythonX.Y) below one folder.
    type: path
  runtime_archive_sha256:
    description: Its digest.
    type: str
  pins:
    description:
      - Expected sha256 by package name, for the packages that C(engine.txt) locks by version only.
      - Without one, the digest is recorded in the artefact but not compared.
    type: dict
    default: {}
  work_directory:
    description: Folder for downloads and everything in between; takes 8 GB while building, 2.5 GB afterwards.
    type: path
    required: true
  artefact_directory:
    description: Folder for the artefacts.
    type: path
    required: true
  keep:
    description: Older artefacts of the same build to keep.
    type: int
    default: 2
  progress_path:
    description: File to which the module writes what it is doing.
    type: path
attributes:
  check_mode:
    support: full
    description: Tells whether the inputs changed, and builds nothing.
  diff_mode:
    support: full
    description: Shows the inputs before and after.
requirements:
  - patch, strip (binutils) and, for O(runtime_provider=debian), apt-get and dpkg-deb on the build machine
  - no compiler
"""

EXAMPLES = r"""
- name: Build vLLM for plain CPUs
  vllm_engine_build:
    build: vllm-0.32.0-cpu-x86_64
    version: 0.32.0
    architecture: x86_64
    row: vllm-0.32.0-cpu
    row_directory: /var/lib/vllm-build/rows/vllm-0.32.0-cpu
    overrides_directory: /var/lib/vllm-build/overrides/vllm/0.32.0
    series_sha256: "{{ manifest.backends.cpu.series_sha256 }}"
    result_sha256: "{{ manifest.backends.cpu.result_sha256 }}"
    source_sha256: "{{ manifest.source.sha256 }}"
    local_version: "{{ manifest.backends.cpu.local_version }}"
    work_directory: /var/lib/vllm-build
    artefact_directory: /var/lib/vllm-build/artefacts
"""

RETURN = r"""
path:
  description: The artefact on the build machine; null in check mode when it has to be built.
  returned: success
  type: str
sha256:
  description: Digest of the artefact; null in check mode when it has to be built.
  returned: success
  type: str
size_bytes:
  description: Size of the artefact.
  returned: success
  type: int
release_id:
  description: Name of the release on the hosts.
  returned: success
  type: str
inputs:
  description: Everything the artefact's bytes follow from.
  returned: success
  type: dict
inputs_sha256:
  description: Digest of the inputs; null in check mode on a machine whose apt has no package lists yet.
  returned: success
  type: str
changed_inputs:
  description: Names of the inputs that differ from those of the newest artefact.
  returned: success
  type: list
  elements: str
metadata:
  description:
    - What the build found out. C(glibc) is the oldest the release runs with, C(requires) all that it needs of a host.
    - C(proof) is V(started) when the packed release was started elsewhere on the build machine, V(assembled) when it
      is for another processor and was unpacked and read only.
  returned: when the artefact exists
  type: dict
stages:
  description: Seconds per stage of this run.
  returned: success
  type: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.build.engine import EngineBuild, changed_inputs, digest_of
from ansible.module_utils.vllm_ansible.build.runtime import RuntimeUnknownError
from ansible.module_utils.vllm_ansible.build.tree import BuildError
from ansible.module_utils.vllm_ansible.overrides.series import OverridesError
from ansible.module_utils.vllm_ansible.progress import Progress

ARGUMENTS = {
    "build": {"type": "str", "required": True},
    "engine": {"type": "str", "default": "vllm"},
    "version": {"type": "str", "required": True},
    "backend": {"type": "str", "default": "cpu"},
    "architecture": {"type": "str", "required": True},
    "row": {"type": "str", "required": True},
    "row_directory": {"type": "path", "required": True},
    "overrides_directory": {"type": "path", "required": True},
    "series_sha256": {"type": "str", "required": True},
    "result_sha256": {"type": "str", "required": True},
    "source_sha256": {"type": "str", "required": True},
    "local_version": {"type": "str", "required": True},
    "plugin": {"type": "str"},
    "plugin_version": {"type": "str"},
    "plugin_overrides_directory": {"type": "path"},
    "plugin_series_sha256": {"type": "str"},
    "plugin_result_sha256": {"type": "str"},
    "plugin_source_sha256": {"type": "str"},
    "plugin_local_version": {"type": "str"},
    "soc_version": {"type": "str"},
    "index_urls": {"type": "list", "elements": "str", "default": []},
    "wheel_directories": {"type": "list", "elements": "path", "default": []},
    "target": {"type": "dict", "default": {}},
    "scan_exceptions": {"type": "dict", "default": {}},
    "python": {"type": "path", "default": "/usr/bin/python3"},
    "python_version": {"type": "str", "default": "3.11"},
    "runtime_provider": {"type": "str", "choices": ["debian", "archive", "prefix"], "default": "debian"},
    "refresh_runtime": {"type": "bool", "default": False},
    "runtime_prefix": {"type": "path"},
    "runtime_archive": {"type": "path"},
    "runtime_archive_sha256": {"type": "str"},
    "pins": {"type": "dict", "default": {}},
    "work_directory": {"type": "path", "required": True},
    "artefact_directory": {"type": "path", "required": True},
    "keep": {"type": "int", "default": 2},
    "progress_path": {"type": "path"},
}


def build(module):
    """Build unless it is built; returns the module's result."""
    say = Progress(module.params["progress_path"]).update
    build_run = EngineBuild(module.run_command, module.params, say, may_ask=not module.check_mode)
    try:
        inputs = build_run.inputs()
    except RuntimeUnknownError as error:
        if not module.check_mode:
            raise
        # A bare machine, where apt's lists come first: something would be built, what exactly is not known yet.
        module.warn(str(error))
        return {
            "changed": True,
            "inputs": {},
            "inputs_sha256": None,
            "stages": {},
            "changed_inputs": [],
            "path": None,
            "sha256": None,
            "size_bytes": None,
            "release_id": None,
        }
    digest = digest_of(inputs)
    receipts = build_run.receipts()
    before = receipts[0].get("inputs", {}) if receipts else {}
    receipt = build_run.find(digest)
    changed = receipt is None
    if changed and not module.check_mode:
        receipt = build_run.build(inputs)
    result = {
        "changed": changed,
        "inputs": inputs,
        "inputs_sha256": digest,
        "stages": build_run.stages,
        "changed_inputs": changed_inputs(before, inputs),
    }
    for key in ("path", "sha256", "size_bytes", "release_id"):
        result[key] = receipt[key] if receipt else None
    if receipt:
        result["metadata"] = receipt["metadata"]
    if module._diff:
        after = inputs if changed else before
        result["diff"] = {
            "before": json.dumps(before, sort_keys=True, indent=1) + "\n",
            "after": json.dumps(after, sort_keys=True, indent=1) + "\n",
        }
    return result


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        supports_check_mode=True,
        required_if=[
            ("runtime_provider", "prefix", ["runtime_prefix"]),
            ("runtime_provider", "archive", ["runtime_archive", "runtime_archive_sha256"]),
        ],
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    try:
        result = build(module)
    except (BuildError, OverridesError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
