# SPDX-License-Identifier: Apache-2.0
"""GRUB as Debian and its relatives set it up: grub.cfg is generated from /etc/default/grub and /etc/default/grub.d.

What is ours lies in one file of that folder, which is read after the distribution's own and goes as a whole.
"""

import re
from typing import List, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.kernel.entries import BootError, Entry, words

CONFIGURATION = "/boot/grub/grub.cfg"
ENVIRONMENT = "/boot/grub/grubenv"
# Sorts behind the files of cloud images (50-…) and of kdump-tools: the last assignment counts.
FILE = "/etc/default/grub.d/zz-vllm.cfg"
# update-grub asks every disk for other systems.
SECONDS = 600

_HEAD = re.compile(r"\s*(menuentry|submenu)\s+(?:'([^']*)'|\"([^\"]*)\")")
_ID = re.compile(r"(?:\$\{?menuentry_id_option\}?|--id)\s+(?:'([^']+)'|\"([^\"]+)\"|([^\s'\"{]+))")
_DEFAULT = re.compile(r"\s*set\s+default=[\"']?([^\"']*?)[\"']?\s*\Z")
_COMMAND = re.compile(r"\s*(linux|linux16|linuxefi|initrd|initrd16|initrdefi)\s+(.*)")


class Menu(NamedTuple):
    """A menu of grub.cfg: its items are entries and further menus."""

    title: str
    id: str
    items: list


class _Item(NamedTuple):
    title: str
    id: str
    entry: Entry


def parse_menu(text: str) -> Menu:
    """Parse the entries of a grub.cfg; those that start no kernel stay, with an empty one, as they count in numbers."""
    root = Menu("", "", [])
    stack = [root]
    open_item: Optional[list] = None
    for line in text.splitlines():
        head = _HEAD.match(line) if open_item is None else None
        if head:
            found = _ID.search(line)
            ident = next((part for part in found.groups() if part), "") if found else ""
            title = head.group(2) if head.group(2) is not None else head.group(3)
            if head.group(1) == "submenu":
                menu = Menu(title, ident, [])
                stack[-1].items.append(menu)
                stack.append(menu)
            else:
                open_item = [title, ident, "", "", []]
            continue
        if open_item is not None:
            command = _COMMAND.match(line)
            if command and command.group(1).startswith("linux"):
                parts = words(command.group(2))
                open_item[2], open_item[4] = parts[0], parts[1:]
            elif command:
                open_item[3] = (command.group(2).split() or [""])[0]
            elif line.strip() == "}":
                path = [menu.id or menu.title for menu in stack[1:]] + [open_item[1] or open_item[0]]
                entry = Entry(">".join(path), open_item[0], open_item[2], open_item[3], open_item[4])
                stack[-1].items.append(_Item(open_item[0], open_item[1], entry))
                open_item = None
            continue
        if line.strip() == "}" and len(stack) > 1:
            stack.pop()
    return root


def parse_default(text: str) -> str:
    """What grub.cfg starts when nothing else was asked for: next_entry is for one start, a start button comes first."""
    found = [match.group(1) for match in map(_DEFAULT.match, text.splitlines()) if match]
    found = [value for value in found if "next_entry" not in value]
    return found[-1] if found else "0"


def parse_environment(text: str) -> dict:
    """Parse a grubenv: a comment line, name=value lines, then # up to 1024 bytes."""
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {key: value for key, _mark, value in pairs}


def entries_of(menu: Menu) -> List[Entry]:
    """The entries that start a kernel, in the order of the menu."""
    found: List[Entry] = []
    for item in menu.items:
        if isinstance(item, Menu):
            found += entries_of(item)
        elif item.entry.kernel:
            found.append(item.entry)
    return found


def resolve(menu: Menu, default: str) -> Optional[Entry]:
    """The entry that `default` means: a number, a title or an id, below menus parted by >. What means none is 0."""
    current = menu
    item = None
    for part in default.split(">"):
        items = current.items
        if part.isdigit():
            item = items[int(part)] if int(part) < len(items) else None
        else:
            item = next((one for one in items if part in (one.title, one.id) and part), None)
        if item is None:
            break
        if not isinstance(item, Menu):
            return item.entry
        current = item
    if item is None:
        return entries_of(menu)[0] if default != "0" and entries_of(menu) else None
    inside = entries_of(current)
    return inside[0] if inside else None


def render(place: str, parameters: List[str]) -> str:
    """The text of our file; place: what GRUB starts, "" to leave that to the distribution."""
    lines = ["# Written by vllm-ansible. Changes are overwritten.\n"]
    if place:
        lines.append("GRUB_DEFAULT={0}\n".format(_quoted(place)))
    if parameters:
        added = _quoted(" ".join(parameters))[1:-1]
        lines.append('GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {0}"\n'.format(added))
    return "".join(lines)


def _quoted(value):
    return '"{0}"'.format(re.sub(r'([\\"$`])', r"\\\1", value))


class Grub:
    """The boot entries of Debian's GRUB."""

    name = "grub"

    def __init__(self, host):
        self._host = host

    def _menu(self):
        text = self._host.read(CONFIGURATION)
        if text is None:
            raise BootError("{0} cannot be read. Run update-grub and look at what it says.".format(CONFIGURATION))
        return parse_menu(text), text

    def read(self) -> Tuple[List[Entry], Optional[str]]:
        """Return the entries and the release of the default one, None when it starts no Linux."""
        menu, text = self._menu()
        default = parse_default(text)
        if "saved_entry" in default:
            default = parse_environment(self._host.read(ENVIRONMENT) or "").get("saved_entry", "0") or "0"
        entry = resolve(menu, default)
        return entries_of(menu), entry.release if entry else None

    def file(self) -> str:
        """Our file as it is, "" when there is none."""
        return self._host.read(FILE) or ""

    def write(self, text):
        """Replace our file, "" to remove it, and generate grub.cfg anew; on failure the file is as it was."""
        before = self.file()
        self._put(text)
        answer = self._host.run(["update-grub"], timeout_seconds=SECONDS)
        if answer is None or answer[0] != 0:
            self._put(before)
            said = ((answer[2].strip() or answer[1].strip()) if answer else "it is not installed").splitlines()
            raise BootError(
                "update-grub failed{0}. {1} is as it was.".format(": " + said[-1].rstrip(".") if said else "", FILE)
            )

    def _put(self, text):
        if text:
            self._host.write_atomically(FILE, text)
        elif self._host.exists(FILE):
            self._host.remove(FILE)
