# SPDX-License-Identifier: Apache-2.0
"""A pretended Ascend machine below a folder, for tests of what installs packages on it. STAND-IN level only."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible.host import Host

from lab.vendor import run_packages
from lab.vendor.run_packages import Package

VERSIONS = {"driver": "25.5.0", "firmware": "7.8.0.5.201", "toolkit": "8.3.RC2", "ops": "8.3.RC2", "nnal": "8.3.RC2"}
# The release that a firmware belongs to.
RELEASES = {"7.8.0.5.201": "25.5.0", "7.7.0.1.231": "25.0.rc1.1"}
KERNEL = "4.19.90-52.22.v2207.ky10.aarch64"


class RootedHost(Host):
    """A host whose files lie below `root`; its architecture is that of the pretended machine."""

    def __init__(self, root: Path, run_command: Any = None) -> None:
        super().__init__(run_command)
        self.root = str(root)

    def read(self, path: str) -> str | None:
        return super().read(self.root + path)

    def list_directory(self, path: str) -> list[str]:
        return super().list_directory(self.root + path)

    def read_link(self, path: str) -> str | None:
        return super().read_link(self.root + path)

    def exists(self, path: str) -> bool:
        return super().exists(self.root + path)

    def real_path(self, path: str) -> str:
        return super().real_path(self.root + path)

    def write_atomically(self, path: str, text: str, mode: int = 0o644) -> None:
        super().write_atomically(self.root + path, text, mode)

    def remove(self, path: str) -> None:
        super().remove(self.root + path)

    def system(self) -> dict[str, Any]:
        return {**super().system(), "machine": "aarch64"}


class Machine:
    """An A2 server with Kylin's kernel and its headers, the user HwHiAiUser, and nothing of Ascend installed."""

    def __init__(self, root: Path, packages: Path) -> None:
        self.root = root
        self._packages = packages
        self._settings: dict[str, str] = {}
        for folder in ("etc", f"usr/src/kernels/{KERNEL}", "run", "var/log", "tmp"):
            (root / folder).mkdir(parents=True)
        (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\nHwHiAiUser:x:1000:1000::/home/x:/bin/bash\n")
        (root / "etc/group").write_text("root:x:0:\nHwHiAiUser:x:1000:\n")
        self.machine(uid="0", machine="aarch64", kernel=KERNEL, pci_ids="19e5:d802", product="a2", free_mb="50000")

    def machine(self, **settings: str) -> None:
        """Change what the machine is like."""
        self._settings.update(settings)
        lines = "".join(f"{key}='{value}'\n" for key, value in self._settings.items())
        (self.root / "etc/ascend-stand-in.conf").write_text(lines)

    def package(self, component: str, version: str = "", chip: str = "910b", arch: str = "aarch64") -> Path:
        """Build a package, or take the one built before."""
        version = version or VERSIONS[component]
        package = Package(component, version, chip, arch, RELEASES.get(version, version))
        path = self._packages / package.file_name
        return path if path.is_file() else run_packages.build(package, self._packages)

    def damage(self, path: Path) -> Path:
        """A copy of a package with one byte of its archive changed."""
        target = self.root / "tmp" / path.name
        content = bytearray(path.read_bytes())
        content[-100] ^= 0xFF
        target.write_bytes(content)
        return target

    def environment(self) -> dict[str, str]:
        return {**os.environ, "STAND_IN_ROOT": str(self.root), "TMPDIR": str(self.root / "tmp"), "LC_ALL": "C"}

    def run(self, path: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a package by hand."""
        return subprocess.run(
            ["bash", path, *words],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def npu_smi(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Ask the tool that the driver installed."""
        return self.run_tool(self.root / "usr/local/bin/npu-smi", *words)

    def run_tool(self, path: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([path, *words], env=self.environment(), capture_output=True, text=True, check=False)

    def reboot(self) -> None:
        """What a reboot does to files: /run is empty."""
        shutil.rmtree(self.root / "run")
        (self.root / "run").mkdir()

    def use(
        self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, run_module: Callable[..., dict[str, Any]]
    ) -> Callable[..., dict[str, Any]]:
        """A function that runs a module on this machine: `run(component="driver", version=…)`.

        The package is built and its digest stated unless the call says otherwise.
        """
        monkeypatch.setattr(module, "Host", lambda run_command: RootedHost(self.root, run_command))
        monkeypatch.setenv("STAND_IN_ROOT", str(self.root))

        def run(component: str, check_mode: bool = False, diff: bool = False, **params: Any) -> dict[str, Any]:
            wanted = {"component": component, "work_path": str(self.root / "tmp"), **params}
            if wanted.get("state") != "absent":
                wanted.setdefault("version", VERSIONS[component])
                wanted.setdefault("src", str(self.package(component, wanted["version"])))
                if component in ("toolkit", "ops", "nnal"):
                    wanted.setdefault("accept_eula", True)
            if wanted.get("src") and Path(wanted["src"]).is_file():
                wanted.setdefault("sha256", run_packages.sha256(Path(wanted["src"])))
            wanted = {name: value for name, value in wanted.items() if value is not None}
            return run_module(module, wanted, check_mode=check_mode, diff=diff)

        return run
