# SPDX-License-Identifier: Apache-2.0
"""grubby: the boot entries of rpm systems, with and without files of the boot loader specification.

The layout of `grubby --info=ALL` is that of displayEntry() in grubby.c 8.40 (openEuler 20.03, Kylin V10: values without
quotes) and that of RHEL 8's grubby-bls (values in quotes, `id` after `title`).
"""

from typing import Dict, List, Optional, Tuple

from ansible.module_utils.vllm_ansible.kernel.entries import BootError, Entry, words


def parse_info(text: str) -> List[Entry]:
    """Parse `grubby --info=ALL`; entries without a kernel are left out."""
    entries: List[Entry] = []
    fields: Dict[str, str] = {}
    for line in text.splitlines() + ["index=end"]:
        key, mark, value = line.partition("=")
        if not mark:
            continue  # "non linux entry", "boot=…" is not one of these
        if key == "index" and fields.get("kernel"):
            entries.append(
                Entry(
                    place=fields["kernel"],
                    title=fields.get("title", ""),
                    kernel=fields["kernel"],
                    initrd=(fields.get("initrd", "").split() or [""])[0],
                    parameters=words(fields.get("args", "")),
                )
            )
        if key == "index":
            fields = {}
        else:
            value = value.strip()
            fields[key] = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
    return entries


def parse_default(text: str) -> Optional[str]:
    """The path of the default kernel from `grubby --default-kernel`, or None when it names none."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("/")]
    return lines[-1] if lines else None


class Grubby:
    """The boot entries as grubby tells and changes them."""

    name = "grubby"

    def __init__(self, host):
        self._host = host

    def _run(self, *arguments):
        answer = self._host.run(["grubby"] + list(arguments))
        if answer is None:
            raise BootError("grubby is not installed. Install the package grubby.")
        rc, out, err = answer
        if rc != 0:
            said = (err.strip() or out.strip()).splitlines()
            raise BootError(
                "grubby {0} ended with exit code {1}{2}.".format(
                    " ".join(arguments), rc, ": " + said[-1].rstrip(".") if said else ""
                )
            )
        return out

    def read(self) -> Tuple[List[Entry], Optional[str]]:
        """Return the entries and the release of the default one, None when grubby cannot tell it."""
        entries = parse_info(self._run("--info=ALL"))
        path = parse_default(self._run("--default-kernel"))
        default = Entry("", "", path, "", []).release if path else None
        return entries, default

    def set_default(self, entry):
        """Start this entry from now on."""
        self._run("--set-default={0}".format(entry.kernel))

    def update(self, entry, add, remove):
        """Give an entry parameters and take others away; the rest of its command line stays."""
        arguments = ["--update-kernel={0}".format(entry.kernel)]
        arguments += ["--remove-args={0}".format(" ".join(remove))] if remove else []
        arguments += ["--args={0}".format(" ".join(add))] if add else []
        self._run(*arguments)
