# SPDX-License-Identifier: Apache-2.0
"""What role numa_policy promises, looked at from outside Ansible."""


def test_systemd_has_read_the_binding(host):
    shown = host.run("systemctl show --property=CPUAffinity,NeedDaemonReload vllm-demo.service").stdout.split()
    assert sorted(shown) == ["CPUAffinity=0", "NeedDaemonReload=no"]


def test_the_running_process_obeys(host):
    pid = host.run("systemctl show --property=MainPID --value vllm-demo.service").stdout.strip()
    assert "Cpus_allowed_list:\t0\n" in host.file(f"/proc/{pid}/status").content_string


def test_a_host_with_one_memory_node_gets_no_memory_policy(host):
    assert "NUMAPolicy" not in host.file("/etc/systemd/system/vllm-demo.service.d/20-numa.conf").content_string
