# SPDX-License-Identifier: Apache-2.0
"""What role host_baseline promises, looked at from outside Ansible."""


def test_engines_have_a_user_that_cannot_log_in(host):
    user = host.user("vllm")
    assert user.exists and user.shell == "/usr/sbin/nologin" and user.uid < 1000
    assert user.group == "vllm"


def test_releases_can_only_be_written_by_root(host):
    releases = host.file("/opt/vllm/releases")
    assert releases.is_directory and (releases.user, releases.mode & 0o022) == ("root", 0)


def test_ports_of_the_engines_are_kept_free_also_after_a_reboot(host):
    assert host.sysctl("net.ipv4.ip_local_reserved_ports") == "8000-8001"
    assert host.run("grep --recursive --no-filename reserved_ports /etc/sysctl.d").stdout.rstrip().endswith("8000-8001")
