# SPDX-License-Identifier: Apache-2.0
"""The contract of a role: everything it takes is declared once, and it takes nothing else."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

# The operator's own words in the inventory. Only the roles that turn them into a plan may know them.
INVENTORY_WORDS = {"engine_request", "engine_models"}
PLANNING_ROLES = {"inventory_check", "deployment_plan"}
READS_FACTS = {"hardware_facts", "deployment_plan"}
READS_ALL_HOSTS = {"deployment_plan", "inventory_check"}
INJECTED_FACTS = re.compile(
    r"\bansible_(architecture|default_ipv4|distribution\w*|hostname|kernel|memtotal_mb|os_family|pkg_mgr|processor\w*"
    r"|python_version|service_mgr)\b"
)
BLOCKS = ("block", "rescue", "always")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None


def specs(role: Path) -> dict[str, Any]:
    return load(role / "meta" / "argument_specs.yml")["argument_specs"]


def options(role: Path) -> dict[str, Any]:
    """The public variables of all entry points together."""
    return {name: option for spec in specs(role).values() for name, option in (spec.get("options") or {}).items()}


def nested(options_: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, option in options_.items():
        yield path + name, option
        yield from nested(option.get("options") or {}, f"{path}{name}.")


def defaults(role: Path) -> dict[str, Any]:
    return load(role / "defaults" / "main.yml") or {}


def tasks_of(entries: Any) -> Iterator[dict[str, Any]]:
    for entry in entries or []:
        yield entry
        for key in BLOCKS:
            yield from tasks_of(entry.get(key))


def role_tasks(role: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in ("tasks", "handlers"):
        for path in sorted((role / folder).glob("*.yml")):
            for task in tasks_of(load(path)):
                yield path, task


def value_of(task: dict[str, Any], *names: str) -> Any:
    """The arguments of the first of these actions, by short name or ansible.builtin's."""
    for name in names:
        for key in (name, f"ansible.builtin.{name}"):
            if key in task:
                return task[key]
    return None


def code_lines(role: Path) -> Iterator[tuple[Path, int, str]]:
    """Every line of a role that is evaluated or sent to a host: no comments, no task names, no documentation."""
    for folder in ("tasks", "handlers", "defaults", "vars", "templates", "files"):
        for path in sorted((role / folder).rglob("*")):
            if path.is_file():
                text = path.read_bytes().decode("utf-8", errors="replace")
                for number, line in enumerate(text.splitlines(), 1):
                    if not re.match(r"\s*#|\s*(- )?name: |\{#", line):
                        yield path, number, line


def offending(role: Path, pattern: str | re.Pattern[str], exempt: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{path.relative_to(role)}:{number}: {line.strip()}"
        for path, number, line in code_lines(role)
        if re.search(pattern, line) and path.name not in exempt
    ]


def test_every_entry_point_is_specified_and_every_specification_has_its_tasks(role):
    files = {path.stem for path in (role / "tasks").glob("*.yml")}
    included = set()
    for _path, task in role_tasks(role):
        target = value_of(task, "include_tasks", "import_tasks")
        target = target.get("file") if isinstance(target, dict) else target
        if target:
            # A computed name ("{{ x }}.yml") may be any file of that form: none of them is an entry point by itself.
            pattern = ".*".join(re.escape(part) for part in re.split(r"{{.*?}}", target))
            included |= {name for name in files if re.fullmatch(pattern, f"{name}.yml")}
    entries = set(specs(role))
    assert entries <= files, "argument_specs.yml names an entry point without a task file"
    assert files - included <= entries, "a task file that nothing includes is an entry point: specify it"


def test_every_option_is_typed_and_described(role):
    for entry, spec in specs(role).items():
        assert spec.get("short_description"), f"{entry}: short_description"
        for path, option in nested(spec.get("options") or {}):
            assert option.get("type"), f"{entry}: {path} has no type"
            assert option.get("description"), f"{entry}: {path} has no description"
            if option["type"] == "list":
                assert option.get("elements"), f"{entry}: {path} is a list without elements"


def test_defaults_inside_options_are_applied_by_the_role(role):
    """Ansible checks arguments against the specification and never fills a default in: the role has to."""
    code = "\n".join(line for _path, _number, line in code_lines(role))
    for entry, spec in specs(role).items():
        public = spec.get("options") or {}
        for path, option in nested(public):
            if path not in public and "default" in option:
                applied = re.findall(rf"\.{path.rpartition('.')[2]}\s*\|\s*default\(([^,)]*)", code)
                assert applied, f"{entry}: nothing applies the default of {path}"
                if applied == ["omit"]:
                    continue  # the module's own default, which its documentation states
                assert {yaml.safe_dump(yaml.safe_load(value)) for value in applied} == {
                    yaml.safe_dump(option["default"])
                }, f"{entry}: {path}"


def test_defaults_are_those_of_the_specification(role):
    specified = {name: option["default"] for name, option in options(role).items() if "default" in option}
    assert defaults(role) == specified


def test_an_option_means_the_same_in_every_entry_point(role):
    seen: dict[str, Any] = {}
    for spec in specs(role).values():
        for name, option in (spec.get("options") or {}).items():
            shape = {key: option.get(key) for key in ("type", "elements", "default", "choices")}
            assert seen.setdefault(name, shape) == shape, name


def test_names_carry_the_prefix_of_the_role(role):
    allowed = INVENTORY_WORDS | {"deployment_plan"} if role.name in PLANNING_ROLES else set()
    names = set(options(role)) | set(defaults(role))
    internal = set()
    for path in sorted((role / "vars").rglob("*.yml")):
        internal |= set(load(path) or {})
    for _path, task in role_tasks(role):
        internal |= set(task.get("vars") or {})
        internal |= {key for key in value_of(task, "set_fact") or {} if key != "cacheable"}
        internal |= {task["register"]} if "register" in task else set()
        internal |= {task["loop_control"]["loop_var"]} if "loop_var" in task.get("loop_control", {}) else set()
    wrong = {name for name in names if not name.startswith(f"{role.name}_")}
    wrong |= {name for name in internal if not name.startswith((f"__{role.name}_", f"{role.name}_"))}
    assert wrong - allowed == set()


def test_it_depends_on_no_other_role(role):
    meta = load(role / "meta" / "main.yml")
    assert meta["dependencies"] == []
    assert meta["galaxy_info"]["description"]
    assert meta["galaxy_info"]["license"] == "Apache-2.0"
    for _path, task in role_tasks(role):
        assert value_of(task, "include_role", "import_role") is None, task


def test_it_reads_no_other_host(role):
    if role.name not in READS_ALL_HOSTS:
        assert offending(role, r"\bhostvars\b|\bgroups\s*[\[.|]|\bgroup_names\b|\bin groups\b") == []


def test_it_reads_the_plan_only_as_its_slice(role):
    if role.name != "deployment_plan":
        assert offending(role, r"(?<!_)\bdeployment_plan\b") == []


def test_facts_are_read_only_where_the_operating_system_is_told_apart(role):
    if role.name not in READS_FACTS:
        assert offending(role, r"\bansible_facts\b", exempt=("set_vars.yml",)) == []
    assert offending(role, INJECTED_FACTS) == []


def test_it_never_asks_whether_it_faces_a_stand_in(role):
    assert offending(role, r"(?i)\b(stand[_-]?in|fake|mock|molecule)\b|\bnspawn\b") == []


NEEDS_A_REASON = re.compile(
    r"#\s*noqa|^\s*(- )?(ansible\.builtin\.)?(shell|lineinfile|raw):(\s*$|\s+\S)"
    r"|^\s*(ignore_errors|ignore_unreachable):|^\s*(changed_when|failed_when):\s*false\s*$"
)


def unexplained(path: Path) -> list[str]:
    """Lines that need a reason and have no comment: on them, directly above their task, or in it before them."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = []
    for index, line in enumerate(lines):
        if line.lstrip().startswith("#") or not NEEDS_A_REASON.search(line):
            continue
        # `shell: /usr/sbin/nologin` is an argument of the user module, deeper than any action.
        if re.match(r"\s*shell:\s*/", line):
            continue
        start = index
        while start > 0 and not re.match(r"\s*- ", lines[start]):
            start -= 1
        before = lines[max(start - 1, 0) : index]
        if not re.search(r"#\s*(?!noqa)\S", line) and not any(text.lstrip().startswith("#") for text in before):
            found.append(f"{path.name}:{index + 1}: {line.strip()}")
    return found


def test_exceptions_say_why(role):
    files = [path for folder in ("tasks", "handlers") for path in sorted((role / folder).glob("*.yml"))]
    assert [line for path in files for line in unexplained(path)] == []


def test_exceptions_in_playbooks_say_why(project_root):
    files = sorted((project_root / "playbooks").glob("*.yml"))
    assert files
    assert [line for path in files for line in unexplained(path)] == []


def test_commands_are_argument_lists(role):
    """A command line would be split by Ansible after templating: a blank in a path would change its meaning."""
    for path, task in role_tasks(role):
        command = value_of(task, "command")
        if command is not None:
            assert isinstance(command, dict), f"{path.name}: {task['name']}"
            assert "argv" in command, f"{path.name}: {task['name']}"


def test_secrets_can_be_made_visible_with_one_switch(role):
    for path, task in role_tasks(role):
        if "no_log" in task:
            assert task["no_log"] == "{{ " + role.name + "_secure_logging }}", f"{path.name}: {task['name']}"


def test_generated_files_say_so(role):
    for path in sorted((role / "templates").rglob("*.j2")):
        if not path.name.endswith(".json.j2"):  # JSON has no comments
            assert "ansible_managed" in path.read_text(encoding="utf-8"), path.name


def test_the_readme_shows_use_files_and_removal(role):
    readme = (role / "README.md").read_text(encoding="utf-8")
    assert readme.startswith(f"# {role.name}\n")
    assert re.search(r"(?i)check mode", readme), "say what check mode does"
    assert "```yaml" in readme, "show an example"
    assert "remove" in specs(role) or re.search(r"(?i)\bremov|nothing to remove", readme), (
        "say why it cannot be removed"
    )


PLAYBOOK_ACTIONS = {
    *("assert", "debug", "fail", "import_playbook", "import_role", "include_role", "meta", "set_fact", "set_stats"),
    *("add_host", "group_by", "include_tasks", "wait_for_connection"),
}


def test_playbooks_are_lists_of_roles(project_root):
    for path in sorted((project_root / "playbooks").glob("*.yml")):
        for play in load(path):
            if "ansible.builtin.import_playbook" in play:
                continue
            assert "gather_facts" in play, f"{path.name}: {play['name']}"
            for section in ("pre_tasks", "tasks", "post_tasks", "handlers"):
                for task in tasks_of(play.get(section)):
                    actions = {key.removeprefix("ansible.builtin.") for key in task if "ansible.builtin." in key}
                    allowed = PLAYBOOK_ACTIONS | ({"copy"} if task.get("delegate_to") == "localhost" else set())
                    assert actions <= allowed, f"{path.name}: {task.get('name')}"
    for path in sorted((project_root / "playbooks" / "tasks").glob("*.yml")):  # what several playbooks do
        for task in tasks_of(load(path)):
            actions = {key.removeprefix("ansible.builtin.") for key in task if "ansible.builtin." in key}
            assert actions <= PLAYBOOK_ACTIONS, f"{path.name}: {task.get('name')}"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("- name: x\n  ansible.builtin.shell: a\n", 1),
        ("- name: x\n  # a pipe\n  ansible.builtin.shell: a | b\n", 0),
        ("# why\n- name: x\n  changed_when: false\n", 0),
        ("- name: x\n  failed_when: false # a new host has none\n", 0),
        ("- name: x\n  set_fact: {a: 1} # noqa: var-naming\n", 1),
        ("- name: x\n  changed_when: x.rc == 1\n", 0),
        ("- name: x\n  ansible.builtin.user:\n    shell: /bin/sh\n", 0),
    ],
)
def test_the_search_for_unexplained_exceptions_finds_them(tmp_path, text, lines):
    path = tmp_path / "main.yml"
    path.write_text(text)
    assert len(unexplained(path)) == lines


def test_a_range_is_made_a_list(project_root):
    """The newest ansible-core refuses to keep a range as the value of a loop or a variable."""
    for path in [*project_root.glob("roles/*/tasks/*.yml"), *project_root.glob("playbooks/**/*.yml")]:
        assert not re.search(r"range\((?:[^()]|\([^()]*\))*\)\s*}}", path.read_text(encoding="utf-8")), path
