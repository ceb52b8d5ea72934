# SPDX-License-Identifier: Apache-2.0
"""Disk space for what a host does not have yet. Free space is volatile: it may only object."""

from typing import Any, Dict, List

from ansible.module_utils.vllm_ansible.plan.canonical import gib
from ansible.module_utils.vllm_ansible.plan.facts import mount_of
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host

RELEASES, MODELS, TRANSPORT = "/opt/vllm", "/var/lib/vllm", "/var/cache/vllm"


def check_space(host: Host, groups: List[Group], findings: Findings) -> None:
    """Compare free space with the releases and models `host` still has to receive, per file system."""
    assert host.hardware is not None
    needs: Dict[str, Dict[str, int]] = {}

    def need(path: str, what: str, size: int) -> None:
        mount = mount_of(host.hardware, path) if host.hardware else None
        if mount is not None and size:
            needs.setdefault(mount, {})[what + " in " + path] = size

    installed = _applied(host)
    for group in groups:
        assert group.row is not None and group.model is not None
        if group.build not in installed:
            need(RELEASES, "release " + group.build, group.row.release_bytes)
            need(TRANSPORT, "artefact " + group.build, group.row.artefact_bytes)
        if group.model.name not in installed:
            need(MODELS, "model " + group.model.name, group.model.size_bytes)
            need(TRANSPORT, "artefact " + group.model.name, group.model.size_bytes)
    for mount in sorted(needs):
        total, free = sum(needs[mount].values()), host.hardware.free_bytes.get(mount, 0)
        if total > free:
            findings.problem(
                "E_DISK",
                "{} of {} has {} free and needs {}: {}".format(
                    mount,
                    host.name,
                    gib(free),
                    gib(total),
                    ", ".join("{} ({})".format(what, gib(size)) for what, size in sorted(needs[mount].items())),
                ),
                "free {} on {}, or mount a larger disk there".format(gib(total - free), mount),
                host=host.name,
                field="vllm_hardware.disks",
                seen="{} free".format(gib(free)),
                needed="{} free".format(gib(total)),
            )


def _applied(host: Host) -> List[Any]:
    """Names of the build and the models in the plan recorded on the host: they are on its disks."""
    slices = host.applied.get("slices")
    if not isinstance(slices, dict):
        return []
    release, store = slices.get("engine_release"), slices.get("model_store")
    names = [release.get("build")] if isinstance(release, dict) else []
    models = store.get("models") if isinstance(store, dict) else None
    for model in models if isinstance(models, list) else []:
        names.append(model.get("name") if isinstance(model, dict) else None)
    return names
