# SPDX-License-Identifier: Apache-2.0
"""Which releases have to be built, with which patches, and on which host."""

from typing import Any, Dict, List, Optional

from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host


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
        series = _series(overrides, row.engine, row.version, group.backend)
        if series is None and row.requires_series:
            findings.problem(
                "E_SERIES_MISSING",
                "{} {} does not serve on {} without our patches, and none are recorded".format(
                    row.engine, row.version, group.backend
                ),
                "engine_overrides/{}/{}/manifest.yml with a series for {}".format(
                    row.engine, row.version, group.backend
                ),
                field="overrides",
            )
        # what no role of this version installs is not built either
        builder = _builder(builders, hardware.architecture) if row.status == "installable" else None
        if builder is None and row.status == "installable":
            left_out = sorted(h.name for h in hosts.values() if h.build and h.left_out)
            findings.problem(
                "E_NO_BUILD_HOST",
                "No host can build {}: {}".format(
                    group.build,
                    "{} is outside --limit".format(", ".join(left_out))
                    if left_out
                    else "the group build has no reachable {} host".format(hardware.architecture),
                ),
                "--limit that includes {}".format(left_out[0])
                if left_out
                else "a host of architecture {} in the group build".format(hardware.architecture),
                field="groups.build",
                seen=", ".join(h.name for h in builders) or None,
            )
        series = series or {}
        builds[group.build] = {
            "build": group.build,
            "engine": row.engine,
            "version": row.version,
            "backend": group.backend,
            "architecture": hardware.architecture,
            "row": row.name,
            "series_sha256": series.get("series_sha256"),
            "local_version": series.get("local_version"),
            "host": builder.name if builder else None,
        }
        if builder is not None:
            findings.decide(
                "R_BUILD_HOST",
                "builds." + group.build,
                builder.name,
                "the first host of group build with architecture {}".format(hardware.architecture),
            )
    return builds


def _builder(builders: List[Host], architecture: str) -> Optional[Host]:
    """The first build host of that architecture; one whose facts were not asked for (planning ahead) counts too."""
    for host in builders:
        if host.hardware is None or host.hardware.architecture == architecture:
            return host
    return None


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
