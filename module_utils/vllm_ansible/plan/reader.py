# SPDX-License-Identifier: Apache-2.0
"""Reads untrusted mappings: a value of the wrong kind is reported once and replaced by the default."""

from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

Complain = Callable[[str, Any, str], None]  # (field, value seen, what it has to be)


class Reader:
    """Typed access to one mapping whose fields are named `path`.key in complaints."""

    def __init__(self, raw: Any, path: str, complain: Complain) -> None:
        self.path = path
        self.complain = complain
        if not isinstance(raw, dict):
            complain(path, raw, "a mapping")
            raw = {}
        self.raw: Dict[Any, Any] = raw

    def field(self, key: str) -> str:
        return "{}.{}".format(self.path, key) if self.path else key

    def _value(self, key: str, kinds: Any, wanted: str, default: Any, required: bool) -> Any:
        value = self.raw.get(key)
        if value is None:
            if required:
                self.complain(self.field(key), None, wanted)
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            self.complain(self.field(key), value, wanted)
            return default
        return value

    def text(self, key: str, default: str = "", required: bool = False) -> str:
        return str(self._value(key, str, "a text", default, required))

    def optional_text(self, key: str) -> Optional[str]:
        return self.text(key) or None

    def integer(self, key: str, default: int = 0, required: bool = False, minimum: int = 0) -> int:
        value = int(self._value(key, int, "a whole number", default, required))
        if value < minimum and value == self.raw.get(key):  # a default may be below: it means none
            self.complain(self.field(key), value, "a whole number of at least {}".format(minimum))
            return default
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self._value(key, bool, "true or false", default, False))

    def number(self, key: str, default: float = 0.0) -> float:
        return float(self._value(key, (int, float), "a number", default, False))

    def choice(self, key: str, choices: Sequence[str], default: str = "") -> str:
        """One of `choices`; required unless there is a default."""
        value = self.text(key, default=default, required=not default)
        if value not in choices and isinstance(self.raw.get(key), str):
            self.complain(self.field(key), value, "one of " + ", ".join(choices))
            return default
        return value

    def choices(self, key: str, choices: Sequence[str]) -> List[str]:
        """A list of some of `choices`."""
        values = self.texts(key)
        for value in values:
            if value not in choices:
                self.complain(self.field(key), value, "some of " + ", ".join(choices))
        return [value for value in values if value in choices]

    def only(self, known: Iterable[str]) -> None:
        """Complain about every field outside `known`: a misspelt field would have no effect."""
        for key in sorted(str(k) for k in set(self.raw) - set(known)):
            self.complain(self.field(key), self.raw.get(key), "one of " + ", ".join(sorted(known)))

    def mapping(self, key: str, required: bool = False) -> "Reader":
        return Reader(self._value(key, dict, "a mapping", {}, required), self.field(key), self.complain)

    def list(self, key: str, required: bool = False) -> List[Any]:
        return list(self._value(key, list, "a list", [], required))

    def texts(self, key: str, required: bool = False) -> List[str]:
        values = self.list(key, required)
        for value in values:
            if not isinstance(value, str):
                self.complain(self.field(key), value, "a list of texts")
        return [value for value in values if isinstance(value, str)]

    def text_map(self, key: str) -> Dict[str, str]:
        """A mapping of names to texts; a name without a value is left out."""
        entry = self.mapping(key)
        present = sorted(str(name) for name in entry.raw if entry.raw[name] is not None)
        return {name: entry.text(name, required=True) for name in present}

    def sources(self) -> None:
        """Complain unless the entry says where its values come from."""
        if not self.mapping("sources", required=True).raw:
            self.complain(self.field("sources"), {}, "a mapping of field to where its values come from")

    def readers(self, key: str) -> List["Reader"]:
        return [
            Reader(item, "{}[{}]".format(self.field(key), index), self.complain)
            for index, item in enumerate(self.list(key))
        ]
