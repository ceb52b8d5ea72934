# SPDX-License-Identifier: Apache-2.0
"""What must not be in the repository, and what every file of it must have."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LARGEST_FILE = 2 * 1024 * 1024
SECRETS = {
    "private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "access token": re.compile(
        r"\b(hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|glpat-[\w-]{20,}|AKIA[0-9A-Z]{16})\b"
    ),
    "password in a URL": re.compile(r"\b[a-z]+://[^/\s:@{]+:[^/\s:@{]+@"),
    # A lookup, a variable, an empty value is none; nor is what says itself that it is not a real one.
    "literal secret": re.compile(
        r"^\s*[\w-]*(password|passwd|secret|api_key|token):[ \t]+[\"']?"
        r"(?!\{\{|!vault|null|true|false|[\"']?\s*$|[\w-]*(stand-in|not-a-real))[^\s\"'#]{8,}",
        re.M,
    ),
}


def found(pattern: re.Pattern[str], texts: dict[str, str]) -> list[str]:
    lines = []
    for name, text in texts.items():
        for match in pattern.finditer(text):
            lines.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match.group(0).strip()[:60]}")
    return lines


@pytest.mark.parametrize("kind", SECRETS)
def test_no_secrets(kind, texts):
    own = str(Path(__file__).resolve().relative_to(ROOT))
    relevant = {name: text for name, text in texts.items() if name != own}
    if kind == "literal secret":
        relevant = {name: text for name, text in relevant.items() if name.endswith((".yml", ".yaml", ".cfg", ".ini"))}
    assert found(SECRETS[kind], relevant) == []


@pytest.mark.parametrize(
    ("kind", "text", "caught"),
    [
        ("literal secret", "engine_service_api_key: sk-abcdefgh", True),
        ("literal secret", 'vault_password: "changeme!"', True),
        ("literal secret", 'engine_service_api_key: "{{ vault_key }}"', False),
        ("literal secret", "token: ''", False),
        ("password in a URL", "http://user:hunter2@host/", True),
        ("password in a URL", "http://user:{{ secret }}@host/", False),
        ("access token", "hf_" + "a" * 34, True),
        ("private key", "-----BEGIN OPENSSH " + "PRIVATE KEY-----", True),
    ],
)
def test_a_secret_is_found(kind, text, caught):
    assert bool(found(SECRETS[kind], {"x.yml": text})) == caught


def machine_words() -> set[str]:
    """Folders and package sources of the machine the tests run on: asked from it, so that they are named nowhere."""
    words = {str(ROOT), str(Path.home() / ".pyenv")}
    settings = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    sources = "\n".join(line for line in settings.splitlines() if re.search(r"index|find-links", line))
    words |= set(re.findall(r"(?:file://)?(/opt/[\w.-]+)", sources))
    for path in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")):
        if path.is_file():
            sources += path.read_text(encoding="utf-8", errors="replace")
    return words | set(re.findall(r"https?://([\w.-]+\.[\w.-]+)", sources))


def test_no_path_and_no_package_source_of_this_machine(texts):
    words = machine_words()
    pattern = re.compile("|".join(rf"{re.escape(word)}(?![\w-])" for word in sorted(words)))
    assert found(pattern, texts) == []


def test_code_names_its_licence(texts):
    scripts = {name: text for name, text in texts.items() if name.endswith((".py", ".sh")) or text.startswith("#!")}
    assert len(scripts) > 20
    missing = [name for name, text in scripts.items() if "SPDX-License-Identifier: Apache-2.0" not in text[:400]]
    assert [name for name in missing if scripts[name].strip() and not name.startswith("tests/fixtures/")] == []


def test_nothing_is_left_open(texts):
    words = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    code = {name: text for name, text in texts.items() if not name.startswith(("tests/fixtures/", "engine_overrides/"))}
    assert found(words, code) == []


def test_no_large_files(project_files):
    assert [str(path.relative_to(ROOT)) for path in project_files if path.stat().st_size > LARGEST_FILE] == []


def test_yaml_files_end_in_yml(texts):
    exempt = ("tests/fixtures/", "changelogs/", ".pre-commit-config.yaml")  # recorded, or named so by their tools
    assert [name for name in texts if name.endswith(".yaml") and not name.startswith(exempt)] == []
