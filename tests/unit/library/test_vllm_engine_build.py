# SPDX-License-Identifier: Apache-2.0
"""Building once: inputs, receipts, and what stops a build. The stages themselves run in tests/overrides."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vllm_engine_build
from ansible.module_utils.vllm_ansible import artefact, locks
from ansible.module_utils.vllm_ansible.build import engine, runtime
from ansible.module_utils.vllm_ansible.overrides import series

Run = Callable[..., dict[str, Any]]
PATCH = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.fixture
def parameters(tmp_path: Path) -> dict[str, Any]:
    row = tmp_path / "row"
    row.mkdir()
    for name in ("engine.txt", "build.txt", "kernels.txt"):
        (row / name).write_text(f"# {name}\n")
    (row / "runtime.txt").write_text("# packages\npython3.11-minimal\n")
    overrides = tmp_path / "overrides"
    (overrides / "cpu").mkdir(parents=True)
    (overrides / "cpu" / "0001-x.patch").write_text(PATCH)
    (overrides / "cpu" / "series").write_text("0001-x.patch\n")
    return {
        "build": "vllm-0.32.0-cpu-x86_64", "version": "0.32.0", "architecture": os.uname().machine, "row": "row",
        "row_directory": str(row), "overrides_directory": str(overrides),
        "series_sha256": series.series_digest(str(overrides), ["cpu/0001-x.patch"]),
        "result_sha256": "1" * 64, "source_sha256": "2" * 64, "local_version": "cpu.p1",
        "work_directory": str(tmp_path / "work"), "artefact_directory": str(tmp_path / "artefacts"), "keep": 1,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def stand_in_stages(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A build that packs a tiny tree made of its inputs, and notes that it ran."""
    built: list[dict[str, Any]] = []

    def build(self: engine.EngineBuild, inputs: dict[str, Any], scratch: str) -> dict[str, Any]:
        built.append(inputs)
        tree = Path(scratch) / "tree"
        tree.mkdir()
        (tree / "inputs").write_text(json.dumps(inputs))
        candidate = os.path.join(self.artefacts, ".candidate.tar")
        packed = artefact.pack(str(tree), candidate, "engine-release", self.spec["build"], created_from=inputs)
        return self._publish(packed, inputs)

    monkeypatch.setattr(engine.EngineBuild, "_build", build)
    monkeypatch.setattr(
        runtime.DebianRuntime, "describe", lambda self: {"provider": "debian", "packages": {"libssl3": "1"}}
    )
    monkeypatch.setattr(engine, "WORK_BYTES", 0)
    return built


def test_built_once(run_module: Run, parameters: dict, stand_in_stages: list) -> None:
    planned = run_module(vllm_engine_build, parameters, check_mode=True, diff=True)
    assert planned["changed"] and planned["sha256"] is None and planned["path"] is None
    assert planned["diff"]["before"] == "{}\n" and '"version": "0.32.0"' in planned["diff"]["after"]
    assert stand_in_stages == [] and not Path(parameters["work_directory"]).exists()

    first = run_module(vllm_engine_build, parameters)
    assert first["changed"] and artefact.sha256_file(first["path"]) == first["sha256"]
    assert first["release_id"] == f"vllm-0.32.0-cpu-x86_64-{first['sha256'][:12]}"
    assert artefact.read_manifest(first["path"])["created_from"] == first["inputs"]

    second = run_module(vllm_engine_build, parameters, diff=True)
    assert not second["changed"] and second["changed_inputs"] == []
    assert {key: second[key] for key in ("path", "sha256", "size_bytes", "release_id")} == {
        key: first[key] for key in ("path", "sha256", "size_bytes", "release_id")
    }
    assert second["diff"]["before"] == second["diff"]["after"]
    assert len(stand_in_stages) == 1


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda p: Path(p["row_directory"], "engine.txt").write_text("x==1\n"), ["locks.engine.txt"]),
        (lambda p: p.update(source_sha256="3" * 64), ["source_sha256"]),
        (lambda p: p.update(pins={"torch": "4" * 64}), ["pins.torch"]),
    ],
)
def test_a_changed_input_is_named_and_builds_again(
    change: Callable, names: list[str], run_module: Run, parameters: dict, stand_in_stages: list
) -> None:
    run_module(vllm_engine_build, parameters)
    change(parameters)
    assert run_module(vllm_engine_build, parameters, check_mode=True)["changed_inputs"] == names
    assert run_module(vllm_engine_build, parameters)["changed"]
    assert len(stand_in_stages) == 2


def test_the_builders_own_code_is_an_input(run_module: Run, parameters: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    before = engine.builder_digest()
    assert before == engine.builder_digest()
    run_module(vllm_engine_build, parameters)
    monkeypatch.setattr(engine.inspect, "getsource", lambda module: module.__name__)
    assert run_module(vllm_engine_build, parameters)["changed_inputs"] == ["builder_sha256"]


def test_going_back_to_old_inputs_finds_the_old_artefact(
    run_module: Run, parameters: dict, stand_in_stages: list
) -> None:
    first = run_module(vllm_engine_build, parameters)
    run_module(vllm_engine_build, {**parameters, "source_sha256": "3" * 64})
    again = run_module(vllm_engine_build, parameters)
    assert not again["changed"] and again["sha256"] == first["sha256"] and len(stand_in_stages) == 2


@pytest.mark.parametrize("damage", ["artefact", "missing", "receipt"])
def test_a_damaged_artefact_is_built_again(damage: str, run_module: Run, parameters: dict) -> None:
    first = run_module(vllm_engine_build, parameters)
    path = Path(first["path"])
    if damage == "artefact":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "missing":
        path.unlink()
    else:
        path.with_name(first["release_id"] + ".json").write_text("{half")
    second = run_module(vllm_engine_build, parameters)
    assert second["changed"] and second["sha256"] == first["sha256"]
    assert artefact.sha256_file(second["path"]) == second["sha256"]


def test_a_build_that_was_killed_starts_over(run_module: Run, parameters: dict) -> None:
    work = Path(parameters["work_directory"]) / parameters["build"]
    (work / "scratch" / "tree" / "bin").mkdir(parents=True)
    artefacts = Path(parameters["artefact_directory"])
    artefacts.mkdir()
    (artefacts / "vllm-0.32.0-cpu-x86_64-000000000000.artefact.tar").write_bytes(b"renamed, but never attested")
    assert run_module(vllm_engine_build, parameters)["changed"]
    assert not (work / "scratch").exists()


def test_older_artefacts_go(run_module: Run, parameters: dict) -> None:
    for number in range(4):
        result = run_module(vllm_engine_build, {**parameters, "source_sha256": str(number) * 64})
        os.utime(Path(result["path"]).with_name(result["release_id"] + ".json"), (number, number))
    left = sorted(path.suffix for path in Path(parameters["artefact_directory"]).iterdir())
    assert left == [".json", ".json", ".tar", ".tar"]
    assert not run_module(vllm_engine_build, {**parameters, "source_sha256": "3" * 64})["changed"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"series_sha256": "0" * 64}, "the plan was made for 0000"),
        ({"architecture": "sparc"}, "Build it on a host of that architecture"),
        ({"backend": "cuda"}, "backend cuda cannot be built, only cpu"),
        ({"row_directory": "/absent"}, "the row's runtime.txt cannot be read"),
        ({"runtime_provider": "prefix"}, "runtime_prefix"),
    ],
)
def test_what_cannot_be_built_is_refused(changes: dict, message: str, run_module: Run, parameters: dict) -> None:
    result = run_module(vllm_engine_build, {**parameters, **changes})
    assert result["failed"] and message in result["msg"]
    assert not Path(parameters["artefact_directory"]).exists()


def test_on_a_bare_machine_check_mode_says_that_something_would_be_built(
    run_module: Run, parameters: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(self: runtime.DebianRuntime) -> dict:
        raise runtime.RuntimeUnknownError("apt knows no package")

    monkeypatch.setattr(runtime.DebianRuntime, "describe", unknown)
    planned = run_module(vllm_engine_build, parameters, check_mode=True)
    assert planned["changed"] and planned["sha256"] is None and planned["inputs_sha256"] is None
    assert "apt knows no package" in run_module(vllm_engine_build, parameters)["msg"]


def test_a_small_file_system_is_named_before_anything_is_fetched(
    run_module: Run, parameters: dict, monkeypatch: pytest.MonkeyPatch, stand_in_stages: list
) -> None:
    monkeypatch.setattr(engine, "WORK_BYTES", 10**18)
    result = run_module(vllm_engine_build, parameters)
    assert result["failed"] and "GB are free" in result["msg"] and "work_directory" in result["msg"]
    assert stand_in_stages == []


def test_two_builds_do_not_meet(
    run_module: Run, parameters: dict, stand_in_stages: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0)
    work = Path(parameters["work_directory"]) / parameters["build"]
    work.mkdir(parents=True)
    with open(work / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = run_module(vllm_engine_build, parameters)
    assert result["failed"] and "another run has been building" in result["msg"] and stand_in_stages == []


def test_a_stage_that_fails_leaves_no_artefact(
    run_module: Run, parameters: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(self: engine.EngineBuild, inputs: dict, scratch: str) -> dict:
        raise OSError(28, "No space left on device", scratch)

    monkeypatch.setattr(engine.EngineBuild, "_build", build)
    result = run_module(vllm_engine_build, parameters)
    assert result["failed"] and "No space left on device" in result["msg"]
    assert list(Path(parameters["artefact_directory"]).iterdir()) == []
    assert not (Path(parameters["work_directory"]) / parameters["build"] / "scratch").exists()


@pytest.fixture
def ascend(parameters: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Parameters of an Ascend build for the processor that this machine has not."""
    other = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
    row = Path(parameters["row_directory"])
    for name in (f"engine-{other}.txt", "index.txt", "exceptions.txt", "host-libraries.txt"):
        (row / name).write_text(f"# {name}\n")
    for folder in ("overrides", "plugin"):
        (tmp_path / folder / "ascend").mkdir(parents=True)
        (tmp_path / folder / "ascend" / "0001-x.patch").write_text(PATCH)
        (tmp_path / folder / "ascend" / "series").write_text("0001-x.patch\n")
    digest = series.series_digest(str(tmp_path / "plugin"), ["ascend/0001-x.patch"])
    return {
        **parameters, "build": "vllm-ascend", "version": "0.23.0", "backend": "ascend", "architecture": other,
        "series_sha256": digest, "plugin": "vllm-ascend", "plugin_version": "0.23.0.post1",
        "soc_version": "ascend910b1", "plugin_overrides_directory": str(tmp_path / "plugin"),
        "plugin_series_sha256": digest,
        "plugin_result_sha256": "3" * 64, "plugin_source_sha256": "4" * 64, "plugin_local_version": "ascend.p1",
    }  # fmt: skip


def test_an_ascend_release_of_another_architecture_is_built(ascend: dict[str, Any], run_module: Run) -> None:
    result = run_module(vllm_engine_build, ascend)
    assert result["changed"] is True and result["inputs"]["soc_version"] == "ascend910b1"
    assert sorted(result["inputs"]["locks"]) == sorted(
        [f"engine-{ascend['architecture']}.txt", "index.txt", "build.txt", "exceptions.txt", "host-libraries.txt"]
    )
    assert run_module(vllm_engine_build, ascend)["changed"] is False
    again = run_module(vllm_engine_build, {**ascend, "soc_version": "ascend910_9391"}, check_mode=True)
    assert again["changed_inputs"] == ["soc_version"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"soc_version": None}, "vllm-ascend needs soc_version"),
        ({"plugin_series_sha256": "0" * 64}, "the plan was made for 0000"),
        (
            {"runtime_provider": "prefix", "runtime_prefix": "/opt/python"},
            "or take the runtime provider debian or archive",
        ),
        ({"runtime_provider": "archive"}, "runtime_archive"),
    ],
)
def test_an_ascend_release_that_cannot_be_built(
    changes: dict[str, Any], message: str, ascend: dict[str, Any], run_module: Run
) -> None:
    result = run_module(vllm_engine_build, {**ascend, **changes})
    assert result["failed"] and message in result["msg"]


def test_devices_without_triton_get_none(ascend: dict[str, Any], tmp_path: Path) -> None:
    Path(ascend["row_directory"], "index.txt").write_text("triton-ascend==3.2.2\nvllm-ascend==0.23.0.post1\n")
    names = {}
    for soc in ("ascend910b1", "ascend310p1"):
        spec = {**ascend, "soc_version": soc, "runtime_provider": "archive", "runtime_archive": "/x",
                "runtime_archive_sha256": "5" * 64, "python_version": "3.11"}  # fmt: skip
        names[soc] = [item.name for item in engine.EngineBuild(None, spec)._engine_locks()]
    assert names == {"ascend910b1": ["triton-ascend", "vllm-ascend"], "ascend310p1": ["vllm-ascend"]}
