# SPDX-License-Identifier: Apache-2.0
"""With a key, everything but probes and metrics needs it."""

import ast
import hashlib
import secrets
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

# The module of the middleware, newest version first.
PLACES = ("vllm/entrypoints/serve/middleware/authenticate.py", "vllm/entrypoints/serve/utils/server_utils.py")
OPEN = ["/health", "/healthz", "/metrics", "/metrics/", "/ping", "/version"]
GUARDED = [
    "/v1/completions", "/v2/rerank", "/inference/v1/generate", "/cohere/v1/chat",  # what was guarded before
    "/", "/invocations", "/tokenize", "/detokenize", "/generative_scoring", "/scale_elastic_ep", "/load", "/docs",
    "/openapi.json", "/pooling", "/a-route-of-tomorrow", "/healthz/x", "/metricsx", "/HEALTH",
]  # fmt: skip


def guard(source: Path):
    """Ask the source's middleware about a request: `ask(path, key, **scope)` -> let through or not."""
    path = next(source / name for name in PLACES if (source / name).exists())
    wanted = ("OPEN_PATHS", "GUARDED_PREFIX", "AuthenticationMiddleware")
    body = [
        node for node in ast.parse(path.read_text("utf-8")).body
        if getattr(node, "name", None) in wanted
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in wanted)
    ]  # fmt: skip
    names: dict[str, Any] = {
        "hashlib": hashlib, "secrets": secrets, "Awaitable": Awaitable, "ASGIApp": Any, "Receive": Any,
        "Scope": Any, "Send": Any, "Headers": lambda scope: scope["headers"],
        "JSONResponse": lambda content, status_code: lambda *_call: False,
    }  # fmt: skip
    exec(compile(ast.Module(body, []), str(path), "exec"), names)
    middleware = names["AuthenticationMiddleware"](lambda *_call: True, tokens=["right"])

    def ask(path: str, key: str | None = None, **scope: Any) -> bool:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return middleware({"type": "http", "method": "GET", "path": path, "headers": headers, **scope}, None, None)

    return ask


def test_the_published_source_lets_anybody_generate(engine_source: tuple[Path, Path]) -> None:
    assert guard(engine_source[0])("/invocations"), "fixed upstream: drop the patch"


@pytest.mark.parametrize("path", OPEN)
def test_probes_and_metrics_are_open(path: str, engine_source: tuple[Path, Path]) -> None:
    ask = guard(engine_source[1])
    assert ask(path)
    assert ask("/base" + path, root_path="/base")


@pytest.mark.parametrize("path", GUARDED)
def test_everything_else_needs_the_key(path: str, engine_source: tuple[Path, Path]) -> None:
    ask = guard(engine_source[1])
    assert not ask(path) and not ask(path, "wrong") and ask(path, "right")
    assert not ask(path, type="websocket")
    assert not ask("/base" + path, root_path="/base")
    assert ask(path, method="OPTIONS")
