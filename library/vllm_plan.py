#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Thin shell around the planner: reads what it is given, calls it once, returns the plan."""

DOCUMENTATION = r"""
---
module: vllm_plan
short_description: Plan the whole fleet in one call
version_added: 0.1.0
description:
  - Turns what operators ask for, what the hosts are and what the catalogue knows into one plan with a digest,
    a reason for every decision, and every problem at once.
  - Pure. The same input gives the same bytes, nothing is read from a host and nothing is changed.
  - Run it once, delegated to the controller.
attributes:
  check_mode:
    description: Nothing is ever changed, so check mode is the same as a normal run.
    support: full
  diff_mode:
    description: A plan is compared with what is applied when role C(deployment_plan) records it, not here.
    support: none
options:
  hosts:
    description:
      - Host name to a mapping of C(groups) (list), C(request) (the host's C(engine_request)), C(hardware) (schema 1
        of M(vllm_hardware_facts)), C(address), C(applied) (the plan recorded on the host, a mapping
        or JSON text), C(left_out) (outside C(--limit)), C(unreachable), and C(variables) (names close to
        C(engine_request), for the message about a missing one).
      - A mapping, or the same as JSON text, which a large fleet hands over much faster.
    type: raw
    required: true
  stage:
    description:
      - V(requests) checks only what operators wrote, for which no facts are needed.
    type: str
    choices: [requests, plan]
    default: plan
  catalogue:
    description: Rows and models of the project, as C(rows) and C(models).
    type: dict
    default: {}
  models:
    description: The site's own models (C(engine_models)), laid over those of the catalogue.
    type: dict
    default: {}
  overrides:
    description: Engine to version to the content of its C(manifest.yml).
    type: dict
    default: {}
  flags:
    description: Engine to version to the content of its C(flags.yml).
    type: dict
    default: {}
  networks:
    description: Networks that may connect to the engines. Empty means each host's own network.
    type: list
    elements: str
    default: []
  removed:
    description: Variables that no longer exist, with what to use instead; checked with O(stage=requests).
    type: dict
    default: {}
  recorded_hardware:
    description:
      - Folder on the controller with one C(<host>.json) of hardware facts per host. Used instead of C(hardware), so
        that a fleet can be planned before it exists.
    type: path
  on_problems:
    description: V(return) hands a plan with problems back instead of failing, for a caller that prints them.
    type: str
    choices: [fail, return]
    default: fail
author: vllm-ansible contributors (@vllm-ansible)
"""

EXAMPLES = r"""
- name: Plan one host
  vllm_plan:
    hosts:
      cpu01:
        groups: [engines, pool_small]
        request: {model: smollm2-135m-instruct}
        hardware: "{{ hostvars.cpu01.ansible_facts.vllm_hardware }}"
    catalogue: "{{ catalogue }}"
  delegate_to: localhost
  run_once: true
  become: false
  register: result

- name: Check what operators wrote, without any host
  vllm_plan:
    stage: requests
    hosts: {cpu01: {groups: [pool_small], request: {model: smollm2-135m-instruct}}}
  delegate_to: localhost
"""

RETURN = r"""
plan:
  description: The plan (schema 1).
  returned: when stage is plan
  type: dict
  contains:
    ok: {description: Whether the plan is valid., type: bool, returned: always}
    digest: {description: Digest over everything that will be done. Null with problems., type: str, returned: always}
    builds: {description: Releases to build., type: list, elements: dict, returned: always}
    models: {description: Models to prepare., type: list, elements: dict, returned: always}
    groups: {description: "Groups with layout, memory, endpoint.", type: list, elements: dict, returned: always}
    hosts: {description: "Host to its digest, build and slices by role.", type: dict, returned: always}
    decisions: {description: Every chosen value with rule and reason., type: list, elements: dict, returned: always}
problems:
  description: Every reason why there is no valid plan.
  returned: always
  type: list
  elements: dict
  sample:
    - code: E_REQUEST_KEY
      host: cpu01
      field: engine_request.modle
      seen: smollm2-135m-instruct
      set: model
      message: engine_request has no key 'modle'
warnings_found:
  description: What the operator should know although the plan is valid.
  returned: always
  type: list
  elements: dict
"""

import json
import os
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, check_requests, plan_fleet


def read_hosts(module):
    """Return the hosts as a mapping, with recorded hardware laid over it; fail with what is wrong."""
    hosts = module.params["hosts"]
    if not isinstance(hosts, dict):
        try:
            hosts = json.loads(hosts)
        except (TypeError, ValueError) as error:
            module.fail_json(msg="hosts has to be a mapping or JSON text: {}".format(error))
    if not isinstance(hosts, dict):
        module.fail_json(msg="hosts has to be a mapping of host name to its data")
    folder = module.params["recorded_hardware"]
    if folder and not os.path.isdir(folder):
        module.fail_json(msg="recorded_hardware is no folder: {}. Name one with <host>.json files".format(folder))
    for name, entry in hosts.items():
        if not isinstance(entry, dict):
            module.fail_json(msg="hosts.{} has to be a mapping".format(name))
        entry["applied"] = read_applied(entry.get("applied"))
        if folder:
            entry["hardware"] = read_recording(module, folder, name)
    return hosts


def read_applied(applied):
    """Return the recorded plan of a host, or None: an unreadable one counts as none, it is only used for checks."""
    if not isinstance(applied, str):
        return applied
    try:
        return json.loads(applied)
    except ValueError:
        return None


def read_recording(module, folder, host):
    """Return the recorded facts of one host, or None when there is no recording."""
    path = os.path.join(folder, host + ".json")
    if not os.path.exists(path):
        return None
    try:
        with open(path, "rb") as stream:
            facts = json.loads(stream.read().decode("utf-8"))
    except (OSError, ValueError) as error:
        module.fail_json(msg="The recording {} cannot be read: {}".format(path, error))
    return facts.get("vllm_hardware", facts) if isinstance(facts, dict) else facts


def summary(problems):
    """Return all problems as one text, for callers that only see `msg`."""
    lines = ["No valid plan: {} problem{}".format(len(problems), "" if len(problems) == 1 else "s")]
    for problem in problems:
        where = ": ".join(p for p in (problem["host"], problem["field"]) if p)
        lines.append("{code} {where}: {message}. Set: {set}".format(where=where or "fleet", **problem))
    return "\n".join(lines)


def main():
    module = AnsibleModule(
        argument_spec={
            "hosts": {"type": "raw", "required": True},
            "stage": {"type": "str", "choices": ["requests", "plan"], "default": "plan"},
            "catalogue": {"type": "dict", "default": {}},
            "models": {"type": "dict", "default": {}},
            "overrides": {"type": "dict", "default": {}},
            "flags": {"type": "dict", "default": {}},
            "networks": {"type": "list", "elements": "str", "default": []},
            "removed": {"type": "dict", "default": {}},
            "recorded_hardware": {"type": "path"},
            "on_problems": {"type": "str", "choices": ["fail", "return"], "default": "fail"},
        },
        supports_check_mode=True,
    )
    hosts = read_hosts(module)
    if module.params["stage"] == "requests":
        findings = check_requests(hosts, module.params["removed"])
        result: Dict[str, Any] = {"problems": findings.problems, "warnings_found": findings.warnings}
    else:
        names = ("catalogue", "models", "overrides", "flags", "networks")
        plan = plan_fleet(Inputs(hosts, **{name: module.params[name] for name in names}))
        result = {"plan": plan, "problems": plan["problems"], "warnings_found": plan["warnings"]}
    if result["problems"] and module.params["on_problems"] == "fail":
        module.fail_json(msg=summary(result["problems"]), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
