# SPDX-License-Identifier: Apache-2.0
"""How the engine core is started: forked on CPUs, so that a restart does not import everything twice."""

import ast
import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

UTILS = "vllm/v1/engine/utils.py"


def context_of(source: Path, cpu: bool, numa_bind: bool) -> Any:
    """Call the function that CoreEngineProcManager takes its multiprocessing context from."""
    tree = ast.parse((source / UTILS).read_text("utf-8"))
    [manager] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "CoreEngineProcManager"]
    [call] = [
        n.value
        for n in ast.walk(manager)
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and n.targets[0].id == "context"
    ]
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == ast.unparse(call.func)]
    names: dict[str, Any] = {
        "VllmConfig": object,
        "multiprocessing": multiprocessing,
        "current_platform": SimpleNamespace(is_cpu=lambda: cpu),
        "get_mp_context": lambda: "the platform's",
    }
    exec(compile(ast.Module(functions, []), UTILS, "exec"), names)
    names["vllm_config"] = SimpleNamespace(parallel_config=SimpleNamespace(numa_bind=numa_bind))
    return eval(ast.unparse(call), names)


@pytest.mark.engine
def test_the_published_source_spawns_it(unpatched: Path) -> None:
    assert context_of(unpatched, cpu=True, numa_bind=False) == "the platform's"
    assert 'os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"' in (unpatched / "vllm/platforms/cpu.py").read_text(
        "utf-8"
    ), "changed upstream: is the patch still needed?"


@pytest.mark.engine
def test_the_patched_source_forks_it_on_cpus_only(patched: Path) -> None:
    assert context_of(patched, cpu=True, numa_bind=False).get_start_method() == "fork"
    assert context_of(patched, cpu=False, numa_bind=False) == "the platform's"
    # NUMA binding by the engine replaces the executable, which needs spawn
    assert context_of(patched, cpu=True, numa_bind=True) == "the platform's"
