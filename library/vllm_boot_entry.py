#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_boot_entry
short_description: Choose the kernel a host starts and its parameters
version_added: 0.2.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Makes the boot entry of a named kernel the default one and gives it parameters, through C(grubby) where that is
    installed (rpm systems, with and without files of the boot loader specification), else through
    C(/etc/default/grub.d/zz-vllm.cfg) and C(update-grub) (Debian, Ubuntu, Kylin's desktop edition).
  - Other parameters, other entries and the distribution's own files stay as they are. What was added is noted in
    C(/var/lib/vllm/boot-entry.json), so that a parameter which is no longer wanted goes and one that was replaced comes
    back.
  - Asks the boot loader again after a change; a change that did not take fails.
  - Refuses a kernel whose image or initial RAM disk is not there, as after an installation on a full C(/boot).
options:
  release:
    description: The kernel as C(uname -r) prints it. Required for O(state=present).
    type: str
  parameters:
    description: Parameters of the kernel, such as C(iommu.passthrough=1).
    type: list
    elements: str
    default: []
  state:
    description:
      - With V(absent) the parameters that this module added go; with GRUB's own files its choice of a default entry
        goes as well. Kernels stay.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: On a host where the kernel is not installed yet, says that the entry would change.
    support: full
  diff_mode:
    description: Shows the default entry and the parameters of the entries before and after.
    support: full
"""

EXAMPLES = r"""
- name: Start this kernel from now on
  vllm_boot_entry:
    release: 4.19.90-52.22.v2207.ky10.aarch64
    parameters: [iommu.passthrough=1]
"""

RETURN = r"""
loader:
  description: What tells and changes the entries; null where none is known, which only check mode returns.
  returned: success
  type: str
  sample: grubby
running:
  description: The kernel that runs.
  returned: always
  type: str
  sample: 4.19.90-52.22.v2207.ky10.aarch64
default:
  description: The kernel the boot loader starts next, before any change; null when it cannot be told.
  returned: success
  type: str
entries:
  description: The parameters of the first entry of each kernel.
  returned: success
  type: dict
problems:
  description: Why the kernel cannot be started; only check mode comes back with any.
  returned: success
  type: list
  elements: str
inactive:
  description: Parameters that are wanted and that the running kernel was not started with.
  returned: success
  type: list
  elements: str
differs:
  description: Whether the entry was not, or in check mode is not, what it should be.
  returned: success
  type: bool
"""

import json
from typing import Any, Dict, List, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.host import Host
from ansible.module_utils.vllm_ansible.kernel import entries, grub
from ansible.module_utils.vllm_ansible.kernel.grubby import Grubby

NOTE = "/var/lib/vllm/boot-entry.json"
ARGUMENTS = {
    "release": {"type": "str"},
    "parameters": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def find_loader(host):
    """The boot loader of this host, or None."""
    if host.run(["grubby", "--version"]) is not None:
        return Grubby(host)
    return grub.Grub(host) if host.exists(grub.CONFIGURATION) else None


def read_note(host):
    """What this module added: {"parameters": {parameter: the one it replaced or None}}."""
    try:
        note = json.loads(host.read(NOTE) or "{}")
        return {str(key): value for key, value in note.get("parameters", {}).items()}
    except (ValueError, AttributeError):
        return {}


def write_note(host, added):
    """Note what was added; without any, no note."""
    if added:
        host.write_atomically(NOTE, json.dumps({"parameters": added}, indent=1, sort_keys=True) + "\n")
    elif host.exists(NOTE):
        host.remove(NOTE)


def entry_of(found, release):
    """The entry to start a kernel with, or None."""
    return entries.choose(found, release) if release else None


def problems_of(host, found, release):
    """Why a kernel cannot be started; empty when it can."""
    entry = entry_of(found, release)
    if entry is None:
        known = sorted({item.release for item in found if item.release})
        return ["The boot loader has no entry for {0}, only for {1}.".format(release, ", ".join(known) or "no kernel")]
    problems = []
    for path, what in ((entry.kernel, "kernel image"), (entry.initrd, "initial RAM disk")):
        # Where /boot is a file system of its own, GRUB's own paths start there.
        places = [path, "/boot" + path]
        if not path or not any(host.exists(place) for place in places):
            problems.append("The {0} of {1} is not there ({2}).".format(what, release, path or "none in its entry"))
    return problems


class Change:
    """What has to be done to the parameters of one entry."""

    def __init__(self, parameters: List[str], wanted: List[str], added: Dict[str, Optional[str]]) -> None:
        self.remove = [item for item in added if item not in wanted and item in parameters]
        restore = [before for before in map(added.get, self.remove) if before]
        left = [item for item in parameters if item not in self.remove] + restore
        self.add = entries.missing(left, wanted)
        self.note = {item: before for item, before in added.items() if item in wanted}
        for item in self.add:
            before = entries.replaced(left, item)
            self.note.setdefault(item, before)
            if before:
                left = [one for one in left if one != before]
                self.remove = self.remove + [before]
        self.after = left + self.add
        self.add = restore + self.add


def apply_grubby(loader, host, params, found, default, check_mode):
    """Bring grubby's entries to what is wanted; return (changed, default after, parameters after by release)."""
    release, wanted = params["release"], params["parameters"]
    after = {item.release: item.parameters for item in reversed(found) if item.release}
    added = read_note(host)
    if params["state"] == "absent":
        changed = False
        for item in found:
            change = Change(item.parameters, [], added)
            if item.release and change.remove:
                changed = True
                after[item.release] = change.after
                if not check_mode:
                    loader.update(item, change.add, change.remove)
        if not check_mode:
            write_note(host, {})
        return changed or bool(added), default, after
    entry = entry_of(found, release)
    change = Change(entry.parameters if entry else [], wanted, added)
    edits = bool(change.add or change.remove) or entry is None
    after[release] = change.after
    if not check_mode:
        if change.note != added:
            write_note(host, change.note)
        if edits:
            loader.update(entry, change.add, change.remove)
        if default != release:
            loader.set_default(entry)
    return edits or default != release, release, after


def apply_grub(loader, host, params, found, default, check_mode):
    """Bring our file of GRUB's settings to what is wanted; the same answer."""
    release, wanted = params["release"], params["parameters"]
    after = {item.release: item.parameters for item in reversed(found) if item.release}
    before = loader.file()
    if params["state"] == "absent":
        if before and not check_mode:
            loader.write("")
        return bool(before), default, after
    entry = entry_of(found, release)
    text = grub.render(entry.place, wanted) if entry else ""
    # grub.cfg may be older than the file: a run was cut off, or someone else wrote one of the two.
    held = entry is not None and default == release and not entries.missing(entry.parameters, wanted)
    changed = text != before or not held
    if changed and not check_mode:
        loader.write(text)
    after[release] = (entry.parameters if entry else []) + entries.missing(entry.parameters if entry else [], wanted)
    return changed, release, after


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS, supports_check_mode=True, required_if=[("state", "present", ["release"])]
    )
    params = module.params
    host = Host(module.run_command)
    release, wanted = params["release"], params["parameters"]
    running = host.system()["kernel"]
    started_with = entries.words(host.read("/proc/cmdline") or "")
    result: Dict[str, Any] = {"running": running}
    try:
        loader = find_loader(host)
        found, default = loader.read() if loader else ([], None)
        problems = []
        if params["state"] == "present":
            problems = problems_of(host, found, release)
            if loader is None:
                problems = [
                    "Neither grubby nor {0} is there: no boot loader that this knows.".format(grub.CONFIGURATION)
                ]
            if problems and not module.check_mode:
                module.fail_json(
                    msg=" ".join(problems)
                    + " Install the packages of this kernel completely, with free space in /boot.",
                    **result,
                )
        result.update(
            loader=loader.name if loader else None,
            default=default,
            entries={item.release: item.parameters for item in reversed(found) if item.release},
            problems=problems,
            inactive=entries.missing(started_with, wanted),
        )
        if loader is None:
            changed, default_after, after = params["state"] == "present", release, {release: wanted} if release else {}
        else:
            work = apply_grubby if isinstance(loader, Grubby) else apply_grub
            changed, default_after, after = work(loader, host, params, found, default, module.check_mode)
        if changed and loader and not module.check_mode and params["state"] == "present":
            check_taken(loader, release, wanted)
    except entries.BootError as error:
        module.fail_json(msg=str(error), **result)
    result["changed"] = result["differs"] = bool(changed)
    if module._diff:
        result["diff"] = {
            "before_header": "boot entries",
            "after_header": "boot entries",
            "before": entries.describe(default, result["entries"]),
            "after": entries.describe(default_after, after),
        }
    module.exit_json(**result)


def check_taken(loader, release, wanted):
    """Ask the boot loader again; raises BootError when it does not say what it was told."""
    found, default = loader.read()
    entry = entry_of(found, release)
    left = entries.missing(entry.parameters if entry else [], wanted)
    if default != release or left:
        raise entries.BootError(
            "{0} was told to start {1}, but it starts {2}{3}. Look for settings that come after ours, in "
            "/etc/default/grub.d or in the boot loader's environment.".format(
                loader.name,
                release,
                default or "an entry it cannot name",
                " without " + ", ".join(left) if left else "",
            )
        )


if __name__ == "__main__":
    main()
