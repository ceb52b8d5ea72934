# SPDX-License-Identifier: Apache-2.0
"""Every role that reboots does so alike: the same tasks, variables and message."""

import re

import pytest
import yaml

ROLES = ("ascend_driver", "nvidia_driver")
FILES = ("reboot.yml", "reboot_note.yml")
VARIABLES = ("reboot", "reboot_timeout", "before_reboot", "after_reboot")


def test_every_role_that_reboots_is_known(project_root):
    found = {
        path.parents[1].name
        for path in (project_root / "roles").glob("*/tasks/*.yml")
        if "ansible.builtin.reboot:" in path.read_text(encoding="utf-8")
    }
    assert found == {"kernel", *ROLES}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", FILES)
def test_the_tasks_are_those_of_the_kernel_role(project_root, role, name):
    kernel, other = (project_root / "roles" / one / "tasks" / name for one in ("kernel", role))
    text = re.sub(r"kernel(?=[_'\"])|(?<=reboots/)kernel", role, kernel.read_text(encoding="utf-8"))
    assert other.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("role", ROLES)
def test_the_variables_are_those_of_the_kernel_role(project_root, role):
    def options(one):
        path = project_root / "roles" / one / "meta/argument_specs.yml"
        found = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"]
        return {name: {**found[f"{one}_{name}"], "description": ""} for name in VARIABLES}

    assert options(role) == options("kernel")
