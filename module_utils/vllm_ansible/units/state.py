# SPDX-License-Identifier: Apache-2.0
"""Whether a running instance still is what the disk says.

At each start the supervisor records a digest of everything that start depends on. The same digest computed from the
disk later tells whether a restart is due: a run that was interrupted anywhere, or a change made by another role,
cannot be missed, because nobody has to remember that something changed.
"""

import hashlib
import json
import os
import re

from ansible.module_utils.vllm_ansible.units.service import CREDENTIAL_DIRECTORY, SUPERVISOR, unit_path


def watched_paths(instance, root=""):
    """Return the sorted paths (without root) that a start of the instance depends on and that exist."""
    drop_ins = unit_path(instance) + ".d"
    paths = [
        SUPERVISOR,
        unit_path(instance),
        "/etc/vllm/instances/{}.json".format(instance),
        "{}/{}.key".format(CREDENTIAL_DIRECTORY, instance),
        "/opt/vllm/instances/{}/current".format(instance),
    ]
    if os.path.isdir(root + drop_ins):
        paths += [drop_ins + "/" + name for name in os.listdir(root + drop_ins) if name.endswith(".conf")]
    paths += _environment_files(root + unit_path(instance))
    return sorted(path for path in paths if os.path.lexists(root + path))


def _environment_files(unit):
    """Return the files that the unit's EnvironmentFile= lines name."""
    try:
        with open(unit, encoding="utf-8") as stream:
            return re.findall(r"^EnvironmentFile=(/.*)$", stream.read(), re.MULTILINE)
    except FileNotFoundError:
        return []


def state_digest(instance, root=""):
    """Return "sha256:…" over the sorted lines "path NUL sha256(content or link target)\\n" of the watched paths."""
    digest = hashlib.sha256()
    for path in watched_paths(instance, root):
        if os.path.islink(root + path):
            content = os.readlink(root + path).encode("utf-8")
        else:
            with open(root + path, "rb") as stream:
                content = stream.read()
        digest.update("{}\0{}\n".format(path, hashlib.sha256(content).hexdigest()).encode("utf-8"))
    return "sha256:" + digest.hexdigest()


def recorded_digest(instance, invocation_id, root=""):
    """Return the digest the running start recorded, or None when there is no record of this very invocation."""
    try:
        with open("{}/run/vllm/{}/started.json".format(root, instance), encoding="utf-8") as stream:
            record = json.load(stream)
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or not invocation_id or record.get("invocation_id") != invocation_id:
        return None
    return record.get("digest")


def parse_show(text):
    """Return `systemctl show` output as a dict; a value may itself contain "="."""
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)


def describe(properties, digest, recorded):
    """Return what the state of the unit asks for.

    Args:
        properties: ActiveState and NeedDaemonReload of `systemctl show`; empty when systemd does not know the unit.
        digest: of the disk now.
        recorded: of the running start, or None.
    Returns:
        dict with running, restart_required (running, but not what the disk says), daemon_reload_required.
    """
    running = properties.get("ActiveState") in ("active", "activating", "reloading")
    return {
        "active_state": properties.get("ActiveState") or "inactive",
        "running": running,
        "restart_required": running and digest != recorded,
        "daemon_reload_required": properties.get("NeedDaemonReload") == "yes",
    }
