# SPDX-License-Identifier: Apache-2.0
"""site.yml as a check job of AWX, on a bare lab host: a preview that reaches its end and changes nothing."""

import os
import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT, Controller

pytestmark = pytest.mark.lab

LAB_ID = os.environ.get("CONTROLLER_LAB_ID", "78")
STATE = ROOT / ".cache" / "lab" / LAB_ID


def lab(*arguments: str) -> str:
    result = subprocess.run(
        [ROOT / "lab" / "lab", *arguments],
        env={**os.environ, "LAB_ID": LAB_ID},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def files_of(host: str) -> str:
    """Every file of the places our roles write to, with size and time."""
    places = "/etc /opt /usr/local /var/lib/vllm /var/cache/vllm /run/vllm"
    # Written by every ssh login or by systemd itself, whatever is done then.
    noise = "-path /etc/resolv.conf -o -path /etc/ld.so.cache"
    return lab(
        "exec",
        host,
        "--",
        "sh",
        "-c",
        f"find {places} \\( {noise} \\) -prune -o -printf '%p %s %T@\\n' 2>/dev/null | sort",
    )


@pytest.fixture(scope="module")
def preview(controller: Controller, tmp_path_factory: pytest.TempPathFactory):
    """The finished check job, and what the host looked like before and after."""
    build = tmp_path_factory.mktemp("build")
    hosts = ("cpu01", "cpu02")
    lab("deps")
    lab("up", *hosts)
    try:
        key = f"{{{{ '{'k' * 32}' }}}}"
        engine = {"demo_lab_state": str(STATE), "engine_service_api_key": key}
        inventory = controller.inventory(
            "inventories/demo",
            cpu01=engine,
            cpu02=engine,
            build01={"engine_build_directory": str(build), "model_store_build_directory": str(build)},
        )
        before = [files_of(host) for host in hosts]
        job = controller.launch("site.yml", inventory, check=True)
        yield job, before, [files_of(host) for host in hosts], list(Path(build).rglob("*"))
    finally:
        lab("down", "--all")


def test_the_preview_reaches_its_end(preview):
    job = preview[0]
    assert job.failures == [], job.failures[0]["event_data"]["res"]
    assert job.status == "successful", job.stdout[-3000:]
    assert set(job.statistics["ok"]) == {"cpu01", "cpu02", "build01"}


def test_the_preview_tells_what_a_bare_host_would_get(preview):
    changed = {
        event["event_data"]["role"]
        for event in preview[0].events
        if event["event"] == "runner_on_ok" and event["event_data"]["res"].get("changed")
    }
    assert {"host_baseline", "engine_build", "engine_release", "model_store", "engine_service"} <= changed


def test_the_preview_changes_nothing(preview):
    _job, before, after, built = preview
    assert after == before
    assert built == []


def test_no_secret_is_in_an_event(preview):
    assert "k" * 32 not in "".join(str(event) for event in preview[0].events)
