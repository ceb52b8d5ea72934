# SPDX-License-Identifier: Apache-2.0
"""Staging the collection that ansible-test sanity looks at."""

import ast

import pytest
import yaml

from tools import pythons, stage_collection


@pytest.mark.parametrize(
    ("source", "staged"),
    [
        (
            "from ansible.module_utils.vllm_ansible.plan import fleet",
            "from ansible_collections.vllm_ansible.engine.plugins.module_utils.plan import fleet",
        ),
        ("import ansible.module_utils.basic", "import ansible.module_utils.basic"),
        (
            "see M(vllm_plan) and M(ansible.builtin.copy)",
            "see M(vllm_ansible.engine.vllm_plan) and M(ansible.builtin.copy)",
        ),
    ],
)
def test_names_become_those_of_a_collection(source, staged):
    assert stage_collection.rewrite(source) == staged


def test_the_staged_collection_is_whole_and_imports_only_itself(tmp_path, project_root):
    (tmp_path / stage_collection.COLLECTION / "plugins").mkdir(parents=True)
    (tmp_path / stage_collection.COLLECTION / "plugins" / "gone.py").touch()
    collection = stage_collection.stage(tmp_path)
    assert not (collection / "plugins" / "gone.py").exists(), "an earlier staging must not shine through"
    modules = {path.name for path in (project_root / "library").glob("*.py")}
    assert {path.name for path in (collection / "plugins" / "modules").glob("*.py")} == modules
    shared = collection / "plugins" / "module_utils"
    wanted = (project_root / "module_utils" / "vllm_ansible").rglob("*.py")
    assert len(list(shared.rglob("*.py"))) == len(list(wanted))
    assert yaml.safe_load((collection / "galaxy.yml").read_text())["namespace"] == "vllm_ansible"
    for path in collection.rglob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"))
        assert "module_utils.vllm_ansible" not in path.read_text(encoding="utf-8"), path.name
    ignores = "".join(path.read_text() for path in (collection / "tests" / "sanity").glob("ignore-2.*.txt"))
    assert all(f"plugins/modules/{name} " in ignores for name in modules)


def test_patterns_in_ignores_are_expanded_and_comments_kept(tmp_path):
    for name in ("b.py", "a.py", "c.txt"):
        (tmp_path / name).touch()
    lines = ["# a heading", "", "*.py pep8:E501 # why", "gone/*.py pep8:E501"]
    assert stage_collection.expand_ignores(lines, tmp_path) == ["a.py pep8:E501 # why", "b.py pep8:E501 # why"]


def test_pip_settings_are_handed_on_and_the_environment_wins():
    listing = "global.find-links='/a'\nglobal.extra-index-url='x\\ny'\n:env:.find-links='/b'\nuser.other='z'\n"
    assert stage_collection.pip_configuration(listing) == (
        "[global]\nfind-links = /b\nextra-index-url = x\n  y\nquiet = 2\n"
    )


def test_an_interpreter_that_refuses_to_start_is_not_found(tmp_path, monkeypatch, capsys):
    """As pyenv's shims do for a version that is not selected."""
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons.main(["3.99"]) == 1
    shim.write_text("#!/bin/sh\necho 3.99\n")
    assert pythons.main(["3.98", "3.99"]) == 0
    assert capsys.readouterr().out == f"{shim}\n"
