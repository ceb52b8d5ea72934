# SPDX-License-Identifier: Apache-2.0
"""Mounted file systems and where given paths would lie on them."""

import posixpath
import re
import time
from typing import Optional, Set

from ansible.module_utils.vllm_ansible.hardware.values import word

BLOCK = "/sys/class/block"
# Drivers of controllers that show arrays as if they were disks.
RAID_DRIVERS = ("megaraid_sas", "hpsa", "smartpqi", "aacraid", "arcmsr", "hiraid")

# File systems that hold no operator's data. Anything else (ext4, xfs, zfs, nfs, lustre, fuse.*, …) may.
_PSEUDO = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "fuse.lxcfs",
    "hugetlbfs",
    "iso9660",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
]


def parse_mountinfo(text):
    """Return the mounts of a /proc/<pid>/mountinfo, later ones last: mount, device, fstype, number."""
    mounts = []
    for line in (text or "").splitlines():
        before, dash, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if dash and len(left) >= 6 and len(right) >= 2:
            mounts.append(
                {"mount": _unescape(left[4]), "device": _unescape(right[1]), "fstype": right[0], "number": left[2]}
            )
    return mounts


def is_disk(mount):
    """Tell whether a mount holds an operator's data."""
    if mount["fstype"] == "overlay":
        return mount["mount"] == "/"  # elsewhere it is a container's view of a disk that is already listed
    return mount["fstype"] not in _PSEUDO and not mount["mount"].startswith("/run/")


def gather_disks(host, measure, warn):
    """Return the ``disks`` facts: one entry per file system, at the mount point nearest to the root.

    ``read_bytes_per_s`` is None unless it was to be measured and could be.
    """
    disks = {}
    for mount in sorted(parse_mountinfo(host.read("/proc/self/mountinfo")), key=lambda entry: len(entry["mount"])):
        if not is_disk(mount) or mount["number"] in disks:
            continue
        usage = host.usage(mount["mount"])
        if usage is not None:
            entry = {"mount": mount["mount"], "device": mount["device"], "fstype": mount["fstype"]}
            entry.update(gather_kind(host, mount["device"]))
            disks[mount["number"]] = dict(entry, read_bytes_per_s=None, **usage)
    if measure:
        _measure(host, disks.values(), warn)
    return sorted(disks.values(), key=lambda entry: entry["mount"])


def _measure(host, disks, warn):
    """Fill in how fast each device is read. Bounded: 512 MiB or 2 s a device, 30 s together."""
    end = time.monotonic() + 30
    speeds = {}
    for disk in disks:
        device = disk["device"]
        if device not in speeds:
            late = time.monotonic() > end
            speeds[device] = (
                host.measure_read(device, 512 << 20, 2) if device.startswith("/dev/") and not late else None
            )
            if speeds[device] is None:
                warn("W_DISK_SPEED", f"the read speed of {device} ({disk['mount']}) could not be measured")
        disk["read_bytes_per_s"] = speeds[device]


def gather_paths(host, paths, warn):
    """Return {path: {"mount", "available_bytes"}}: the file system a path lies on, or would once created."""
    mounts = [entry["mount"] for entry in parse_mountinfo(host.read("/proc/self/mountinfo"))]
    result = {}
    for path in sorted(set(paths)):
        real = host.real_path(path)
        existing = real
        while existing != "/" and not host.exists(existing):
            existing = posixpath.dirname(existing)
        around = [mount for mount in mounts if mount == "/" or (real + "/").startswith(mount + "/")]
        usage = host.usage(existing)
        if not around or usage is None:
            warn("W_PATH", f"no file system found for {path}")
            result[path] = {"mount": None, "available_bytes": None}
            continue
        result[path] = {"mount": max(around, key=len), "available_bytes": usage["available_bytes"]}
    return result


def _unescape(text):
    """Undo the kernel's octal escapes (blank, tab, newline, backslash)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def parse_block_name(device):
    """Return the name in /sys/class/block of a device file (``/dev/sda3``), or None for what is none."""
    match = re.match(r"/dev/(?:[\w.-]+/)*([\w.-]{1,64})\Z", device or "", re.ASCII)
    return match.group(1) if match else None


def gather_kind(host, device):
    """Return {"kind", "raid"} of a block device.

    ``kind``: nvme, ssd, hdd or virtual, the slowest where several lie below, or None. ``raid``: the level of a software
    array (``raid1``), the driver of a RAID controller (``megaraid_sas``), which hides what its disks are, or None.
    """
    kinds, arrays = set(), set()
    waiting = [parse_block_name(host.real_path(device))] if device.startswith("/dev/") else []
    seen: Set[Optional[str]] = set()
    while waiting and len(seen) < 64:
        name = waiting.pop()
        directory = f"{BLOCK}/{name}"
        if name is None or name in seen:
            continue
        seen.add(name)
        link = host.read_link(directory) or ""
        if host.exists(directory + "/partition"):
            waiting.append(link.rstrip("/").split("/")[-2] if link.count("/") else None)
            continue
        level = word(host.read(directory + "/md/level"))
        if level is not None:
            arrays.add(level)
        below = host.list_directory(directory + "/slaves")
        waiting += below
        if below:
            continue
        scsi = re.search(r"/host([0-9]{1,5})/", link)
        driver = word(host.read(f"/sys/class/scsi_host/host{scsi.group(1)}/proc_name")) if scsi else None
        if driver in RAID_DRIVERS:
            arrays.add(driver)
        rotational = word(host.read(directory + "/queue/rotational"))
        if re.match(r"nvme[0-9]", name):
            kinds.add("nvme")
        elif re.match(r"x?vd[a-z]", name):
            kinds.add("virtual")
        elif rotational in ("0", "1"):
            kinds.add("hdd" if rotational == "1" else "ssd")
    slowest = [kind for kind in ("hdd", "virtual", "ssd", "nvme") if kind in kinds]
    return {"kind": slowest[0] if slowest else None, "raid": ", ".join(sorted(arrays)) or None}
