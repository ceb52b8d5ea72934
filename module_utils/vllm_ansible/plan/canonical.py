# SPDX-License-Identifier: Apache-2.0
"""One spelling for every value: canonical JSON, digests, sorting and units."""

import functools
import hashlib
import json
import re
from typing import Any, Tuple

GIB = 1024**3
# Names whose values are never repeated: in a key of a request, a flag or an environment variable.
SECRET_NAME = re.compile(
    r"(^|[._-])(API[_-]?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)([_-]|\Z)", re.IGNORECASE
)


def canonical_json(value: Any) -> str:
    """Return `value` as JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def plain(value: Any) -> Any:
    """Return what YAML read as JSON would bring it: names of mappings are texts, dates are texts."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else show(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (str, bool, int, float)) else str(value)


def digest(value: Any) -> str:
    """Return ``sha256:<hex>`` over the canonical JSON of `value`."""
    return "sha256:" + hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


@functools.lru_cache(maxsize=65536)
def natural_key(text: str) -> Tuple[Tuple[int, int, str], ...]:
    """Sort key that puts ``npu2`` before ``npu10``."""
    parts = re.split(r"([0-9]+)", text)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part)


def show(value: Any, limit: int = 120) -> str:
    """Return a short JSON text of an untrusted value, for the `seen` of a problem."""
    if isinstance(value, str):
        text = value
    else:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str, skipkeys=True)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def gib(size: float) -> str:
    """Return a byte count as GiB for a person, e.g. ``1.5 GiB``; small ones as MiB."""
    if abs(size) < GIB // 10:
        return "{:.0f} MiB".format(size / 1024**2)
    return "{:.1f} GiB".format(size / GIB)


def slug(text: str) -> str:
    """Return `text` as a name fit for a systemd unit: ``pool_smollm2`` and ``Pool SmolLM2`` give ``pool-smollm2``."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:48].strip("-") or "engine"


def version_key(text: str) -> Tuple[int, ...]:
    """Return the numbers of a dotted version, for comparing: ``2.36`` gives ``(2, 36)``."""
    return tuple(int(part) for part in re.findall(r"[0-9]{1,9}", text))
