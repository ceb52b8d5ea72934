#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_model_pack
short_description: Pack a model directory into an artefact
version_added: 0.1.0
description:
  - Checks that a directory holds a model whose config, weights and tokenizer fit together, and packs it into one file
    that M(vllm_artefact) installs by its digest. The same directory gives the same bytes.
options:
  source:
    description: The model directory.
    type: path
    required: true
  dest:
    description:
      - The artefact, a file named C(NAME.artefact.tar). What else was there is replaced.
      - C(DEST.json) beside it records what it was packed from.
    type: path
    required: true
  name:
    description: Name of the model.
    type: str
    required: true
  architecture:
    description: The architecture that the model's C(config.json) must name; any where it is left out.
    type: str
  verify:
    description: V(quick) compares names, sizes and times with what was packed, V(full) reads the artefact again.
    type: str
    choices: [quick, full]
    default: quick
  progress_path:
    description: File that receives the progress as one JSON line.
    type: path
attributes:
  check_mode:
    support: full
    description: Tells whether the artefact would be packed.
  diff_mode:
    support: full
    description: Shows the digest of the artefact; the one it would get is unknown in check mode.
author:
  - vllm-ansible contributors (@vllm-ansible)
"""

EXAMPLES = r"""
- name: Pack the converted model
  vllm_model_pack:
    source: /srv/build/models/smollm2-135m-instruct
    dest: /srv/artefacts/smollm2-135m-instruct.artefact.tar
    name: smollm2-135m-instruct
    architecture: LlamaForCausalLM
"""

RETURN = r"""
path:
  description: The artefact.
  returned: success
  type: str
  sample: /srv/artefacts/smollm2-135m-instruct.artefact.tar
sha256:
  description: Digest of the artefact; null where it is not packed yet (check mode).
  returned: success
  type: str
digest12:
  description: The first twelve digits of RV(sha256), which name the directory on the hosts.
  returned: success
  type: str
  sample: 3f0c1d2e4b5a
size_bytes:
  description: Size of the artefact in bytes; null where it is not packed yet (check mode).
  returned: success
  type: int
model:
  description: Architecture, dtype, number of tensors and parameters, size of the weights; null where there is none yet.
  returned: success
  type: dict
reasons:
  description: Why the artefact is packed; empty where it is not.
  returned: success
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import artefact
from ansible.module_utils.vllm_ansible.convert import ModelError, directory, files
from ansible.module_utils.vllm_ansible.progress import Progress


def plan_changes(source, dest, record, full):
    """Why the artefact `dest` of `source` must be packed, as sentences; empty where it is what `record` says."""
    if record is None or not os.path.isfile(dest):
        return [f"{dest} was not packed yet"]
    if files.digest_of(files.snapshot(source)) != record["source"]:
        return [f"{source} changed since it was packed"]
    if list(files.snapshot(dest).values()) != [record["artefact"]]:
        return [f"{dest} is not the file that was packed"]
    if full and artefact.sha256_file(dest) != record["sha256"]:
        return [f"{dest} has other content than its digest {record['sha256'][:12]} says"]
    return []


def _require_architecture(source, name, expected):
    seen = directory.architecture_in(source)
    if expected and seen != expected:
        raise ModelError(
            f"config.json of {source} names the architecture {seen}, the plan expects {expected}. Set architecture of "
            f"the model {name}, or another source."
        )


def _pack(params, record_path):
    source, dest = params["source"], params["dest"]
    progress, folder = Progress(params["progress_path"]), os.path.dirname(dest)
    with files.exclusive(dest), files.explain_full_disk(folder, "dest"):
        progress.update("pack", None, f"checking {params['name']}")
        model = directory.check_model(source)
        size = sum(size for size, _changed in files.snapshot(source).values())
        # The payload is written once by itself and once into the artefact.
        files.require_space(folder, 2 * size, "dest")
        progress.update("pack", None, f"packing {params['name']}, {size >> 20} MiB")
        packed = artefact.pack(source, dest, "model", params["name"], metadata=model)
        record = {
            "schema": 1,
            "source": files.digest_of(files.snapshot(source)),
            "artefact": next(iter(files.snapshot(dest).values())),
            "sha256": packed["sha256"],
            "size_bytes": packed["size_bytes"],
            "model": model,
        }
        files.write_json(f"{record_path}.new", record)
        os.replace(f"{record_path}.new", record_path)
    return record


def main():
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "dest": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "architecture": {"type": "str"},
            "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
            "progress_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params, check_mode = module.params, module.check_mode
    record_path = f"{params['dest']}.json"
    record = files.read_json(record_path)
    before = record["sha256"] if record else None
    try:
        if os.path.isdir(params["source"]) or not check_mode:
            _require_architecture(params["source"], params["name"], params["architecture"])
        reasons = plan_changes(params["source"], params["dest"], record, params["verify"] == "full")
        if reasons:
            record = None if check_mode else _pack(params, record_path)
    except (ModelError, artefact.ArtefactError) as error:
        module.fail_json(msg=str(error))
    after = record or {"sha256": None, "size_bytes": None, "model": None}
    module.exit_json(
        changed=bool(reasons),
        path=params["dest"],
        sha256=after["sha256"],
        digest12=after["sha256"][:12] if after["sha256"] else None,
        size_bytes=after["size_bytes"],
        model=after["model"],
        reasons=reasons,
        diff={"before": {"sha256": before}, "after": {"sha256": after["sha256"]}},
    )


if __name__ == "__main__":
    main()
