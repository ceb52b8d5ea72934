# SPDX-License-Identifier: Apache-2.0
"""The variables that the vendor's set_env.sh scripts set, resolved once into a file for systemd.

A unit does not read set_env.sh, and sourcing it at every start would let a changed script change a running service.
"""

import re
import subprocess
from typing import Dict, List

from ansible.module_utils.vllm_ansible.run_package.packages import PackageError

# What a script finds: it must not see what the person who runs Ansible has set.
BASE = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"}
_OF_THE_SHELL = ("HOME", "LC_ALL", "OLDPWD", "PWD", "SHLVL", "_", "BASHOPTS", "SHELLOPTS")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]*\Z")
_SECONDS = 60


def resolve(scripts: List[List[str]], environment: Dict[str, str], required: List[str]) -> Dict[str, str]:
    """Source each script, [path, argument…] each, in one shell; return the variables that are then new or changed.

    environment: what the shell starts with. required: variables that have to be set then; whether a command inside a
    script failed tells nothing, the vendor's own go on after some that do. Empty entries of search paths, which mean
    the working directory, are dropped. Raises PackageError.
    """
    program = 'while [ "$1" != "" ]; do n=$1; shift; args=("${@:1:n}"); shift "$n"; '
    program += 'source_it() { local script=$1; shift; . "$script"; }; source_it "${args[@]}"; done >/dev/null; env -0'
    words = []
    for script in scripts:
        words += [str(len(script))] + script
    try:
        process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-c", program, "-"] + words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, err = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise PackageError("{0} did not end within {1} seconds.".format(scripts[0][0], _SECONDS)) from None
    except OSError as error:
        raise PackageError("{0} cannot be sourced: {1}.".format(scripts[0][0], error)) from error
    found = {}
    for entry in out.decode("utf-8", "replace").split("\0"):
        name, mark, value = entry.partition("=")
        if mark and name not in _OF_THE_SHELL and environment.get(name) != value and not name.startswith("BASH_FUNC_"):
            found[name] = _without_empty(value) if name.endswith("PATH") and ":" in value else value
    absent = [name for name in required if name not in found]
    if process.returncode != 0 or absent:
        said = err.decode("utf-8", "replace").strip().splitlines()
        raise PackageError(
            "{0} cannot be sourced: {1}{2}.".format(
                " and ".join(script[0] for script in scripts),
                "exit code {0}".format(process.returncode) if process.returncode else "no " + ", ".join(absent),
                "; " + said[-1].rstrip(".") if said else "",
            )
        )
    return found


def _without_empty(value):
    """A search path without empty and repeated entries; the first of equal ones stays."""
    entries = []
    for entry in value.split(":"):
        if entry and entry not in entries:
            entries.append(entry)
    return ":".join(entries)


def with_libraries(variables: Dict[str, str], directories: List[str]) -> Dict[str, str]:
    """Add directories to LD_LIBRARY_PATH, behind those that are there."""
    if not directories:
        return variables
    path = ":".join(part for part in [variables.get("LD_LIBRARY_PATH", "")] + directories if part)
    return dict(variables, LD_LIBRARY_PATH=_without_empty(path))


def render(variables: Dict[str, str], header: str) -> str:
    """The text of an EnvironmentFile: one variable a line, by name; values as systemd reads them."""
    lines = ["# {0}\n".format(line) for line in header.splitlines()]
    for name in sorted(variables):
        value = variables[name]
        if "\n" in value or "\r" in value:
            raise PackageError(
                "The variable {0} has more than one line, which an EnvironmentFile cannot hold.".format(name)
            )
        if not _PLAIN.match(value):
            value = '"{0}"'.format(re.sub(r'([\\"$`])', r"\\\1", value))
        lines.append("{0}={1}\n".format(name, value))
    return "".join(lines)
