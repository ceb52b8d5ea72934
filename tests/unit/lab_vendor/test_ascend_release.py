# SPDX-License-Identifier: Apache-2.0
"""The stand-in of an Ascend engine: what it asks of its host, what it hands on, and that its artefact installs."""

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible import artefact, installation

from lab.vendor import ascend_release

ROW = ascend_release.read_row("vllm-ascend-0.23.0.post1")
FILES = {
    "/usr/local/Ascend/driver/version.info": "Version=25.5.0\npackage_version=25.5.0\n",
    "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so": "",
    "/usr/local/Ascend/cann/lib64/libascendcl.so": "",
    "/usr/local/Ascend/cann/opp/version.info": "",
    "/usr/local/Ascend/cann/python/site-packages/te.py": "",
    "/usr/local/Ascend/cann/x86_64-linux/ascend_toolkit_install.info": "package_name=toolkit\nversion=9.1.0\n",
    "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1/lib/libatb.so": "",
    "/usr/local/Ascend/nnal/atb/latest/version.info": "    Ascend-cann-atb : 9.1.0\n    Platform : x86_64\n",
    **{f"/dev/{name}": "" for name in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc")},
}
ATB = "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1"
ENVIRONMENT = {
    "ASCEND_HOME_PATH": "/usr/local/Ascend/cann",
    "ASCEND_OPP_PATH": "/usr/local/Ascend/cann/opp",
    "ATB_HOME_PATH": ATB,
    "LD_LIBRARY_PATH": f"{ATB}/lib:/usr/local/Ascend/cann/lib64:/usr/local/Ascend/driver/lib64/driver",
    "PYTHONPATH": "/usr/local/Ascend/cann/python/site-packages",
    "ASCEND_RT_VISIBLE_DEVICES": "0,1",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The stand-in's own package, as it lies in a release; vLLM is imported only where it parses."""
    folder = tmp_path_factory.mktemp("engine")
    ascend_release.lay_own(ROW, folder / "stand_in_ascend")
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("stand_in_ascend.serve")
    finally:
        sys.path.remove(str(folder))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with driver, CANN, NNAL and two NPUs."""
    for name, text in FILES.items():
        path = Path(f"{tmp_path}{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_host_of_the_row_has_no_problems(engine: Any, root: Path) -> None:
    assert engine.host.problems(ROW, ENVIRONMENT, str(root)) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ASCEND_HOME_PATH": "/opt/cann"}, "ASCEND_HOME_PATH=/opt/cann is no directory"),
        ({"ATB_HOME_PATH": None}, "ATB_HOME_PATH is not set: the unit does not read the environment of CANN and NNAL"),
        ({"LD_LIBRARY_PATH": f"{ATB}/lib:/usr/local/Ascend/cann/lib64"}, "libascend_hal.so of the driver is not found"),
        ({"LD_LIBRARY_PATH": ""}, "libatb.so of NNAL is not found"),
        ({"PYTHONPATH": "/srv"}, "CANN's Python packages are not found"),
        ({"ASCEND_RT_VISIBLE_DEVICES": None}, "ASCEND_RT_VISIBLE_DEVICES=None names no devices"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "1,7"}, "/dev/davinci7 cannot be opened: No such file or directory"),
    ],
)
def test_a_unit_that_lacks_something_is_told_what(engine: Any, root: Path, change: Any, sentence: str) -> None:
    environment = {key: value for key, value in {**ENVIRONMENT, **change}.items() if value is not None}
    found = engine.host.problems(ROW, environment, str(root))
    assert [problem for problem in found if problem.startswith(sentence)], found


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("/usr/local/Ascend/driver/version.info", "Version=24.1.0\n", "driver 24.1.0 does not go with this engine"),
        ("/usr/local/Ascend/driver/version.info", None, "no driver: /usr/local/Ascend/driver/version.info is missing"),
        ("/usr/local/Ascend/cann/x86_64-linux/ascend_toolkit_install.info", "version=8.5.1\n", "cann is 8.5.1"),
        ("/usr/local/Ascend/nnal/atb/latest/version.info", None, "nnal is absent, this engine was built for 9.1.0"),
        ("/dev/hisi_hdc", None, "/dev/hisi_hdc cannot be opened: No such file"),
    ],
)
def test_a_host_that_is_not_the_rows_is_told_why(
    engine: Any, root: Path, path: str, text: str | None, sentence: str
) -> None:
    Path(f"{root}{path}").unlink() if text is None else Path(f"{root}{path}").write_text(text)
    (problem,) = engine.host.problems(ROW, ENVIRONMENT, str(root))
    assert problem.startswith(sentence)


@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_a_device_of_another_engine_must_be_out_of_reach(engine: Any, root: Path) -> None:
    try:
        for number in (0, 1, 2):
            (root / "dev" / f"davinci{number}").unlink(missing_ok=True)
            os.mknod(root / "dev" / f"davinci{number}", 0o20600, os.makedev(240, number))
        engine.host._open(str(root / "dev" / "davinci0"))
    except PermissionError:
        pytest.skip("this machine makes no device nodes")
    if engine.host._open(str(root / "dev" / "davinci0")):
        pytest.skip("this machine opens no such device nodes")
    (problem,) = engine.host.problems(ROW, ENVIRONMENT, str(root))
    assert problem.startswith("/dev/davinci2 can be opened, and it is not this engine's")


ARGUMENTS = {
    "model_tag": "/m", "model": "default", "api_key_file": "/k", "served_model_name": ["one", "two"], "port": 8000,
    "trust_remote_code": False, "max_model_len": None, "headless": False, "data_parallel_size": 4,
    "data_parallel_size_local": None, "tensor_parallel_size": 4, "pipeline_parallel_size": 1, "quantization": "ascend",
}  # fmt: skip


def test_only_what_no_device_has_a_part_in_is_handed_on(engine: Any) -> None:
    words = ["/m", "--api-key-file=/k", "--port=8000", "--served-model-name", "one", "two", "--dtype=float32"]
    assert engine.cpu_arguments(SimpleNamespace(**ARGUMENTS)) == [*words, "--enforce-eager"]


@pytest.mark.parametrize(
    ("change", "visible", "count"),
    [({}, 16, 0), ({}, 8, 1), ({"data_parallel_size_local": 2}, 8, 0), ({"headless": True}, 16, 1)],
)
def test_more_ranks_than_devices_do_not_start(engine: Any, change: Any, visible: int, count: int) -> None:
    assert len(engine.layout_problems(SimpleNamespace(**{**ARGUMENTS, **change}), visible)) == count


def test_the_artefact_holds_the_cpu_release_and_more(tmp_path: Path) -> None:
    release, overlay, target = tmp_path / "release", tmp_path / "overlay", tmp_path / "made.tar"
    for path, text in {release / "bin/python3": "#!/bin/sh\n", overlay / "lib/x.pth": "import os\n"}.items():
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (release / "bin/python3").chmod(0o755)
    layers = [{"file": "tree.tar.gz", "compression": "gzip", "paths": [""]}]
    cpu = artefact.pack(
        str(release), str(tmp_path / "cpu.tar"), "engine-release", "cpu", layers=layers, python=sys.executable
    )
    ascend_release.pack(Path(cpu["path"]), release, overlay, "pretended", ROW, {}, target)
    installation.install(str(target), artefact.sha256_file(str(target)), str(tmp_path / "installed"))
    assert installation.verify(str(tmp_path / "installed"), full=True) == []
    assert (tmp_path / "installed/lib/x.pth").read_text() == "import os\n"
    manifest = artefact.read_manifest(str(target))
    assert (manifest["name"], manifest["metadata"]["stand_in"]) == ("pretended", "serves with cpu")
    assert manifest["payload"][0] == cpu["manifest"]["payload"][0]
    (overlay / "bin").mkdir()
    (overlay / "bin/python3").write_text("not a new file\n")
    with pytest.raises(ascend_release.ReleaseError, match="has files of the stand-in"):
        ascend_release.pack(Path(cpu["path"]), release, overlay, "pretended", ROW, {}, target)


def test_a_row_without_a_known_parser_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cpu.tar").write_bytes(b"")
    arguments = [str(tmp_path / "cpu.tar"), "--build=x", f"--out={tmp_path}", "--row=vllm-ascend-0.18.0"]
    assert ascend_release.main(arguments) == 1
    assert "The parser of vLLM 0.18.0 is not known here, only that of 0.23.0" in capsys.readouterr().err


def test_the_stand_in_says_what_it_is() -> None:
    for path in (ascend_release.HERE / "ascend_engine").rglob("*.py"):
        assert "STAND-IN" in path.read_text("utf-8").split('"""')[1], path
    assert json.loads(json.dumps(ROW))["versions"]["cann"] == "9.1.0"
