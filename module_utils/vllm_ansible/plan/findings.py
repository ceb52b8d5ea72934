# SPDX-License-Identifier: Apache-2.0
"""What the stages have to say: problems, warnings and decisions, all collected, none fatal."""

from typing import Any, Dict, List, Optional

from ansible.module_utils.vllm_ansible.plan import codes
from ansible.module_utils.vllm_ansible.plan.canonical import SECRET_NAME, canonical_json, natural_key, show


class Findings:
    """Collects in any order, returns in one order."""

    def __init__(self) -> None:
        self._problems: Dict[str, Dict[str, Any]] = {}
        self._warnings: Dict[str, Dict[str, Any]] = {}
        self.decisions: List[Dict[str, Any]] = []

    def problem(
        self,
        code: str,
        message: str,
        set_to: str,
        host: Optional[str] = None,
        field: Optional[str] = None,
        seen: Any = None,
        also: int = 0,
        needed: Any = None,
    ) -> None:
        """Record that no valid plan exists.

        `message` says what is wrong, `set_to` what to change, `seen` the value found, `also` on how many hosts
        besides `host` it is the same, `needed` the value it has to be. What a field with the name of a secret holds is
        not kept.
        """
        assert code in codes.PROBLEMS, code
        if field is not None and SECRET_NAME.search(field):
            seen = None
        if also:
            message = "{} (the same on {} more host{})".format(message, also, "" if also == 1 else "s")
        entry = {
            "code": code,
            "host": host,
            "field": field,
            "seen": seen if seen is None or isinstance(seen, (int, bool)) else show(seen),
            "set": set_to,
            "message": message,
        }
        if needed is not None:
            entry["needed"] = needed
        self._problems[canonical_json(entry)] = entry

    def warning(
        self, code: str, message: str, host: Optional[str] = None, field: Optional[str] = None, **values: Any
    ) -> None:
        """Record something the operator should know; the plan stays valid.

        `values` go into the warning as they are: ``seen``, ``needed`` and ``set``, where a value can be compared.
        """
        assert code in codes.WARNINGS, code
        entry = dict(values, code=code, host=host, field=field, message=message)
        self._warnings[canonical_json(entry)] = entry

    def decide(
        self, rule: str, key: str, value: Any, because: str, host: Optional[str] = None, group: Optional[str] = None
    ) -> None:
        """Record a chosen value, the rule that chose it and the reason in a sentence with the numbers seen."""
        assert rule in codes.RULES, rule
        self.decisions.append(
            {"host": host, "group": group, "key": key, "value": value, "rule": rule, "because": because}
        )

    @property
    def count(self) -> int:
        """How many problems there are; `problems` sorts them each time it is asked."""
        return len(self._problems)

    @property
    def problems(self) -> List[Dict[str, Any]]:
        return _ordered(self._problems)

    @property
    def warnings(self) -> List[Dict[str, Any]]:
        return _ordered(self._warnings)

    def sorted_decisions(self) -> List[Dict[str, Any]]:
        """Fleet-wide decisions first, then by host and group; within those in the order they were made."""
        return sorted(self.decisions, key=lambda d: (natural_key(d["host"] or ""), natural_key(d["group"] or "")))


def _ordered(entries: Dict[str, Dict[str, Any]]) -> List[Dict[str, Any]]:
    return [entries[k] for k in sorted(entries, key=lambda k: (natural_key(entries[k]["host"] or ""), k))]
