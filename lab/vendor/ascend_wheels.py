#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make STAND-INS for the two wheels of the Ascend row that only the vendor's index has.

    lab/vendor/ascend_wheels.py --source vllm_ascend-0.23.0.post1.tar.gz --soc ascend910b1 --architecture aarch64 FOLDER

vllm-ascend: the Python files of the genuine source archive, without the kernels that CANN's compiler makes; what its
setup.py writes for the SoC (_build_info.py) has the genuine form. The wheel's tag and its description are invented.
triton-ascend: an empty package of that name and version. Both say in their metadata that they are stand-ins.
"""

import argparse
import base64
import hashlib
import tarfile
import zipfile
from pathlib import Path

TRITON_VERSION = "3.2.2"
# setup.py of vllm-ascend 0.23.0.post1, soc_to_device.
DEVICE_TYPES = {"ascend910b1": "A2", "ascend910_9391": "A3", "ascend310p1": "_310P"}
SUMMARY = "STAND-IN of the vllm-ansible lab: {}"


def write_wheel(folder: Path, name: str, version: str, tag: str, files: dict[str, bytes], metadata: str) -> Path:
    """Write one wheel; returns its path. Equal input gives equal bytes."""
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    content = dict(files)
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}".encode()
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = ""
    for path, data in sorted(content.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    content[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    target = folder / f"{package}-{version}-{tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in sorted(content.items()):
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), data)
    return target


def plugin_files(source: Path) -> tuple[dict[str, bytes], str, str]:
    """({path: content} of the package, its requirements and entry points as metadata, its version)."""
    files: dict[str, bytes] = {}
    requirements, points = "", b""
    with tarfile.open(source) as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is None:
                continue
            if path.startswith("vllm_ascend/"):
                files[path] = stream.read()
            elif path.endswith(".egg-info/requires.txt"):
                lines = [line for line in stream.read().decode().splitlines() if line.strip()]
                requirements = "".join(f"Requires-Dist: {line}\n" for line in lines)
            elif path.endswith(".egg-info/entry_points.txt"):
                points = stream.read()
    version = source.name.removesuffix(".tar.gz").split("-", 1)[1]
    files[f"vllm_ascend-{version}.dist-info/entry_points.txt"] = points
    return files, requirements, version


def make(source: Path, soc: str, architecture: str, folder: Path) -> list[Path]:
    """Write both stand-ins into `folder`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    tag = f"cp311-cp311-linux_{architecture}"
    files, requirements, version = plugin_files(source)
    files["vllm_ascend/_build_info.py"] = (f"# Auto-generated file\n__device_type__ = '{DEVICE_TYPES[soc]}'\n").encode()
    summary = "Summary: " + SUMMARY.format("the plugin's Python files without kernels") + "\n"
    made = [write_wheel(folder, "vllm-ascend", version, tag, files, summary + requirements)]
    empty = {"triton/__init__.py": b'"""STAND-IN of the vllm-ansible lab: holds nothing."""\n'}
    summary = "Summary: " + SUMMARY.format("holds nothing") + "\n"
    return [*made, write_wheel(folder, "triton-ascend", TRITON_VERSION, tag, empty, summary)]


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="the published source archive of vllm-ascend")
    parser.add_argument("--soc", choices=sorted(DEVICE_TYPES), default="ascend910b1")
    parser.add_argument("--architecture", choices=("aarch64", "x86_64"), default="aarch64")
    options = parser.parse_args(arguments)
    for path in make(options.source, options.soc, options.architecture, options.folder):
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
