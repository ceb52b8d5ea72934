#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_tuning
short_description: Bring kernel settings to a profile, with tuned or without
version_added: 0.1.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Sets sysctls, transparent huge pages, the frequency governor, huge pages by size and node, the policy of irqbalance
    and a power limit of NVIDIA GPUs, and keeps them over a reboot.
  - Where tuned runs they are a profile of tuned below C(/etc/tuned), and the profile that was active is noted.
    Elsewhere they are C(/etc/sysctl.d/99-vllm-tuned-profile.conf) and C(tuned-profile.service). Never both; a
    change of the way removes the other one first.
  - What every setting was before is noted in C(/var/lib/vllm/tuning.json) and comes back with O(state=absent), or when
    the profile no longer has the setting. What somebody else changed meanwhile stays.
  - A sysctl or cpufreq that the kernel does not have is passed over and said in RV(absent). A page size or governor
    that it does not have is an error before anything is changed.
attributes:
  check_mode:
    support: full
    description: Everything is read and compared, nothing is written.
  diff_mode:
    support: full
    description: Shows the files and the live values before and after.
options:
  state:
    description: Whether the profile applies.
    type: str
    choices: [present, absent]
    default: present
  profile:
    description: Name of the profile. Required with O(state=present).
    type: str
  method:
    description: How values are kept. V(auto) takes tuned where C(tuned.service) runs.
    type: str
    choices: [auto, tuned, systemd]
    default: auto
  sysctls:
    description: Values by name, as in sysctl.d.
    type: dict
    default: {}
  transparent_hugepages:
    description: When the kernel makes huge pages by itself. Unset leaves that alone.
    type: str
    choices: [always, madvise, never]
  governor:
    description: The frequency governor of every CPU. Unset leaves it alone.
    type: str
  irqbalance:
    description:
      - V(stop) ends and disables the service; V(banned) keeps it off O(banned_cpus); V(keep), or unset, leaves it
        alone.
    type: str
    choices: [keep, stop, banned]
  banned_cpus:
    description: CPUs that irqbalance gives no interrupts to, for example V(0-3,8).
    type: str
    default: ""
  hugepages:
    description: Pools of huge pages.
    type: list
    elements: dict
    default: []
    suboptions:
      size_kib:
        description: Size of a page in KiB; C(/sys/kernel/mm/hugepages) lists those of this kernel.
        type: int
        required: true
      count:
        description: Number of pages.
        type: int
        required: true
      node:
        description: The NUMA node they are on. Unset spreads them.
        type: int
  reserved_ports:
    description:
      - Ports that C(net.ipv4.ip_local_reserved_ports) has to contain. Only looked at; M(vllm_reserved_ports) owns the
        list.
    type: str
    default: ""
  gpu_power_limit_watts:
    description: Power limit of every NVIDIA GPU in watts. Unset leaves it alone.
    type: int
"""

EXAMPLES = r"""
- name: Apply the profile
  vllm_tuning:
    profile: vllm-ascend
    sysctls: {vm.swappiness: "0", kernel.numa_balancing: "0"}
    transparent_hugepages: madvise
    governor: performance
    hugepages:
      - {size_kib: 2048, count: 512, node: 0}

- name: Put back what was before
  vllm_tuning:
    state: absent
"""

RETURN = r"""
method:
  description: How the values are kept, V(tuned) or V(systemd); null with O(state=absent).
  returned: success
  type: str
differences:
  description:
    - A sentence for every live value that is not, or before the change was not, as planned, with who may have set it.
  returned: success
  type: list
  elements: str
overridden:
  description: A sentence for every sysctl that another file, read after ours, sets to something else at the next boot.
  returned: success
  type: list
  elements: str
files:
  description: Files that are not, or before the change were not, as they should be.
  returned: success
  type: list
  elements: str
absent:
  description: A sentence for everything that this kernel does not have and that is passed over.
  returned: success
  type: list
  elements: str
unreserved_ports:
  description: Ports of O(reserved_ports) that the kernel does not reserve, V("") when it reserves all.
  returned: success
  type: str
"""

import json
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import reserved_ports
from ansible.module_utils.vllm_ansible.host import Host
from ansible.module_utils.vllm_ansible.tuning import files, services, settings

NOTE = "/var/lib/vllm/tuning.json"
LIVE_PORTS = "/proc/sys/net/ipv4/ip_local_reserved_ports"
PAGES = {
    "size_kib": {"type": "int", "required": True},
    "count": {"type": "int", "required": True},
    "node": {"type": "int"},
}
ARGUMENTS = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "profile": {"type": "str"},
    "method": {"type": "str", "choices": ["auto", "tuned", "systemd"], "default": "auto"},
    "sysctls": {"type": "dict", "default": {}},
    "transparent_hugepages": {"type": "str", "choices": ["always", "madvise", "never"]},
    "governor": {"type": "str"},
    "irqbalance": {"type": "str", "choices": ["keep", "stop", "banned"]},
    "banned_cpus": {"type": "str", "default": ""},
    "hugepages": {"type": "list", "elements": "dict", "default": [], "options": PAGES},
    "reserved_ports": {"type": "str", "default": ""},
    "gpu_power_limit_watts": {"type": "int"},
}


class TuningError(Exception):
    """What stops a run, for a person."""


class Tuning:
    """One run: what is there, what is wanted, and the steps between."""

    def __init__(self, host, params):
        self.host = host
        self.params = params
        self.present = params["state"] == "present"
        try:
            self.note: Dict[str, Any] = json.loads(host.read(NOTE) or "{}")
        except ValueError as error:
            raise TuningError("{0} is damaged ({1}): it has the values to go back to.".format(NOTE, error)) from error
        self.active = (host.read("/etc/tuned/active_profile") or "").strip()
        self.tuned_runs = services.service(host, "tuned.service").active
        self.method = self._method() if self.present else None
        nothing: Dict[str, Any] = {"sysctls": {}, "transparent_hugepages": None, "governor": None, "hugepages": []}
        self.profile = settings.resolve(host, params if self.present else nothing)
        self.irq = services.service(host, services.IRQBALANCE)
        self.policy = (params["irqbalance"] or "keep") if self.present else "keep"
        self.watts = params["gpu_power_limit_watts"] if self.present else None
        asked = self.watts is not None or self.note.get("power")
        self.gpus = services.gpus(host) if asked else []
        self.problems = list(self.profile.problems)
        self.absent = list(self.profile.absent)
        if self.policy != "keep" and not self.irq.exists:
            self.policy = "keep"
            self.absent.append("This host has no irqbalance; its policy is passed over.")
        if self.watts is not None:
            self.problems += services.power_problems(self.gpus, self.watts)
        if self.policy == "banned" and not params["banned_cpus"]:
            self.problems.append("banned_cpus: needed with irqbalance: banned.")
        self.wanted_files = self._wanted_files()
        unit_paths = [files.SYSCTL_FILE, files.VALUES_FILE, files.UNIT_FILE]
        known = unit_paths + [services.BANNED_FILE, services.BANNED_DROPIN, services.POWER_FILE]
        known += self.note.get("tuned", {}).get("files", [])
        self.files_before = {path: host.read(path) or "" for path in sorted({*known, *self.wanted_files})}
        self.different_files = [
            path for path, text in self.files_before.items() if text != self.wanted_files.get(path, "")
        ]
        self._compare()

    def _method(self):
        wanted = self.params["method"]
        if wanted == "tuned" and not self.tuned_runs:
            raise TuningError("method: tuned.service does not run here. Start it, or set systemd.")
        return wanted if wanted != "auto" else ("tuned" if self.tuned_runs else "systemd")

    def _wanted_files(self):
        wanted = {}
        if self.method == "tuned":
            wanted.update(files.for_tuned(self.host, self.params["profile"], self.profile))
        elif self.method == "systemd":
            wanted.update(files.for_systemd(self.params["profile"], self.profile))
        if self.policy == "banned":
            wanted[services.BANNED_FILE] = services.banned_text(self.params["banned_cpus"])
            wanted[services.BANNED_DROPIN] = services.BANNED_DROPIN_TEXT
        if self.watts is not None:
            wanted[services.POWER_FILE] = services.POWER_TEXT.format(watts=self.watts)
        return wanted

    def _compare(self):
        """Compare what is live with what is wanted."""
        host = self.host
        others = self.active if self.tuned_runs and self.active != self.params["profile"] else None
        by_tuned = self.method == "tuned"
        found = settings.differences(host, self.profile, list(self.wanted_files), others, by_tuned)
        self.differences = [difference.sentence() for difference in found]
        self.overridden = [] if by_tuned else settings.overridden(host, self.profile, files.SYSCTL_FILE)
        # Without tuned values are written here; with it only those of the other way are taken back.
        kept = settings.Profile([], [], []) if by_tuned else self.profile
        self.writes, self.values = settings.changes(host, kept, self.note.get("values", {}))
        self.activate = by_tuned and bool(
            found or self.active != self.params["profile"] or self.different_files_of_tuned()
        )
        self.leave_tuned = not by_tuned and "tuned" in self.note
        self.irq_seen, self.irq_planned = services.irqbalance_seen(
            host, self.irq, self.policy, self.params["banned_cpus"]
        )
        if self.irq_seen != self.irq_planned:
            self.differences.append("irqbalance: seen {0}, planned {1}.".format(self.irq_seen, self.irq_planned))
        self.power, self.power_note = services.power_changes(self.gpus, self.watts, self.note.get("power", {}))
        for gpu in self.gpus if self.watts is not None else []:
            if gpu.number in self.power:
                text = "power limit of GPU {0}: seen {1:g} W, planned {2} W."
                self.differences.append(text.format(gpu.number, gpu.limit, self.watts))
        self.links = [
            (link, unit)
            for link, unit, file in (
                (files.UNIT_LINK, files.UNIT, files.UNIT_FILE),
                (services.POWER_LINK, services.POWER_UNIT, services.POWER_FILE),
            )
            if (host.read_link(link) is not None) != (file in self.wanted_files)
        ]
        self.start_irqbalance = self.policy != "stop" and self._irqbalance_goes_back()

    def different_files_of_tuned(self):
        """Files of the profile of tuned that differ."""
        return [path for path in self.different_files if path.endswith("/tuned.conf")]

    def _irqbalance_goes_back(self):
        before = self.note.get("irqbalance", {})
        return (before.get("active") and not self.irq.active) or (before.get("enabled") and not self.irq.enabled)

    @property
    def changed(self):
        """Whether anything is to be done."""
        return bool(
            self.different_files
            or self.writes
            or self.activate
            or self.leave_tuned
            or self.links
            or self.irq_seen != self.irq_planned
            or self.start_irqbalance
            or self.power
            or (not self.present and self.note)
        )

    def command(self, *words):
        """Run a command that has to end well."""
        answer = self.host.run(list(words))
        if answer is None or answer[0] != 0:
            detail = "it is not installed" if answer is None else (answer[2] or answer[1]).strip()
            raise TuningError("{0} failed: {1}".format(" ".join(words), detail))

    def apply(self):
        """Carry it out. The note comes first: a run that is cut off can still be taken back."""
        during = self._note_during()
        self._write_note(during)
        if self.leave_tuned:
            self._leave_tuned()
        for link, unit in self.links:
            if self.host.read_link(link) is not None:
                self.command("systemctl", "disable", "--now", unit)
        self._write_files()
        for path, value in self.writes.items():
            try:
                self.host.set_value(path, value + "\n")
            except OSError as error:
                raise TuningError("{0} does not take {1!r}: {2}.".format(path, value, error.strerror)) from error
        if self.activate:
            self.command("tuned-adm", "profile", self.params["profile"])
        self._irqbalance()
        for index, watts in self.power.items():
            self.command("nvidia-smi", "-i", index, "-pl", "{0:g}".format(watts))
        self._write_note(self._note_after(during))

    def _note_during(self):
        values = dict(self.note.get("values", {}), **self.values)
        note = dict(self.note, values=values, power=dict(self.note.get("power", {}), **self.power_note))
        if self.method == "tuned":
            mode = (self.host.read("/etc/tuned/profile_mode") or "").strip()
            now = {"profile": self.active, "mode": mode}
            known = note.get("tuned", now)
            mine = [path for path in self.wanted_files if path.endswith("/tuned.conf")]
            note["tuned"] = dict(known, files=sorted({*known.get("files", []), *mine}), name=self.params["profile"])
        if self.policy != "keep" and "irqbalance" not in note:
            note["irqbalance"] = {"active": self.irq.active, "enabled": self.irq.enabled}
        return note

    def _note_after(self, during):
        if not self.present:
            return {}
        note = dict(during, values=self.values, power=self.power_note)
        if self.method != "tuned":
            note.pop("tuned", None)
        else:
            note["tuned"]["files"] = [path for path in note["tuned"]["files"] if path in self.wanted_files]
        if self.policy == "keep":
            note.pop("irqbalance", None)
        return {key: value for key, value in note.items() if value}

    def _write_note(self, note):
        text = json.dumps(note, indent=1, sort_keys=True) + "\n"
        if not note:
            if self.host.exists(NOTE):
                self.host.remove(NOTE)
        elif text != self.host.read(NOTE):
            self.host.write_atomically(NOTE, text, 0o600)

    def _leave_tuned(self):
        """Activate what was active before; tuned puts every value back itself."""
        before = self.note["tuned"]
        if self.active != before.get("name"):
            return  # somebody chose another profile meanwhile
        if not self.tuned_runs:
            for name, text in (("active_profile", before["profile"]), ("profile_mode", before["mode"])):
                self.host.write_atomically("/etc/tuned/" + name, text + "\n")
        elif before["mode"] == "auto":
            self.command("tuned-adm", "auto_profile")
        elif before["profile"]:
            self.command("tuned-adm", "profile", *before["profile"].split())
        else:
            self.command("tuned-adm", "off")

    def _write_files(self):
        units = False
        for path in self.different_files:
            units = units or path.startswith("/etc/systemd/")
            if path in self.wanted_files:
                self.host.write_atomically(path, self.wanted_files[path])
            elif self.host.exists(path):
                self.host.remove(path)
        if units:
            self.command("systemctl", "daemon-reload")
        for _link, unit in self.links:
            if unit in (files.UNIT, services.POWER_UNIT) and "/etc/systemd/system/" + unit in self.wanted_files:
                self.command("systemctl", "enable", unit)

    def _irqbalance(self):
        unit = services.IRQBALANCE
        if self.policy == "stop":
            if self.irq_seen != self.irq_planned:
                self.command("systemctl", "disable", "--now", unit)
            return
        if self.start_irqbalance:
            before = self.note["irqbalance"]
            if before["enabled"]:
                self.command("systemctl", "enable", unit)
            if before["active"]:
                self.command("systemctl", "start", unit)
        ours = {services.BANNED_FILE, services.BANNED_DROPIN}
        if self.irq.active and (self.irq_seen != self.irq_planned or ours & set(self.different_files)):
            self.command("systemctl", "restart", unit)

    def check_taken(self):
        """Read the live values again; raises TuningError when the kernel does not have them."""
        others = self.active if self.tuned_runs and self.method != "tuned" else None
        found = settings.differences(self.host, self.profile, list(self.wanted_files), others, self.method == "tuned")
        if found:
            raise TuningError(" ".join(difference.sentence() for difference in found))

    def diff(self):
        """Files and live values before and after."""
        shown = [
            {
                "before_header": path,
                "after_header": path,
                "before": self.files_before[path],
                "after": self.wanted_files.get(path, ""),
            }
            for path in self.different_files
        ]
        values = self.writes if self.method != "tuned" else {s.path: s.value for s in self.profile.settings}
        live = [(path, settings.read(self.host, path) or "", value) for path, value in sorted(values.items())]
        irq_after = "started again" if self.start_irqbalance else self.irq_planned
        live.append(("irqbalance", self.irq_seen, irq_after))
        for gpu in self.gpus:
            watts = self.power.get(gpu.number, gpu.limit)
            live.append(("power limit of GPU " + gpu.number, "{0:g} W".format(gpu.limit), "{0:g} W".format(watts)))
        lines = [line for line in live if line[1] != line[2]]
        if lines:
            shown.append(
                {
                    "before_header": "live values",
                    "after_header": "live values",
                    "before": "".join("{0}: {1}\n".format(name, seen) for name, seen, _after in lines),
                    "after": "".join("{0}: {1}\n".format(name, after) for name, _seen, after in lines),
                }
            )
        return shown


def unreserved(host, wanted):
    """Return the ports that the kernel does not reserve, as a list of ports and ranges."""
    live = reserved_ports.parse(host.read(LIVE_PORTS) or "")
    return reserved_ports.compose(reserved_ports.parse(wanted) - live)


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS, supports_check_mode=True, required_if=[("state", "present", ["profile"])]
    )
    host = Host(module.run_command)
    try:
        missing = unreserved(host, module.params["reserved_ports"])
        tuning = Tuning(host, module.params)
        if tuning.problems:
            raise TuningError(" ".join(tuning.problems) + " Nothing was changed.")
        result = {
            "changed": tuning.changed,
            "method": tuning.method,
            "differences": tuning.differences,
            "files": tuning.different_files,
            "absent": tuning.absent,
            "overridden": tuning.overridden,
            "unreserved_ports": missing,
        }
        if module._diff:
            result["diff"] = tuning.diff()
        if tuning.changed and not module.check_mode:
            tuning.apply()
            tuning.check_taken()
    except (TuningError, ValueError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
