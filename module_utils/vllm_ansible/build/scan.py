# SPDX-License-Identifier: Apache-2.0
"""Compares the files of a release with a host: processor, C and C++ library, page size, tags of the wheels.

`requirements` reads a tree once and says what it needs, small enough to be kept in the artefact; `findings` compares
that with a host, also long after and without the tree. Runs nothing of the release.

Runs on hosts: Python 3.6, standard library only.
"""

import fnmatch
import itertools
import os
import re
import stat
from typing import Tuple

from ansible.module_utils.vllm_ansible.build import elf

SCHEMA = 1
# The oldest system this project knows is CentOS 7: what needs no more than it offers runs everywhere and is not listed.
BASELINE = {"glibc": (2, 17), "glibcxx": (3, 4, 19)}
LARGEST_PAGE = 65536
_LEGACY_TAGS = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_PLATFORM = re.compile(r"^(manylinux(?:1|2010|2014)|manylinux_(\d+)_(\d+)|linux)_(.+)$")
_NOT_ELF = (".py", ".pyc", ".pyi", ".json", ".txt", ".md", ".h", ".hpp", ".yaml", ".yml", ".html", ".js", ".css")


def version(text):
    """(2, 28) for "2.28"."""
    return tuple(int(part) for part in text.split("."))


def _text(value):
    return ".".join(str(part) for part in value)


def requirements(root):
    """What the release in `root` needs of a host:

    {"schema", "machine", "glibc", "glibcxx" (null when the release brings its own libstdc++), "page_size": the largest
     page in bytes that every file can be loaded with, "python": "X.Y", "files": how many were read,
     "notable": [{"file", "machine"?, "glibc"?, "glibcxx"?, "page_size"?, "broken"?}, ...] whatever some known host
     lacks, "wheels": [{"file", "tags"}, ...] of the packages that are not for every platform}.
    """
    described, broken, own = {}, {}, ()
    for path in _candidates(root):
        relative = os.path.relpath(path, root)
        try:
            found = elf.describe(path)
        except elf.ElfError as error:
            broken[relative] = str(error)
            continue
        if found and found["loaded"]:
            described[relative] = found
            if os.path.basename(path).startswith("libstdc++.so.6") and os.path.dirname(relative) == "lib":
                own = max(own, found["defines"].get("GLIBCXX", ()))
    interpreter = described.get(os.path.relpath(os.path.realpath(os.path.join(root, "bin", "python3")), root))
    machine = interpreter["machine"] if interpreter else None
    notable = [{"file": name, "broken": reason} for name, reason in broken.items()]
    highest = {"glibc": (), "glibcxx": ()}
    page_size = LARGEST_PAGE
    for name, found in described.items():
        glibcxx = found["requires"].get("GLIBCXX", ())
        entry = {}
        for key, value in (
            ("glibc", found["requires"].get("GLIBC", ())),
            ("glibcxx", glibcxx if glibcxx > own else ()),
        ):
            highest[key] = max(highest[key], value)
            if value > BASELINE[key]:
                entry[key] = _text(value)
        if found["machine"] != machine:
            entry["machine"] = found["machine"]
        elif found["page_size"] is not None and found["page_size"] < LARGEST_PAGE:
            entry["page_size"] = found["page_size"]
            page_size = min(page_size, found["page_size"])
        if entry:
            notable.append(dict(entry, file=name))
    python = _python_of(root)
    return {
        "schema": SCHEMA,
        "machine": machine,
        "glibc": _text(highest["glibc"]) or None,
        "glibcxx": _text(highest["glibcxx"]) or None,
        "page_size": page_size,
        "python": python,
        "files": len(described),
        "notable": sorted(notable, key=lambda entry: entry["file"]),
        "wheels": _wheels(root, python),
    }


def _candidates(root):
    for directory, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            if not name.endswith(_NOT_ELF):
                path = os.path.join(directory, name)
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield path


def _python_of(root):
    library = os.path.join(root, "lib")
    names = sorted(os.listdir(library)) if os.path.isdir(library) else []
    found = [name[len("python") :] for name in names if re.match(r"python3\.\d+$", name)]
    return found[0] if len(found) == 1 else None


def _wheels(root, python):
    packages = os.path.join(root, "lib", "python{0}".format(python), "site-packages")
    found = []
    for name in sorted(os.listdir(packages)) if os.path.isdir(packages) else ():
        if not name.endswith(".dist-info"):
            continue
        try:
            with open(os.path.join(packages, name, "WHEEL"), encoding="utf-8") as stream:
                tags = [
                    tag for line in stream if line.startswith("Tag:") for tag in expand_tag(line[len("Tag:") :].strip())
                ]
        except OSError:
            continue
        if not any(_is_universal(tag) for tag in tags):
            found.append({"file": name, "tags": tags})
    return found


def expand_tag(tag):
    """The single tags of a compressed one, such as cp38-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64."""
    parts = [part.split(".") for part in tag.split("-")]
    return ["-".join(single) for single in itertools.product(*parts)]


def _is_universal(tag):
    parts = tag.split("-")
    return len(parts) == 3 and parts[2] == "any" and parts[1] == "none" and re.match(r"py[23]", parts[0]) is not None


def tag_needs(tag, python):
    """{"machine": None for any, "glibc": tuple, "python": whether X.Y `python` may load it} of a wheel's tag."""
    interpreter, abi, platform = (tag.split("-") + ["", ""])[:3]
    match = _PLATFORM.match(platform)
    machine = None if platform == "any" else platform
    glibc: Tuple[int, ...] = ()
    if match:
        machine = match.group(4)
        glibc = (int(match.group(2)), int(match.group(3))) if match.group(2) else _LEGACY_TAGS.get(match.group(1), ())
    named = re.match(r"^(?:cp|py)(\d)(\d*)$", interpreter)
    fits = True
    if python and named:
        wanted = (int(named.group(1)), int(named.group(2) or 0))
        exact = abi.startswith("cp") and bool(named.group(2))
        fits = version(python) == wanted if exact else version(python) >= wanted
    return {"machine": machine, "glibc": glibc, "python": fits}


def findings(needs, target, exceptions=None):
    """([finding], [excused]) of what `requirements` said against a host.

    target: {"machine", "glibc", "glibcxx", "page_size" in bytes, "python"}; what is absent or null is not compared.
    exceptions: {pattern of a file: reason}. A finding is {"file", "what", "seen": what the host offers, "needed"};
    an excused one has the reason beside it.
    """
    found = []

    def say(name, what, seen, needed):
        found.append({"file": name, "what": what, "seen": str(seen), "needed": str(needed)})

    machine = target.get("machine")
    if machine and needs["machine"] and needs["machine"] != machine:
        say("bin/python3", "machine", machine, needs["machine"])
    for entry in needs["notable"]:
        if "broken" in entry:
            say(entry["file"], "ELF", entry["broken"], "a file that can be read")
        if "machine" in entry and entry["machine"] != machine:
            say(entry["file"], "machine", machine or needs["machine"], entry["machine"])
        for key in ("glibc", "glibcxx"):
            if key in entry and target.get(key) and version(entry[key]) > version(target[key]):
                say(entry["file"], key, target[key], entry[key])
        if target.get("page_size") and entry.get("page_size", LARGEST_PAGE) < target["page_size"]:
            say(entry["file"], "page size", target["page_size"], "at most {0}".format(entry["page_size"]))
    python = target.get("python") or needs["python"]
    if target.get("python") and needs["python"] and needs["python"] != target["python"]:
        say("bin/python3", "python", target["python"], needs["python"])
    for wheel in needs["wheels"]:
        if not any(_tag_fits(tag, machine, target.get("glibc"), python) for tag in wheel["tags"]):
            seen = [machine, "glibc " + target["glibc"] if target.get("glibc") else None, python and "Python " + python]
            say(wheel["file"], "wheel tag", ", ".join(part for part in seen if part), ", ".join(wheel["tags"]))
    kept, excused = [], []
    for item in found:
        reasons = [
            reason for pattern, reason in (exceptions or {}).items() if fnmatch.fnmatchcase(item["file"], pattern)
        ]
        if reasons:
            excused.append(dict(item, reason=reasons[0]))
        else:
            kept.append(item)
    return kept, excused


def _tag_fits(tag, machine, glibc, python):
    needs = tag_needs(tag, python)
    return (
        (needs["machine"] is None or not machine or needs["machine"] == machine)
        and (not glibc or needs["glibc"] <= version(glibc))
        and needs["python"]
    )


def sentences(items, most=20):
    """Findings as text, at most `most` of them."""
    lines = ["{file}: {what}: the host has {seen}, needed is {needed}".format(**item) for item in items[:most]]
    if len(items) > most:
        lines.append("and {0} more".format(len(items) - most))
    return "; ".join(lines)
