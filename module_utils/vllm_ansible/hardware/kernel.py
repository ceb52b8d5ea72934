# SPDX-License-Identifier: Apache-2.0
"""Kernels: which one runs, which one the boot loader starts next, for which there are files to build modules with."""

import posixpath
import re
from typing import Any, Dict, List, Optional

from ansible.module_utils.vllm_ansible.hardware.values import integer, word

# Where GRUB keeps its menu; ``grubenv`` lies beside it. The one that holds a menu counts: on some systems the other
# only points to it.
MENU_DIRECTORIES = ("/boot/grub2", "/boot/grub")
EFI_DIRECTORY = "/boot/efi/EFI"
ENTRIES = "/boot/loader/entries"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

_RELEASE = re.compile(r"[0-9]+\.[0-9]+[\w.+~-]{0,200}\Z")
_IMAGE = re.compile(r"(?:\S*/)?(?:vmlinuz|vmlinux|Image|kernel)-([0-9]+\.[0-9]+[\w.+~-]{0,200})\Z")
# A quoted or bare word of a menu line.
_WORDS = re.compile(r"'([^']*)'|\"([^\"]*)\"|(\S+)")


def release_of(path):
    """Return the release in the name of a kernel image (``/boot/vmlinuz-5.10.0``), or None."""
    match = _IMAGE.match((path or "").strip())
    return match.group(1) if match else None


def natural(text):
    """Return a sort key that puts 4.19.90-9 before 4.19.90-52."""
    parts = re.findall(r"([0-9]{1,20})|([^0-9]+)", text)
    return [(1, int(number), "") if number else (0, 0, other) for number, other in parts]


def parse_grubenv(text):
    """Return {name: value} of a ``grubenv``, without its padding."""
    lines = (line.partition("=") for line in (text or "").splitlines() if not line.startswith("#"))
    return {name.strip(): value.strip() for name, equals, value in lines if equals}


def parse_entry(text, name):
    """Parse one entry of the Boot Loader Specification: {"names", "release"}, or None when it starts no kernel.

    Args:
        name: the file's name without ``.conf``, by which ``saved_entry`` calls it.
    """
    values: Dict[str, str] = {}
    for line in (text or "").splitlines():
        key, _blank, value = line.strip().partition(" ")
        values.setdefault(key, value.strip())
    release = release_of((values.get("linux") or "").split(" ")[0])
    if release is None and _RELEASE.match(values.get("version", "")):
        release = values["version"]
    names = [part for part in (name, values.get("title"), values.get("id")) if part]
    return None if release is None else {"names": names, "release": release}


def parse_menu(text):
    """Parse a ``grub.cfg``.

    Returns:
        {"default", "blscfg", "entries"}: what ``default`` is set to when nothing is chosen for one boot only, None
        where it never is; whether entries of the Boot Loader Specification are read; the menu, each entry
        {"names", "release"} or, of a submenu, {"names", "entries"}.
    """
    menu: Dict[str, Any] = {"default": None, "blscfg": False, "entries": []}
    blocks: List[Optional[Dict[str, Any]]] = []
    for raw in (text or "").splitlines():
        line = raw.strip()
        first = line.split(" ", 1)[0].split("\t", 1)[0]
        if first == "set" and line.startswith("set default="):
            value = line[len("set default=") :].strip().strip("\"'")
            if "next_entry" not in value:
                menu["default"] = value
        elif first == "blscfg":
            menu["blscfg"] = True
        elif first in ("menuentry", "submenu") and line.endswith("{"):
            entry: Dict[str, Any] = {"names": _names(line)}
            entry["entries" if first == "submenu" else "release"] = [] if first == "submenu" else None
            around = next((block for block in reversed(blocks) if block is not None and "entries" in block), menu)
            around["entries"].append(entry)
            blocks.append(entry)
        elif line.endswith("{"):
            blocks.append(None)
        elif line == "}" and blocks:
            blocks.pop()
        elif first in ("linux", "linux16", "linuxefi") and blocks and blocks[-1] is not None:
            parts = line.split(None, 2)
            if len(parts) > 1 and "release" in blocks[-1] and blocks[-1]["release"] is None:
                blocks[-1]["release"] = release_of(parts[1])
    return menu


def _names(line):
    """Return the title and, where the line has one, the id of a menu line."""
    words = [next(filter(None, groups), "") for groups in _WORDS.findall(line[:4096])]
    names = words[1:2]
    for position, part in enumerate(words):
        if part in ("--id", "$menuentry_id_option", "${menuentry_id_option}") and position + 1 < len(words):
            names.append(words[position + 1])
    return names


def chosen_release(value, entries):
    """Return the release of the entry that a GRUB would start for ``default`` = value, or None.

    Args:
        value: a number, a title or an id; of an entry in a submenu both, joined by ``>``. Nothing, or what matches
            nothing, is the first entry.
    """
    entry = None
    for part in (value or "").split(">"):
        number = integer(part)
        found = [e for e in entries if part in e["names"]]
        if not found and number is not None and 0 <= number < len(entries):
            found = [entries[number]]
        entry = found[0] if found else (entries[0] if entries and entry is None else None)
        if entry is None:
            return None
        entries = entry.get("entries", ())
    # A submenu named as a whole starts with its first entry.
    for _depth in range(8):
        if entry is None or "entries" not in entry:
            break
        entry = entry["entries"][0] if entry["entries"] else None
    return entry["release"] if entry is not None else None


def default_entry(host):
    """Return the release that the boot loader starts next, or None when its files do not say or cannot be read."""
    efi = [f"{EFI_DIRECTORY}/{name}" for name in host.list_directory(EFI_DIRECTORY)]
    found: Dict[str, Any] = {}
    for directory in efi + list(MENU_DIRECTORIES):
        menu = parse_menu(host.read(directory + "/grub.cfg"))
        if (menu["entries"] or menu["blscfg"]) and not found:
            found = dict(menu, directory=directory)
    files = [name for name in host.list_directory(ENTRIES) if name.endswith(".conf")]
    entries = [parse_entry(host.read(f"{ENTRIES}/{name}"), name[: -len(".conf")]) for name in files]
    # GRUB lists the newest first.
    entries = sorted((e for e in entries if e is not None), key=lambda e: natural(e["names"][0]), reverse=True)
    if found and not found["blscfg"]:
        entries = found["entries"]
    if not entries:
        return release_of(_grubby(host))
    variables: Dict[str, str] = {}
    for directory in ([found["directory"]] if found else []) + list(MENU_DIRECTORIES) + efi:
        variables = variables or parse_grubenv(host.read(directory + "/grubenv"))
    default = found.get("default")
    if default is None or "saved_entry" in default:
        default = variables.get("saved_entry")
    return chosen_release(variables.get("next_entry") or default, entries)


def _grubby(host):
    answer = host.run(["grubby", "--default-kernel"])
    return word(answer[1]) if answer is not None and answer[0] == 0 else None


def parse_secure_boot(text):
    """Return whether the firmware lets only signed kernels and modules in; None when it does not say.

    The file is an EFI variable: four bytes of attributes, then 1 or 0.
    """
    return {"\x01": True, "\x00": False}.get((text or "")[4:5])


def gather_kernel(host):
    """Return the ``kernel`` facts; releases in ascending order."""
    modules = _releases(host, "/lib/modules/")
    headers = [name for name in _releases(host, "/usr/src/linux-headers-") if not name.endswith("-common")]
    devel = _releases(host, "/usr/src/kernels/") + headers
    devel += [release for release in modules if host.exists(f"/lib/modules/{release}/build")]
    return {
        "release": host.system()["kernel"],
        "default_entry": default_entry(host),
        "devel": _ordered(devel),
        "headers": _ordered(headers + _rpm_headers(host)),
        "installed": _ordered(modules + _releases(host, "/boot/vmlinuz-")),
        "secure_boot": parse_secure_boot(host.read(SECURE_BOOT)),
    }


def _ordered(releases):
    return sorted(set(releases), key=natural)


def _releases(host, prefix):
    """Return the releases that follow a prefix in the paths that exist."""
    directory, start = posixpath.split(prefix)
    names = [name[len(start) :] for name in host.list_directory(directory) if name.startswith(start)]
    return [release for release in names if _RELEASE.match(release) and host.exists(prefix + release)]


def _rpm_headers(host):
    """Return the releases of the package kernel-headers, whose files do not name theirs."""
    if not (host.exists("/var/lib/rpm") or host.exists("/usr/lib/sysimage/rpm")):
        return []
    query = ["rpm", "-q", "--queryformat", "%{VERSION}-%{RELEASE}.%{ARCH}\\n", "kernel-headers"]
    answer = host.run(query)
    lines = answer[1].split() if answer is not None and answer[0] == 0 else []
    return [line for line in lines if _RELEASE.match(line)]
