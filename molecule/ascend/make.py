# SPDX-License-Identifier: Apache-2.0
"""Make what the scenario installs, in the folder argv[1], and write made.json there: vendor packages and the engine's
artefact, all of them STAND-INS."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lab.vendor import run_packages  # noqa: E402  # after the path above
from lab.vendor.run_packages import Package  # noqa: E402  # after the path above

HDK = {"25.3.rc1": "7.8.0.2.212", "25.5.0": "7.8.0.5.201"}
CANN = "9.1.0"
BUILD = "vllm-0.23.0-ascend-a2-x86_64"


def package(folder: Path, component: str, version: str, release: str) -> dict[str, str]:
    path = run_packages.build(Package(component, version, arch="x86_64", package_version=release), folder)
    return {"file": path.name, "sha256": run_packages.sha256(path), "path": str(path)}


def artefact(folder: Path) -> dict[str, Any]:
    """The stand-in of the engine, around the CPU release; that one is built if it is not there."""
    report = folder / "build.json"
    command = [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", "tests/overrides/build.yml"]
    subprocess.run([*command, "-e", f"report={report}"], cwd=ROOT, check=True, stdout=sys.stderr)
    (cpu,) = json.loads(report.read_text()).values()
    command = [
        sys.executable,
        "lab/vendor/ascend_release.py",
        cpu["path"],
        "--build",
        BUILD,
        "--out",
        ".cache/lab/ascend",
    ]
    unpacked = ROOT / ".cache/test-releases" / cpu["release_id"]
    if unpacked.is_dir():
        command += ["--release", str(unpacked)]
    made = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(made)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "hdk": {
            driver: {
                "driver": package(folder, "driver", driver, driver),
                "firmware": package(folder, "firmware", firmware, driver),
            }
            for driver, firmware in HDK.items()
        },
        "cann": {component: package(folder, component, CANN, CANN) for component in ("toolkit", "ops", "nnal")},
        "artefacts": {BUILD: artefact(folder)},
    }
    (folder / "made.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
