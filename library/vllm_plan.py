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
    description: Nothing is changed; what differs from the plans the hosts run is in RV(difference).
    support: none
options:
  hosts:
    description:
      - Host name to a mapping of C(groups) (list), C(request) (the host's C(engine_request)), C(hardware) (schema 1
        of M(vllm_hardware_facts)), C(machine) (the recording to take instead, with O(recorded_hardware)), C(address),
        C(kernel) and C(driver) (pins of the site), C(cuda), C(fabric) and C(tuning) (its C(engine_cuda),
        C(engine_fabric) and C(engine_tuning)), C(signed) (whether modules compiled there are accepted), C(applied) (the
        plan recorded on the host, a mapping or JSON text), C(left_out) (outside C(--limit)), C(unreachable), and
        C(variables) (names close to C(engine_request), for the message about a missing one).
      - A mapping, or the same as JSON text, which a large fleet hands over much faster. The hosts are in the order of
        the inventory, in which addresses are given out.
    type: raw
    required: true
  stage:
    description:
      - V(requests) checks only what operators wrote, for which no facts are needed.
    type: str
    choices: [requests, plan]
    default: plan
  knowledge:
    description:
      - What the project knows, as C(catalogue) (C(rows), C(models), C(devices) and the other parts), and engine to
        version to the content of C(manifest.yml) as C(overrides) and of C(flags.yml) as C(flags).
      - A mapping, or the same as JSON text. Needed with O(stage=plan).
    type: raw
    default: {}
  models:
    description: The site's own models (C(engine_models)), laid over those of the catalogue.
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
      - Folder on the controller with recorded hardware facts, C(<name>.json) or C(<name>/facts.json), where the name is
        the host's C(machine) or else the host's own. Used instead of C(hardware), so that a fleet can be planned before
        it exists. A C(machine) may be a mapping of C(name) and C(facts), which are laid over those of that machine.
    type: path
  machines:
    description: Folder of reference machines, looked into for a C(machine) that is not in O(recorded_hardware).
    type: path
  as_text:
    description:
      - Return the plan, the difference and each host's part as JSON texts. Ansible walks through every value of a
        variable whenever the variable is used; a text is one value, however large the fleet.
      - The texts begin with a blank, because ansible-core 2.16 turns a text that begins with a brace into values.
    type: bool
    default: false
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
    knowledge: {catalogue: "{{ catalogue }}", overrides: "{{ manifests }}", flags: "{{ flags }}"}
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
  description: The plan (schema 1); a text with O(as_text).
  returned: when stage is plan
  type: raw
  contains:
    ok: {description: Whether the plan is valid., type: bool, returned: always}
    digest: {description: Digest over everything that will be done. Null with problems., type: str, returned: always}
    builds: {description: Releases to build., type: list, elements: dict, returned: always}
    models: {description: Models to prepare., type: list, elements: dict, returned: always}
    groups: {description: "Groups with layout, memory, endpoint.", type: list, elements: dict, returned: always}
    hosts: {description: "Host to its digest, build and slices by role.", type: dict, returned: always}
    decisions: {description: Every chosen value with rule and reason., type: list, elements: dict, returned: always}
difference:
  description:
    - What the plan would change on the hosts, compared with the plan each of them runs; a text with O(as_text).
    - Not part of the plan and of its digest, because a plan does not depend on what is there.
  returned: when stage is plan
  type: raw
  contains:
    hosts:
      description: "Host to C(state) (V(new), V(changed) or V(same)) and C(changes), each with C(what), C(old), C(new)
        and C(because)."
      type: dict
      returned: always
    steps: {description: What happens in which order and where., type: list, elements: dict, returned: always}
    machines: {description: Host to the recording it was planned from., type: dict, returned: always}
    drift: {description: As RV(drift)., type: dict, returned: always}
hosts:
  description: Host to its part of the plan as a text.
  returned: when stage is plan and O(as_text) is set
  type: dict
digest:
  description: Digest of the plan. Null with problems.
  returned: when stage is plan
  type: str
not_installable:
  description: Groups that are planned and that this version cannot install, as C(group) and C(because).
  returned: when stage is plan
  type: list
  elements: dict
unread:
  description: Hosts whose accelerators no tool can read yet; when their driver is there, they have to be planned again.
  returned: when stage is plan
  type: list
  elements: str
drift:
  description:
    - Host to what of it is no longer as recorded on it, each with C(what), C(recorded), C(seen) and C(planned). What
      the plan itself changes is none, and what was not installed yet neither.
  returned: when stage is plan
  type: dict
problems:
  description:
    - Every reason why there is no valid plan. C(seen) is the value found, C(set) what to change; C(needed), the value
      it has to be, is there where one can be named.
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
  description:
    - What the operator should know although the plan is valid. Those of the preflight have C(seen), C(needed) and
      C(set) as problems have.
  returned: always
  type: list
  elements: dict
"""

import json
import os
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.plan.canonical import canonical_json
from ansible.module_utils.vllm_ansible.plan.difference import difference
from ansible.module_utils.vllm_ansible.plan.drift import drift
from ansible.module_utils.vllm_ansible.plan.fleet import Inputs, check_requests, plan_fleet


def read_mapping(module, name):
    """Return an option that may be JSON text as a mapping; fail with what is wrong."""
    value = module.params[name]
    if not isinstance(value, dict):
        try:
            value = json.loads(value)
        except (TypeError, ValueError) as error:
            module.fail_json(msg="{} has to be a mapping or JSON text: {}".format(name, error))
    if not isinstance(value, dict):
        module.fail_json(msg="{} has to be a mapping".format(name))
    return value


def read_hosts(module):
    """Return the hosts as a mapping, each with the plan it runs read; fail with what is wrong."""
    hosts = read_mapping(module, "hosts")
    for name, entry in hosts.items():
        if not isinstance(entry, dict):
            module.fail_json(msg="hosts.{} has to be a mapping".format(name))
        entry["applied"] = read_applied(entry.get("applied"))
    return hosts


def read_applied(applied):
    """Return the recorded plan of a host, or None: an unreadable one counts as none, it is only used for checks."""
    if not isinstance(applied, str):
        return applied
    try:
        return json.loads(applied)
    except ValueError:
        return None


class Recordings:
    """Hardware facts from files instead of hosts: of the host itself, or of the machine the inventory names."""

    def __init__(self, module, folder, machines):
        if not os.path.isdir(folder):
            module.fail_json(msg="recorded_hardware is no folder: {}. Name one with <host>.json files".format(folder))
        self.module = module
        self.folders = [folder] + ([machines] if machines and os.path.isdir(machines) else [])
        self.read = {}

    def lay_over(self, hosts):
        """Put the recorded facts, and a recorded plan, into every host. Returns host -> {machine, provenance}."""
        used, missing = {}, []
        for name, entry in hosts.items():
            machine, changed = self.machine_of(name, entry.get("machine"))
            folders = self.folders if machine else self.folders[:1]
            path = self.find(folders, machine or name)
            if path is not None:
                kind = ", ".join([self.provenance(path)] + ["with other " + key for key in sorted(changed)])
                used[name] = {"machine": machine or name, "provenance": kind}
            elif machine:
                missing.append("{} ({})".format(machine, name))
            entry["hardware"] = None if path is None else lay_over(self.facts(path), changed)
            plan = os.path.join(self.folders[0], name + ".plan.json")
            entry["applied"] = self.load(plan) if os.path.exists(plan) else None
        if missing:
            known = sorted({machine for folder in self.folders for machine in self.machines(folder)})
            self.module.fail_json(
                msg="No recording of {}. Set engine_machine to one of: {}".format(", ".join(missing), ", ".join(known))
            )
        return used

    def machine_of(self, host, machine):
        """Return the name of the machine a host is planned as, empty for its own, and the facts laid over it."""
        named = machine if isinstance(machine, dict) else {"name": machine or ""}
        name, changed = named.get("name", ""), named.get("facts", {})
        if not isinstance(name, str) or not isinstance(changed, dict) or set(named) - {"name", "facts"}:
            self.module.fail_json(
                msg="engine_machine of {} has to be a name or {{name: <name>, facts: {{…}}}}: {}".format(host, machine)
            )
        return name, changed

    def find(self, folders, name):
        """Return the file of facts called `name`, or None."""
        for folder in folders:
            for path in (os.path.join(folder, name + ".json"), os.path.join(folder, name, "facts.json")):
                if os.path.basename(name) == name and os.path.exists(path):
                    return path
        return None

    def machines(self, folder):
        """Names in `folder` that `find` would find."""
        for name in os.listdir(folder):
            if name.endswith(".json") and not name.endswith(".plan.json"):
                yield name[: -len(".json")]
            elif os.path.exists(os.path.join(folder, name, "facts.json")):
                yield name

    def facts(self, path):
        """Return the facts in one file; they may stand below `vllm_hardware`."""
        facts = self.load(path)
        return facts.get("vllm_hardware", facts) if isinstance(facts, dict) else facts

    def provenance(self, path):
        """Return what machine.json beside the facts says: recorded, or reconstructed from documents."""
        described = os.path.join(os.path.dirname(path), "machine.json")
        if os.path.basename(path) != "facts.json" or not os.path.exists(described):
            return "recorded"
        machine = self.load(described)
        return str(machine.get("provenance", "recorded")) if isinstance(machine, dict) else "recorded"

    def load(self, path):
        """Return the content of a JSON file, read once however many hosts are that machine."""
        if path not in self.read:
            try:
                with open(path, "rb") as stream:
                    self.read[path] = json.loads(stream.read().decode("utf-8"))
            except (OSError, ValueError) as error:
                self.module.fail_json(msg="The recording {} cannot be read: {}".format(path, error))
        return self.read[path]


def lay_over(facts, changed):
    """Return `facts` with `changed` laid over them, mappings key by key, everything else replaced."""
    if not isinstance(facts, dict) or not isinstance(changed, dict):
        return changed
    return dict(facts, **{key: lay_over(facts.get(key), value) for key, value in changed.items()})


def summary(problems):
    """Return all problems as one text, for callers that only see `msg`."""
    lines = ["No valid plan: {} problem{}".format(len(problems), "" if len(problems) == 1 else "s")]
    for problem in problems:
        where = ": ".join(p for p in (problem["host"], problem["field"]) if p)
        lines.append("{code} {where}: {message}. Set: {set}".format(where=where or "fleet", **problem))
    return "\n".join(lines)


def plan_hosts(module, hosts):
    """Plan the fleet and return what the module answers."""
    folder, machines = module.params["recorded_hardware"], {}
    if folder:
        machines = Recordings(module, folder, module.params["machines"]).lay_over(hosts)
    knowledge = read_mapping(module, "knowledge")
    inputs = Inputs(
        hosts,
        knowledge.get("catalogue"),
        module.params["models"],
        knowledge.get("overrides"),
        knowledge.get("flags"),
        module.params["networks"],
    )
    plan = plan_fleet(inputs)
    applied = {name: entry["applied"] for name, entry in hosts.items()}
    found = difference(plan, applied)
    found["drift"] = drift(plan, applied, {name: entry.get("hardware") for name, entry in hosts.items()})
    found["machines"] = machines
    result: Dict[str, Any] = {"plan": plan, "difference": found}
    if module.params["as_text"]:
        result = {key: as_text(value) for key, value in result.items()}
        result["hosts"] = {name: as_text(own) for name, own in plan["hosts"].items()}
    result.update(digest=plan["digest"], problems=plan["problems"], warnings_found=plan["warnings"])
    result.update(not_installable=plan["not_installable"], unread=plan["unread"], drift=found["drift"])
    return result


def as_text(value):
    """Return `value` as JSON text, with a blank first: see the documentation of `as_text`."""
    return " " + canonical_json(value)


def main():
    module = AnsibleModule(
        argument_spec={
            "hosts": {"type": "raw", "required": True},
            "stage": {"type": "str", "choices": ["requests", "plan"], "default": "plan"},
            "knowledge": {"type": "raw", "default": {}},
            "models": {"type": "dict", "default": {}},
            "networks": {"type": "list", "elements": "str", "default": []},
            "removed": {"type": "dict", "default": {}},
            "recorded_hardware": {"type": "path"},
            "machines": {"type": "path"},
            "as_text": {"type": "bool", "default": False},
            "on_problems": {"type": "str", "choices": ["fail", "return"], "default": "fail"},
        },
        supports_check_mode=True,
    )
    hosts = read_hosts(module)
    if module.params["stage"] == "requests":
        findings = check_requests(hosts, module.params["removed"])
        result: Dict[str, Any] = {"problems": findings.problems, "warnings_found": findings.warnings}
    else:
        result = plan_hosts(module, hosts)
    if result["problems"] and module.params["on_problems"] == "fail":
        module.fail_json(msg=summary(result["problems"]), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
