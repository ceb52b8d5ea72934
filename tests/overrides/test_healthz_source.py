# SPDX-License-Identifier: Apache-2.0
"""/healthz in an engine that cannot run here: the patched files fit each other.

The rules themselves are test_healthz.py's, a running engine with them is test_healthz_engine.py's.
"""

import ast
import asyncio
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine


def tree(source: Path, name: str) -> ast.Module:
    return ast.parse((source / name).read_text("utf-8"))


def find(node: ast.AST, kind: type, name: str) -> Any:
    found = [item for item in ast.walk(node) if isinstance(item, kind) and getattr(item, "name", None) == name]
    assert found, name
    return found[0]


def calls(node: ast.AST) -> list[str]:
    return [ast.unparse(item.func) for item in ast.walk(node) if isinstance(item, ast.Call)]


def test_the_published_source_has_no_such_endpoint(ascend_engine: tuple[Path, Path]) -> None:
    text = (ascend_engine[0] / "vllm/entrypoints/serve/instrumentator/health.py").read_text("utf-8")
    assert "healthz" not in text, "added upstream: drop the patch"


def test_both_versions_have_the_same_rules(patched: Path, ascend_engine: tuple[Path, Path]) -> None:
    name = "vllm/v1/metrics/health.py"
    assert (patched / name).read_text("utf-8") == (ascend_engine[1] / name).read_text("utf-8")


def test_the_endpoint_says_what_the_engine_says(
    ascend_engine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = find(
        tree(ascend_engine[1], "vllm/entrypoints/serve/instrumentator/health.py"), ast.AsyncFunctionDef, "healthz"
    )
    route = ast.unparse(handler.decorator_list[0])
    handler.decorator_list = []
    names: dict[str, Any] = {
        "Request": object,
        "JSONResponse": lambda body, status_code=200, headers=None: (status_code, body, headers),
        "engine_client": lambda request: request,
    }
    exec(compile(ast.Module([handler], []), "health.py", "exec"), names)
    client = types.SimpleNamespace(
        errored=True, health=types.SimpleNamespace(report=lambda dead: (503, {"status": "dead"} if dead else {}))
    )
    assert route.startswith("router.get('/healthz'")
    assert asyncio.run(names["healthz"](client)) == (503, {"status": "dead"}, {"Cache-Control": "no-store"})
    assert asyncio.run(names["healthz"](None))[:2] == (200, {"status": "idle"})


def test_the_engine_feeds_it(ascend_engine: tuple[Path, Path]) -> None:
    source = tree(ascend_engine[1], "vllm/v1/engine/async_llm.py")
    start = find(find(source, ast.ClassDef, "AsyncLLM"), ast.FunctionDef, "__init__")
    loop = find(source, ast.FunctionDef, "_run_output_handler")
    assert "EngineHealth" in calls(start)
    assert "health.observe" in calls(find(loop, ast.AsyncFunctionDef, "output_handler"))
    assert "health.run" in calls(loop)
    assert "health_sampler" in ast.unparse(find(source, ast.FunctionDef, "shutdown"))
    find(tree(ascend_engine[1], "vllm/v1/engine/core_client.py"), ast.FunctionDef, "get_engine_pids")
    find(
        tree(ascend_engine[1], "vllm/v1/engine/output_processor.py"),
        ast.FunctionDef,
        "get_num_requests_awaiting_output",
    )
    manager = find(tree(ascend_engine[1], "vllm/v1/engine/utils.py"), ast.ClassDef, "CoreEngineProcManager")
    assert "self.processes" in ast.unparse(manager)


def test_the_settings_can_be_imported(ascend_engine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"__name__": "vllm.envs"}
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    exec(compile(tree(ascend_engine[1], "vllm/envs.py"), "envs.py", "exec"), names)
    monkeypatch.setenv("VLLM_HEALTHZ_STALL_SECONDS", "7")
    settings = {name: value() for name, value in names["environment_variables"].items() if "HEALTHZ" in name}
    assert json.loads(json.dumps(settings)) == {
        "VLLM_HEALTHZ_STALL_SECONDS": 7.0, "VLLM_HEALTHZ_MAX_STEP_SECONDS": 120.0, "VLLM_HEALTHZ_WINDOW_SECONDS": 300.0
    }  # fmt: skip
