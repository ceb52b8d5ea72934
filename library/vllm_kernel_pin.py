#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_kernel_pin
short_description: Keep the package manager from changing the kernel
version_added: 0.2.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - On rpm systems, excludes the kernel's packages in the main section of C(dnf.conf), beside what is excluded there
    already. That needs no plugin. Where dpkg manages packages, puts those of them that are installed on hold.
  - What was added is noted in C(/var/lib/vllm/kernel-pin.json); only that is taken back.
options:
  manager:
    description: Whose setting it is.
    type: str
    choices: [apt, dnf]
    required: true
  packages:
    description: The packages of the kernel, as the package manager takes them.
    type: list
    elements: str
    default: []
  state:
    description: Whether the packages should be kept as they are.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Says what would change.
    support: full
  diff_mode:
    description: Shows dnf.conf, or the packages on hold, before and after.
    support: full
notes:
  - With C(dnf), O(packages) are installed in spite of the exclusion by C(disable_excludes=main), with C(apt) by
    C(allow_change_held_packages).
"""

EXAMPLES = r"""
- name: Keep this kernel
  vllm_kernel_pin:
    manager: dnf
    packages:
      - kernel-4.19.90-52.22.v2207.ky10
      - kernel-devel-4.19.90-52.22.v2207.ky10
"""

RETURN = r"""
pinned:
  description: Names that are kept as they are, before any change.
  returned: always
  type: list
  elements: str
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.host import Host
from ansible.module_utils.vllm_ansible.kernel import pin

NOTE = "/var/lib/vllm/kernel-pin.json"
DNF = ("/etc/dnf/dnf.conf", "/etc/yum.conf")
ARGUMENTS = {
    "manager": {"type": "str", "choices": ["apt", "dnf"], "required": True},
    "packages": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def read_note(host):
    """The names that this module added."""
    try:
        return [str(name) for name in json.loads(host.read(NOTE) or "[]")]
    except (ValueError, TypeError):
        return []


def write_note(host, names):
    """Note the names that were added; without any, no note."""
    if names:
        host.write_atomically(NOTE, json.dumps(sorted(names)) + "\n")
    elif host.exists(NOTE):
        host.remove(NOTE)


def use_dnf(host, path, params, check_mode):
    """Exclude the names in dnf.conf or take ours back; return (names before, text before, text after)."""
    before = host.read(path) or ""
    noted = read_note(host)
    wanted = pin.wanted_names(params["packages"]) if params["state"] == "present" else []
    after = pin.without_names(before, [name for name in noted if name not in wanted])
    names = pin.excluded(after)
    after = pin.with_names(after, wanted)
    if not check_mode:
        write_note(host, [name for name in wanted if name in noted or name not in names])
        if before != after:
            host.write_atomically(path, after)
    return pin.excluded(before), before, after


def use_apt(host, module, params):
    """Put the packages on hold or take ours back; the same answer, with the packages on hold as text."""
    answer = host.run(["dpkg-query", "-W", "-f", "${db:Status-Want} ${db:Status-Status} ${Package}\\n"])
    rows = [line.split() for line in (answer[1] if answer else "").splitlines()]
    held = {row[2] for row in rows if row[0] == "hold"}
    wanted = set(params["packages"]) if params["state"] == "present" else set()
    if not module.check_mode:
        # A preview may come before the packages.
        wanted &= {row[2] for row in rows if row[1] == "installed"}
    noted = set(read_note(host))
    after = (held - (noted - wanted)) | wanted
    if not module.check_mode:
        write_note(host, (noted & wanted) | (wanted - held))
        for names, word in ((after - held, "hold"), (held - after, "unhold")):
            if names:
                module.run_command(["apt-mark", word] + sorted(names), check_rc=True)
    text = ["".join("{0}\n".format(name) for name in sorted(names)) for names in (held, after)]
    return sorted(held), text[0], text[1]


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    host = Host(module.run_command)
    if params["manager"] == "apt":
        header = "packages on hold"
        pinned, before, after = use_apt(host, module, params)
    else:
        header = next((host.real_path(path) for path in DNF if host.exists(path)), DNF[0])
        pinned, before, after = use_dnf(host, header, params, module.check_mode)
    result = {"pinned": pinned, "changed": before != after}
    if module._diff:
        result["diff"] = {"before_header": header, "after_header": header, "before": before, "after": after}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
