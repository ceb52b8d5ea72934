# SPDX-License-Identifier: Apache-2.0
"""Where a host is no longer what was recorded on it: kernel, driver, firmware or CANN were changed by somebody else;
of GPUs the driver and its kernel module.

What was not installed yet is no drift, and neither is a change that this plan asks for: an upgrade that was cut off has
some parts as recorded and the others as planned.
"""

from typing import Any, Dict, List, Optional, Set, Tuple

from ansible.module_utils.vllm_ansible.plan.canonical import natural_key
from ansible.module_utils.vllm_ansible.plan.stack import same

# Rules that take over what is there: the value planned then says nothing about what should be there.
_TAKEN_OVER = ("R_DRIVER_KEPT", "R_KERNEL_KEPT")
_PARTS = (
    ("kernel", "release"),
    ("ascend_driver", "driver"),
    ("ascend_driver", "firmware"),
    ("ascend_cann", "cann"),
    ("ascend_cann", "nnal"),
    ("nvidia_driver", "version"),
    ("nvidia_driver", "flavour"),
)


def drift(
    plan: Dict[str, Any], applied: Dict[str, Any], hardware: Dict[str, Any]
) -> Dict[str, List[Dict[str, Optional[str]]]]:
    """Return host -> [{what, recorded, seen, planned}] for the hosts of `plan` that drifted.

    `applied`: host -> the plan recorded on it. `hardware`: host -> its facts. None as seen means it is not there.
    """
    taken = {(d["host"], d["key"]) for d in plan["decisions"] if d["rule"] in _TAKEN_OVER}
    found = {}
    for host in sorted(plan["hosts"], key=natural_key):
        differing = _of_host(host, plan["hosts"][host], applied.get(host), hardware.get(host), taken)
        if differing:
            found[host] = differing
    return found


def _of_host(host: str, planned: Any, recorded: Any, facts: Any, taken: Set[Tuple[str, str]]) -> List[Dict[str, Any]]:
    differing = []
    for role, part in _PARTS:
        wanted, before = _value(planned, role, part), _value(recorded, role, part)
        if before is None or wanted is None:  # never installed, or not ours to look after any more
            continue
        known, versions = _seen(facts, role, part)
        own = "{}.{}".format(role, part)
        there = any(same(version, before) for version in versions)
        coming = any(same(version, wanted) for version in versions) and (host, own) not in taken
        if known and not there and not coming:
            seen = ", ".join(versions) or None
            differing.append({"what": own, "recorded": before, "seen": seen, "planned": wanted})
    return differing


def _value(entry: Any, *path: str) -> Optional[str]:
    value = entry.get("slices") if isinstance(entry, dict) else None
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) and value else None


def _seen(facts: Any, role: str, part: str) -> Tuple[bool, List[str]]:
    """Return whether the facts say anything of this part, and the versions that are there."""
    facts = facts if isinstance(facts, dict) else {}
    if role == "kernel":
        places = [facts.get("kernel"), facts.get("os")]
        releases = [p.get(k) for p, k in zip(places, ("release", "kernel")) if isinstance(p, dict)]
        found = [r for r in releases if isinstance(r, str) and r][:1]
        return bool(found), found
    software = facts.get("software")
    if role == "nvidia_driver":
        return _seen_nvidia(software, part)
    ascend = software.get("ascend") if isinstance(software, dict) else None
    if not isinstance(ascend, dict):
        return False, []
    if role == "ascend_driver":
        version = ascend.get(part)
        return part in ascend, [version] if isinstance(version, str) and version else []
    kind = "toolkit" if part == "cann" else part
    packages = ascend.get("cann")
    if not isinstance(packages, list):
        return False, []
    entries = [p for p in packages if isinstance(p, dict) and p.get("kind") == kind]
    return True, sorted({p["version"] for p in entries if isinstance(p.get("version"), str)})


def _seen_nvidia(software: Any, part: str) -> Tuple[bool, List[str]]:
    """The libraries say which driver is installed; where the facts do not know them, the module that is loaded."""
    nvidia = software.get("nvidia") if isinstance(software, dict) else None
    if not isinstance(nvidia, dict):
        return False, []
    if part == "flavour":
        loaded = nvidia.get("kernel_module")
        return isinstance(loaded, str), [loaded] if isinstance(loaded, str) else []
    found = [nvidia.get(key) for key in ("library", "driver")]
    versions = [version for version in found if isinstance(version, str) and version]
    return "driver" in nvidia, versions[:1]
