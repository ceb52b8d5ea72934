# SPDX-License-Identifier: Apache-2.0
"""The modules that own and describe the drop-in, on a recorded four-node machine and a real directory."""

import pytest
import vllm_numa_binding
import vllm_numa_binding_info
from ansible.module_utils.vllm_ansible import binding
from ansible.module_utils.vllm_ansible.host import Host

from tools.hardware_machines import MACHINES, load_machine


@pytest.fixture
def units(tmp_path, monkeypatch):
    """A unit directory on disk; CPUs, nodes, processes and systemd are those of a recorded machine."""
    recorded = load_machine(MACHINES / "taishan-2280-v2")

    class MixedHost(Host):
        def read(self, path):
            return super().read(path) if path.startswith(str(tmp_path)) else recorded.read(path)

        def list_directory(self, path):
            live = path.startswith(str(tmp_path))
            return super().list_directory(path) if live else recorded.list_directory(path)

        def run(self, arguments, environment=None):
            return recorded.run(arguments, environment)

        def system(self):
            return recorded.system()

    for module in (vllm_numa_binding, vllm_numa_binding_info):
        monkeypatch.setattr(module, "Host", MixedHost)
    return tmp_path, recorded


def bind(run_module, directory, check_mode=False, **params):
    params = {"instance": "a", "unit_directory": str(directory), **params}
    return run_module(vllm_numa_binding, params, check_mode=check_mode, diff=True)


def test_create_again_change_remove_again(run_module, units):
    directory, _ = units
    path = directory / "vllm-a.service.d" / "20-numa.conf"
    steps = [
        ({"cpus": "0-31", "memory_nodes": "0"}, True),
        ({"cpus": "0-15,16-31", "memory_nodes": "0"}, False),
        ({"cpus": "32-63", "memory_nodes": "1"}, True),
        ({"state": "absent"}, True),
        ({"state": "absent"}, False),
    ]
    for params, changed in steps:
        before = path.read_text() if path.exists() else ""
        foretold = bind(run_module, directory, check_mode=True, **params)
        assert (path.read_text() if path.exists() else "") == before, "check mode wrote"
        result = bind(run_module, directory, **params)
        after = path.read_text() if path.exists() else ""
        for key in ("changed", "diff", "cpus", "memory_nodes", "reload_required"):
            assert result[key] == foretold[key], key
        assert result["changed"] is result["reload_required"] is changed
        assert (result["diff"]["before"], result["diff"]["after"]) == (before, after)
        assert result["path"] == result["diff"]["after_header"] == str(path)
    assert list(directory.iterdir()) == []


def test_the_drop_in_says_what_was_asked_for(run_module, units):
    directory, _ = units
    result = bind(run_module, directory, cpus="3,1-2", memory_nodes="1,0")
    assert (result["cpus"], result["memory_nodes"]) == ("1-3", "0-1")
    assert (directory / "vllm-a.service.d/20-numa.conf").read_text() == (
        "# Ansible managed: vllm_numa_binding\n[Service]\nCPUAffinity=\nCPUAffinity=1-3\n"
        "NUMAPolicy=bind\nNUMAMask=0-1\n"
    )


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"cpus": "120-130"}, "CPU 128-130 cannot be used (this host has only 0-127)"),
        ({"cpus": "0", "memory_nodes": "4"}, "Set memory_nodes to nodes among 0-3."),
        ({"cpus": "many"}, "'many'"),
        ({}, "cpus"),
        ({"cpus": "0", "instance": "../x"}, "'../x' is no part of a unit name"),
    ],
)
@pytest.mark.parametrize("check_mode", [False, True])
def test_the_impossible_is_refused_before_anything_is_written(run_module, units, params, part, check_mode):
    directory, _ = units
    result = bind(run_module, directory, check_mode=check_mode, **params)
    assert result["failed"]
    assert part in result["msg"]
    assert list(directory.iterdir()) == []


def test_a_reload_that_an_earlier_run_missed_is_still_due(run_module, units):
    directory, recorded = units
    bind(run_module, directory, cpus="0")
    recorded.commands["systemctl show --property=NeedDaemonReload vllm-a.service"] = (0, "NeedDaemonReload=yes\n", "")
    result = bind(run_module, directory, cpus="0")
    assert (result["changed"], result["reload_required"]) == (False, True)


def test_a_disk_that_is_full_is_named_and_the_old_binding_stays(run_module, units, monkeypatch):
    directory, _ = units
    bind(run_module, directory, cpus="0")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ansible.module_utils.vllm_ansible.host.os.fsync", full)
    result = bind(run_module, directory, cpus="1")
    assert result["failed"]
    assert "No space left on device. Free the disk" in result["msg"]
    assert "CPUAffinity=0" in (directory / "vllm-a.service.d/20-numa.conf").read_text()


def describe(run_module, directory, *instances):
    return run_module(
        vllm_numa_binding_info, {"instances": list(instances), "unit_directory": str(directory)}, check_mode=True
    )


def run_threads(recorded, name, cpus):
    recorded.files["/proc/7/cgroup"] = f"0::/system.slice/{binding.unit_name(name)}\n"
    recorded.files["/proc/7/task/7/status"] = f"Name:\tengine\nCpus_allowed_list:\t{cpus}\n"
    recorded.files["/proc/7/numa_maps"] = "1 bind:0 anon=1 N0=1 kernelpagesize_kB=64\n"


def test_info_lists_bindings_and_finds_nothing_wrong(run_module, units):
    directory, recorded = units
    bind(run_module, directory, cpus="0-31", memory_nodes="0")
    bind(run_module, directory, instance="idle", cpus="32")
    run_threads(recorded, "a", "0-31")
    result = describe(run_module, directory)
    assert result["problems"] == []
    assert [(entry["instance"], entry["managed"], entry["threads"]) for entry in result["bindings"]] == [
        ("a", True, 1), ("idle", True, 0),
    ]  # fmt: skip
    assert result["bindings"][0]["anonymous_bytes"] == {"0": 65536}


def test_info_names_the_stray_and_the_drop_in_that_differs(run_module, units):
    directory, recorded = units
    bind(run_module, directory, cpus="0-31", memory_nodes="0")
    run_threads(recorded, "a", "0-127")
    result = describe(run_module, directory, {"name": "a", "cpus": "0-15", "memory_nodes": "0"})
    assert [entry["tid"] for entry in result["bindings"][0]["strays"]] == [7]
    assert "has cpus=0-31 memory_nodes=0, expected is cpus=0-15 memory_nodes=0" in result["problems"][0]
    assert "may run on CPU 0-127, bound is 0-15" in result["problems"][1]


def test_info_wants_a_planned_instance_to_be_bound_and_to_run(run_module, units):
    directory, _ = units
    result = describe(run_module, directory, {"name": "b", "cpus": "1"})
    assert "does not exist, expected is cpus=1" in result["problems"][0]
    assert "has no process" in result["problems"][1]
    assert result["bindings"][0]["managed"] is None


def test_info_refuses_what_could_never_be_bound(run_module, units):
    directory, _ = units
    result = describe(run_module, directory, {"name": "b", "cpus": "900"})
    assert result["failed"]
    assert "CPU 900 cannot be used" in result["msg"]


def test_info_passes_on_that_systemd_must_read_again(run_module, units):
    directory, recorded = units
    assert describe(run_module, directory)["reload_required"] is False
    recorded.commands["systemctl show --property=NeedDaemonReload vllm-*.service"] = (0, "NeedDaemonReload=yes\n", "")
    assert describe(run_module, directory)["reload_required"] is True
