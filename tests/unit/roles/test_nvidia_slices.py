# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA roles take the slices of the plan, with every null that a plan may hold."""

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

REPOSITORY = {"kind": "dnf", "distro": "kylin10", "architecture": "x86_64"}
DRIVER = {"version": "580.126.09", "flavour": "open", "gpus": None, "nvswitch": False, "repository": REPOSITORY}
CUDA = {"toolkit": None, "nccl": False, "gds": False, "dcgm": None, "cuda_major": "12", "container_toolkit": False}


@pytest.mark.parametrize(
    ("role", "given", "error"),
    [
        ("nvidia_driver", {**DRIVER, "secure_boot": None}, None),
        ("nvidia_driver", {**DRIVER, "flavour": "closed"}, "flavour must be one of"),
        ("nvidia_driver", {**DRIVER, "firmware": "1"}, "firmware"),
        ("nvidia_cuda", {**CUDA, "openmpi": False}, None),
        ("nvidia_cuda", {**CUDA, "cuda_major": "11"}, "cuda_major must be one of"),
    ],
)
def test_a_slice(project_root, role, given, error):
    path = project_root / "roles" / role / "meta/argument_specs.yml"
    specs = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
    for entry in ("main", "verify", "remove"):
        found = ArgumentSpecValidator(specs[entry]["options"]).validate({f"{role}_plan": given}).error_messages
        assert (found == []) if error is None else any(error in message for message in found), found
