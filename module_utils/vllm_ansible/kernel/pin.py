# SPDX-License-Identifier: Apache-2.0
"""Names of kernel packages in the main section of dnf.conf, so that an update leaves them as they are.

dnf 4 reads no further files of settings, and its versionlock is a plugin that is not installed everywhere; the option
excludepkgs, also written exclude, needs neither (dnf.conf(5)). dnf adds up both spellings.
"""

import re
from typing import List, NamedTuple

# Whatever a kernel's packages are called on an rpm system; those the plan names come on top. Not kernel-headers: the C
# library's headers need it, and an excluded package cannot be installed.
ALWAYS = ("kernel", "kernel-core", "kernel-devel", "kernel-modules*")
_SECTION = re.compile(r"\s*\[([^\]]+)\]")
_OPTION = re.compile(r"(excludepkgs|exclude)\s*[=:]\s*(.*)", re.IGNORECASE)


class _Line(NamedTuple):
    """An option of the main section: its spelling, its names and the lines [start, end) it fills."""

    key: str
    names: List[str]
    start: int
    end: int


def rpm_name(package: str) -> str:
    """The name of a package given as name-version-release, with or without architecture; else the text itself."""
    found = re.match(r"(.+)-[^-]*\d[^-]*-[^-]+\Z", package)
    return found.group(1) if found else package


def wanted_names(packages: List[str]) -> List[str]:
    """The names that have to be excluded for these packages to stay."""
    return sorted(set(ALWAYS) | {rpm_name(package) for package in packages})


def _options(lines):
    """The exclude options of the main section, and where that section's last line of text ends."""
    found, section, end = [], "", 0
    for number, line in enumerate(lines):
        head = _SECTION.match(line)
        section = head.group(1).strip() if head else section
        if section != "main":
            continue
        if line.strip():
            end = number + 1
        option = _OPTION.match(line)
        if option:
            last = number + 1
            text = option.group(2)
            while last < len(lines) and lines[last][:1] in (" ", "\t") and lines[last].strip():
                text += " " + lines[last]
                last += 1
            found.append(_Line(option.group(1), re.split(r"[\s,]+", text.strip()), number, last))
    return found, end


def excluded(text: str) -> List[str]:
    """The names that the main section of a dnf.conf excludes."""
    return [name for option in _options(text.splitlines())[0] for name in option.names if name]


def with_names(text: str, names: List[str]) -> str:
    """The text of dnf.conf with the names excluded besides those that are."""
    new = [name for name in names if name not in excluded(text)]
    if not new:
        return text
    lines = text.splitlines()
    found, end = _options(lines)
    if found:
        option = found[-1]
        value = " ".join([name for name in option.names if name] + new)
        lines[option.start : option.end] = ["{0}={1}".format(option.key, value)]
    elif end:
        lines[end:end] = ["excludepkgs=" + " ".join(new)]
    else:
        lines[:0] = ["[main]", "excludepkgs=" + " ".join(new)]
    return "\n".join(lines) + "\n"


def without_names(text: str, names: List[str]) -> str:
    """The text of dnf.conf without the names; an option that is left with none goes."""
    lines = text.splitlines()
    for option in reversed(_options(lines)[0]):
        left = [name for name in option.names if name and name not in names]
        if left != [name for name in option.names if name]:
            lines[option.start : option.end] = ["{0}={1}".format(option.key, " ".join(left))] if left else []
    return "\n".join(lines) + "\n" if lines else ""
