# SPDX-License-Identifier: Apache-2.0
"""--registry: give a host the package indexes this machine itself is configured for."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

COPIED = (
    "/etc/resolv.conf",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/apt/apt.conf",
    "/etc/apt/apt.conf.d",
    "/etc/apt/auth.conf",
    "/etc/apt/auth.conf.d",
    "/etc/apt/keyrings",
    "/etc/apt/preferences.d",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d",
    "/etc/apt/trusted.gpg.d",
)


def pip_settings(listing: str) -> dict[str, str]:
    """Global pip settings from the text of `pip config list`; the environment wins over files, as in pip."""
    settings: dict[str, dict[str, str]] = {"global": {}, ":env:": {}}
    for line in listing.splitlines():
        if match := re.fullmatch(r"(global|:env:)\.([a-z-]+)='(.*)'", line):
            settings[match[1]][match[2].lstrip(".")] = match[3].replace("\\n", "\n")
    return settings["global"] | settings[":env:"]


def pip_paths(settings: dict[str, str]) -> list[Path]:
    """Local files and folders pip is pointed at. An index's links may lead to its neighbours: its parent is meant."""
    paths = []
    for key, value in settings.items():
        for word in value.split():
            if word.startswith("file://"):
                path = Path(unquote(urlsplit(word).path))
                index = key in ("index-url", "extra-index-url") and len(path.parts) > 2
                paths.append(path.parent if index else path)
            elif word.startswith("/") and key in ("find-links", "constraint", "constraints"):
                paths.append(Path(word))
    return [p for p in dict.fromkeys(paths) if p.exists()]


def read_pip() -> dict[str, str]:
    """This machine's pip settings; none when it has no pip."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "list"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # fmt: skip
    return pip_settings(asked.stdout) if not asked.returncode else {}


def install(root: Path) -> list[list[str]]:
    """Copy the configuration into a host's tree; return the read-only mounts it needs as [outside, inside]."""
    for source in map(Path, COPIED):
        target = root / source.relative_to("/")
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    settings = read_pip()
    if settings:
        parser = configparser.RawConfigParser()
        parser["global"] = {k: v.replace("\n", "\n\t") for k, v in settings.items()}
        with open(os.open(root / "etc/pip.conf", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            parser.write(stream)
    return [[str(p), str(p)] for p in pip_paths(settings)]
