# SPDX-License-Identifier: Apache-2.0
"""`pip check` for another machine, and its exceptions."""

import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.build import demands
from ansible.module_utils.vllm_ansible.build.tree import BuildError


def run(argv, environ_update=None, cwd=None):
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout, result.stderr


def install(site: Path, name: str, version: str, *requires: str) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = [f"Requires-Dist: {text}" for text in requires]
    (info / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines]) + "\n"
    )


def unmet(site: Path, architecture: str = "aarch64") -> list[tuple[str, str]]:
    return [(a, b) for a, b, _text in demands.unmet(run, sys.executable, str(site), architecture, "3.11")]


def test_what_is_met_is_not_named(tmp_path: Path) -> None:
    install(
        tmp_path,
        "Big_One",
        "1.0",
        "other>=2,<3",
        "Other[fast]",
        'absent; extra == "more"',
        'old; python_version < "3.9"',
    )
    install(tmp_path, "other", "2.5+cpu")
    assert unmet(tmp_path) == []


def test_markers_are_those_of_the_target(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.10.0", 'triton==3.6.0; platform_system == "Linux" and platform_machine == "x86_64"')
    assert unmet(tmp_path) == []
    assert unmet(tmp_path, "x86_64") == [("torch", "triton")]


def test_an_extra_that_is_asked_for_counts(tmp_path: Path) -> None:
    install(tmp_path, "asks", "1", "fastapi[standard]")
    install(tmp_path, "fastapi", "0.123", 'uvicorn; extra == "standard"')
    assert unmet(tmp_path) == [("fastapi", "uvicorn")]


def test_each_contradiction_has_a_sentence(tmp_path: Path) -> None:
    install(tmp_path, "vllm", "0.23.0+x", "torch==2.11.0", "opencv-python-headless>=4.13.0")
    install(tmp_path, "torch", "2.10.0")
    found = demands.unmet(run, sys.executable, str(tmp_path), "aarch64", "3.11")
    assert [text for _a, _b, text in found] == [
        "vllm 0.23.0+x asks for opencv-python-headless>=4.13.0, there is none",
        "vllm 0.23.0+x asks for torch==2.11.0, there is 2.10.0",
    ]
    with pytest.raises(BuildError, match=r"asks for torch==2\.11\.0, there is 2\.10\.0.*exceptions\.txt"):
        demands.check(found, {("vllm", "opencv-python-headless"): "video only"})
    demands.check(found, {("vllm", "opencv-python-headless"): "x", ("vllm", "torch"): "y"})


def test_an_exception_that_excuses_nothing_is_refused() -> None:
    with pytest.raises(BuildError, match="excuses what is met: a b"):
        demands.check([], {("a", "b"): "c"})


def test_exceptions_are_read() -> None:
    text = "# comment\n\nvllm torch: the plugin's row has 2.10: it wins\n"
    assert demands.parse_exceptions(text, "x") == {("vllm", "torch"): "the plugin's row has 2.10: it wins"}
    for line in ("vllm torch", "vllm: why", "vllm torch more: why"):
        with pytest.raises(BuildError, match=r"x, line 1"):
            demands.parse_exceptions(line, "x")
