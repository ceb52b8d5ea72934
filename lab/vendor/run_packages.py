#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds STAND-INS of Ascend's ``.run`` packages: genuine makeself archives with install scripts of our own.

The archives carry the header of the installed ``makeself`` (GPL), changed while building as the vendor changes it:
``--extract=``, ``--check`` and every flag that the header does not know go to the install script behind the two
arguments ``--<file>`` and ``--<working directory>``. Nothing of makeself is in this repository.

    lab/vendor/run_packages.py FOLDER driver 25.5.0 --package-version 25.5.0 --chip 910b
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
HEADERS = (Path("/usr/share/makeself/makeself-header.sh"), Path("/usr/share/makeself-header.sh"))
COMPONENTS = ("driver", "firmware", "toolkit", "ops", "nnal")
# The part of a package's name that says which chip it is for, and the PCI function that chip has.
PCI = {"310p": "19e5:d500", "910": "19e5:d801", "910b": "19e5:d802", "A3": "19e5:d803"}

# Places in makeself's header, and what the vendor's has there.
CHECK_ENDS = r'(?<=    --check\)\n\tMS_Check "\\\$0" y\n)\texit 0\n\t;;\n'
FLAGS_END = r'    -\*\)\n\techo Unrecognized flag : "\\\$1" >&2\n\tMS_Help\n\texit 1\n\t;;\n    \*\)\n\tbreak ;;\n'
AFTER_FLAGS = r'(?<=\ndone\n\n)(?=if test x"\\\$quiet" = xy -a x"\\\$verbose" = xy; then)'
PASS_ON = r"""	scriptargs="\$scriptargs '\$1'"
	shift
	;;
"""
EXTRACT = r"""    --extract=*)
	keep=y
	targetdir="\${1#--extract=}"
	shift
	;;
    "")
	break ;;
    *)
"""
FIRST_ARGUMENTS = r"""quiet_flag=""
if test x"\$quiet" = xy; then
	quiet_flag="--quiet"
fi
scriptargs="'--\$0' '--\$PWD' \$quiet_flag \$scriptargs"

"""


class BuildError(Exception):
    """Says what is missing for the archives to be built."""


class Package(NamedTuple):
    """One package to build. ``package_version`` is what driver and firmware of one release share."""

    component: str
    version: str
    chip: str = "910b"
    arch: str = "aarch64"
    package_version: str = ""
    compatible: str = "[7.0.0,8.9.9]"
    prebuilt_kernel: str = "4.19.90-52.22.v2207.ky10.aarch64"
    firmware_exit: int = 0

    @property
    def new_layout(self) -> bool:
        """Whether this CANN has a directory of its own (8.5 and later)."""
        numbers = re.match(r"(\d+)\.(\d+)", self.version)
        return bool(numbers) and (int(numbers.group(1)), int(numbers.group(2))) >= (8, 5)  # type: ignore[union-attr]

    @property
    def file_name(self) -> str:
        """As the vendor names it."""
        a3 = self.chip == "A3"
        hdk = "Atlas-A3-hdk" if a3 else f"Ascend-hdk-{self.chip}"
        ops = f"Ascend-cann-{self.chip}-ops"
        if not self.new_layout:
            ops = "Atlas-A3-cann-kernels" if a3 else f"Ascend-cann-kernels-{self.chip}"
        linux = f"_{self.version}_linux-{self.arch}.run"
        return {
            "driver": f"{hdk}-npu-driver" + linux.replace("x86_64", "x86-64"),
            "firmware": f"{hdk}-npu-firmware_{self.version}.run",
            "toolkit": "Ascend-cann-toolkit" + linux,
            "ops": ops + linux,
            "nnal": "Ascend-cann-nnal" + linux,
        }[self.component]

    def settings(self) -> str:
        """What the install script reads."""
        values = {
            **self._asdict(),
            "package_version": self.package_version or self.version,
            "pci": PCI[self.chip],
            "layout": "new" if self.new_layout else "old",
        }
        return "".join(f"{key}='{value}'\n" for key, value in values.items())


def replace_once(text: str, pattern: str, replacement: str, what: str) -> str:
    """Replace exactly one match; a makeself whose header looks different is named."""
    result, count = re.subn(pattern, lambda _match: replacement, text, flags=re.S)
    if count != 1:
        raise BuildError(f"The header of this makeself has {count} places where {what}; 2.4.5 has one.")
    return result


def vendor_header(folder: Path) -> Path:
    """Write the installed makeself's header with the vendor's changes into `folder`."""
    source = next((path for path in HEADERS if path.is_file()), None)
    if source is None or shutil.which("makeself") is None:
        raise BuildError("makeself is not installed. Run `lab/lab deps`.")
    text = source.read_text(encoding="utf-8")
    text = replace_once(text, r"(?<=\n)#!/bin/sh(?=\n)", "#!/bin/bash", "the interpreter is named")
    text = replace_once(text, CHECK_ENDS, PASS_ON, "--check ends")
    text = replace_once(text, FLAGS_END, EXTRACT + PASS_ON, "unknown flags are refused")
    text = replace_once(text, AFTER_FLAGS, FIRST_ARGUMENTS, "options have been read")
    header = folder / "header.sh"
    header.write_text(text, encoding="utf-8")
    return header


def build(package: Package, folder: Path) -> Path:
    """Build one package into `folder`; returns its path. The same input gives the same install scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    hardware = package.component in ("driver", "firmware")
    label = f"ASCEND {package.component.upper()} RUN PACKAGE" if hardware else "ASCEND_RUN_PACKAGE"
    target = folder / package.file_name
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        content = work / "content"
        content.mkdir()
        scripts = HERE / "packages"
        shutil.copy(scripts / "common.sh", content)
        shutil.copy(scripts / ("hdk.sh" if hardware else "cann.sh"), content / "install.sh")
        (content / "install.sh").chmod(0o755)
        (content / "package.conf").write_text(package.settings(), encoding="utf-8")
        if package.component == "driver":
            for tool in ("npu-smi", "hccn_tool", "packages/devices.sh"):
                shutil.copy(HERE / tool, content)
        command = ["makeself", "--quiet", "--tar-quietly", "--sha256", "--nomd5", "--nocrc", "--keep-umask"]
        command += ["--header", str(vendor_header(work)), str(content), str(target), label, "./install.sh"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise BuildError(f"makeself failed: {result.stderr.strip() or result.stdout.strip()}")
    return target


def sha256(path: Path) -> str:
    """Digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Build a stand-in of an Ascend .run package.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("component", choices=COMPONENTS)
    parser.add_argument("version")
    parser.add_argument("--package-version", default="")
    parser.add_argument("--chip", choices=sorted(PCI), default="910b")
    parser.add_argument("--arch", choices=["aarch64", "x86_64"], default="aarch64")
    parser.add_argument("--kernel", default=Package._field_defaults["prebuilt_kernel"], help="of the prebuilt modules")
    options = parser.parse_args(arguments)
    package = Package(
        component=options.component,
        version=options.version,
        chip=options.chip,
        arch=options.arch,
        package_version=options.package_version,
        prebuilt_kernel=options.kernel,
    )
    try:
        path = build(package, options.folder)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{sha256(path)}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
