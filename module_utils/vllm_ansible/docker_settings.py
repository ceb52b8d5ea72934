# SPDX-License-Identifier: Apache-2.0
"""Docker's daemon.json: a runtime is put into it and taken out again, everything else stays as it is.

NVIDIA's own tool (nvidia-ctk runtime configure) keeps other keys too, but writes all of them anew in the order of the
alphabet and replaces the entry of its runtime with its arguments (pkg/config/engine/docker/docker.go, d34b304).
"""

import json
import re
from typing import Any, Dict


class SettingsError(Exception):
    """The file is not what Docker takes; the text says where and why."""


def parse(text: str) -> Dict[str, Any]:
    """Return the settings in their order; an empty file has none. Raises SettingsError."""
    if not text.strip():
        return {}
    try:
        settings = json.loads(text, object_pairs_hook=_no_twins)
    except ValueError as error:
        raise SettingsError("it is not valid JSON ({0})".format(error)) from error
    if not isinstance(settings, dict):
        raise SettingsError("it holds no JSON object")
    for name in ("runtimes",):
        if not isinstance(settings.get(name, {}), dict):
            raise SettingsError('"{0}" in it is no JSON object'.format(name))
    return settings


def _no_twins(pairs):
    """Refuse a key that is there twice: writing the file anew would lose one of them."""
    found: Dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise SettingsError('"{0}" is there twice'.format(key))
        found[key] = value
    return found


def with_runtime(text: str, name: str, program: str, default: bool) -> str:
    """Return the text with the runtime in it: unchanged when it is; arguments of an entry that is there stay.

    Args:
        default: make it the default runtime. Otherwise the default stays what it is.
    """
    settings = parse(text)
    entry = settings.get("runtimes", {}).get(name)
    good = isinstance(entry, dict) and entry.get("path") == program
    if good and (not default or settings.get("default-runtime") == name):
        return text
    runtimes = settings.setdefault("runtimes", {})
    if not good:
        runtimes[name] = dict(entry if isinstance(entry, dict) else {"args": []}, path=program)
    if default:
        settings["default-runtime"] = name
    return _written(settings, text)


def without_runtime(text: str, name: str) -> str:
    """Return the text without the runtime, and without it as the default."""
    settings = parse(text)
    if name not in settings.get("runtimes", {}) and settings.get("default-runtime") != name:
        return text
    settings.get("runtimes", {}).pop(name, None)
    if settings.get("runtimes") == {}:
        del settings["runtimes"]
    if settings.get("default-runtime") == name:
        del settings["default-runtime"]
    return _written(settings, text)


def _written(settings, before):
    """The settings with the indentation that the file had."""
    found = re.search(r"^([ \t]+)\"", before, re.MULTILINE)
    return json.dumps(settings, indent=found.group(1) if found else 4, ensure_ascii=False) + "\n"
