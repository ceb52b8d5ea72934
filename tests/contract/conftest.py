# SPDX-License-Identifier: Apache-2.0
"""What the contract tests look at: the files of the project, its roles and its modules."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def project_files() -> list[Path]:
    """Every file that is, or would be, under version control."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    files = {ROOT / name for name in listing.split("\0") if name}
    return sorted(path for path in files if path.is_file() and not path.is_symlink())


@pytest.fixture(scope="session")
def texts(project_files: list[Path]) -> dict[str, str]:
    """The text files of the project by their path from the root."""
    found = {}
    for path in project_files:
        content = path.read_bytes()
        if b"\0" not in content:
            found[str(path.relative_to(ROOT))] = content.decode("utf-8", errors="replace")
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `role` or `module` once for each of them."""
    if "role" in metafunc.fixturenames:
        roles = sorted(path for path in (ROOT / "roles").glob("*") if (path / "tasks").is_dir())
        metafunc.parametrize("role", roles, ids=lambda path: path.name)
    if "module_source" in metafunc.fixturenames:
        metafunc.parametrize("module_source", sorted((ROOT / "library").glob("*.py")), ids=lambda path: path.stem)
