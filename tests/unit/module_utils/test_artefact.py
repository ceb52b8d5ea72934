# SPDX-License-Identifier: Apache-2.0
"""Artefacts: the same bytes from any folder, and nothing visible unless everything is right."""

import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible import artefact, installation, locks


def make_tree(root: Path) -> Path:
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tool").write_text("#!/bin/sh\n")
    (root / "bin" / "tool").chmod(0o775)
    (root / "bin" / "alias").symlink_to("tool")
    (root / "lib" / "deep").mkdir(parents=True)
    (root / "lib" / "data").write_bytes(os.urandom(300_000))
    (root / "lib" / "deep" / ("n" * 120)).write_text("a name longer than a tar header holds")
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree")


@pytest.fixture
def packed(tree: Path, tmp_path: Path) -> dict:
    return artefact.pack(str(tree), str(tmp_path / "x.artefact.tar"), kind="model", name="x")


def visible(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir()) if parent.exists() else []


def handmade(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], **changes) -> str:
    """An artefact whose one payload holds exactly these members; returns its sha256."""
    payload = io.BytesIO()
    with tarfile.open(fileobj=payload, mode="w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    manifest = {
        "schema": 1, "kind": "model", "name": "evil", "tree_sha256": "0" * 64, "files": 1, "unpacked_bytes": 10,
        "payload": [{"file": "tree.tar", "sha256": hashlib.sha256(payload.getvalue()).hexdigest(),
                     "compression": "none"}], **changes,
    }  # fmt: skip
    with tarfile.open(path, "w") as archive:
        for name, content in (("artefact.json", json.dumps(manifest).encode()), ("tree.tar", payload.getvalue())):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return artefact.sha256_file(str(path))


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_a_tree_survives_the_journey(packed: dict, tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "x-1"
    receipt = installation.install(packed["path"], packed["sha256"], str(target))
    assert receipt["artefact_sha256"] == packed["sha256"]
    assert artefact.describe_tree(str(target)) == artefact.describe_tree(str(tree))
    assert installation.verify(str(target), packed["sha256"], full=True) == []
    assert os.readlink(target / "bin" / "alias") == "tool"
    assert (target / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    assert (target / "lib" / "data").stat().st_mode & 0o777 == 0o644
    assert visible(target.parent) == ["x-1"]


def test_the_bytes_do_not_depend_on_folder_time_owner_or_mode_bits(tree: Path, tmp_path: Path) -> None:
    first = artefact.pack(str(tree), str(tmp_path / "a.tar"), kind="model", name="x")
    other = tmp_path / "else" / "where"
    subprocess.run(["cp", "-r", str(tree), str(other.parent.mkdir() or other)], check=True)
    for path in other.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o020)
            os.utime(path, (1, 1))
    second = artefact.pack(str(other), str(tmp_path / "b.tar"), kind="model", name="x")
    assert first["sha256"] == second["sha256"]


@pytest.mark.parametrize("change", ["content", "name", "mode", "link"])
def test_any_change_of_the_tree_changes_the_digest(change: str, tree: Path) -> None:
    before = artefact.describe_tree(str(tree))["tree_sha256"]
    if change == "content":
        (tree / "lib" / "data").write_bytes(b"x")
    elif change == "name":
        (tree / "lib" / "data").rename(tree / "lib" / "date")
    elif change == "mode":
        (tree / "lib" / "data").chmod(0o755)
    else:
        (tree / "bin" / "alias").unlink()
        (tree / "bin" / "alias").symlink_to("../bin/tool")
    assert artefact.describe_tree(str(tree))["tree_sha256"] != before


def test_layers_are_cut_by_the_closest_parent_and_unpacked_by_the_python_inside(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    (tree / "bin" / "python3").symlink_to("tool")
    (tree / "bin" / "tool").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    layers = [
        {"file": "a.tar.gz", "compression": "gzip", "paths": ["", "lib/deep"]},
        {"file": "b.tar", "compression": "none", "paths": ["lib"]},
    ]
    packed = artefact.pack(
        str(tree), str(tmp_path / "x.tar"), kind="model", name="x", layers=layers, python=sys.executable
    )
    with tarfile.open(packed["path"]) as outer:
        assert outer.getnames() == ["artefact.json", "a.tar.gz", "b.tar"]
        with tarfile.open(fileobj=outer.extractfile("b.tar")) as inner:
            assert inner.getnames() == ["lib", "lib/data"]
    installation.install(packed["path"], packed["sha256"], str(tmp_path / "out"))
    assert installation.verify(str(tmp_path / "out"), full=True) == []


def test_a_wrong_digest_is_named_and_changes_nothing(packed: dict, tmp_path: Path) -> None:
    target = tmp_path / "out" / "x"
    with pytest.raises(artefact.ArtefactError, match=f"has sha256 {packed['sha256']}, expected {'0' * 64}"):
        installation.install(packed["path"], "0" * 64, str(target))
    assert visible(target.parent) == []


@pytest.mark.parametrize("keep", [0, 100, 5_000, 300_000])
def test_a_truncated_file_changes_nothing(keep: int, packed: dict, tmp_path: Path) -> None:
    content = Path(packed["path"]).read_bytes()[:keep]
    short = tmp_path / "short.tar"
    short.write_bytes(content)
    with pytest.raises(artefact.ArtefactError, match="cut short"):
        installation.install(str(short), packed["sha256"], str(tmp_path / "out" / "x"))
    # Even when somebody asks for exactly these bytes.
    with pytest.raises(artefact.ArtefactError):
        installation.install(str(short), artefact.sha256_file(str(short)), str(tmp_path / "out" / "x"))
    assert visible(tmp_path / "out") == []


def test_a_payload_that_is_not_the_one_named_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    sha256 = handmade(path, [(member("data"), b"1")])
    with pytest.raises(artefact.ArtefactError, match="unpacked to a tree with digest"):
        installation.install(str(path), sha256, str(tmp_path / "out" / "x"))
    assert visible(tmp_path / "out") == []


@pytest.mark.parametrize(
    "members",
    [
        [(member("../escape"), b"x")],
        [(member("/etc/escape"), b"x")],
        [(member("a/../../escape"), b"x")],
        [(member("a//b"), b"x")],
        [(member("link", tarfile.SYMTYPE, "/etc"), b"")],
        [(member("link", tarfile.SYMTYPE, "../.."), b"")],
        [(member("a", tarfile.SYMTYPE, "b"), b""), (member("b", tarfile.DIRTYPE), b""), (member("a/x"), b"x")],
        [(member("x"), b"1"), (member("x"), b"2")],
        [(member("hard", tarfile.LNKTYPE, "x"), b"")],
        [(member("device", tarfile.CHRTYPE), b"")],
        [(member("pipe", tarfile.FIFOTYPE), b"")],
    ],
    ids=lambda members: f"{members[-1][0].name}-{members[-1][0].type.decode()}-{len(members)}",
)
def test_members_that_could_reach_outside_are_refused(members: list, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    sha256 = handmade(path, members)
    with pytest.raises(artefact.ArtefactError):
        installation.install(str(path), sha256, str(tmp_path / "out" / "x"))
    assert visible(tmp_path / "out") == []
    assert not (tmp_path / "escape").exists() and not Path("/etc/escape").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "artefact schema 2"),
        ({"payload": [{"file": "../x", "sha256": "0", "compression": "none"}]}, "would leave the directory"),
        ({"payload": [{"file": "tree.tar", "sha256": "0", "compression": "lzma"}]}, "unknown compression 'lzma'"),
        ({"payload": [{"file": "other.tar", "sha256": "0", "compression": "none"}]}, "payload other.tar is missing"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    sha256 = handmade(path, [(member("data"), b"1")], **changes)
    with pytest.raises(artefact.ArtefactError, match=message):
        installation.install(str(path), sha256, str(tmp_path / "out" / "x"))
    assert visible(tmp_path / "out") == []


def test_a_file_system_that_is_too_small_is_named_before_unpacking(
    packed: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs

    def small(path):
        values = list(real(path))
        values[4] = 10  # f_bavail
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", small)
    with pytest.raises(artefact.ArtefactError, match=r"not enough room for x below .*MiB are free, \d+ MiB are needed"):
        installation.install(packed["path"], packed["sha256"], str(tmp_path / "out" / "x"))
    assert visible(tmp_path / "out") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_file_system_that_fills_up_while_unpacking_is_left_clean(
    packed: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(small)], check=True)
    try:
        monkeypatch.setattr(installation, "_check_room", lambda *_arguments: None)  # as if others filled it meanwhile
        with pytest.raises(artefact.ArtefactError, match="No space left on device"):
            installation.install(packed["path"], packed["sha256"], str(small / "x"))
        assert visible(small) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_an_installation_that_was_killed_is_done_again(packed: dict, tmp_path: Path) -> None:
    target = tmp_path / "out" / "x"
    staging = Path(installation.staging_directory(str(target)))
    (staging / "lib").mkdir(parents=True)
    (staging / "lib" / "data").write_text("half")
    (tmp_path / "out" / ".x.lock").write_text("")
    installation.install(packed["path"], packed["sha256"], str(target))
    assert installation.verify(str(target), packed["sha256"], full=True) == []
    assert visible(target.parent) == ["x"]


def test_two_installations_of_one_directory_do_not_meet(
    packed: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tmp_path / "out"
    parent.mkdir()
    with open(parent / ".x.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(locks, "WAIT_SECONDS", 0)
        with pytest.raises(artefact.ArtefactError, match="another run has been installing"):
            installation.install(packed["path"], packed["sha256"], str(parent / "x"))
        assert installation.find_leftovers(str(parent)) == []
    assert installation.find_leftovers(str(parent)) == [".x.lock"]


@pytest.mark.parametrize(
    ("damage", "quick", "full"),
    [
        (lambda d: (d / "lib" / "data").write_bytes(b"short"), True, True),
        (lambda d: (d / "lib" / "data").write_bytes(b"y" * 300_000), False, True),
        (lambda d: (d / "bin" / "alias").unlink(), True, True),
        (lambda d: (d / "new").write_text(""), True, True),
        (lambda d: (d / artefact.RECEIPT).write_text("{"), True, True),
        (lambda d: (d / artefact.MANIFEST).unlink(), True, True),
    ],
)
def test_damage_is_seen(damage, quick: bool, full: bool, packed: dict, tmp_path: Path) -> None:
    target = tmp_path / "x"
    installation.install(packed["path"], packed["sha256"], str(target))
    damage(target)
    assert bool(installation.verify(str(target), packed["sha256"])) == quick
    assert bool(installation.verify(str(target), packed["sha256"], full=True)) == full


def test_a_damaged_directory_is_replaced_and_another_one_is_not_taken_for_it(packed: dict, tmp_path: Path) -> None:
    target = tmp_path / "x"
    installation.install(packed["path"], packed["sha256"], str(target))
    assert installation.verify(str(target), "1" * 64) == [
        f"{target} holds artefact {packed['sha256']}, wanted {'1' * 64}"
    ]
    (target / "lib" / "data").unlink()
    installation.install(packed["path"], packed["sha256"], str(target))
    assert installation.verify(str(target), packed["sha256"], full=True) == []


def test_a_removal_that_was_interrupted_is_finished_by_the_next(packed: dict, tmp_path: Path) -> None:
    target = tmp_path / "out" / "x"
    installation.install(packed["path"], packed["sha256"], str(target))
    target.rename(target.parent / ".removed-x")
    installation.remove_tree(str(target))
    assert visible(target.parent) == []
    installation.remove_tree(str(target))


def test_links_that_leave_the_tree_are_not_packed(tree: Path, tmp_path: Path) -> None:
    (tree / "lib" / "host").symlink_to("/etc/passwd")
    with pytest.raises(artefact.ArtefactError, match="outside the directory"):
        artefact.pack(str(tree), str(tmp_path / "x.tar"), kind="model", name="x")
    assert not (tmp_path / "x.tar").exists() and not (tmp_path / "x.tar.partial.d").exists()


def test_release_ids_can_only_be_one_folder_name() -> None:
    assert artefact.release_id("vllm-0.32.0-cpu-x86_64", "ab" * 32) == "vllm-0.32.0-cpu-x86_64-abababababab"
    with pytest.raises(artefact.ArtefactError):
        artefact.release_id("../x", "ab" * 32)
