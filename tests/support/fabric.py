# SPDX-License-Identifier: Apache-2.0
"""A pretended fleet of Ascend hosts that share one fabric, below a folder. STAND-IN level only."""

import contextlib
import io
import os
import py_compile
import shlex
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "lab/vendor/hccn_tool"
ONE_AT_A_TIME = threading.Lock()
PROGRAM = compile(STAND_IN.read_text(), str(STAND_IN), "exec")


class Answer(NamedTuple):
    returncode: int
    stdout: str


class Fleet:
    """Hosts npu01 … with NPUs each, all in 10.0.0.0/16; host N, NPU i has 10.0.N.(11 + i).

    Args:
        root: folder for everything.
        settle: whether the ports have their addresses already.
    """

    def __init__(self, root: Path, hosts: int, devices: int, settle: bool = True) -> None:
        self.root = root
        self.hosts = [f"npu{number:02}" for number in range(1, hosts + 1)]
        self.devices = devices
        self.faults()
        for name in self.hosts:
            for folder in ("etc", "run", "usr/local/Ascend/driver/tools"):
                (root / name / folder).mkdir(parents=True)
            self.machine(name)
            (root / name / "usr/local/Ascend/driver/version.info").write_text("Version=25.5.0\n")
            (root / name / "etc/hccn.conf").write_text(self.configuration(name) if settle else "")
            tool = root / name / "usr/local/Ascend/driver/tools/hccn_tool"
            interpreter = "/usr/bin/python3 -IS" if Path("/usr/bin/python3").exists() else "python3 -IS"
            lines = f'export STAND_IN_ROOT={shlex.quote(str(root / name))}\nexec {interpreter} {STAND_IN} "$@"\n'
            tool.write_text("#!/bin/sh\n" + lines)
            tool.chmod(0o755)
            if settle:
                for number in range(devices):
                    self.tool(name, "-i", str(number), "-cfg", "recovery")

    def install(self, tool: Path, machine: Path | str) -> None:
        """Write a hccn_tool that looks at a machine below a folder; compiled once, as it starts thousands of times."""
        program = self.root / "hccn_tool.pyc"
        if not program.exists():
            py_compile.compile(str(STAND_IN), str(program), doraise=True)
        lines = f'export STAND_IN_ROOT={shlex.quote(str(machine))}\nexec {sys.executable} -IS {program} "$@"\n'
        tool.write_text("#!/bin/sh\n" + lines)
        tool.chmod(0o755)

    def machine(self, name: str, **settings: str) -> None:
        """Say what a host is like."""
        lines = {"uid": "0", "product": "a2", "host": name, "fabric": str(self.root / "fabric"), **settings}
        (self.root / name / "etc/ascend-stand-in.conf").write_text("".join(f"{k}='{v}'\n" for k, v in lines.items()))

    def faults(self, *lines: str) -> None:
        """Break the fabric in these ways and no other (lab/vendor/README.md)."""
        (self.root / "fabric").mkdir(parents=True, exist_ok=True)
        (self.root / "fabric/faults").write_text("".join(line + "\n" for line in lines))

    def plan(self, name: str) -> dict[str, Any]:
        """The slice of the plan for a host."""
        number = self.hosts.index(name) + 1
        devices = [
            {"id": i, "address": f"10.0.{number}.{11 + i}", "netmask": "255.255.0.0", "gateway": "10.0.0.1",
             "netdetect": "10.0.0.1", "mtu": None}
            for i in range(self.devices)
        ]  # fmt: skip
        return {"backend": "ascend", "devices": devices, "tls": 0}

    def configuration(self, name: str) -> str:
        names = ("address", "netmask", "gateway", "netdetect")
        rows = [f"{key}_{entry['id']}={entry[key]}\n" for entry in self.plan(name)["devices"] for key in names]
        return "".join(rows)

    def install_path(self, name: str) -> str:
        return str(self.root / name / "usr/local/Ascend")

    def tool(self, name: str, *words: str) -> Answer:
        """Run hccn_tool on a host, in this process: a new one for each of thousands of questions takes minutes."""
        output = io.StringIO()
        names: dict[str, Any] = {"__name__": "hccn_tool"}
        environment = mock.patch.dict(os.environ, STAND_IN_ROOT=str(self.root / name))
        with ONE_AT_A_TIME, environment, contextlib.redirect_stdout(output):
            exec(PROGRAM, names)
            code = names["main"](list(words))
        return Answer(code, output.getvalue())

    def run(self, name: str, arguments: list[str]) -> tuple[int, str, str] | None:
        """What `Host.run` returns on a host."""
        if arguments[0] != self.install_path(name) + "/driver/tools/hccn_tool":
            return None
        answer = self.tool(name, *arguments[1:])
        return answer.returncode, answer.stdout, ""
