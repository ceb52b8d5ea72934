#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_hccn_config
short_description: Set addresses and TLS of the RoCE ports inside Ascend NPUs
version_added: 0.2.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Compares C(/etc/hccn.conf) and what the ports have with what is wanted. Where they differ, the file is written in
    one step and C(hccn_tool -cfg recovery) takes it over on the NPUs concerned, and on no other. Settings are never
    made with C(hccn_tool -s), which writes the same file on its own.
  - Reads every setting back. When one differs, the file from before comes back and is taken over, and the module fails
    with each difference.
  - Other lines of the file, of whatever author, stay where they are and are returned. Recovery applies them as well.
  - The file as it was lies in C(/var/lib/vllm/hccn/hccn.conf.before). A run that was cut off, also by a power cut, is
    completed by the next one, which keeps the file from before the first of them.
options:
  devices:
    description: The ports.
    type: list
    elements: dict
    required: true
    suboptions:
      id:
        description: Physical number of the NPU, the N of C(/dev/davinciN).
        type: int
        required: true
      address:
        description: IPv4 address of its port.
        type: str
        required: true
      netmask:
        description: Its netmask.
        type: str
        required: true
      gateway:
        description: Its gateway; null leaves the gateway alone.
        type: str
      netdetect:
        description: An address that always answers, which net health is measured with; null leaves it alone.
        type: str
      mtu:
        description: Its MTU, 68 to 9702; null leaves it alone.
        type: int
  tls:
    description: Whether connections are encrypted, 1 or 0, on all ports; null leaves the switch alone.
    type: int
    choices: [0, 1]
  install_path:
    description: Where the vendor's software lies.
    type: path
    default: /usr/local/Ascend
attributes:
  check_mode:
    description: Asks the ports and says what would change. Without a driver only the file is compared.
    support: full
  diff_mode:
    description: Shows the file and the settings of the ports before and after.
    support: full
notes:
  - Changes break connections in use. Stop the engines before.
  - A setting that was not there before a failed change stays on the port until its next reset, because the vendor's
    tool has nothing that takes one away.
"""

EXAMPLES = r"""
- name: Give the first NPU its address
  vllm_hccn_config:
    devices:
      - {id: 0, address: 10.0.0.11, netmask: 255.255.255.0, gateway: 10.0.0.1, netdetect: 10.0.0.1}
    tls: 0
"""

RETURN = r"""
differences:
  description: Settings of ports that differed before.
  returned: success
  type: list
  elements: dict
  contains:
    device: {description: Physical number of the NPU., type: int}
    name: {description: Name of the setting in the file., type: str}
    wanted: {description: What it should be., type: str}
    seen: {description: What it was; null when it was not set., type: str}
applied:
  description: Physical numbers of the NPUs whose settings were, or in check mode would be, taken over anew.
  returned: success
  type: list
  elements: int
kept:
  description: Lines of the file that the wanted settings do not name. They stay.
  returned: always
  type: list
  elements: str
unread:
  description: Lines of the file that the vendor's tool passes over, such as those with blanks around the equals sign.
  returned: always
  type: list
  elements: str
rolled_back:
  description: Whether the settings from before are in force again.
  returned: when settings did not take
  type: bool
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.fabric import hccn
from ansible.module_utils.vllm_ansible.host import Host

CONFIGURATION = "/etc/hccn.conf"
STATE = "/var/lib/vllm/hccn"
BEFORE = STATE + "/hccn.conf.before"
PENDING = STATE + "/pending.json"
DEVICE = {
    "id": {"type": "int", "required": True},
    "address": {"type": "str", "required": True},
    "netmask": {"type": "str", "required": True},
    "gateway": {"type": "str"},
    "netdetect": {"type": "str"},
    "mtu": {"type": "int"},
}
ARGUMENTS = {
    "devices": {"type": "list", "elements": "dict", "required": True, "options": DEVICE},
    "tls": {"type": "int", "choices": [0, 1]},
    "install_path": {"type": "path", "default": "/usr/local/Ascend"},
}


class ToolError(Exception):
    """The vendor's tool did not do or answer what it was asked; the text is for a person."""


class Ports:
    """The ports as hccn_tool knows them."""

    def __init__(self, host, install_path):
        self._host = host
        self._tool = hccn.tool_of(install_path)
        self._environment = {"LD_LIBRARY_PATH": hccn.library_path(install_path)}

    def ask(self, *words):
        """Run the tool; (rc, what it printed)."""
        answer = self._host.run([self._tool] + list(words), environment=self._environment)
        if answer is None:
            raise ToolError("{0} is not there: install the driver first".format(self._tool))
        return answer[0], (answer[1] + "\n" + answer[2]).strip()

    def read(self, wanted):
        """Return the settings of the wanted names; None for what is not set."""
        answers, seen = {}, {}
        for name, number in wanted:
            question = (hccn.QUESTIONS[name], number)
            if question not in answers:
                code, text = self.ask("-i", str(number), "-" + question[0], "-g")
                if code != 0 and hccn.NOT_SET not in text:
                    raise ToolError("hccn_tool -i {1} -{0} -g left with {2}: {3}".format(*question + (code, text)))
                answers[question] = text if code == 0 else ""
            seen[(name, number)] = hccn.parse_answer(name, answers[question])
        return seen

    def recover(self, numbers):
        """Let ports take over the file; return what went wrong, one sentence a port."""
        failures = []
        for number in numbers:
            code, text = self.ask("-i", str(number), "-cfg", "recovery")
            if code != 0:
                failures.append("NPU {0}: hccn_tool -cfg recovery left with {1}: {2}.".format(number, code, text))
        return failures


def read_pending(host):
    """What a run that was cut off noted before it touched the file: {"text", "devices"}, or None."""
    try:
        note = json.loads(host.read(PENDING) or "")
        return {"text": str(note["text"]), "devices": [int(number) for number in note["devices"]]}
    except (ValueError, KeyError, TypeError):
        return None


def write_configuration(host, text):
    """Replace the file in one step, with the rights it has."""
    path = host.read_link(CONFIGURATION) or CONFIGURATION
    path = os.path.join(os.path.dirname(CONFIGURATION), path)
    access = host.access(path)
    host.write_atomically(path, text, int(access["mode"], 8) if access else 0o640)


def roll_back(host, ports, text, numbers, wanted):
    """Bring the file from before back; return (whether its settings are in force, sentences for the message)."""
    write_configuration(host, text)
    before = {key: value for key, value in hccn.parse(text).items() if key in wanted}
    try:
        said = ports.recover(numbers)
        wrong = hccn.differences(before, ports.read(before))
        sentences = ["NPU {device}: {name} is {seen}, was {wanted}.".format(**item) for item in wrong]
        sentences += said if wrong else []
    except ToolError as error:
        sentences = wrong = [str(error) + "."]
    added = sorted({name for name, number in wanted if (name, number) not in before and number in numbers})
    if added:
        sentences.append("Not taken away, because nothing can, until the next reset: {0}.".format(", ".join(added)))
    return not wrong, sentences


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    devices = module.params["devices"]
    host = Host(module.run_command)
    ports = Ports(host, module.params["install_path"])
    pending = read_pending(host)
    text = host.read(CONFIGURATION) or ""
    before = pending["text"] if pending else text
    wanted = hccn.wanted_settings(devices, module.params["tls"])
    after = hccn.render(text, wanted)
    result = {"kept": hccn.kept_lines(text, wanted), "unread": hccn.unread_lines(text)}

    problems = hccn.problems_of(devices)
    if problems:
        module.fail_json(msg="These settings cannot be made. " + " ".join(problems), **result)
    try:
        seen = ports.read(wanted)
    except ToolError as error:
        if not module.check_mode:
            module.fail_json(msg="{0}.".format(error), **result)
        seen = {}
    different = hccn.differences(wanted, seen)
    in_file = {item["device"] for item in hccn.differences(wanted, hccn.parse(text))}
    numbers = sorted({item["device"] for item in different} | in_file | set(pending["devices"] if pending else []))
    result.update(differences=different, applied=numbers, changed=bool(numbers) or after != text)
    if module._diff:
        result["diff"] = [
            {"before_header": CONFIGURATION, "after_header": CONFIGURATION, "before": text, "after": after},
            {
                "before_header": "RoCE ports of the NPUs",
                "after_header": "RoCE ports of the NPUs",
                "before": hccn.describe(seen),
                "after": hccn.describe(wanted),
            },
        ]
    if module.check_mode or not result["changed"]:
        module.exit_json(**result)

    host.write_atomically(PENDING, json.dumps({"text": before, "devices": numbers}) + "\n", 0o600)
    if after != text:
        write_configuration(host, after)
    try:
        failures = ports.recover(numbers)
        failures += [
            "NPU {device}: {name} is {seen} instead of {wanted}.".format(**item)
            for item in hccn.differences(wanted, ports.read(wanted))
        ]
    except ToolError as error:
        failures = [str(error) + "."]
    if failures:
        done, sentences = roll_back(host, ports, before, numbers, wanted)
        if done:
            host.remove(PENDING)
        result.update(
            rolled_back=done,
            msg="Settings of the NPUs' network did not take. {0} The settings from before {1} {2}".format(
                " ".join(failures),
                "are in force again." if done else "are in {0} again, but not in force:".format(CONFIGURATION),
                " ".join(sentences),
            ).strip(),
        )
        module.fail_json(**result)
    host.write_atomically(BEFORE, before, 0o640)
    host.remove(PENDING)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
