# SPDX-License-Identifier: Apache-2.0
"""A profile as files of /proc and /sys with their values, and who else may set them.

Sources: kernel admin-guide/sysctl, admin-guide/mm/{transhuge,hugetlbpage}, admin-guide/pm/cpufreq; sysctl.d(5);
tuned-main.conf (reapply_sysctl).
"""

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

TRANSPARENT = "/sys/kernel/mm/transparent_hugepage/enabled"
HUGE = "/sys/kernel/mm/hugepages"
NODES = "/sys/devices/system/node"
POLICIES = "/sys/devices/system/cpu/cpufreq"
CPUS = "/sys/devices/system/cpu"
# Later folders win over earlier ones for files of one name; files are read in the order of their names.
SYSCTL_FOLDERS = ("/usr/lib/sysctl.d", "/usr/local/lib/sysctl.d", "/run/sysctl.d", "/etc/sysctl.d")
TMPFILES_FOLDERS = ("/usr/lib/tmpfiles.d", "/run/tmpfiles.d", "/etc/tmpfiles.d")


class Setting(NamedTuple):
    """One file of the kernel and the value the profile wants in it."""

    name: str
    path: str
    value: str


class Difference(NamedTuple):
    """A setting that is not as planned; `places` are the files, `suspects` who may have set it."""

    name: str
    seen: str
    planned: str
    places: List[str]
    suspects: List[str]

    def sentence(self):
        """The difference for a person."""
        more = "" if len(self.places) == 1 else " in {0} places, the first {1}".format(len(self.places), self.places[0])
        text = "{0}: seen {1}{2}, planned {3}.".format(self.name, self.seen, more, self.planned)
        return text + (" It may have been set by {0}.".format(", ".join(self.suspects)) if self.suspects else "")


class Profile(NamedTuple):
    """What applies on a host.

    Args:
        settings: what can be set here.
        absent: sentences about what this kernel does not have and is passed over.
        problems: sentences about what cannot be carried out.
    """

    settings: List[Setting]
    absent: List[str]
    problems: List[str]


def sysctl_path(name):
    """Return the file of a sysctl: net.core.somaxconn or net/ipv4/conf/eth0.100/rp_filter (sysctl.d(5))."""
    dot, slash = name.find("."), name.find("/")
    if slash != -1 and (dot == -1 or slash < dot):
        return "/proc/sys/" + name
    return "/proc/sys/" + name.translate({ord("."): "/", ord("/"): "."})


def normal(text):
    """Return a value as it is compared: the chosen word of "always [madvise] never", blanks for tabs."""
    chosen = re.search(r"\[(\S+)\]", text)
    return chosen.group(1) if chosen else " ".join(text.split())


def read(host, path):
    """Return the value of a file of the kernel, or None when there is none."""
    text = host.read(path)
    return None if text is None else normal(text)


def governor_files(host):
    """Return the files that hold the frequency governor, one for each set of CPUs; [] without cpufreq."""
    found = ["{0}/{1}".format(POLICIES, name) for name in host.list_directory(POLICIES) if name.startswith("policy")]
    if not found:  # kernels before 4.3 have them below the CPUs only
        names = [name for name in host.list_directory(CPUS) if re.match(r"cpu\d+\Z", name)]
        found = ["{0}/{1}/cpufreq".format(CPUS, name) for name in names]
    return [folder + "/scaling_governor" for folder in found if host.exists(folder + "/scaling_governor")]


def resolve(host, plan):
    """Return the Profile of a slice on this host.

    Args:
        plan: dict with sysctls {name: value}, transparent_hugepages, governor (or None: leave alone), hugepages
            [{size_kib, count, node}].
    """
    settings: List[Setting] = []
    absent: List[str] = []
    problems: List[str] = []
    for name, value in sorted(plan["sysctls"].items()):
        path = sysctl_path(name)
        if host.exists(path):
            settings.append(Setting(name, path, normal(str(value))))
        else:
            absent.append("This kernel has no sysctl {0}; it is passed over.".format(name))
    wanted = plan["transparent_hugepages"]
    if wanted:
        if host.exists(TRANSPARENT):
            settings.append(Setting("transparent_hugepages", TRANSPARENT, wanted))
        else:
            absent.append("This kernel has no transparent huge pages; transparent_hugepages is passed over.")
    _add_governor(host, plan["governor"], settings, absent, problems)
    for entry in plan["hugepages"]:
        _add_pages(host, entry, settings, problems)
    return Profile(settings, absent, problems)


def _add_governor(host, wanted, settings, absent, problems):
    files = governor_files(host) if wanted else []
    if wanted and not files:
        absent.append(
            "The kernel offers no cpufreq (usual on Kunpeng and in guests); the governor is passed over. The power "
            "policy of the firmware decides there."
        )
    for path in files:
        offered = (host.read(path.replace("scaling_governor", "scaling_available_governors")) or "").split()
        if offered and wanted not in offered:
            problems.append("governor: {0} offers {1}, not {2}.".format(path, ", ".join(offered), wanted))
            return
        settings.append(Setting("governor", path, wanted))


def _add_pages(host, entry, settings, problems):
    node = entry["node"]
    folder = HUGE if node is None else "{0}/node{1}/hugepages".format(NODES, node)
    where = "this kernel" if node is None else "node {0}".format(node)
    sizes = sorted(
        int(match.group(1))
        for match in (re.match(r"hugepages-(\d+)kB\Z", name) for name in host.list_directory(folder))
        if match
    )
    if entry["size_kib"] not in sizes:
        page_size = host.system()["page_size"] // 1024
        problems.append(
            "hugepages: {0} has no pages of {1} KiB; it has {2} (base pages of {3} KiB).".format(
                where, entry["size_kib"], ", ".join(map(str, sizes)) or "none", page_size
            )
        )
        return
    name = "hugepages of {0} KiB{1}".format(entry["size_kib"], "" if node is None else " on node {0}".format(node))
    path = "{0}/hugepages-{1}kB/nr_hugepages".format(folder, entry["size_kib"])
    settings.append(Setting(name, path, str(entry["count"])))


def differences(host, profile, ours, active_profile=None, reapplied=False):
    """Return what differs from the profile, one Difference for each name and seen value.

    Args:
        ours: the files that this project wrote, never suspects.
        active_profile: a profile of tuned that is active and not ours, or None.
        reapplied: whether tuned sets our values and then reads sysctl.d again, so that any file there wins.
    """
    grouped: Dict[Tuple[str, str, str], List[str]] = {}
    for setting in profile.settings:
        seen = read(host, setting.path)
        if seen != setting.value:
            key = (setting.name, "nothing" if seen is None else seen, setting.value)
            grouped.setdefault(key, []).append(setting.path)
    return [
        Difference(*key, places=places, suspects=suspects(host, key[0], places[0], ours, active_profile, reapplied))
        for key, places in grouped.items()
    ]


def suspects(host, name, path, ours, active_profile=None, reapplied=False):
    """Return who may have set a file of the kernel: files read after ours, another profile of tuned."""
    found = []
    if path.startswith("/proc/sys/"):
        order = [file for file, _value in setters(host, path)]
        own = [place for place, file in enumerate(order) if file in ours]
        found += [file for file in order[own[-1] + 1 if own and not reapplied else 0 :] if file not in ours]
    else:
        for folder in TMPFILES_FOLDERS:
            for file in host.list_directory(folder):
                text = host.read("{0}/{1}".format(folder, file)) or ""
                if any(line.split()[1:2] == [path] for line in text.splitlines()):
                    found.append("{0}/{1}".format(folder, file))
    if name == "transparent_hugepages" and "transparent_hugepage=" in (host.read("/proc/cmdline") or ""):
        found.append("transparent_hugepage= of the kernel's command line")
    if name.startswith("hugepages"):
        found.append("too little free or too fragmented memory, which gives fewer pages")
    if active_profile:
        found.append("tuned's profile {0}".format(active_profile))
    return found or ["hand, or a program that ran since"]


def setters(host, path):
    """Return [(file, value)] of sysctl.d files that set a file of /proc/sys, as they are read; the last wins."""
    files: Dict[str, str] = {}
    for folder in SYSCTL_FOLDERS:
        for name in host.list_directory(folder):
            if name.endswith(".conf"):
                files[name] = "{0}/{1}".format(folder, name)
    # sysctl --system reads it last; systemd reads it only where a link in sysctl.d points to it.
    order = [files[name] for name in sorted(files)] + ["/etc/sysctl.conf"]
    found = ((file, _values_set(host.read(file)).get(path)) for file in order)
    return [(file, value) for file, value in found if value is not None]


def _values_set(text):
    lines = (line.partition("=") for line in (text or "").splitlines() if not line.strip().startswith(("#", ";")))
    return {sysctl_path(key.strip().lstrip("-")): normal(value) for key, equals, value in lines if equals}


def overridden(host, profile, own_file):
    """Return sentences about sysctls that a file read after ours sets to something else at the next boot.

    What sorts after ours counts also before ours is written.
    """
    found = []
    for setting in profile.settings:
        for file, value in setters(host, setting.path) if setting.path.startswith("/proc/sys/") else []:
            later = file.rpartition("/")[2] > own_file.rpartition("/")[2] or file == "/etc/sysctl.conf"
            if later and value != setting.value:
                text = "{0}: {1} sets {2} at the next boot, planned {3}. Take it out there."
                found.append(text.format(setting.name, file, value, setting.value))
    return found


def changes(host, profile, before):
    """Return (values to write {path: value}, the note to keep).

    Args:
        before: the note of an earlier run, {path: {"before": value before our first change, "ours": our last value}}.

    What the profile no longer sets gets its value of before, unless somebody set another one meanwhile; see
    :func:`restorable`.
    """
    wanted = {setting.path: setting.value for setting in profile.settings}
    note, writes = {}, {}
    for path, value in wanted.items():
        seen = read(host, path)
        note[path] = {"before": before[path]["before"] if path in before else seen, "ours": value}
        if seen != value:
            writes[path] = value
    writes.update(restorable(host, {path: entry for path, entry in before.items() if path not in wanted}))
    return writes, note


def restorable(host, before):
    """Return {path: value} to put back; what no longer holds our value belongs to somebody else now."""
    found: Dict[str, str] = {}
    for path, entry in before.items():
        seen: Optional[str] = read(host, path)
        if entry["before"] is not None and seen == entry["ours"] and seen != entry["before"]:
            found[path] = entry["before"]
    return found
