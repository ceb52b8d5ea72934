# SPDX-License-Identifier: Apache-2.0
"""The generated reference: content, drift found, sources that lack something named."""

import pytest

from tools import docs

SPEC = """\
argument_specs:
  main:
    short_description: Brings the engine up
    options:
      engine_plan:
        type: dict
        required: true
        description: Its slice of the plan.
        options:
          instances:
            type: list
            elements: dict
            description: [One entry per unit., "Either C(a) or C(b|c)."]
            options:
              name: {type: str, description: "See L(units, https://example.org/)."}
      engine_mode:
        type: str
        default: fast
        choices: [fast, safe]
        description: How.
  remove:
    short_description: Takes it away
"""

MODULE = '''\
DOCUMENTATION = """
module: vllm_thing
short_description: Keeps a thing
description: [Keeps V(one) thing.]
version_added: 0.1.0
author: nobody
attributes:
  check_mode: {description: Can run in check mode., support: full}
options:
  path: {description: Where., type: path, required: true}
"""
EXAMPLES = "- vllm_thing: {path: /x}"
RETURN = """
things:
  description: All.
  type: list
  elements: dict
  returned: always
  contains: {name: {description: N., type: str}}
"""
'''


@pytest.fixture
def tree(tmp_path):
    role = tmp_path / "roles" / "engine"
    (role / "meta").mkdir(parents=True)
    (role / "tasks").mkdir()
    (role / "meta" / "argument_specs.yml").write_text(SPEC)
    (role / "README.md").write_text(f"# engine\n\n{docs.BEGIN}\nold\n{docs.END}\n\nAfter.\n")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "vllm_thing.py").write_text(MODULE)
    return tmp_path


def run(tree, *arguments):
    return docs.main(["--root", str(tree), *arguments])


def test_writing_makes_the_check_pass_and_a_change_makes_it_fail(tree, capsys):
    assert run(tree, "--check") == 1
    assert run(tree) == 0
    assert run(tree, "--check") == 0
    (tree / "roles" / "engine" / "meta" / "argument_specs.yml").write_text(
        SPEC.replace("default: fast", "default: safe")
    )
    capsys.readouterr()
    assert run(tree, "--check") == 1
    assert capsys.readouterr().err == "roles/engine/README.md: not up to date; run tools/docs.py\n"


def test_the_block_of_a_role_lists_every_option_by_its_path(tree):
    run(tree)
    readme = (tree / "roles" / "engine" / "README.md").read_text()
    assert readme.startswith("# engine\n\n")
    assert readme.endswith("\n\nAfter.\n")
    assert "old" not in readme
    assert "| `engine_plan` | dict | **required** | Its slice of the plan. |" in readme
    assert (
        "| `engine_plan.instances` | list of dict |   | One entry per unit. Either `a` or `b\\|c`. |\n"
        "| `engine_plan.instances[].name` | str |   | See [units](https://example.org/). |\n"
        "| `engine_mode` | str | `fast` | How. One of `fast`, `safe`. |"
    ) in readme
    assert "### Entry point `remove`\n\nTakes it away\n\nTakes no variables.\n" in readme


def test_the_page_of_a_module_has_options_examples_and_returns(tree):
    run(tree)
    page = (tree / "docs" / "reference" / "modules" / "vllm_thing.md").read_text()
    assert "| `check_mode` | full | Can run in check mode. |" in page
    assert "| `path` | path | **required** | Where. |" in page
    assert "```yaml\n- vllm_thing: {path: /x}\n```" in page
    assert "| `things[].name` | str |   | N. |" in page
    assert "(vllm_thing.md) | module | Keeps a thing |" in (tree / "docs/reference/modules/README.md").read_text()
    assert "| [engine](../../roles/engine/README.md) | `main` |" in (tree / "docs/reference/roles.md").read_text()


def test_the_page_of_a_module_that_is_gone_is_found_and_removed(tree, capsys):
    run(tree)
    (tree / "library" / "vllm_thing.py").unlink()
    assert run(tree, "--check") == 1
    run(tree)
    assert not (tree / "docs" / "reference" / "modules" / "vllm_thing.md").exists()
    assert run(tree, "--check") == 0


@pytest.mark.parametrize("missing", ["README.md", "meta/argument_specs.yml"])
def test_a_role_that_lacks_a_source_is_named(tree, capsys, missing):
    (tree / "roles" / "engine" / missing).unlink()
    assert run(tree) == 1
    assert missing in capsys.readouterr().err
