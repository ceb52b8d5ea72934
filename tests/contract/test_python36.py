# SPDX-License-Identifier: Apache-2.0
"""Files that run under a host's own Python work on 3.6 and 3.7 (CentOS 7, Kylin V10).

Real interpreters compile them where there are any; vermin judges syntax and standard library names everywhere.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import pythons

# Run by a Python that comes with them instead: the one of the release, and the converter's on the build host.
NEEDS_NEWER = {"roles/engine_service/files/vllm-supervisor", "module_utils/vllm_ansible/convert/gguf_source.py"}


@pytest.fixture(scope="module")
def host_files(project_root):
    files = [*(project_root / "library").rglob("*.py"), *(project_root / "module_utils").rglob("*.py")]
    scripts = [path for path in (project_root / "roles").glob("*/files/*") if path.is_file()]
    files += [path for path in scripts if re.match(rb"#!\S*(/env )?python3?\n", path.read_bytes()[:40] + b"\n")]
    return sorted(path for path in files if str(path.relative_to(project_root)) not in NEEDS_NEWER)


def judge(files):
    """Vermin's verdict: the lines naming what is newer than Python 3.6."""
    program = Path(sys.executable).parent / "vermin"
    command = [program, "--no-tips", "--violations", "-t=3.6-", "--eval-annotations", *files]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Minimum required versions" in result.stdout, result.stdout + result.stderr
    return result.returncode, result.stdout


def test_nothing_newer_than_python_3_6_is_used(host_files):
    assert len(host_files) > 10
    code, output = judge(host_files)
    assert code == 0, output


@pytest.mark.parametrize(
    "line",
    [
        "if (size := 3) > 2: pass",
        'print(f"{1=}")',
        "import subprocess; subprocess.run([], capture_output=True)",
        "from __future__ import annotations",
        "def f(a, /): pass",
        "x: list[int] = []",
        "import dataclasses",
    ],
)
def test_the_judge_is_awake(tmp_path, line):
    path = tmp_path / "newer.py"
    path.write_text(line + "\n")
    assert judge([path])[0] == 1


@pytest.mark.parametrize("version", ["3.6", "3.7"])
def test_a_real_interpreter_compiles_them(host_files, version):
    python = pythons.find(version)
    if python is None:
        # The files were judged above; here only the second opinion is missing.
        return
    program = "import sys\nfor name in sys.argv[1:]:\n    compile(open(name, encoding='utf-8').read(), name, 'exec')"
    result = subprocess.run([python, "-c", program, *map(str, host_files)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
