# SPDX-License-Identifier: Apache-2.0
"""Releases of the Ascend driver (HDK): a driver and, for each device family, the firmware that belongs to it."""

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ansible.module_utils.vllm_ansible.plan import versions
from ansible.module_utils.vllm_ansible.plan.devices import FAMILIES
from ansible.module_utils.vllm_ansible.plan.reader import Reader


class Package(NamedTuple):
    """What a release has for one device family: the firmware's version and the architectures of the driver."""

    firmware: str
    architectures: Tuple[str, ...]


class Hdk(NamedTuple):
    """One release. `families`: those whose firmware is known; others cannot be installed from it."""

    name: str
    driver: str
    families: Dict[str, Package]
    unverified: Dict[str, str] = {}

    def serves(self, family: str, architecture: str) -> bool:
        """Whether driver and firmware for this family and architecture are known."""
        return family in self.families and architecture in self.families[family].architectures


HDK_KEYS = frozenset(Hdk._fields) - {"name"} | {"sources"}


def read_hdk(name: str, entry: Reader) -> Hdk:
    """Read one release; what is unusable is complained about through `entry`."""
    entry.only(HDK_KEYS)
    entry.sources()
    families = entry.mapping("families", required=True)
    found = {}
    for family in families.raw:
        own = families.mapping(family)
        own.only(Package._fields)
        found[family] = Package(own.text("firmware", required=True), tuple(own.texts("architectures", required=True)))
    release = Hdk(name, entry.text("driver", required=True), found, entry.text_map("unverified"))
    for field, text in [("driver", release.driver)] + [("families." + f, p.firmware) for f, p in found.items()]:
        if text and not versions.valid(text):
            entry.complain(entry.field(field), text, "a version")
    for family in sorted(set(found) - set(FAMILIES), key=str):
        entry.complain(entry.field("families"), family, "some of " + ", ".join(FAMILIES))
    return release


def serving(releases: Sequence[Hdk], families: Sequence[str], architecture: str) -> List[Hdk]:
    """Return the releases that have everything for these devices, newest first."""
    fitting = [r for r in releases if versions.valid(r.driver) and all(r.serves(f, architecture) for f in families)]
    return sorted(fitting, key=lambda r: (versions.key(r.driver), r.name), reverse=True)


def for_row(releases: Sequence[Hdk], row: Any, families: Sequence[str], architecture: str) -> List[Hdk]:
    """Return the releases `row` takes, best first: those that reach the floors of its features, then the newest."""
    taken = [r for r in serving(releases, families, architecture) if versions.matches(r.driver, row.drivers)]
    floors = [floor["driver"] for floor in row.features.values() if "driver" in floor]
    return sorted(taken, key=lambda r: not all(versions.matches(r.driver, floor) for floor in floors))


def of_driver(releases: Sequence[Hdk], driver: str, family: str, architecture: str) -> List[Hdk]:
    """Return the releases whose driver is `driver`, for this family and architecture."""
    if not versions.valid(driver):
        return []
    return [r for r in serving(releases, [family], architecture) if versions.compare(r.driver, driver) == 0]
