#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a STAND-IN of an Ascend engine release out of a CPU release, as an artefact that role engine_release installs.

    lab/vendor/ascend_release.py CPU_ARTEFACT --build vllm-0.23.0-ascend-x86_64 --out FOLDER [--release UNPACKED]

Prints what role engine_build hands on: {"path", "sha256", "size_bytes", "release_id"}. A release of the same inputs
that lies in FOLDER is taken as it is, an older one of the same build is removed.

The artefact has the payloads of the CPU artefact, byte for byte, and one more that holds only new files: a .pth file
that puts a folder before the CPU engine on the module path, and in that folder the Python files of the pretended vLLM
version that its argument parser loads (from the published wheel, patched by engine_overrides), the stand-in of the
plugin and the stand-in of `vllm serve` (`ascend_engine/`). All of it is compiled, a service cannot write.
"""

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.vllm_ansible import artefact, installation  # noqa: E402  # after the path above
from ansible.module_utils.vllm_ansible.overrides import apply, series  # noqa: E402  # after the path above

HERE = Path(__file__).resolve().parent
ROWS = ROOT / "roles" / "deployment_plan" / "vars" / "main" / "rows_ascend.yml"
# Published files, by the vLLM version that is pretended: its wheel, and what its parser imports beyond a CPU release.
WHEELS = {
    "0.23.0": {
        "vllm==0.23.0": "872aeb7c36a1ea942216af067ce870ffdf960804e829367e1b4eb36d4831c03c",
        "gguf==0.19.0": "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
    },
}
SITE = "lib/python3.11/site-packages"
FOLDER = SITE + "/stand-in-ascend"
PTH = """import os, sys; \
os.environ.get("STAND_IN_ASCEND_SERVES") or sys.path.insert(0, os.path.join(sys.prefix, "{}"))
"""
# Run by the release's Python: parses as the stand-in will and names the files that were loaded for it.
PROBE = r"""
import json, sys
folder = sys.argv[1]
sys.path.insert(0, folder)
from stand_in_ascend import serve
import vllm.entrypoints.openai.cli_args
serve.parse(["serve", "/model", "--quantization=ascend", "--tensor-parallel-size=1"])
try:
    serve.parse(["serve", "/model", "--device=ascend"])
except SystemExit as refusal:
    assert refusal.code == 2, refusal.code
serve.make_parser().format_help()
files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
print("FILES " + json.dumps(sorted({file for file in files if file and file.startswith(folder)})))
"""


class ReleaseError(Exception):
    """Says why the stand-in cannot be made."""


def run(argv: list[str], environ_update: Any = None, cwd: Any = None) -> tuple[int, str, str]:
    """`AnsibleModule.run_command` for a tool."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root"), **(environ_update or {})}
    done = subprocess.run(argv, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def checked(argv: list[str], what: str, environment: dict[str, str] | None = None) -> str:
    """Run `argv`; returns its standard output, raises ReleaseError with the end of what it said."""
    code, out, err = run(argv, environment)
    if code != 0:
        raise ReleaseError(f"{what} failed with exit code {code}:\n{(out + err)[-2000:]}")
    return out


def read_row(name: str) -> dict[str, Any]:
    """The version row of the catalogue, as far as the stand-in looks at it."""
    row = yaml.safe_load(ROWS.read_text("utf-8"))["__deployment_plan_rows_ascend"][name]
    return {
        "row": name, "version": row["version"], "plugin": row["plugin"], "plugin_version": row["plugin_version"],
        "versions": row["versions"], "drivers": row["drivers"],
    }  # fmt: skip


def fetch(version: str, folder: Path) -> list[Path]:
    """The wheels of WHEELS, downloaded by pip unless they are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    if version not in WHEELS:
        raise ReleaseError(f"The parser of vLLM {version} is not known here, only that of {', '.join(WHEELS)}.")
    for requirement, sha256 in WHEELS[version].items():
        pattern = requirement.replace("==", "-") + "-*.whl"
        if not list(folder.glob(pattern)):
            checked(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                 f"--dest={folder}", requirement],
                f"downloading {requirement}",
            )  # fmt: skip
        (path,) = folder.glob(pattern)
        if artefact.sha256_file(str(path)) != sha256:
            raise ReleaseError(f"{path} has not the sha256 {sha256}. Remove it and run again.")
        found.append(path)
    return found


def lay_own(row: dict[str, Any], target: Path) -> None:
    """The stand-in of `vllm serve` as the package `target`."""
    target.mkdir()
    for path in (HERE / "ascend_engine").glob("*.py"):
        shutil.copy(path, target)
    # The planner's own comparison of versions: pure, and needs nothing of Ansible.
    shutil.copy(ROOT / "module_utils" / "vllm_ansible" / "plan" / "versions.py", target)
    (target / "row.json").write_text(json.dumps(row, sort_keys=True, indent=1) + "\n", "utf-8")


def lay_out(row: dict[str, Any], wheels: list[Path], overrides: Path, target: Path) -> None:
    """Everything that may be needed, below `target`: patched Python files of the wheels, plugin, stand-in."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target, [name for name in archive.namelist() if name.endswith((".py", "/METADATA"))])
    if (overrides / "ascend" / "series").exists():
        paths = series.read_series(str(overrides), "ascend")
        apply.apply_series(run, str(target), str(overrides), paths)
    lay_own(row, target / "stand_in_ascend")
    shutil.copytree(HERE / "ascend_engine" / "vllm_ascend", target / "vllm_ascend")
    metadata = target / f"vllm_ascend-{row['plugin_version']}.dist-info"
    metadata.mkdir()
    text = f"Metadata-Version: 2.1\nName: vllm-ascend\nVersion: {row['plugin_version']}\nSummary: STAND-IN\n"
    (metadata / "METADATA").write_text(text, "utf-8")
    (metadata / "entry_points.txt").write_text("[vllm.platform_plugins]\nascend = vllm_ascend:register\n", "utf-8")
    (target / "vllm" / "entrypoints" / "cli" / "main.py").write_text(
        '"""STAND-IN, see stand_in_ascend."""\n\nfrom stand_in_ascend.serve import main\n\n'
        'if __name__ == "__main__":\n    main()\n', "utf-8",
    )  # fmt: skip


def reduce(everything: Path, python: str, target: Path) -> None:
    """Copy to `target` what parsing loads, and compile it."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        out = checked([python, "-I", "-B", "-c", PROBE, str(everything)], "parsing with the real parser", environment)
    (line,) = [line for line in out.splitlines() if line.startswith("FILES ")]
    wanted = {Path(name) for name in json.loads(line[len("FILES ") :])}
    wanted |= {path for path in everything.glob("*.dist-info/*") if path.is_file()}
    wanted |= {everything / "stand_in_ascend" / "row.json", everything / "vllm" / "entrypoints" / "cli" / "main.py"}
    wanted.add(everything / "vllm" / "entrypoints" / "cli" / "__init__.py")
    for path in wanted:
        copy = target / FOLDER / path.relative_to(everything)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (target / SITE / "stand-in-ascend.pth").write_text(PTH.format(FOLDER), "utf-8")
    (target / FOLDER / "STAND-IN").write_text(__doc__.strip() + "\n", "utf-8")
    checked(
        [python, "-s", "-P", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(target),
         "-p", "/", str(target / FOLDER)],
        "compiling",
        {"PYTHONHASHSEED": "0"},
    )  # fmt: skip


def entries_of(root: Path) -> dict[str, bytes]:
    """Relative path -> line of the tree's digest, for every file and link below `root`."""
    entries = {}
    for relative, _info in artefact.walk(str(root)):
        path = root / relative
        if path.is_symlink():
            entries[relative] = artefact.tree_entry(relative, "l", 0, os.readlink(path))
        elif path.is_file():
            mode = artefact.file_mode(path.stat().st_mode)
            entries[relative] = artefact.tree_entry(relative, "f", mode, artefact.sha256_file(str(path)))
    return entries


def pack(cpu: Path, release: Path, overlay: Path, build: str, row: dict[str, Any], inputs: Any, target: Path) -> None:
    """Write the artefact: the CPU artefact's payloads as they are, and `overlay` as one more."""
    counted = [artefact.count_tree(str(root)) for root in (release, overlay)]
    entries = {**entries_of(release), **entries_of(overlay)}
    manifest = artefact.read_manifest(str(cpu))
    content = io.BytesIO()
    artefact._write_tar(str(overlay), list(artefact.walk(str(overlay))), content)
    manifest["payload"].append(
        {"file": "stand-in.tar", "sha256": hashlib.sha256(content.getvalue()).hexdigest(), "compression": "none"}
    )
    manifest.update(
        name=build, id_prefix=build, created_from=inputs, tree_sha256=artefact.tree_digest(entries),
        files=sum(tree["files"] for tree in counted), unpacked_bytes=sum(tree["unpacked_bytes"] for tree in counted),
        metadata={
            **manifest["metadata"], "engine": "vllm", "version": row["version"],
            "plugin_version": row["plugin_version"], "stand_in": f"serves with {manifest['name']}",
        },
    )  # fmt: skip
    if len(entries) != manifest["files"]:
        raise ReleaseError(f"{release} is not the tree of {cpu}, or has files of the stand-in")

    def member(name: str, size: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.size, info.mtime = size, artefact.MTIME
        return info

    text = (json.dumps(manifest, sort_keys=True, indent=1) + "\n").encode()
    partial = target.with_suffix(".partial")
    with tarfile.open(cpu, "r:") as source, tarfile.open(partial, "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(member(artefact.MANIFEST, len(text)), io.BytesIO(text))
        for item in manifest["payload"][:-1]:
            archive.addfile(member(item["file"], source.getmember(item["file"]).size), source.extractfile(item["file"]))
        archive.addfile(member("stand-in.tar", len(content.getvalue())), io.BytesIO(content.getvalue()))
    partial.rename(target)


def make(options: argparse.Namespace) -> dict[str, Any]:
    """Make the artefact, or find the one of the same inputs; returns its receipt."""
    row = read_row(options.row)
    wheels = fetch(row["version"], options.downloads)
    overrides = options.overrides or ROOT / "engine_overrides" / "vllm" / row["version"]
    own = sorted(
        [Path(__file__), ROOT / "module_utils/vllm_ansible/plan/versions.py", *HERE.glob("ascend_engine/**/*.py")]
    )
    patches = sorted(path for name in ("common", "ascend") for path in (overrides / name).glob("*"))
    inputs = {
        "cpu_artefact": artefact.sha256_file(str(options.cpu_artefact)),
        "build": options.build, "row": row,
        "files": {path.name: artefact.sha256_file(str(path)) for path in [*wheels, *own, *patches]},
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.out.glob(f"{options.build}-*.json"):
        receipt: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if receipt["inputs_sha256"] == digest and os.path.exists(receipt["path"]):
            return receipt
    with tempfile.TemporaryDirectory(dir=options.out) as scratch:
        release = options.release or Path(scratch) / "release"
        if not options.release:
            installation.install(str(options.cpu_artefact), inputs["cpu_artefact"], str(release))
        problems = installation.verify(str(release), inputs["cpu_artefact"])
        if problems:
            raise ReleaseError(problems[0])
        everything, overlay = Path(scratch) / "everything", Path(scratch) / "overlay"
        lay_out(row, wheels, overrides, everything)
        reduce(everything, str(release / "bin" / "python3"), overlay)
        packed = Path(scratch) / "packed.tar"
        pack(options.cpu_artefact, release, overlay, options.build, row, inputs, packed)
        sha256 = artefact.sha256_file(str(packed))
        name = artefact.release_id(options.build, sha256)
        path = options.out / f"{name}.artefact.tar"
        packed.rename(path)
    receipt = {
        "path": str(path), "sha256": sha256, "size_bytes": path.stat().st_size, "release_id": name,
        "inputs_sha256": digest,
    }  # fmt: skip
    for old in options.out.glob(f"{options.build}-*"):
        if old != path:
            old.unlink()
    path.with_name(f"{name}.json").write_text(json.dumps(receipt, indent=1) + "\n", "utf-8")
    return receipt


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cpu_artefact", type=Path, help="artefact of the CPU release of the same architecture")
    parser.add_argument("--build", required=True, help="name of the build, as the plan has it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the artefact")
    parser.add_argument("--row", default="vllm-ascend-0.23.0.post1", help="version row of the catalogue")
    parser.add_argument("--release", type=Path, help="the CPU artefact as installed; default: unpack it meanwhile")
    parser.add_argument("--downloads", type=Path, default=ROOT / ".cache" / "lab" / "wheels")
    parser.add_argument("--overrides", type=Path, help="folder of patches; default: that of the row's engine")
    options = parser.parse_args(arguments)
    try:
        receipt = make(options)
    except (ReleaseError, artefact.ArtefactError, series.OverridesError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({key: receipt[key] for key in ("path", "sha256", "size_bytes", "release_id")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
