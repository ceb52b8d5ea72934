# SPDX-License-Identifier: Apache-2.0
"""The environment of CANN as a file for systemd, from the stand-ins' set_env.sh and from scripts with traps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vllm_ascend_environment
import vllm_run_package
from ansible.module_utils.vllm_ansible.run_package import environment
from ansible.module_utils.vllm_ansible.run_package.packages import PackageError

from tests.support.ascend import Machine

# Builds packages with what `lab/lab deps` installs.
pytestmark = pytest.mark.lab

Run = Callable[..., dict[str, Any]]
FILE = "/etc/vllm/ascend.env"


@pytest.fixture
def install(ascend: Machine, monkeypatch: pytest.MonkeyPatch, run_module: Run) -> Run:
    ascend.use(monkeypatch, vllm_ascend_environment, run_module)
    return ascend.use(monkeypatch, vllm_run_package, run_module)


@pytest.mark.parametrize("version", ["8.3.RC2", "9.1.0"])
def test_the_file_follows_what_is_installed(ascend: Machine, install: Run, run_module: Run, version: str) -> None:
    wanted = {"path": FILE, "cxx_abi": 1}
    planned = run_module(vllm_ascend_environment, wanted, check_mode=True)
    assert planned["changed"] and len(planned["missing"]) == 2 and planned["variables"] == {}
    refused = run_module(vllm_ascend_environment, wanted)
    assert refused["failed"] and "Install CANN's toolkit and NNAL first" in refused["msg"]
    for component in ("toolkit", "nnal"):
        install(component, version=version)
    first = run_module(vllm_ascend_environment, wanted, diff=True)
    assert first["changed"] and first["differs"] and first["missing"] == []
    text = (ascend.root / FILE[1:]).read_text()
    assert first["diff"]["after"] == text and text.startswith("# Written by vllm-ansible")
    lines = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines == first["variables"]
    assert lines["ATB_HOME_PATH"] == "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1"
    assert lines["ASCEND_HOME_PATH"].startswith("/usr/local/Ascend/")
    assert lines["PATH"].endswith(environment.BASE["PATH"])
    libraries = lines["LD_LIBRARY_PATH"].split(":")
    assert "" not in libraries and len(libraries) == len(set(libraries))
    assert {"/usr/local/Ascend/driver/lib64" + part for part in ("", "/common", "/driver")} < set(libraries)
    assert "HOME" not in lines and "PWD" not in lines and "SHLVL" not in lines
    assert not run_module(vllm_ascend_environment, wanted)["changed"]
    other = run_module(vllm_ascend_environment, {"path": FILE, "cxx_abi": 0}, check_mode=True)
    assert other["changed"] and other["variables"]["ATB_HOME_PATH"].endswith("cxx_abi_0")
    assert run_module(vllm_ascend_environment, {"path": FILE, "state": "absent"})["changed"]
    assert not run_module(vllm_ascend_environment, {"path": FILE, "state": "absent"})["changed"]


def script(folder: Path, text: str) -> str:
    path = folder / "set_env.sh"
    path.write_text(text)
    return str(path)


def test_what_the_caller_has_set_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/home/me/lib")
    found = environment.resolve(
        [[script(tmp_path, "export LD_LIBRARY_PATH=/a:$LD_LIBRARY_PATH\n")]], environment.BASE, []
    )
    assert found == {"LD_LIBRARY_PATH": "/a"}


def test_scripts_talk_take_arguments_and_build_on_each_other(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    first = script(tmp_path, "echo noise\nexport A=1 EMPTY=\nf() { :; }; export -f f\n")
    second = script(tmp_path / "b", 'export B="$A $1"\n')
    found = environment.resolve([[first], [second, "--cxx_abi=1"]], environment.BASE, ["A", "B"])
    assert found == {"A": "1", "EMPTY": "", "B": "1 --cxx_abi=1"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("exit 3\n", "exit code 3"),
        ("if\n", "no A; .*syntax error"),
        ("echo broken >&2\n", "no A; broken"),
    ],
)
def test_a_script_that_fails_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(PackageError, match=rf"set_env\.sh cannot be sourced: {words}"):
        environment.resolve([[script(tmp_path, text)]], environment.BASE, ["A"])


def test_a_command_that_fails_inside_is_no_failure(tmp_path: Path) -> None:
    """The vendor's own scripts look for files and programs that need not be there."""
    text = "false\n[ -f /absent ] && . /absent\nexport A=1\nfalse\n"
    assert environment.resolve([[script(tmp_path, text)]], environment.BASE, ["A"]) == {"A": "1"}


def test_values_are_written_as_systemd_reads_them() -> None:
    text = environment.render({"B": 'a "b" $c \\d `e`', "A": "/x:/y", "C": "", "D": "#x y"}, "One\nTwo")
    assert text == '# One\n# Two\nA=/x:/y\nB="a \\"b\\" \\$c \\\\d \\`e\\`"\nC=\nD="#x y"\n'
    with pytest.raises(PackageError, match="more than one line"):
        environment.render({"A": "x\ny"}, "")


def test_libraries_are_added_once_and_last() -> None:
    assert environment.with_libraries({}, ["/a", "/b"]) == {"LD_LIBRARY_PATH": "/a:/b"}
    assert environment.with_libraries({"LD_LIBRARY_PATH": "/b:/c"}, ["/a", "/b"])["LD_LIBRARY_PATH"] == "/b:/c:/a"
    assert environment.with_libraries({"A": "x"}, []) == {"A": "x"}
