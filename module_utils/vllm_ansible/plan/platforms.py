# SPDX-License-Identifier: Apache-2.0
"""Operating systems of the catalogue: on which of them a vendor supports which device family."""

import re
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.plan.reader import Reader


class Platform(NamedTuple):
    """One release of an operating system.

    `os` and `version` are ID and VERSION_ID of os-release; `label`, when not empty, is a pattern that VERSION has to
    contain (Kylin's service packs and openEuler's differ in nothing else). `families`: architecture -> device families
    whose driver the vendor offers for it. `kernels`: architecture -> kernel versions the vendor names.
    """

    name: str
    os: str
    version: str
    label: str
    families: Dict[str, Tuple[str, ...]]
    kernels: Dict[str, Tuple[str, ...]]
    glibc: str
    unverified: Dict[str, str] = {}

    def is_of(self, os_id: str, version_id: str, version: str) -> bool:
        """Whether os-release with these ID, VERSION_ID and VERSION describes this platform."""
        same = self.os == os_id.lower() and self.version.lower() == version_id.lower()
        return same and bool(re.search(self.label, version, re.IGNORECASE))


PLATFORM_KEYS = frozenset(Platform._fields) - {"name"} | {"sources"}


def read_platform(name: str, entry: Reader) -> Platform:
    """Read one platform; what is unusable is complained about through `entry`."""
    entry.only(PLATFORM_KEYS)
    entry.sources()
    families, kernels = entry.mapping("families", required=True), entry.mapping("kernels")
    return Platform(
        name=name,
        os=entry.text("os", required=True),
        version=entry.text("version", required=True),
        label=entry.text("label"),
        families={a: tuple(families.texts(a)) for a in families.raw},
        kernels={a: tuple(kernels.texts(a)) for a in kernels.raw},
        glibc=entry.text("glibc"),
        unverified=entry.text_map("unverified"),
    )


def find(platforms: Any, os_id: str, version_id: str, version: str) -> Optional[Platform]:
    """Return the platform that os-release describes, the one with the longest label first, or None."""
    fitting = [p for p in platforms if p.is_of(os_id, version_id, version)]
    return max(fitting, key=lambda p: (len(p.label), p.name)) if fitting else None
