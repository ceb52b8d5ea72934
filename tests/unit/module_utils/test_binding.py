# SPDX-License-Identifier: Apache-2.0
"""The pure core of vllm_numa_binding."""

import pytest
from ansible.module_utils.vllm_ansible import binding

from tools.hardware_machines import MACHINES, ReplayHost, load_machine

TOPOLOGY = {
    "present": list(range(8)),
    "online": [0, 1, 2, 3, 4, 5, 6],
    "allowed": [0, 1, 2, 3, 4, 5],
    "isolated": [],
    "nodes": {0: 2**30, 1: 2**30, 3: 0},
}
ONE_NODE = dict(TOPOLOGY, nodes={0: 2**30, 1: 0})


@pytest.mark.parametrize(
    ("cpus", "nodes", "topology", "resolved"),
    [
        ("0-3", "0", TOPOLOGY, ("0-3", "0")),
        ("3 2,1", "1,0", TOPOLOGY, ("1-3", "0-1")),
        ("0", None, TOPOLOGY, ("0", None)),
        ("0", "0", ONE_NODE, ("0", None)),
    ],
)
def test_a_possible_binding_is_put_in_canonical_form(cpus, nodes, topology, resolved):
    assert binding.resolve_binding(cpus, nodes, topology) == (resolved, [])


@pytest.mark.parametrize(
    ("cpus", "nodes", "parts"),
    [
        (
            "6-9",
            None,
            ["CPU 8-9 cannot be used (this host has only 0-7)", "CPU 6 cannot be used (out", "among 0-5"],
        ),
        ("7", None, ["CPU 7 cannot be used (offline)"]),
        ("0", "3", ["node 3 cannot be used (without memory)", "among 0-1"]),
        ("0", "2", ["node 2 cannot be used (this host has only node 0-1,3)"]),
        ("", None, ["cpus is empty"]),
        ("0", "", ["memory_nodes is empty"]),
        ("0-", "x", ["cpus: '0-'", "memory_nodes: 'x'"]),
    ],
)
def test_every_impossible_part_is_named_with_what_to_set(cpus, nodes, parts):
    problems = " ".join(binding.resolve_binding(cpus, nodes, TOPOLOGY)[1])
    assert all(part in problems for part in parts), problems


def test_isolated_cpus_are_refused_although_they_are_allowed():
    text = " ".join(binding.resolve_binding("2-5", None, dict(TOPOLOGY, isolated=[4, 5]))[1])
    assert "CPU 4-5 cannot be used (isolated" in text
    assert "among 0-3" in text


def test_topology_of_a_machine():
    topology = binding.gather_topology(load_machine(MACHINES / "atlas-800i-a2"))
    assert topology["allowed"] == list(range(192))
    assert sorted(topology["nodes"]) == list(range(8))


@pytest.mark.parametrize(("cpus", "nodes"), [("0-3,8", "0-1"), ("0", None)])
def test_a_drop_in_reads_back_as_what_was_written(cpus, nodes):
    text = binding.render_dropin(cpus, nodes)
    assert binding.parse_dropin(text) == {"managed": True, "cpus": cpus, "memory_nodes": nodes}
    assert text.splitlines()[1:4] == ["[Service]", "CPUAffinity=", f"CPUAffinity={cpus}"]
    assert ("NUMAPolicy=bind" in text) == (nodes is not None)


def test_a_cpuset_holds_an_engine_that_binds_itself_where_there_are_cpusets():
    assert "\nAllowedCPUs=\nAllowedCPUs=0-3\n" in binding.render_dropin("0-3", None, cpuset=True)
    assert "AllowedCPUs" not in binding.render_dropin("0-3", None)


def test_a_drop_in_of_someone_else_is_not_ours():
    text = "[Service]\nCPUAffinity=3 1-2\n"
    assert binding.parse_dropin(text) == {"managed": False, "cpus": "1-3", "memory_nodes": None}


@pytest.mark.parametrize(
    ("current", "desired", "changed"),
    [(None, "a", True), ("a", "a", False), ("b", "a", True), ("a", None, True), (None, None, False)],
)
def test_changes(current, desired, changed):
    changes = binding.plan_changes(current, desired)
    assert changes == {"changed": changed, "diff": {"before": current or "", "after": desired or ""}}


def running(status, numa_maps="", unit="vllm-a.service"):
    """A host on which process 7 of a unit has the given {tid: allowed CPUs}."""
    files = {"/proc/7/cgroup": f"0::/system.slice/{unit}\n", "/proc/7/numa_maps": numa_maps}
    for tid, cpus in status.items():
        files[f"/proc/7/task/{tid}/status"] = f"Name:\tworker{tid}\nCpus_allowed_list:\t{cpus}\n"
    return ReplayHost({}, files)


def judge(host, cpus="0-1", nodes=None):
    return binding.judge_live("a", cpus, nodes, binding.read_live(host, "a", nodes is not None))


def workers(*entries):
    """A host with worker processes of unit a: (pid, CPUs, {node: pages})."""
    files = {}
    for pid, cpus, pages in entries:
        files[f"/proc/{pid}/cgroup"] = "0::/system.slice/vllm-a.service\n"
        files[f"/proc/{pid}/cmdline"] = f"VLLM::Worker_TP{pid}\0"
        files[f"/proc/{pid}/task/{pid}/status"] = f"Name:\tx\nCpus_allowed_list:\t{cpus}\n"
        found = " ".join(f"N{node}={count}" for node, count in pages.items())
        files[f"/proc/{pid}/numa_maps"] = f"1 bind:0 anon=9 {found} kernelpagesize_kB=64\n"
    return binding.read_live(ReplayHost({}, files), "a", True)["workers"]


RANKS = [{"device": 0, "cpus": "0-3", "memory_node": 0}, {"device": 1, "cpus": "4-7", "memory_node": 1}]


def test_each_worker_has_a_rank_of_its_own_and_its_remote_share_is_told():
    found, problems = binding.match_workers(RANKS, workers((7, "6-7", {0: 1, 1: 3}), (8, "0", {0: 5})))
    assert [(entry["pid"], entry["rank"], entry["remote_fraction"]) for entry in found] == [(7, 1, 0.25), (8, 0, 0.0)]
    assert problems == []


@pytest.mark.parametrize("cpus", ["4-5", "3-4", "0-7"])
def test_a_worker_on_no_free_rank_is_a_problem(cpus):
    found, problems = binding.match_workers(RANKS, workers((7, "6-7", {}), (8, cpus, {})))
    assert [entry["rank"] for entry in found] == [1, None]
    assert f"process 8 (VLLM::Worker_TP8) may run on CPU {cpus}" in problems[0]


def test_threads_inside_their_binding_are_no_problem():
    verdict = judge(running({7: "0-1", 8: "0", 9: "1"}))
    assert verdict == {"strays": [], "elsewhere_bytes": None, "problems": []}


def test_a_stray_thread_is_named():
    verdict = judge(running({7: "0-1", 8: "0-3"}))
    assert [thread["tid"] for thread in verdict["strays"]] == [8]
    assert "thread 8 (worker8) of process 7" in verdict["problems"][0]
    assert "may run on CPU 0-3, bound is 0-1" in verdict["problems"][0]
    assert "restart vllm-a.service" in verdict["problems"][0]


def test_another_unit_whose_name_begins_alike_is_not_looked_at():
    verdict = judge(running({7: "5"}, unit="vllm-ab.service"))
    assert verdict["strays"] == []
    assert "has no process" in verdict["problems"][0]


def test_a_thread_that_ended_meanwhile_is_left_out():
    host = running({7: "0"})
    host.files["/proc/7/task/8/comm"] = "gone\n"
    assert judge(host)["problems"] == []


@pytest.mark.parametrize(
    ("maps", "elsewhere", "problem"),
    [
        ("1 bind:0 anon=200 N0=199 N1=1 kernelpagesize_kB=4\n", 4096, None),
        ("1 default anon=200 N0=150 N1=50 kernelpagesize_kB=4\n", 50 * 4096, "outside node 0 (node 0: 614400 bytes"),
        ("1 bind:0 file=/lib anon=1 N1=900\n2 bind:0 anon=1 N0=1\n", 0, None),
    ],
)
def test_memory_on_other_nodes_is_a_problem_above_one_per_cent(maps, elsewhere, problem):
    verdict = judge(running({7: "0"}, maps), nodes="0")
    assert verdict["elsewhere_bytes"] == elsewhere
    assert [problem in text for text in verdict["problems"]] == ([True] if problem else [])


def test_memory_that_cannot_be_read_is_a_problem_not_a_success():
    host = running({7: "0"})
    del host.files["/proc/7/numa_maps"]
    assert "numa_maps" in judge(host, nodes="0")["problems"][0]


def test_bindings_on_a_host():
    files = {
        "/etc/systemd/system/vllm-a.service.d/20-numa.conf": binding.render_dropin("0", None),
        "/etc/systemd/system/vllm-b.c.service.d/20-numa.conf": "[Service]\nCPUAffinity=1\n",
        "/etc/systemd/system/vllm-d.service.d/10-other.conf": "",
        "/etc/systemd/system/ssh.service.d/20-numa.conf": binding.render_dropin("0", None),
    }
    found = binding.list_dropins(ReplayHost({}, files))
    assert {name: dropin["managed"] for name, dropin in found.items()} == {"a": True, "b.c": False}


@pytest.mark.parametrize(
    ("answer", "due"),
    [((0, "NeedDaemonReload=yes\n", ""), True), ((0, "NeedDaemonReload=no\n\nNeedDaemonReload=yes\n", ""), True),
     ((0, "NeedDaemonReload=no\n", ""), False), ((1, "", "System has not been booted with systemd"), False),
     (None, False)],
)  # fmt: skip
def test_systemd_says_whether_it_must_read_again(answer, due):
    command = "systemctl show --property=NeedDaemonReload vllm-*.service"
    assert binding.reload_is_due(ReplayHost({}, {}, commands={command: answer}), "vllm-*.service") is due
