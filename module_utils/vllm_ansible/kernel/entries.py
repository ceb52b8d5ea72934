# SPDX-License-Identifier: Apache-2.0
"""What boot loaders have in common: entries, and the parameters a kernel is started with."""

import re
from typing import Dict, List, NamedTuple, Optional

# Parameters that count each time they are given (admin-guide/kernel-parameters); of others the last one counts.
_REPEATED = ("console", "earlycon", "earlyprintk", "hugepages", "hugepagesz", "memmap", "netconsole")
_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
_KERNEL = re.compile(r"(?:vmlinuz|vmlinux|Image|kernel)-(.+)\Z")


class BootError(Exception):
    """The boot loader cannot be asked or does not do what it was told; the text says what was seen and what to do."""


class Entry(NamedTuple):
    """One entry of the boot menu; `place` is what the loader's configuration calls it."""

    place: str
    title: str
    kernel: str
    initrd: str
    parameters: List[str]

    @property
    def release(self) -> Optional[str]:
        """The release of the kernel as `uname -r` prints it; None for a name this does not know."""
        found = _KERNEL.match(self.kernel.rpartition("/")[2])
        return found.group(1) if found else None


def words(text: str) -> List[str]:
    """The parameters of a command line; blanks inside double quotes do not part them."""
    return _WORD.findall(text)


def name(parameter: str) -> str:
    """The name of a parameter; the kernel takes - and _ in names as the same."""
    return parameter.partition("=")[0].replace("-", "_")


def holds(parameters: List[str], wanted: str) -> bool:
    """Whether a command line makes the wanted parameter count."""
    same = [parameter for parameter in parameters if name(parameter) == name(wanted)]
    found = same if name(wanted) in _REPEATED else same[-1:]
    return any(parameter.partition("=")[2] == wanted.partition("=")[2] for parameter in found)


def replaced(parameters: List[str], wanted: str) -> Optional[str]:
    """The parameter that the wanted one takes the place of, or None."""
    if name(wanted) in _REPEATED:
        return None
    same = [parameter for parameter in parameters if name(parameter) == name(wanted)]
    return same[-1] if same else None


def missing(parameters: List[str], wanted: List[str]) -> List[str]:
    """Those of the wanted parameters that the command line does not make count."""
    return [parameter for parameter in wanted if not holds(parameters, parameter)]


def choose(entries: List[Entry], release: str) -> Optional[Entry]:
    """The entry to start a kernel with: one with a name of its own, not for rescue, or None."""
    found = [entry for entry in entries if entry.release == release and not _rescues(entry)]
    # GRUB's first entry is named after no kernel: another one takes its place later.
    named = [entry for entry in found if not entry.place.startswith("gnulinux-simple-")]
    return next(iter(named or found), None)


def _rescues(entry):
    return "recovery" in entry.place or {"single", "recovery"} & set(entry.parameters)


def describe(release: Optional[str], by_release: Dict[str, List[str]]) -> str:
    """The default entry and the parameters of the entries as text, for a comparison of before and after."""
    lines = ["default: {0}\n".format(release or "unknown")]
    for key in sorted(by_release):
        lines.append("{0}: {1}\n".format(key, " ".join(by_release[key])))
    return "".join(lines)
