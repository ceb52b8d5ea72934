# SPDX-License-Identifier: Apache-2.0
"""Laying a patched plugin over the published wheel, and what is refused."""

import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.build import plugin
from ansible.module_utils.vllm_ansible.build.tree import BuildError
from ansible.module_utils.vllm_ansible.overrides import series

PATCH = """--- a/vllm_ascend/x.py
+++ b/vllm_ascend/x.py
@@ -1 +1 @@
-one
+ONE
--- /dev/null
+++ b/vllm_ascend/new.py
@@ -0,0 +1 @@
+new
"""


def run(argv, environ_update=None, cwd=None):
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout, result.stderr


class Workplace:
    def __init__(self, root: Path) -> None:
        self.site, self.source, self.folder = root / "site", root / "source", root / "overrides"
        for top in (self.site, self.source):
            (top / "vllm_ascend").mkdir(parents=True)
            (top / "vllm_ascend" / "x.py").write_text("one\n")
        info = self.site / "vllm_ascend-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: vllm-ascend\nVersion: 1.0\n\nVersion: 1.0 is mentioned here\n")
        (info / "RECORD").write_text("vllm_ascend/x.py,,\nvllm_ascend-1.0.dist-info/METADATA,,\n")
        (self.folder / "ascend").mkdir(parents=True)
        (self.folder / "ascend" / "0001-x.patch").write_text(PATCH)

    def lay_over(self, result: str | None = None) -> None:
        if result is None:
            (self.source / "done").mkdir()
            done = self.source / "done" / "vllm_ascend"
            done.mkdir()
            (done / "x.py").write_text("ONE\n")
            (done / "new.py").write_text("new\n")
            result = series.result_digest(str(done.parent), ["vllm_ascend/x.py", "vllm_ascend/new.py"])
        plugin.lay_over(
            run, str(self.site), str(self.source), str(self.folder), ["ascend/0001-x.patch"], result,
            "vllm-ascend", "1.0", "ascend.p1",
        )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def test_python_files_are_replaced_and_the_name_says_so(place: Workplace) -> None:
    place.lay_over()
    assert (place.site / "vllm_ascend" / "x.py").read_text() == "ONE\n"
    assert (place.site / "vllm_ascend" / "new.py").read_text() == "new\n"
    info = place.site / "vllm_ascend-1.0+ascend.p1.dist-info"
    assert (info / "METADATA").read_text().splitlines()[1::2] == [
        "Version: 1.0+ascend.p1",
        "Version: 1.0 is mentioned here",
    ]
    assert (info / "RECORD").read_text().splitlines() == [
        "vllm_ascend/x.py,,", "vllm_ascend-1.0+ascend.p1.dist-info/METADATA,,", "vllm_ascend/new.py,,"
    ]  # fmt: skip


def test_a_wheel_of_another_source_is_refused(place: Workplace) -> None:
    (place.site / "vllm_ascend" / "x.py").write_text("changed\n")
    with pytest.raises(BuildError, match=r"vllm_ascend/x\.py of the vllm-ascend wheel is not that of its source"):
        place.lay_over()
    assert (place.site / "vllm_ascend" / "x.py").read_text() == "changed\n"


def test_another_result_is_refused(place: Workplace) -> None:
    with pytest.raises(BuildError, match=r"Run tools/overrides\.py lock"):
        place.lay_over("0" * 64)
    assert (place.site / "vllm_ascend" / "x.py").read_text() == "one\n"


@pytest.mark.parametrize("path", ["csrc/kernel.cpp", "vllm_ascend/kernel.cpp", "setup.py", "csrc/generate.py"])
def test_a_series_that_needs_a_compiler_says_what_it_needs(path: str) -> None:
    with pytest.raises(BuildError, match=rf"touches {path}\..*CANN toolkit and NNAL.*C\+\+17"):
        plugin.check_series(["vllm_ascend/x.py", path])


@pytest.mark.parametrize(
    ("soc", "device", "fits"),
    [("ascend910b1", "A2", True), ("ascend910b4-1", "A2", True), ("ascend910_9391", "A3", True),
     ("ascend310p1", "_310P", True), ("ascend910_9391", "A2", False), ("ascend950dt_9582", "A3", False)],
)  # fmt: skip
def test_the_wheel_has_to_be_for_the_soc(soc: str, device: str, fits: bool, place: Workplace) -> None:
    (place.site / "vllm_ascend" / "_build_info.py").write_text(f"# Auto-generated file\n__device_type__ = '{device}'\n")
    if fits:
        plugin.check_soc(str(place.site), "vllm-ascend", soc)
    else:
        with pytest.raises(BuildError, match=f"was made for {device}, the plan wants"):
            plugin.check_soc(str(place.site), "vllm-ascend", soc)


def test_a_wheel_that_does_not_say_and_a_soc_nobody_knows(place: Workplace) -> None:
    with pytest.raises(BuildError, match="was made for an unknown device"):
        plugin.check_soc(str(place.site), "vllm-ascend", "ascend910b1")
    with pytest.raises(BuildError, match="soc_version 'ascend910a' is none of"):
        plugin.check_soc(str(place.site), "vllm-ascend", "ascend910a")


@pytest.mark.parametrize(
    ("names", "soc", "message"),
    [
        (["triton_ascend-3.2.2"], "ascend910b1", None),
        ([], "ascend310p1", None),
        (["triton-3.6.0", "triton_ascend-3.2.2"], "ascend910b1", "triton and triton-ascend in one tree"),
        (["triton-3.6.0"], "ascend910b1", "triton in one tree"),
        (["triton_ascend-3.2.2"], "ascend310p1", "no kernels for ascend310p1"),
    ],
)
def test_two_packages_named_triton(names: list[str], soc: str, message: str | None, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / f"{name}.dist-info").mkdir()
    if message is None:
        plugin.check_triton(str(tmp_path), soc)
    else:
        with pytest.raises(BuildError, match=message):
            plugin.check_triton(str(tmp_path), soc)
