# SPDX-License-Identifier: Apache-2.0
"""The tree of a release: what is removed, recorded and missed."""

import base64
import csv
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.build import tree

from tests.support.elves import make_elf


def run(argv, environ_update=None, cwd=None):
    result = subprocess.run(argv, env={**os.environ, **(environ_update or {})}, cwd=cwd, capture_output=True, text=True)
    return result.returncode, result.stdout, result.stderr


def write(root: Path, name: str, content: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_a_failing_program_is_reported_with_its_last_lines() -> None:
    with pytest.raises(tree.BuildError, match=r"(?s)the tool failed with exit code 3\.\n.*the reason"):
        tree.checked(run, ["sh", "-c", "echo the reason; exit 3"], "the tool")


def test_a_full_disk_is_called_by_its_name() -> None:
    with pytest.raises(tree.BuildError, match="The file system is full"):
        tree.checked(run, ["sh", "-c", "echo 'write: No space left on device' >&2; exit 1"], "the tool")


def test_pip_leaves_no_trace_of_this_machine(tmp_path: Path) -> None:
    for name in ("direct_url.json", "REQUESTED", "INSTALLER", "METADATA"):
        write(tmp_path, f"x-1.dist-info/{name}")
    write(tmp_path, "bin/x", "#!/home/builder/bin/python\n")
    write(tmp_path, "torch/bin/torch_shm_manager")
    write(tmp_path, "torch/lib/libtorch.a")
    write(tmp_path, "share/man/man1/x.1")
    write(tmp_path, "torch/include/torch/x.h")
    tree.prune_packages(str(tmp_path))
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["torch/bin/torch_shm_manager", "x-1.dist-info/METADATA"]


def test_record_names_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, "x/__init__.py", "A = 1\n")
    write(tmp_path, "x/__pycache__/__init__.cpython-311.pyc", "compiled")
    write(tmp_path, "x/with,comma.txt", "text")
    write(tmp_path, "y/other.py")
    record = write(
        tmp_path, "x-1.dist-info/RECORD",
        'x/__init__.py,sha256=old,1\n"x/with,comma.txt",,\nx/gone.py,,\n../../bin/x,,\nx-1.dist-info/RECORD,,\n',
    )  # fmt: skip
    tree.rewrite_records(os.path.join(str(tmp_path), "x", ".."))  # not a path in its one spelling
    with record.open(newline="") as stream:
        rows = {row[0]: row[1:] for row in csv.reader(stream)}
    assert sorted(rows) == [
        "x-1.dist-info/RECORD", "x/__init__.py", "x/__pycache__/__init__.cpython-311.pyc", "x/with,comma.txt",
    ]  # fmt: skip
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"A = 1\n").digest()).decode().rstrip("=")
    assert rows["x/__init__.py"] == ["sha256=" + digest, "6"]
    assert rows["x-1.dist-info/RECORD"] == ["", ""]


def test_libraries_from_outside_are_missed(tmp_path: Path) -> None:
    make_elf(tmp_path / "bin" / "tool", ["libc.so.6", "libown.so.1"])
    make_elf(tmp_path / "lib" / "libown.so.1.2", ["libalias.so"], "libown.so.1")
    (tmp_path / "lib" / "libalias.so").symlink_to("libown.so.1.2")
    assert tree.missing_libraries(str(tmp_path)) == {}
    make_elf(tmp_path / "lib" / "extension.so", ["libnuma.so.1", "libm.so.6"])
    assert tree.missing_libraries(str(tmp_path)) == {"lib/extension.so": ["libnuma.so.1"]}


def test_compiled_files_do_not_know_where_they_were_made(tmp_path: Path) -> None:
    made = []
    for place in ("first", "second/deeper"):
        root = tmp_path / place
        write(root, "lib/x.py", "WORDS = {'a', 'b', 'c', 'd'}\n\ndef f():\n    return 'a' in {'a', 'b', 'c'}\n")
        (root / "bin").mkdir()
        (root / "bin" / "python3").symlink_to(sys.executable)
        os.utime(root / "lib" / "x.py", (len(place), len(place)))
        tree.compile_all(str(root), run)
        (compiled,) = root.rglob("*.pyc")
        made.append(compiled.read_bytes())
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0]


def test_one_interpreter_a_tree(tmp_path: Path) -> None:
    write(tmp_path, "lib/python3.11/os.py")
    assert tree.python_version(str(tmp_path)) == "3.11"
    assert tree.site_packages(str(tmp_path)) == str(tmp_path / "lib/python3.11/site-packages")
    write(tmp_path, "lib/python3.12/os.py")
    with pytest.raises(tree.BuildError, match=r"expected one pythonX\.Y"):
        tree.python_version(str(tmp_path))
