# SPDX-License-Identifier: Apache-2.0
"""Which releases have to be built, with which patches, and on which host."""

from typing import Any, Dict, List, Optional

from ansible.module_utils.vllm_ansible.plan.catalogue import Row
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host

# Backends whose engines are put together from wheels and Python files: any machine can do that for any other.
ANYWHERE = ("ascend",)


def plan_builds(
    groups: List[Group], hosts: Dict[str, Host], overrides: Any, findings: Findings
) -> Dict[str, Dict[str, Any]]:
    """Return every build the groups need, with the patch series it carries and the host that makes it."""
    builders = [h for h in hosts.values() if h.build and not h.left_out]
    builds = {}
    for group in groups:
        row, hardware = group.row, group.head.hardware
        if row is None or hardware is None or group.build in builds:
            continue
        series = _wanted_series(row, row.engine, row.version, group.backend, overrides, findings)
        plugin = _wanted_series(row, row.plugin, row.plugin_version, group.backend, overrides, findings)
        # what no role of this version installs is not built either
        builder = _builder(builders, hardware.architecture, group.backend) if row.status == "installable" else None
        if builder is None and row.status == "installable":
            left_out = sorted(h.name for h in hosts.values() if h.build and h.left_out)
            kind = "" if group.backend in ANYWHERE else "{} ".format(hardware.architecture)
            findings.problem(
                "E_NO_BUILD_HOST",
                "No host can build {}: {}".format(
                    group.build,
                    "{} is outside --limit".format(", ".join(left_out))
                    if left_out
                    else "the group build has no reachable {}host".format(kind),
                ),
                "--limit that includes {}".format(left_out[0])
                if left_out
                else "a host in the group build"
                if group.backend in ANYWHERE
                else "a host of architecture {} in the group build".format(hardware.architecture),
                field="groups.build",
                seen=", ".join(h.name for h in builders) or None,
            )
        builds[group.build] = {
            "build": group.build,
            "engine": row.engine,
            "version": row.version,
            "backend": group.backend,
            "architecture": hardware.architecture,
            "row": row.name,
            "series_sha256": series.get("series_sha256"),
            "local_version": series.get("local_version"),
            "plugin": row.plugin or None,
            "plugin_version": row.plugin_version or None,
            "plugin_series_sha256": plugin.get("series_sha256"),
            "plugin_local_version": plugin.get("local_version"),
            "soc_version": group.soc_version or None if group.backend == "ascend" else None,
            "host": builder.name if builder else None,
        }
        if builder is not None:
            here = builder.hardware is None or builder.hardware.architecture == hardware.architecture
            findings.decide(
                "R_BUILD_HOST",
                "builds." + group.build,
                builder.name,
                "the first host of group build with architecture {}".format(hardware.architecture)
                if here
                else "the first host of group build; it is {}, and this engine is put together from finished parts for "
                "{}".format(builder.hardware.architecture if builder.hardware else "", hardware.architecture),
            )
    return builds


def _wanted_series(
    row: Row, name: str, version: str, backend: str, overrides: Any, findings: Findings
) -> Dict[str, Any]:
    """The series of an engine or its plugin, {} without any; a problem when the row needs one."""
    series = _series(overrides, name, version, backend) if name else {}
    if series is None and row.requires_series:
        findings.problem(
            "E_SERIES_MISSING",
            "{} {} does not serve on {} without our patches, and none are recorded".format(name, version, backend),
            "engine_overrides/{}/{}/manifest.yml with a series for {}".format(name, version, backend),
            field="overrides",
        )
    return series or {}


def _builder(builders: List[Host], architecture: str, backend: str) -> Optional[Host]:
    """The first build host of that architecture; one whose facts were not asked for (planning ahead) counts too."""
    for host in builders:
        if host.hardware is None or host.hardware.architecture == architecture:
            return host
    return builders[0] if builders and backend in ANYWHERE else None


def _series(overrides: Any, engine: str, version: str, backend: str) -> Optional[Dict[str, Any]]:
    """Return digest and local version of a series from a manifest, or None when there is none."""
    node = overrides
    for key in (engine, version):
        node = node.get(key) if isinstance(node, dict) else None
    if not isinstance(node, dict):
        return None
    backends = node.get("backends")
    series = backends.get(backend) if isinstance(backends, dict) else None
    if not isinstance(series, dict) or not isinstance(series.get("series_sha256"), str):
        return None
    local = series.get("local_version") or node.get("local_version")
    return {"series_sha256": series["series_sha256"], "local_version": local if isinstance(local, str) else None}
