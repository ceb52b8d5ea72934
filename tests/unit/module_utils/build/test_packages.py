# SPDX-License-Identifier: Apache-2.0
"""Downloads: only what has the locked digest is used, whatever lies in the folder."""

import hashlib
from pathlib import Path

import pytest
from ansible.module_utils.vllm_ansible.build import packages
from ansible.module_utils.vllm_ansible.build.tree import BuildError

GOOD = b"the wheel"
SHA = hashlib.sha256(GOOD).hexdigest()
WHEEL = "demo_pkg-1.0-py3-none-any.whl"


class Pip:
    """Stands in for pip: writes what the index serves."""

    def __init__(self, served: dict[str, bytes]) -> None:
        self.served, self.calls = served, []

    def __call__(self, argv, environ_update=None, cwd=None):
        self.calls.append(argv)
        listing = Path(argv[argv.index("--requirement") + 1]).read_text()
        folder = Path(argv[argv.index("--dest") + 1])
        for filename, content in self.served.items():
            name, version = packages.identify(filename)
            if f"{name}=={version}" in listing:
                (folder / filename).write_bytes(content)
        return 0, "", ""


def fetch(pip: Pip, folder: Path, text: str) -> dict[str, str]:
    return packages.fetch(pip, ["pip"], str(folder), packages.parse_lock(text, "lock"), str(folder.parent))


def test_lock_lines() -> None:
    text = f"# comment\n\nDemo.Pkg==1.0 --hash=sha256:{SHA}\ntorch==2.13.0+cpu  # by version\n"
    first, second = packages.parse_lock(text, "lock")
    assert (first.name, first.version, first.hashes) == ("demo-pkg", "1.0", {SHA})
    assert (second.name, second.version, second.hashes) == ("torch", "2.13.0+cpu", frozenset())
    assert first.line == f"demo-pkg==1.0 --hash=sha256:{SHA}"


@pytest.mark.parametrize("line", ["demo>=1.0", "demo", "-r other.txt", "--index-url x", "demo==1.0 --hash=md5:1"])
def test_anything_else_in_a_lock_is_refused(line: str) -> None:
    with pytest.raises(BuildError, match="lock, line 1"):
        packages.parse_lock(line, "lock")


@pytest.mark.parametrize(
    ("filename", "identity"),
    [
        (WHEEL, ("demo-pkg", "1.0")),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", ("torch", "2.13.0+cpu")),
        ("vllm-0.32.0.tar.gz", ("vllm", "0.32.0")),
        ("notes.txt", None),
        ("broken.whl", None),
    ],
)
def test_file_names(filename: str, identity: object) -> None:
    assert packages.identify(filename) == identity


def test_a_sound_file_is_not_fetched_again(tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    pip = Pip({WHEEL: GOOD})
    lock = f"demo-pkg==1.0 --hash=sha256:{SHA}"
    assert fetch(pip, folder, lock) == {"demo-pkg": str(folder / WHEEL)}
    assert fetch(pip, folder, lock) == {"demo-pkg": str(folder / WHEEL)}
    assert len(pip.calls) == 1 and "--require-hashes" in pip.calls[0]


@pytest.mark.parametrize("content", [b"", GOOD[:4], b"something else"])
def test_what_a_killed_run_left_is_fetched_again(content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / WHEEL).write_bytes(content)
    fetch(Pip({WHEEL: GOOD}), folder, f"demo-pkg==1.0 --hash=sha256:{SHA}")
    assert (folder / WHEEL).read_bytes() == GOOD


def test_an_index_that_serves_another_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no file with the locked digest for demo-pkg==1\.0"):
        fetch(Pip({WHEEL: b"altered"}), tmp_path / "packages", f"demo-pkg==1.0 --hash=sha256:{SHA}")


def test_a_package_locked_by_version_is_fetched_without_a_hash(tmp_path: Path) -> None:
    pip = Pip({"torch-2.0+cpu-py3-none-any.whl": b"any", WHEEL: GOOD})
    found = fetch(pip, tmp_path / "packages", f"torch==2.0+cpu\ndemo-pkg==1.0 --hash=sha256:{SHA}")
    assert sorted(found) == ["demo-pkg", "torch"]
    assert ["--require-hashes" in call for call in pip.calls] == [True, False]


@pytest.mark.parametrize(
    ("filename", "architecture", "fits"),
    [
        ("x-1-cp311-cp311-manylinux_2_26_aarch64.manylinux_2_28_aarch64.whl", "aarch64", True),
        ("x-1-cp311-cp311-manylinux_2_28_x86_64.whl", "aarch64", False),
        ("x-1-py3-none-any.whl", "aarch64", True),
        ("x-1.tar.gz", "aarch64", False),
        ("x-1.tar.gz", None, True),
    ],
)
def test_files_for_one_architecture(filename: str, architecture: str | None, fits: bool) -> None:
    assert packages.suits(filename, architecture) is fits


def test_the_wheel_of_the_other_architecture_is_left_alone(tmp_path: Path) -> None:
    for architecture in ("x86_64", "aarch64"):
        (tmp_path / f"x-1-cp311-cp311-linux_{architecture}.whl").write_text(architecture)
    for architecture in ("x86_64", "aarch64"):
        found, missing = packages.match_files(str(tmp_path), [packages.Locked("x", "1", [])], architecture)
        assert Path(found["x"]).read_text() == architecture and missing == []
