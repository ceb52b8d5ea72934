# SPDX-License-Identifier: Apache-2.0
"""Chooses a row for a machine: the newest final one that fits everything, with the reason for each that does not."""

import re
from typing import Any, Callable, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from ansible.module_utils.vllm_ansible.plan import hdk, nvidia, platforms, versions
from ansible.module_utils.vllm_ansible.plan.catalogue import Catalogue, Row


class MachineFacts(NamedTuple):
    """What a row depends on. Texts are empty when the facts do not say.

    `families`: the device families present, none on CPU hosts. `driver` and `firmware` are empty until they are
    installed, which is no obstacle: the plan installs them. `driver_pinned`: the site asks for this driver, whatever is
    installed. `os_version` is VERSION_ID of os-release, `os_label` its
    VERSION (``V10 (Lance)``).
    """

    families: Tuple[str, ...] = ()
    driver: str = ""
    firmware: str = ""
    os_id: str = ""
    os_version: str = ""
    os_label: str = ""
    architecture: str = ""
    glibc: str = ""
    page_size_bytes: int = 0
    isa: FrozenSet[str] = frozenset()
    driver_pinned: bool = False


class Rejected(NamedTuple):
    """A row that does not fit: why, which field of the facts says so, the value seen, and what would fit."""

    row: str
    reason: str
    seen: str
    set_to: str
    field: str = ""


class Choice(NamedTuple):
    """The row, or None; the rows that were newer or pinned and do not fit; what of the chosen row is unverified."""

    row: Optional[Row]
    rejected: Tuple[Rejected, ...]
    cautions: Tuple[str, ...] = ()


def facts_of(
    hardware: Any, families: Sequence[str] = (), driver: str = "", firmware: str = "", pinned: str = ""
) -> MachineFacts:
    """Return the facts rows depend on, from the planner's hardware (`facts.Hardware`) and a pinned driver."""
    return MachineFacts(
        driver_pinned=bool(pinned) and pinned != driver,
        families=tuple(sorted(set(families))),
        driver=pinned or driver,
        firmware=firmware,
        os_id=hardware.os_id,
        os_version=hardware.os_version,
        os_label=hardware.os_label,
        architecture=hardware.architecture,
        glibc=hardware.glibc,
        page_size_bytes=hardware.page_size_bytes,
        isa=hardware.isa,
    )


def candidates(catalogue: Catalogue, backend: str, pinned: Optional[str]) -> List[Row]:
    """Rows of `backend`, newest first. A candidate release is only taken when it is pinned."""
    rows = [row for row in catalogue.rows if row.backend == backend]
    if pinned:
        rows = [row for row in rows if _is(pinned, row)]
    else:
        rows = [row for row in rows if row.final]
    return sorted(rows, key=lambda row: (versions.key(row.release), row.name), reverse=True)


def _is(pinned: str, row: Row) -> bool:
    """Whether a pin of the engine's or the plugin's version means `row`."""
    if not versions.valid(pinned):
        return False
    exact = [v for v in (row.version, row.plugin_version) if v]
    same = any(versions.compare(pinned, v) == 0 for v in exact)
    # vllm-ascend 0.23.0rc1 and 0.23.0 are both for vLLM 0.23.0: the pin of the final one is not the candidate
    return same and (row.final or versions.prerelease(pinned))


def choose(catalogue: Catalogue, backend: str, pinned_version: Optional[str], facts: MachineFacts) -> Choice:
    """Return the newest row of `backend` (or of the pinned version) that fits `facts`; rows are never mixed."""
    rejected: List[Rejected] = []
    rows = candidates(catalogue, backend, pinned_version)
    undriven = _platform(catalogue, rows[0], facts) if rows else None
    if undriven:  # the same for every row
        return Choice(None, (undriven,))
    # rows for other devices say nothing about this machine, as long as there are some for its own
    for row in [r for r in rows if set(facts.families) & set(r.families)] or rows:
        strange = _families(catalogue, row, facts)
        # what else a row needs says nothing about a machine whose devices it cannot drive
        reasons = [strange] if strange else [r for c in CHECKS for r in [c(catalogue, row, facts)] if r is not None]
        if not reasons:
            cautions = ["{}: {}".format(field, row.unverified[field]) for field in sorted(row.unverified)]
            return Choice(row, tuple(rejected), tuple(cautions))
        rejected += reasons
    return Choice(None, tuple(rejected))


Check = Callable[[Catalogue, Row, MachineFacts], Optional[Rejected]]


def _families(catalogue: Catalogue, row: Row, facts: MachineFacts) -> Optional[Rejected]:
    strange = [family for family in facts.families if family not in row.families]
    if not strange:
        return None
    because = {d.family: d.because for d in catalogue.devices.all if not d.supported}
    reason = "does not run on {}".format(", ".join(strange))
    if because.get(strange[0]):
        reason += " ({})".format(because[strange[0]])
    return Rejected(
        row.name, reason, ", ".join(strange), "devices of family " + " or ".join(row.families),
        "vllm_hardware.accelerators",
    )  # fmt: skip


def _architecture(catalogue: Catalogue, row: Row, facts: MachineFacts) -> Optional[Rejected]:
    if facts.architecture in row.machines:
        return None
    return Rejected(
        row.name, "is made for {}".format(", ".join(row.architectures)), facts.architecture or "unknown",
        "a host of architecture " + " or ".join(row.architectures), "vllm_hardware.architecture",
    )  # fmt: skip


def _isa(catalogue: Catalogue, row: Row, facts: MachineFacts) -> Optional[Rejected]:
    machine = row.machines.get(facts.architecture)
    missing = [isa for isa in machine.isa if isa not in facts.isa] if machine else []
    if not missing:
        return None
    return Rejected(
        row.name, "needs the instructions {}".format(", ".join(missing)), ", ".join(sorted(facts.isa)) or "none",
        "a CPU with " + ", ".join(missing), "vllm_hardware.cpu.isa",
    )  # fmt: skip


def _glibc(catalogue: Catalogue, row: Row, facts: MachineFacts) -> Optional[Rejected]:
    machine = row.machines.get(facts.architecture)
    if machine is None or not facts.glibc:
        return None
    if versions.valid(facts.glibc) and versions.compare(facts.glibc, machine.glibc) >= 0:
        return None
    return Rejected(
        row.name, "needs glibc {} or newer".format(machine.glibc), facts.glibc,
        "an operating system with glibc {} or newer, or a container of one{}".format(
            machine.glibc,
            ": the host's driver serves it through the container toolkit" if row.backend == "cuda" else ""),
        "vllm_hardware.os.glibc",
    )  # fmt: skip


def _pages(catalogue: Catalogue, row: Row, facts: MachineFacts) -> Optional[Rejected]:
    if not row.page_sizes or not facts.page_size_bytes or facts.page_size_bytes in row.page_sizes:
        return None
    return Rejected(
        row.name, "has libraries for memory pages of {} bytes".format(" or ".join(str(s) for s in row.page_sizes)),
        str(facts.page_size_bytes), "a kernel with pages of {} bytes".format(row.page_sizes[0]),
        "vllm_hardware.memory.page_size_bytes",
    )  # fmt: skip


def _driver(catalogue: Catalogue, row: Row, facts: MachineFacts) -> Optional[Rejected]:
    """The driver has to be one the row's toolkit was released for, or one of those has to be there to install."""
    if not row.drivers:
        return None
    if facts.driver and versions.valid(facts.driver) and versions.matches(facts.driver, row.drivers):
        return None
    if row.backend == "cuda":
        return _gpu_driver(catalogue, row, facts)
    toolkit = next((k for k in ("cann", "cuda") if k in row.versions), "")
    wanted = "driver {}".format(in_words(row.drivers))
    needs = "{} {}".format(toolkit.upper(), row.versions[toolkit]) if toolkit else "the row"
    if not facts.driver:
        if row.status != "installable" or hdk.for_row(catalogue.hdk, row, facts.families, facts.architecture):
            return None
        return Rejected(
            row.name, "{} needs {}, and the firmware of none of them is known for {} on {}".format(
                needs, wanted, ", ".join(facts.families), facts.architecture), "none installed",
            "a release with driver and firmware in deployment_plan_catalogue_overrides.hdk", "catalogue.hdk",
        )  # fmt: skip
    others = replacements(catalogue, row, facts)
    older = versions.valid(facts.driver) and all(versions.compare(facts.driver, r.driver) < 0 for r in others)
    if others and older and not facts.driver_pinned:
        return None  # it will be replaced; a newer one is not, unasked
    if others:
        wanted += ", or {} engine_driver: {}".format(
            "instead" if facts.driver_pinned else "to replace it", " or ".join(r.driver for r in others))  # fmt: skip
    return Rejected(
        row.name, "{} needs driver {}".format(needs, in_words(row.drivers)), facts.driver, wanted,
        "engine_driver" if facts.driver_pinned else "vllm_hardware.accelerators.driver",
    )  # fmt: skip


def _gpu_driver(catalogue: Catalogue, row: Row, facts: MachineFacts) -> Optional[Rejected]:
    """None, an older or no driver is no obstacle where NVIDIA's packages for the system have one that the row takes."""
    repository = nvidia.repository_of(catalogue, facts.os_id, facts.os_version, facts.architecture)
    releases = nvidia.for_row(catalogue, row, repository, facts.families)
    needs = "CUDA {} needs driver {}".format(row.versions.get("cuda", "?"), in_words(row.drivers))
    others = " or ".join(r.version for r in releases)
    if not facts.driver:
        if releases or not catalogue.gpu_repositories or not facts.os_id:
            return None
        return Rejected(
            row.name, "{}, and NVIDIA's repository {} has {}".format(
                needs, repository.name if repository else "for this system",
                ", ".join(r.version for r in nvidia.offered(catalogue, repository, facts.families))
                or "none for " + ", ".join(facts.families)), "none installed",
            "another operating system, an older engine_request.version, or the driver's own installer by hand",
            "catalogue.gpu_repositories",
        )  # fmt: skip
    known = versions.valid(facts.driver)
    older = known and all(versions.compare(facts.driver, r.version) < 0 for r in releases)
    if releases and older and not facts.driver_pinned:
        return None  # it will be replaced; a newer one is not, unasked
    wanted = "driver " + in_words(row.drivers)
    if releases:
        wanted += ", or engine_driver: " + others
    return Rejected(
        row.name, needs, facts.driver, wanted,
        "engine_driver" if facts.driver_pinned else "vllm_hardware.accelerators.driver",
    )  # fmt: skip


def replacements(catalogue: Catalogue, row: Row, facts: MachineFacts) -> List[hdk.Hdk]:
    """Return the driver releases that could be installed on the machine for `row`, best first."""
    if row.backend != "ascend" or row.status != "installable" or _platform(catalogue, row, facts._replace(driver="")):
        return []
    return hdk.for_row(catalogue.hdk, row, facts.families, facts.architecture)


def in_words(ranges: Sequence[str]) -> str:
    """Return version ranges as a person says them: ``25.2.X, 25.3.X or 26.0.RC1.X``, ``580.65.06 or newer``."""
    texts = [re.sub(r"^>=\s*(\S+)\Z", r"\1 or newer", text) for text in ranges]
    return ", ".join(texts[:-1]) + " or " + texts[-1] if len(texts) > 1 else "".join(texts)


def _platform(catalogue: Catalogue, row: Row, facts: MachineFacts) -> Optional[Rejected]:
    """Where no driver is installed yet, the vendor has to offer one for the operating system."""
    there = facts.driver and not facts.driver_pinned
    if row.backend == "cuda":
        return None if there else _gpu_platform(catalogue, row, facts)
    if there or row.backend != "ascend" or not catalogue.platforms or not facts.os_id:
        return None
    found = platforms.find(catalogue.platforms, facts.os_id, facts.os_version, facts.os_label)
    offered = found.families.get(facts.architecture, ()) if found else ()
    missing = [family for family in facts.families if family not in offered]
    if not missing:
        return None
    listed = [p.name for p in catalogue.platforms if set(missing) <= set(p.families.get(facts.architecture, ()))]
    seen = "{} {}".format(facts.os_id, facts.os_label or facts.os_version).strip()
    return Rejected(
        row.name, "no driver for {} is offered on {} {}".format(", ".join(missing), seen, facts.architecture), seen,
        "one of: {}".format(", ".join(listed) or "none is listed"), "vllm_hardware.os",
    )  # fmt: skip


def _gpu_platform(catalogue: Catalogue, row: Row, facts: MachineFacts) -> Optional[Rejected]:
    if not catalogue.gpu_repositories or not facts.os_id:
        return None
    if nvidia.repository_of(catalogue, facts.os_id, facts.os_version, facts.architecture) is not None:
        return None
    seen = "{} {}".format(facts.os_id, facts.os_label or facts.os_version).strip()
    listed = [r.name for r in catalogue.gpu_repositories if facts.architecture in r.architectures]
    return Rejected(
        row.name, "NVIDIA has no driver packages for {} on {}".format(seen, facts.architecture), seen,
        "a system of {}; or the driver's own installer for {} by hand: what is installed is used; or this system under "
        "ids of an entry of deployment_plan_catalogue_overrides.gpu_repositories, where another system's packages are "
        "known to work".format(", ".join(listed) or "a listed architecture", facts.architecture), "vllm_hardware.os",
    )  # fmt: skip


CHECKS: Tuple[Check, ...] = (_architecture, _isa, _glibc, _pages, _driver)


def missing_features(row: Row, driver: str) -> List[Tuple[str, str, str]]:
    """Return (feature, component, floor) for each feature whose floor the row or this driver does not reach.

    `driver` is the one the host will have; an empty one reaches every floor.
    """
    found = dict(row.versions, **({"driver": driver} if driver else {}))
    return [
        (feature, component, floor)
        for feature in sorted(row.features)
        for component, floor in sorted(row.features[feature].items())
        if component in found and not (versions.valid(found[component]) and versions.matches(found[component], floor))
    ]
