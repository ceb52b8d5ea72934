# SPDX-License-Identifier: Apache-2.0
"""Operating system, C library, init and virtualization."""

import re

from ansible.module_utils.vllm_ansible.hardware.values import word


def parse_os_release(text):
    """Return {KEY: value} of an os-release file, quotes and shell escapes removed."""
    values = {}
    for line in (text or "").splitlines():
        match = re.match(r"([A-Z0-9_]+)=(.*)\Z", line.strip())
        if match:
            value = match.group(2)
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            values[match.group(1)] = re.sub(r"\\(.)", r"\1", value)
    return values


def parse_systemd_version(text):
    """Return the number in the first line of ``systemctl --version``, or None."""
    match = re.match(r"systemd (\d+)", text or "")
    return int(match.group(1)) if match else None


def gather_os(host, warn):
    """Return the ``os`` facts."""
    system = host.system()
    release = parse_os_release(host.read("/etc/os-release") or host.read("/usr/lib/os-release"))
    if "ID" not in release:
        warn("W_OS_RELEASE", "/etc/os-release names no ID: the distribution is unknown")
    answer = host.run(["systemctl", "--version"])
    init = word(host.read("/proc/1/comm"))
    return {
        "id": release.get("ID"),
        "version_id": release.get("VERSION_ID"),
        # The only place that tells the service packs of Kylin V10 apart: "V10 (Lance)".
        "version": release.get("VERSION"),
        "name": release.get("NAME"),
        "kernel": system["kernel"],
        "glibc": system["glibc"],
        "python": system["python"],
        "init": init,
        "systemd": parse_systemd_version(answer[1]) if answer is not None and answer[0] == 0 else None,
        "virtualization": _virtualization(host, warn),
    }


def _virtualization(host, warn):
    answer = host.run(["systemd-detect-virt"])
    if answer is None:
        warn("W_DETECT_VIRT", "systemd-detect-virt is not installed: whether the host is virtual is unknown")
        return None
    # It exits 1 and prints "none" on a bare machine.
    name = word(answer[1])
    return name if name != "none" else None
