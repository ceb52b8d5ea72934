# SPDX-License-Identifier: Apache-2.0
"""The contract of a module: documented in full, documented as it is, safe on a bare host, tested."""

import ast
import importlib.util
import sys
from typing import Any

import pytest
import yaml

# Of ansible itself, only this is sent to a host with a module; on the newest core other paths are gone or deprecated.
SHIPPED_WITH_MODULES = tuple(f"ansible.module_utils.{name}" for name in ("basic", "common", "urls", "vllm_ansible"))


class _Captured(Exception):
    """Carries what a module gave to AnsibleModule."""


@pytest.fixture
def module(module_source):
    spec = importlib.util.spec_from_file_location(module_source.stem, module_source)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def documentation(module) -> dict[str, Any]:
    return yaml.safe_load(module.DOCUMENTATION)


@pytest.fixture
def specification(module, monkeypatch) -> dict[str, Any]:
    """The keyword arguments of AnsibleModule, as main() gives them."""

    def capture(argument_spec=None, **rest):
        raise _Captured({"argument_spec": argument_spec, **rest})

    monkeypatch.setattr(module, "AnsibleModule", capture)
    with pytest.raises(_Captured) as caught:
        module.main()
    return caught.value.args[0]


def test_documentation_is_complete(module_source, documentation):
    assert documentation["module"] == module_source.stem
    assert documentation["version_added"]
    assert documentation["author"] == ["vllm-ansible contributors (@vllm-ansible)"] or (
        documentation["author"] == "vllm-ansible contributors (@vllm-ansible)"
    )
    assert not documentation["short_description"].endswith(".")
    assert documentation["description"]
    for name in ("check_mode", "diff_mode"):
        attribute = documentation["attributes"][name]
        assert attribute["support"] in ("full", "partial", "none")
        assert attribute["description"], name
    assert documentation["attributes"]["check_mode"]["support"] == "full", "every module can say what it would do"


def test_examples_use_the_module(module, module_source):
    tasks = yaml.safe_load(module.EXAMPLES)
    assert tasks
    used = [task for task in tasks if module_source.stem in task]
    assert used
    assert all(task.get("name") for task in tasks)


def test_returns_are_described(module):
    def check(entries: dict[str, Any], path: str) -> None:
        for key, entry in entries.items():
            assert entry.get("description"), path + key
            assert entry.get("type"), path + key
            assert path or entry.get("returned"), path + key
            check(entry.get("contains") or {}, f"{path}{key}.")

    returns = yaml.safe_load(module.RETURN)
    assert returns
    check(returns, "")


def test_documented_options_are_the_arguments(documentation, specification):
    def shape(option: dict[str, Any], nested: str) -> dict[str, Any]:
        children = option.get(nested) or {}
        return {
            "type": option.get("type", "str"),
            "required": bool(option.get("required", False)),
            "default": option.get("default"),
            "elements": option.get("elements"),
            "choices": sorted(option["choices"], key=str) if option.get("choices") else None,
            "aliases": sorted(option.get("aliases") or []),
            "options": {name: shape(child, nested) for name, child in children.items()},
        }

    documented = {name: shape(option, "suboptions") for name, option in (documentation.get("options") or {}).items()}
    taken = {name: shape(option, "options") for name, option in (specification["argument_spec"] or {}).items()}
    assert documented == taken


def test_check_mode_is_declared(specification):
    assert specification.get("supports_check_mode") is True


def test_it_has_unit_tests(module_source, project_root):
    tests = (project_root / "tests" / "unit").rglob("test_*.py")
    assert any(module_source.stem in path.read_text(encoding="utf-8") for path in tests)


def imports_at_start(tree: ast.Module) -> set[str]:
    """Top-level packages imported when the file is loaded, outside try."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module.split(".")[0] if node.module and not node.level else "")
    return found


def host_files(project_root):
    return sorted([*(project_root / "library").rglob("*.py"), *(project_root / "module_utils").rglob("*.py")])


def test_host_files_need_only_the_standard_library(project_root):
    allowed = set(sys.stdlib_module_names) | {"ansible"}
    for path in host_files(project_root):
        foreign = imports_at_start(ast.parse(path.read_text(encoding="utf-8"))) - allowed
        assert foreign == set(), path.relative_to(project_root)


def test_shared_code_is_imported_by_its_one_name(project_root):
    for path in host_files(project_root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path.name}: relative import"
                name = node.module or ""
                if name.startswith("ansible."):
                    assert name.startswith(SHIPPED_WITH_MODULES), f"{path.name}: {name}"
                assert not name.startswith("vllm_ansible"), path.name


def test_modules_run_commands_through_ansible(module_source):
    imported = imports_at_start(ast.parse(module_source.read_text(encoding="utf-8")))
    assert "subprocess" not in imported, "use AnsibleModule.run_command"
