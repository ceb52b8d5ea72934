# SPDX-License-Identifier: Apache-2.0
"""What a plan would change: against the plan each host runs (``/etc/vllm/plan.json``), and in which order.

Apart from the plan, because a plan depends on request, facts and catalogue only: its digest must not move because a
host was deployed.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.plan.canonical import natural_key

NEW, CHANGED, SAME = "new", "changed", "same"
# Roles of site.yml in the order they run. A slice of a role that is not named here runs before the release.
_BEFORE = ("host_baseline", "kernel", "tuned_profile", "ascend_driver", "ascend_cann", "nvidia_driver", "nvidia_cuda",
           "roce_fabric")  # fmt: skip
_ENGINE = ("engine_release", "model_store", "numa_policy", "engine_service", "service_verify")
_BUILDER = ("engine_build",)
_INSTANCES = ("engine_service", "numa_policy")
# Where the reason of a value stands: path below an instance -> key of the decision.
_REASONS = {
    "build": "engine.version",
    "cpus": "numa.cpus",
    "environment.VLLM_CPU_KVCACHE_SPACE": "engine.kv_cache_gib",
    "flags.tensor-parallel-size": "engine.tensor_parallel",
    "memory_max_bytes": "engine.memory_bytes",
    "port": "endpoint.port",
}
_ABSENT = object()


class _Host(NamedTuple):
    """What is recorded on one host, what is planned for it, and what differs: (role, path, old, new)."""

    name: str
    old: Dict[str, Any]
    new: Dict[str, Any]
    changes: List[Tuple[str, Tuple[str, ...], Any, Any]]

    def differs(self, role: str, first: str = "") -> bool:
        """Whether anything of `role` differs, or of its entry called `first`."""
        return any(change[0] == role and (not first or change[1][:1] == (first,)) for change in self.changes)

    @property
    def other_release(self) -> bool:
        """Whether the planned release is not the one the host runs."""
        return any(self.differs("engine_release", part) for part in ("build", "patches"))

    def entries(self, which: str, role: str) -> Dict[str, Any]:
        """Named entries of a role's slice: instances or models."""
        return _named(_slices(self.new if which == NEW else self.old).get(role))


def difference(plan: Dict[str, Any], applied: Dict[str, Any]) -> Dict[str, Any]:
    """Compare `plan` with `applied` (host -> the plan recorded on it, or nothing).

    Returns:
        ``hosts``: host -> {state, changes: [{what, old, new, because}]}, for the hosts that serve; None as old or new
        means there is none. ``steps``: [{action, what, hosts}], in the order of site.yml; the steps of an unchanged
        fleet are the build, which finds its result, and the verification.
    """
    hosts = []
    for name in sorted(plan["hosts"], key=natural_key):
        planned, old = plan["hosts"][name], applied.get(name)
        if "engine_service" in planned["slices"]:
            old = old if isinstance(old, dict) and isinstance(old.get("slices"), dict) else {}
            hosts.append(_Host(name, old, planned, _changes(old, planned)))
    reasons = {(d["group"] or d["host"], d["key"]): d["because"] for d in plan["decisions"]}
    return {
        "hosts": {host.name: {"state": _state(host), "changes": _told(host, reasons)} for host in hosts},
        "steps": _builds(plan) + _steps(hosts),
    }


def _state(host: _Host) -> str:
    return NEW if not host.old else CHANGED if host.changes else SAME


def _slices(entry: Dict[str, Any]) -> Dict[str, Any]:
    slices = entry.get("slices")
    return slices if isinstance(slices, dict) else {}


def _named(value: Any) -> Dict[str, Any]:
    """The entries of the only list in a slice, by name."""
    lists = [part for part in value.values() if isinstance(part, list)] if isinstance(value, dict) else []
    entries = lists[0] if len(lists) == 1 else []
    return {entry["name"]: entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("name"), str)}


def _changes(old: Dict[str, Any], new: Dict[str, Any]) -> List[Tuple[str, Tuple[str, ...], Any, Any]]:
    found: List[Tuple[str, Tuple[str, ...], Any, Any]] = []
    before, after = _slices(old), _slices(new)
    for role in sorted(set(before) | set(after), key=_rank):
        if role == "service_verify":  # says nothing that engine_service does not say
            continue
        _walk(role, (), before.get(role, _ABSENT), after.get(role, _ABSENT), found)
    builds = [entry.get("build") for entry in (old, new)]
    made = [build.get("series_sha256") if isinstance(build, dict) else None for build in builds]
    if old and made[0] != made[1] and not any(change[0] == "engine_release" for change in found):
        found.append(("engine_release", ("patches",), made[0], made[1]))
    return found


def _walk(role: str, path: Tuple[str, ...], old: Any, new: Any, found: List[Any]) -> None:
    """Collect the smallest differing parts; entries with a name are compared by it, other lists as a whole."""
    if old == new:
        return
    parts = [_parts(value) for value in (old, new)]
    if None in parts or (len(path) == 1 and _ABSENT in (old, new)):
        found.append((role, path, None if old is _ABSENT else old, None if new is _ABSENT else new))
        return
    before, after = parts
    assert before is not None and after is not None
    for key in sorted(set(before) | set(after)):
        # the name of a list ("instances", "models") is the role's own matter
        below = path if isinstance(key, str) and _is_list_of_named(before.get(key), after.get(key)) else path + (key,)
        _walk(role, below, before.get(key, _ABSENT), after.get(key, _ABSENT), found)


def _parts(value: Any) -> Optional[Dict[str, Any]]:
    if value is _ABSENT:
        return {}
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and all(isinstance(v, dict) and isinstance(v.get("name"), str) for v in value):
        return {entry["name"]: entry for entry in value}
    return None


def _is_list_of_named(*values: Any) -> bool:
    given = [value for value in values if value is not None]
    return bool(given) and all(isinstance(value, list) and _parts(value) is not None for value in given)


def _told(host: _Host, reasons: Dict[Tuple[str, str], str]) -> List[Dict[str, Any]]:
    """The changes of one host as a reader needs them; of a new host there is nothing to compare."""
    told = []
    for role, path, old, new in host.changes if host.old else []:
        entry = host.entries(NEW, "engine_service").get(path[0], {}) if path and role in _INSTANCES else {}
        below = ".".join(path[1:])
        key = _REASONS.get(below) or "engine." + below.replace("flags.", "", 1).replace("-", "_")
        because = None
        for owner in (str(entry.get("group")), host.name):
            for candidate in (key, "engine." + below):
                because = because or reasons.get((owner, candidate))
        whole = len(path) == 1 and None in (old, new) and isinstance(new if old is None else old, dict)
        told.append(
            {
                "what": ".".join((role,) + path),
                "old": old if not whole or old is None else "there",
                "new": new if not whole or new is None else "there",
                "because": because,
            }
        )
    return told


def _rank(role: str) -> Tuple[int, int, str]:
    order = _BEFORE + _ENGINE
    return (1, order.index(role) - len(_BEFORE), role) if role in _ENGINE else (
        0, order.index(role) if role in order else len(_BEFORE), role)  # fmt: skip


def _builds(plan: Dict[str, Any]) -> List[Dict[str, Any]]:
    steps = [_step("build", "release " + build["build"], [build["host"]]) for build in plan["builds"]]
    # a row that cannot be installed yet needs no build host
    builders = sorted({build["host"] for build in plan["builds"] if build["host"]}, key=natural_key)
    for model in plan["models"] if builders else []:
        making = [
            name
            for name in builders
            if model["name"] in _named(plan["hosts"].get(name, {}).get("slices", {}).get("model_store"))
        ]
        steps.append(_step("prepare", "model " + model["name"], making))
    return [step for step in steps if step["hosts"]]


def _steps(hosts: List[_Host]) -> List[Dict[str, Any]]:
    """What happens on the hosts that serve. All hosts of a step at once, one step after the other."""
    steps: Dict[Tuple[int, int, str, str, str], List[str]] = {}

    def add(rank: Tuple[int, int, str], order: int, action: str, what: str, host: str) -> None:
        steps.setdefault((rank[0], rank[1] * 10 + order, rank[2], action, what), []).append(host)

    for host in hosts:
        for role in _slices(host.new):
            if role not in _ENGINE + _BUILDER and (not host.old or host.differs(role)):
                add(_rank(role), 0, "apply", role, host.name)
        if not host.old or host.other_release:
            release = "release " + _slices(host.new)["engine_release"]["build"]
            add(_rank("engine_release"), 0, "install", release, host.name)
        for model in host.entries(NEW, "model_store"):
            if not host.old or host.differs("model_store", model):
                add(_rank("model_store"), 0, "install", "model " + model, host.name)
        service = _rank("engine_service")
        running, wanted = host.entries("old", "engine_service"), host.entries(NEW, "engine_service")
        for instance in sorted(set(running) - set(wanted), key=natural_key):
            add(service, 0, "stop", "instance " + instance, host.name)
        for instance in sorted(wanted, key=natural_key):
            if instance not in running:
                add(service, 2, "start", "instance " + instance, host.name)
            elif _restarts(host, instance, wanted[instance]):
                add(service, 1, "restart", "instance " + instance, host.name)
        add(_rank("service_verify"), 0, "verify", "every instance generates tokens", host.name)
    return [_step(key[3], key[4], steps[key]) for key in sorted(steps)]


def _restarts(host: _Host, instance: str, entry: Dict[str, Any]) -> bool:
    """Whether a running instance starts anew: its own settings, its CPUs, its release or its model changed."""
    return (
        any(host.differs(role, instance) for role in _INSTANCES)
        or host.other_release
        or host.differs("model_store", entry.get("model") or "")
    )


def _step(action: str, what: str, hosts: List[Any]) -> Dict[str, Any]:
    return {"action": action, "what": what, "hosts": [host for host in hosts if host]}
