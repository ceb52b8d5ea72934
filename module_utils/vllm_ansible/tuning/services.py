# SPDX-License-Identifier: Apache-2.0
"""irqbalance and the power limit of NVIDIA GPUs: seen, planned, changed, put back.

Sources: irqbalance(1) (IRQBALANCE_BANNED_CPULIST since 1.8, IRQBALANCE_BANNED_CPUS before), nvidia-smi(1).
"""

from typing import Any, Dict, List, NamedTuple

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist, parse_cpulist
from ansible.module_utils.vllm_ansible.tuning.files import MARK

IRQBALANCE = "irqbalance.service"
BANNED_FILE = "/etc/vllm/irqbalance.env"
BANNED_DROPIN = "/etc/systemd/system/irqbalance.service.d/50-vllm.conf"
# A file read after the distribution's own: the last setting of a variable wins (systemd.exec(5)).
BANNED_DROPIN_TEXT = MARK + "[Service]\nEnvironmentFile={0}\n".format(BANNED_FILE)

POWER_UNIT = "gpu-power-limit.service"
POWER_FILE = "/etc/systemd/system/" + POWER_UNIT
POWER_LINK = "/etc/systemd/system/multi-user.target.wants/" + POWER_UNIT
POWER_QUERY = [
    "nvidia-smi",
    "--query-gpu=index,power.limit,power.default_limit,power.min_limit,power.max_limit",
    "--format=csv,noheader,nounits",
]
POWER_TEXT = (
    MARK
    + """[Unit]
Description=Power limit of the GPUs
After=nvidia-persistenced.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nvidia-smi -pl {watts}

[Install]
WantedBy=multi-user.target
"""
)


class Service(NamedTuple):
    """A unit as systemd sees it."""

    exists: bool
    active: bool
    enabled: bool
    pid: int


def service(host, unit):
    """Return the Service of a unit; one that does not exist where there is no systemd."""
    answer = host.run(["systemctl", "show", unit, "--property=LoadState,ActiveState,UnitFileState,MainPID"])
    found = dict(line.split("=", 1) for line in (answer[1] if answer else "").splitlines() if "=" in line)
    return Service(
        exists=found.get("LoadState") == "loaded",
        active=found.get("ActiveState") in ("active", "activating", "reloading"),
        enabled=found.get("UnitFileState") == "enabled",
        pid=int(found.get("MainPID") or 0),
    )


def cpu_mask(cpus):
    """Return CPUs as groups of 32 bits, the highest first: [0, 33] → "00000002,00000001"."""
    value = sum(1 << cpu for cpu in cpus)
    groups: List[str] = []
    while value or not groups:
        groups.insert(0, "{0:08x}".format(value & 0xFFFFFFFF))
        value >>= 32
    return ",".join(groups)


def banned_text(cpus):
    """Return the environment of irqbalance that keeps interrupts off CPUs."""
    numbers = parse_cpulist(cpus)
    return MARK + "IRQBALANCE_BANNED_CPULIST={0}\nIRQBALANCE_BANNED_CPUS={1}\n".format(
        format_cpulist(numbers), cpu_mask(numbers)
    )


def irqbalance_seen(host, found, policy, banned):
    """Return (seen, planned) of irqbalance; equal when nothing is to be done.

    Args:
        found: its Service.
        policy: "stop", "banned", or "keep" (leave alone).
        banned: CPUs it has to leave alone.
    """
    if policy == "stop":
        words = [word for word, is_so in (("running", found.active), ("enabled", found.enabled)) if is_so]
        return " and ".join(words) or "stopped", "stopped"
    if policy == "banned" and found.active:
        environment = (host.read("/proc/{0}/environ".format(found.pid)) or "").split("\0")
        value = dict(item.split("=", 1) for item in environment if "=" in item).get("IRQBALANCE_BANNED_CPULIST", "")
        return "banned from CPUs {0}".format(value or "none"), "banned from CPUs {0}".format(
            format_cpulist(parse_cpulist(banned))
        )
    return "left alone", "left alone"


class Gpu(NamedTuple):
    """Power limits of a GPU in watts."""

    number: str
    limit: float
    default: float
    least: float
    most: float


def gpus(host):
    """Return the GPUs that nvidia-smi lists with a limit that can be set; [] without the tool."""
    answer = host.run(POWER_QUERY)
    found = []
    for line in answer[1].splitlines() if answer and answer[0] == 0 else []:
        words = [word.strip() for word in line.split(",")]
        try:
            found.append(Gpu(words[0], *[float(word) for word in words[1:5]]))
        except (TypeError, ValueError):  # [N/A], [Not Supported]
            continue
    return found


def power_problems(found, watts):
    """Return why the limit cannot be set; empty when it can."""
    if not found:
        return ["gpu_power_limit_watts: nvidia-smi lists no GPU whose limit can be set."]
    return [
        "gpu_power_limit_watts: GPU {0} takes {1:g} to {2:g} W, not {3}.".format(gpu.number, gpu.least, gpu.most, watts)
        for gpu in found
        if not gpu.least <= watts <= gpu.most
    ]


def power_changes(found, watts, before):
    """Return ({GPU: watts to set}, note {GPU: {"before": W, "ours": W}}); `watts` None: put back what was before."""
    writes: Dict[str, float] = {}
    note: Dict[str, Any] = {}
    for gpu in found:
        entry = before.get(gpu.number)
        if watts is not None:
            note[gpu.number] = {"before": entry["before"] if entry else gpu.limit, "ours": float(watts)}
            if gpu.limit != watts:
                writes[gpu.number] = float(watts)
        elif entry and gpu.limit == entry["ours"] != entry["before"]:
            writes[gpu.number] = entry["before"]
    return writes, note
