# SPDX-License-Identifier: Apache-2.0
"""Where the release's Python comes from, and that it stays the same until a refresh is asked for."""

import hashlib
import json
import os
import sys
import tarfile
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.artefact import ArtefactError
from ansible.module_utils.vllm_ansible.build import runtime
from ansible.module_utils.vllm_ansible.build.tree import BuildError

LINE = "'http://mirror/pool/{name}.deb' {name}_{version}_amd64.deb 100 SHA256:{sha}"


def answer(**versions: str) -> str:
    return "\n".join(
        LINE.format(name=name, version=version.replace(":", "%3a"), sha=hashlib.sha256(version.encode()).hexdigest())
        for name, version in versions.items()
    )


class Apt:
    """Answers like apt-get with the versions of the day; downloads and unpacks nothing."""

    def __init__(self, **versions: str) -> None:
        self.versions, self.calls = versions, []

    def __call__(self, argv, environ_update=None, cwd=None):
        self.calls.append(argv)
        if "--print-uris" in argv:
            return 0, answer(**{name: self.versions[name] for name in argv if name in self.versions}), ""
        if argv[:2] == ["apt-get", "--quiet"] and argv[-1] != "update":
            name, version = argv[3].split("=")
            (Path(cwd) / f"{name}_{version.replace(':', '%3a')}_amd64.deb").write_bytes(version.encode())
        elif argv[0] == "dpkg-deb":
            target = Path(argv[-1])
            for file in ("usr/bin/python3.11", "usr/lib/python3.11/os.py", "usr/lib/x86_64-linux-gnu/libz.so.1"):
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                (target / file).write_text(file)
        return 0, "", ""


def test_uris_are_read_with_epochs() -> None:
    found = runtime.parse_uris("Reading lists\n" + answer(zlib1g="1:1.2.13") + "\nE: nonsense\n")
    assert found["zlib1g"]["version"] == "1:1.2.13" and found["zlib1g"]["file"] == "zlib1g_1%3a1.2.13_amd64.deb"


def test_describing_changes_nothing(tmp_path: Path) -> None:
    provider = runtime.DebianRuntime(Apt(a="1", b="2"), ["a", "b"], str(tmp_path / "debs"))
    described = provider.describe()
    assert described["provider"] == "debian" and described["packages"]["b"]["version"] == "2"
    assert not (tmp_path / "debs").exists()


def test_a_debian_update_is_taken_only_when_asked_for(tmp_path: Path) -> None:
    debs, root = str(tmp_path / "debs"), str(tmp_path / "root")
    first = runtime.DebianRuntime(Apt(a="1"), ["a"], debs)
    before = first.describe()
    first.provide(root)
    assert (tmp_path / "root/lib/libz.so.1").exists() and (tmp_path / "root/bin/python3.11").exists()
    assert runtime.DebianRuntime(Apt(a="2"), ["a"], debs).describe() == before
    assert runtime.DebianRuntime(Apt(a="2"), ["a"], debs, refresh=True).describe() != before
    assert runtime.DebianRuntime(Apt(a="2", b="1"), ["a", "b"], debs).describe() != before


def test_a_damaged_package_is_fetched_again_and_a_wrong_one_refused(tmp_path: Path) -> None:
    debs = tmp_path / "debs"
    debs.mkdir()
    (debs / "a_1_amd64.deb").write_bytes(b"half")
    apt = Apt(a="1")
    provider = runtime.DebianRuntime(apt, ["a"], str(debs))
    provider.describe()
    provider.provide(str(tmp_path / "root"))
    assert (debs / "a_1_amd64.deb").read_bytes() == b"1"
    (debs / "a_1_amd64.deb").write_bytes(b"altered")
    provider._run = lambda argv, **_options: (0, "", "")
    with pytest.raises(BuildError, match="has not the sha256"):
        provider.provide(str(tmp_path / "again"))


def test_a_package_apt_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="apt knows no package b"):
        runtime.DebianRuntime(Apt(a="1"), ["a", "b"], str(tmp_path)).describe()


def make_prefix(root: Path) -> Path:
    for name in ("bin/python3.11", "lib/python3.11/os.py", "lib/python3.11/site-packages/x.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "lib/python3.11/lib-dynload").mkdir()
    return root


def test_a_prefix_is_described_by_content_and_copied_without_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = make_prefix(tmp_path / "prefix")
    host = tmp_path / "libhost.so.1"
    host.write_bytes(Path(os.path.realpath(sys.executable)).read_bytes()[:4096])
    monkeypatch.setattr(runtime, "PRELOADED", ("libhost.so.1",))
    monkeypatch.setattr(runtime, "find_library", lambda _soname: str(host))
    monkeypatch.setattr(runtime.elf, "read_dynamic", lambda _path: {"needed": [], "soname": None})
    before = runtime.PrefixRuntime(str(prefix), "3.11").describe()
    assert json.loads(json.dumps(before))["provider"] == "prefix"
    (prefix / "lib/python3.11/site-packages/x.py").write_text("changed")
    assert runtime.PrefixRuntime(str(prefix), "3.11").describe() == before
    runtime.PrefixRuntime(str(prefix), "3.11").provide(str(tmp_path / "root"))
    copied = sorted(str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*.*"))
    assert "lib/libhost.so.1" in copied and "lib/python3.11/site-packages/x.py" not in copied
    host.write_bytes(b"another")
    assert runtime.PrefixRuntime(str(prefix), "3.11").describe() != before


def test_a_folder_that_is_no_prefix_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"holds no bin/python3\.11"):
        runtime.PrefixRuntime(str(tmp_path), "3.11").describe()


def test_a_library_the_machine_lacks_is_named() -> None:
    assert os.path.basename(runtime.find_library("libc.so.6")) == "libc.so.6"
    with pytest.raises(BuildError, match=r"libabsent\.so\.1 is needed"):
        runtime.find_library("libabsent.so.1")


def test_packages_of_another_architecture_come_from_a_root_of_their_own(tmp_path: Path) -> None:
    apt = Apt(zlib1g="1")
    other = runtime.DebianRuntime(
        apt, ["zlib1g"], str(tmp_path / "debian-aarch64"), architecture="aarch64", may_ask=False
    )
    with pytest.raises(runtime.RuntimeUnknownError, match="no package lists of that architecture"):
        other.describe()
    assert apt.calls == [] and not (tmp_path / "debian-aarch64").exists()
    other = runtime.DebianRuntime(apt, ["zlib1g"], str(tmp_path / "debian-aarch64"), architecture="aarch64")
    assert other.describe()["packages"]["zlib1g"]["version"] == "1"
    update, ask = apt.calls
    assert update[-1] == "update" and "APT::Architecture=arm64" in update and "APT::Architecture=arm64" in ask
    assert f"Dir::State::lists={tmp_path}/debian-aarch64/apt/lists" in ask


@pytest.fixture
def archive(tmp_path: Path) -> tuple[Path, str]:
    top = tmp_path / "made" / "python"
    for name in (
        "bin/python3.11",
        "lib/python3.11/os.py",
        "lib/python3.11/site-packages/pip/x.py",
        "lib/libpython3.11.so.1.0",
    ):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)
    (top / "bin" / "python3").symlink_to("python3.11")
    path = tmp_path / "python.tar.gz"
    with tarfile.open(path, "w:gz") as stream:
        stream.add(top, "python")
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_python_from_an_archive(archive: tuple[Path, str], tmp_path: Path) -> None:
    path, sha256 = archive
    python = runtime.ArchiveRuntime(str(path), sha256, "3.11")
    assert python.describe() == {"provider": "archive", "python": "python3.11", "sha256": sha256}
    root = tmp_path / "root"
    root.mkdir()
    python.provide(str(root))
    assert sorted(str(item.relative_to(root)) for item in root.rglob("*") if item.is_file()) == [
        "bin/python3.11", "lib/libpython3.11.so.1.0", "lib/python3.11/os.py"
    ]  # fmt: skip
    assert not (tmp_path / "root.archive").exists()


def test_another_archive_is_refused(archive: tuple[Path, str], tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(BuildError, match="wanted is 0000"):
        runtime.ArchiveRuntime(str(archive[0]), "0" * 64, "3.11").provide(str(root))
    with pytest.raises(BuildError, match=r"holds no bin/python3\.12"):
        runtime.ArchiveRuntime(str(archive[0]), archive[1], "3.12").provide(str(root))
    with pytest.raises(BuildError, match="cannot be read"):
        runtime.ArchiveRuntime(str(tmp_path / "none"), archive[1], "3.11").provide(str(root))


@pytest.mark.parametrize("link", ["/etc/passwd", "../../../outside"])
def test_an_archive_that_leads_outside_is_refused(link: str, tmp_path: Path) -> None:
    path, root = tmp_path / "x.tar", tmp_path / "root"
    root.mkdir()
    with tarfile.open(path, "w") as stream:
        member = tarfile.TarInfo("python/bin")
        member.type, member.linkname = tarfile.SYMTYPE, link
        stream.addfile(member)
    with pytest.raises(ArtefactError, match="outside"):
        runtime.ArchiveRuntime(str(path), hashlib.sha256(path.read_bytes()).hexdigest(), "3.11").provide(str(root))
