#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""systemctl in a mount namespace where no systemd runs: enabling is the real one's, running is a file in /run/units.

A service is started by running its ExecStart, which has to end at once. `stand-in-boot` is a start of the machine.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

REAL = "/usr/bin/systemctl.real"
RUNNING = Path("/run/units")
FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system")
WANTS = Path("/etc/systemd/system/multi-user.target.wants")


def full(name):
    return name if "." in name else name + ".service"


def unit(name):
    return next((Path(folder) / full(name) for folder in FOLDERS if (Path(folder) / full(name)).exists()), None)


def real(*words):
    environment = {**os.environ, "SYSTEMD_OFFLINE": "1"}
    return subprocess.run([REAL, *words], env=environment, capture_output=True, text=True, check=False)


def start(name):
    place = unit(name)
    if place is None:
        return 5
    texts = [place.read_text()] + [path.read_text() for path in Path("/etc/systemd/system").glob(full(name) + ".d/*")]
    commands = []
    for command in re.findall(r"^ExecStart=(.*)$", "\n".join(texts), re.MULTILINE):
        commands = [*commands, command] if command else []
    good = all(subprocess.run(command.split(), check=False).returncode == 0 for command in commands)
    if good:
        RUNNING.mkdir(exist_ok=True)
        (RUNNING / full(name)).touch()
    return 0 if good else 1


def main(words):
    verb, names = words[0], [word for word in words[1:] if not word.startswith("-")]
    running = {name: (RUNNING / full(name)).exists() for name in names}
    if verb == "show":
        for name in names:
            there = unit(name)
            print(f"Id={full(name)}\nLoadState={'loaded' if there else 'not-found'}")
            print(f"ActiveState={'active' if running[name] else 'inactive'}")
            print(f"SubState={'running' if running[name] else 'dead'}")
            print(f"UnitFileState={real('is-enabled', name).stdout.strip() if there else ''}")
        return 0
    if verb == "is-active":
        print("active" if all(running.values()) else "inactive") if "--quiet" not in words else None
        return 0 if all(running.values()) else 3
    if verb.startswith("try-"):
        return 0
    if verb in ("start", "restart"):
        return max(start(name) for name in names)
    if verb == "stop":
        for name in names:
            (RUNNING / full(name)).unlink(missing_ok=True)
        return 0
    if verb == "daemon-reload":
        return 0
    if verb == "stand-in-boot":
        for path in RUNNING.glob("*"):
            path.unlink()
        for path in sorted(WANTS.glob("nvidia-*")):
            start(path.name)
        return 0
    result = real(*words)
    print(result.stdout, end="")
    print(result.stderr, end="", file=sys.stderr)
    return result.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
