# SPDX-License-Identifier: Apache-2.0
"""Generated documentation is up to date, links lead somewhere, every error code is explained, changes are told."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from ansible.module_utils.vllm_ansible.plan import codes

from tools import docs

LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")


def test_generated_files_are_up_to_date(project_root):
    files, errors = docs.generate(project_root)
    assert [str(error) for error in errors] == []
    assert [str(path.relative_to(project_root)) for path in docs.stale(project_root, files)] == []


def slug(heading: str) -> str:
    """The anchor a code host gives a heading."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def prose(text: str) -> str:
    """Markdown without its code blocks, whose brackets and # are no links and no headings."""
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def broken_links(root: Path, name: str, text: str) -> list[str]:
    found = []
    for target in LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (root / name).parent / path if path else root / name
        if not file.exists():
            found.append(f"{name}: {target}")
        elif anchor and file.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", prose(file.read_text(encoding="utf-8")), re.M)
            if anchor not in {slug(heading) for heading in headings}:
                found.append(f"{name}: {target}")
    return found


def test_links_lead_somewhere(project_root, texts):
    pages = {name: text for name, text in texts.items() if name.endswith(".md")}
    assert len(pages) > 5
    assert [link for name, text in pages.items() for link in broken_links(project_root, name, text)] == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "there.md").write_text("# One thing\n```\n# Not a heading\n```\n")
    text = "[a](there.md#one-thing) [b](there.md#not-a-heading) [c](gone.md) [d](https://example.org/gone)\n"
    assert broken_links(tmp_path, "page.md", text) == ["page.md: there.md#not-a-heading", "page.md: gone.md"]


def test_every_code_is_explained_and_no_other(project_root):
    page = (project_root / "docs" / "reference" / "plan-errors.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\b[EW]_[A-Z0-9_]+\b", page)) == {*codes.PROBLEMS, *codes.WARNINGS}


def test_every_code_that_is_raised_is_declared(project_root):
    sources = [*(project_root / "module_utils/vllm_ansible/plan").rglob("*.py"), project_root / "library/vllm_plan.py"]
    used = set()
    for path in sources:
        if path.name != "codes.py":
            used |= set(re.findall(r"[\"']([EW]_[A-Z0-9_]+)[\"']", path.read_text(encoding="utf-8")))
    assert used
    assert used - {*codes.PROBLEMS, *codes.WARNINGS} == set()
    assert {*codes.PROBLEMS, *codes.WARNINGS} - used == set(), "a code that nothing raises"


def changelog(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).parent / "antsibull-changelog", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_changes_are_told_in_fragments_that_render(project_root, tmp_path):
    fragments = sorted((project_root / "changelogs" / "fragments").glob("*.yml"))
    assert fragments or (project_root / "CHANGELOG.md").is_file()
    shutil.copytree(project_root / "changelogs", tmp_path / "changelogs")
    result = changelog("lint", cwd=tmp_path)
    assert result.returncode == 0, result.stdout
    if fragments:
        result = changelog("release", "--version", "999.0.0", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert "999" in (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")


def test_breaking_changes_come_with_upgrade_notes(project_root):
    breaking = [
        path.name
        for path in (project_root / "changelogs" / "fragments").glob("*.yml")
        if "breaking_changes" in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]
    notes = project_root / "docs" / "upgrade-notes.md"
    text = notes.read_text(encoding="utf-8") if notes.is_file() else ""
    assert [name for name in breaking if name not in text] == [], "name the fragment in docs/upgrade-notes.md"


def test_decisions_are_numbered_and_have_their_parts(project_root):
    decisions = sorted((project_root / "docs" / "decisions").glob("[0-9]*.md"))
    assert decisions
    numbers = [path.name[:4] for path in decisions]
    assert len(numbers) == len(set(numbers)), numbers
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        assert re.match(rf"# {int(path.name[:4])}\. \S", text), path.name
        for part in ("Status:", "**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in text, f"{path.name}: {part}"
