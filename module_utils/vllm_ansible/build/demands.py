# SPDX-License-Identifier: Apache-2.0
"""What installed packages ask for and do not get: `pip check` for a tree that this machine may not run.

Runs on hosts: Python 3.6, standard library only; the comparison runs in the build environment, which has `packaging`.
"""

import json
import re

from ansible.module_utils.vllm_ansible.build.tree import BuildError, checked

# argv: site-packages, markers of the target as JSON. Prints lines "NAME VERSION asks for REQUIREMENT, there is SEEN".
_SCRIPT = r"""
import json, sys
from importlib.metadata import distributions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
target = json.loads(sys.argv[2])
found = {canonicalize_name(d.metadata["Name"]): d for d in distributions(path=[sys.argv[1]])}
asked, queue = set(), [(name, "") for name in sorted(found)]
lines = set()
while queue:
    name, extra = queue.pop()
    if (name, extra) in asked or name not in found:
        continue
    asked.add((name, extra))
    d = found[name]
    for text in d.requires or ():
        r = Requirement(text)
        if r.marker and not r.marker.evaluate(dict(target, extra=extra)):
            continue
        # what an extra asks for is asked by somebody who wants the extra; the plain ones are asked once
        if extra and not (r.marker and "extra" in str(r.marker)):
            continue
        other = canonicalize_name(r.name)
        there = found[other].version if other in found else None
        if there is None or not r.specifier.contains(there, prereleases=True):
            lines.add("%s %s asks for %s%s, there is %s" % (name, d.version, other, r.specifier, there or "none"))
        queue += [(other, canonicalize_name(e)) for e in r.extras]
print("\n".join(sorted(lines)))
"""
_LINE = re.compile(r"^(\S+) \S+ asks for ([A-Za-z0-9-]+)(\S*), there is (\S+)$")


def parse_exceptions(text, source):
    """{(asking, asked): reason} of lines "ASKING ASKED: reason". Raises BuildError."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        names, _colon, reason = line.partition(": ")
        if len(names.split()) != 2 or not reason:
            raise BuildError("{0}, line {1}: {2!r} is not ASKING ASKED: reason".format(source, number, line))
        found[tuple(names.split())] = reason
    return found


def unmet(run, python, site, architecture, python_version):
    """Unmet requirements in `site` as [(asking, asked, sentence)]; `python` has the package `packaging`."""
    target = {
        "platform_machine": architecture,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "python_version": python_version,
        "python_full_version": python_version + ".0",
        "implementation_version": python_version + ".0",
        "platform_release": "",
        "platform_version": "",
    }
    out = checked(run, [python, "-I", "-c", _SCRIPT, site, json.dumps(target)], "comparing what the packages ask for")
    matches = [_LINE.match(line) for line in out.splitlines() if line]
    return [(match.group(1), match.group(2), match.group(0)) for match in matches if match]


def check(found, exceptions):
    """Raise BuildError for an unmet requirement without an exception, and for an exception without one."""
    seen = {(asking, asked) for asking, asked, _sentence in found}
    wrong = [sentence for asking, asked, sentence in found if (asking, asked) not in exceptions]
    needless = ["{0} {1}".format(*pair) for pair in sorted(set(exceptions) - seen)]
    if wrong:
        raise BuildError(
            "packages of the row contradict each other: {0}. Correct the lock, or name the exception with its reason "
            "in the row's exceptions.txt.".format("; ".join(wrong))
        )
    if needless:
        raise BuildError("the row's exceptions.txt excuses what is met: {0}. Remove it.".format("; ".join(needless)))
