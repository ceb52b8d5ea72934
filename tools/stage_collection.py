#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stages the modules and plugins as a collection and runs `ansible-test sanity` on it.

    tools/stage_collection.py stage [DIRECTORY]          write ansible_collections/vllm_ansible/engine below DIRECTORY
    tools/stage_collection.py sanity [ansible-test arguments…]

`ansible-test` works only inside a collection, this project is a set of playbooks with a top-level `library/`. The
collection is named `vllm_ansible.engine`: the namespace is the project, the name is what its modules manage, so that
others (a `vllm_ansible.gateway`) can stand beside it.

ansible-test installs each test's pinned requirements with a pip that it downloads from its own server. This tool puts
a bootstrap script in that place beforehand that uses the interpreter's ensurepip, and hands the caller's pip
configuration on, so that whatever package index pip uses here is enough.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools import pythons

ROOT = Path(__file__).resolve().parent.parent
COLLECTION = Path("ansible_collections", "vllm_ansible", "engine")
STAGED = {
    "library": "plugins/modules",
    "module_utils/vllm_ansible": "plugins/module_utils",
    "callback_plugins": "plugins/callback",
    "filter_plugins": "plugins/filter",
}
SHARED_CODE = re.compile(r"\bansible\.module_utils\.vllm_ansible\b")
OUR_MODULE = re.compile(r"\bM\((vllm_\w+)\)")

GALAXY = """\
---
namespace: vllm_ansible
name: engine
version: 0.1.0
readme: README.md
authors: [vllm-ansible contributors]
description: Modules that bring hosts from bare to a served model
license_file: LICENSE
"""
# Modules run on hosts with Python 3.6 and later; everything else on the controller.
TEST_CONFIG = "---\nmodules:\n  python_requires: '>=3.6'\n"

# Rules we do not follow: an assert states an invariant for the reader and for mypy (input is never checked with one),
# and a package may say in its __init__.py what it is and hold its entry point.
SKIPPED = ["--skip-test", "no-assert", "--skip-test", "empty-init"]

# In a process of its own, because ensurepip switches pip's configuration off in its own.
BOOTSTRAP = """\
import os, subprocess, sys
subprocess.check_call([sys.executable, "-m", "ensurepip"], stdout=subprocess.DEVNULL)
os.execv(sys.executable, [sys.executable, "-m", "pip", "install", "--quiet"] + sys.argv[1:])
"""


def rewrite(text: str) -> str:
    """Source text with our shared code and our modules named as in a collection."""
    text = SHARED_CODE.sub("ansible_collections.vllm_ansible.engine.plugins.module_utils", text)
    return OUR_MODULE.sub(r"M(vllm_ansible.engine.\1)", text)


def expand_ignores(lines: Iterable[str], collection: Path) -> list[str]:
    """ansible-test's ignore entries, where a path may be a pattern; comments are kept on each line."""
    entries = []
    for line in lines:
        pattern, _, rest = line.strip().partition(" ")
        if pattern and not pattern.startswith("#"):
            entries += [f"{path.relative_to(collection)} {rest}" for path in sorted(collection.glob(pattern))]
    return entries


def stage(directory: Path) -> Path:
    """Write the collection below `directory`, replacing an earlier one; returns its path."""
    collection = directory / COLLECTION
    shutil.rmtree(collection, ignore_errors=True)
    for source, target in STAGED.items():
        for path in sorted((ROOT / source).rglob("*")):
            destination = collection / target / path.relative_to(ROOT / source)
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            destination.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".py":
                destination.write_text(rewrite(path.read_text(encoding="utf-8")), encoding="utf-8")
            else:
                shutil.copyfile(path, destination)
    shutil.copyfile(ROOT / "LICENSE", collection / "LICENSE")
    (collection / "README.md").write_text("# vllm_ansible.engine\n\nStaged from the project vllm-ansible.\n")
    (collection / "galaxy.yml").write_text(GALAXY)
    (collection / "meta").mkdir()
    (collection / "meta" / "runtime.yml").write_text("---\nrequires_ansible: '>=2.16.0'\n")
    (collection / "tests" / "sanity").mkdir(parents=True)
    (collection / "tests" / "config.yml").write_text(TEST_CONFIG)
    ignores = expand_ignores((ROOT / "tests/sanity/ignore.txt").read_text().splitlines(), collection)
    core = ".".join(_ansible_version().split(".")[:2])
    (collection / "tests" / "sanity" / f"ignore-{core}.txt").write_text("".join(f"{entry}\n" for entry in ignores))
    return collection


def _ansible_version() -> str:
    from ansible.release import __version__

    return str(__version__)


def pip_configuration(listing: str) -> str:
    """A pip.conf with the settings that `pip config list` printed, those from the environment included."""
    # Lines are `section.option='value'`; what comes from the environment has the section `:env:` and wins.
    found = re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listing, re.M)
    settings = {option: value.replace("\\n", "\n  ") for option, value in found}
    return "[global]\n" + "".join(f"{option} = {value}\n" for option, value in {**settings, "quiet": "2"}.items())


def seed_home(home: Path) -> None:
    """Prepare a home directory for ansible-test: pip's configuration and the bootstrap scripts it looks for."""
    import ansible_test

    config = home / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "config", "list"]
    config.write_text(pip_configuration(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    source = Path(ansible_test.__path__[0]) / "_internal" / "python_requirements.py"
    cache = home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    for version in re.findall(r"pip='([\d.]+)'", source.read_text(encoding="utf-8")):
        (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(BOOTSTRAP)


def link_pythons(directory: Path) -> None:
    """Fill `directory` with a `pythonX.Y` for each interpreter found, as ansible-test looks for them on PATH."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for minor in range(6, 14):
        path = pythons.find(f"3.{minor}")
        if path:
            # A wrapper, because a link would hide the interpreter's own prefix from itself.
            wrapper = directory / f"python3.{minor}"
            wrapper.write_text(f'#!/bin/sh\nexec "{path}" "$@"\n')
            wrapper.chmod(0o755)


def sanity(arguments: list[str]) -> int:
    """Run ansible-test sanity in a freshly staged collection; returns its exit code."""
    work = ROOT / ".cache" / "sanity"
    collection = stage(work)
    # ansible-test asks git which files there are; within this repository they are all ignored.
    subprocess.run(["git", "init", "--quiet", str(collection)], check=True)
    seed_home(work)
    link_pythons(work / "bin")
    path = [str(work / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "HOME": str(work), "PATH": os.pathsep.join(path)}
    command = [str(Path(sys.executable).parent / "ansible-test"), "sanity", "--color", "no", *SKIPPED, *arguments]
    return subprocess.run(command, cwd=collection, env=environment, check=False).returncode


def main(argv: list[str]) -> int:
    """Parse the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    staging = commands.add_parser("stage", help="write the collection")
    staging.add_argument("directory", type=Path, nargs="?", default=ROOT / ".cache" / "collections")
    commands.add_parser("sanity", help="stage the collection and run ansible-test sanity; takes its arguments")
    known, rest = parser.parse_known_args(argv)
    if known.command == "sanity":
        return sanity(rest)
    if rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    print(stage(known.directory))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
