# SPDX-License-Identifier: Apache-2.0
"""The files that keep a profile over a reboot: a profile of tuned, or sysctl.d and a unit."""

from typing import Dict

MARK = "# Ansible managed: vllm_tuning\n"
SYSCTL_FILE = "/etc/sysctl.d/99-vllm-tuned-profile.conf"
VALUES_FILE = "/etc/vllm/tuned-profile.conf"
UNIT = "tuned-profile.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
UNIT_LINK = "/etc/systemd/system/sysinit.target.wants/" + UNIT

# Early, so that a service that starts later finds the values; what needs a driver is not here.
UNIT_TEXT = (
    MARK
    + """[Unit]
Description=Kernel settings of the profile {profile}
DefaultDependencies=no
Conflicts=shutdown.target
After=local-fs.target systemd-modules-load.service systemd-sysctl.service
Before=sysinit.target shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/systemd-tmpfiles --create {values}

[Install]
WantedBy=sysinit.target
"""
)


def tuned_folder(host):
    """Return the folder of the site's own profiles: /etc/tuned, or /etc/tuned/profiles where tuned has it."""
    return "/etc/tuned/profiles" if host.exists("/etc/tuned/profiles") else "/etc/tuned"


def sysctl_name(path):
    """Return the name of a file of /proc/sys with slashes, which any name survives."""
    return path[len("/proc/sys/") :]


def split(profile):
    """Return (sysctls {name: value}, other files {path: value}); the governors of all CPUs are one pattern."""
    sysctls: Dict[str, str] = {}
    others: Dict[str, str] = {}
    for setting in profile.settings:
        if setting.path.startswith("/proc/sys/"):
            sysctls[sysctl_name(setting.path)] = setting.value
        elif setting.name != "governor":
            others[setting.path] = setting.value
        elif "/cpufreq/policy" in setting.path:
            others["/sys/devices/system/cpu/cpufreq/policy*/scaling_governor"] = setting.value
        else:
            others["/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"] = setting.value
    return sysctls, others


def for_systemd(name, profile):
    """Return {path: text} of the files without tuned; a file that would be empty is not among them."""
    sysctls, others = split(profile)
    found = {}
    if sysctls:
        lines = "".join("{0} = {1}\n".format(*item) for item in sorted(sysctls.items()))
        found[SYSCTL_FILE] = MARK + lines
    if others:
        found[VALUES_FILE] = MARK + "".join("w {0} - - - - {1}\n".format(*item) for item in sorted(others.items()))
        found[UNIT_FILE] = UNIT_TEXT.format(profile=name, values=VALUES_FILE)
    return found


def for_tuned(host, name, profile):
    """Return {path: text} of the profile of tuned (tuned-profiles: plugins sysctl, vm, cpu, sysfs)."""
    sysctls, others = split(profile)
    sections: Dict[str, Dict[str, str]] = {
        "main": {"summary": "Kernel settings for vLLM"},
        # tuned takes dots; a name with a dot inside a part keeps its slashes.
        "sysctl": {key if "." in key else key.replace("/", "."): value for key, value in sysctls.items()},
        "vm": {},
        "cpu": {},
        "sysfs": {},
    }
    for path, value in others.items():
        if path.endswith("/transparent_hugepage/enabled"):
            sections["vm"]["transparent_hugepages"] = value
        elif path.endswith("/scaling_governor"):
            sections["cpu"]["governor"] = value
        else:
            sections["sysfs"][path] = value
    text = MARK
    for section, items in sections.items():
        if items:
            text += "\n[{0}]\n".format(section) + "".join("{0}={1}\n".format(*item) for item in sorted(items.items()))
    return {"{0}/{1}/tuned.conf".format(tuned_folder(host), name): text}
