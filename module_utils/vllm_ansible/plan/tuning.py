# SPDX-License-Identifier: Apache-2.0
"""Tuning profiles of the catalogue: host settings per platform. Data only; the plan hands one to each host."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.plan.reader import Reader


class Tuning(NamedTuple):
    """Settings of one kind of host.

    It is meant for hosts with one of `families` (device families, ``cpu`` for none) and `architectures`; of several
    that fit, the one with the highest `priority` counts. `advice` is what only a person can set, firmware options say.
    """

    name: str
    families: Tuple[str, ...]
    architectures: Tuple[str, ...]
    priority: int
    sysctl: Dict[str, str]
    optional_sysctl: Dict[str, str]
    kernel_parameters: Tuple[str, ...]
    governor: str
    tuned: str
    irqbalance: str
    transparent_hugepages: str
    limits: Dict[str, str]
    environment: Dict[str, str]
    advice: Tuple[str, ...]
    unverified: Dict[str, str]


TUNING_KEYS = frozenset(Tuning._fields) - {"name"} | {"sources"}


def read_tuning(name: str, entry: Reader) -> Tuning:
    """Read one profile; what is unusable is complained about through `entry`."""
    entry.only(TUNING_KEYS)
    entry.sources()
    return Tuning(
        name=name,
        families=tuple(entry.texts("families", required=True)),
        architectures=tuple(entry.texts("architectures", required=True)),
        priority=entry.integer("priority"),
        sysctl=entry.text_map("sysctl"),
        optional_sysctl=entry.text_map("optional_sysctl"),
        kernel_parameters=tuple(entry.texts("kernel_parameters")),
        governor=entry.text("governor"),
        tuned=entry.text("tuned"),
        irqbalance=entry.choice("irqbalance", ("enabled", "disabled", "engine"), default="enabled"),
        transparent_hugepages=entry.text("transparent_hugepages"),
        limits=entry.text_map("limits"),
        environment=entry.text_map("environment"),
        advice=tuple(entry.texts("advice")),
        unverified=entry.text_map("unverified"),
    )


def choose(profiles: Any, families: Tuple[str, ...], architecture: str) -> Optional[Tuning]:
    """Return the profile for a host with these device families (none: a CPU host), or None."""
    wanted = set(families or ("cpu",))
    fitting = [p for p in profiles if architecture in p.architectures and wanted.intersection(p.families)]
    return max(fitting, key=lambda p: (p.priority, p.name)) if fitting else None
