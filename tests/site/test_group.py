# SPDX-License-Identifier: Apache-2.0
"""One replica over the two hosts of the demo: it serves, and comes back whole when part of it is lost.

Not part of the gate, whose time it would exceed on a busy machine: VLLM_SITE_GROUP=1 runs it.
"""

import http.client
import json
import os
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(os.environ.get("VLLM_SITE_GROUP") != "1", reason="only with VLLM_SITE_GROUP=1"),
]

INVENTORY = str(Path(__file__).with_name("group"))
HEAD, MEMBER = "cpu01", "cpu02"
UNIT = "vllm-pair.service"
RECOVERY_SECONDS = 120


class Pair:
    """The two units of the replica and the API of its head."""

    def __init__(self, site):
        self.site = site
        configuration = json.loads(site.ssh(HEAD, "cat /etc/vllm/instances/pair.json"))
        self.address, self.port = configuration["listen_address"], configuration["port"]
        self.model = configuration["served_model_name"]

    def show(self, host, name):
        return self.site.ssh(host, f"systemctl show --value --property={name} {UNIT}").strip()

    def starts(self):
        return [int(self.show(host, "NRestarts")) for host in (HEAD, MEMBER)]

    def complete(self, timeout=10):
        """The text of eight tokens, or None when nothing answers."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout)
        body = {"model": self.model, "prompt": "One two three", "max_tokens": 8, "ignore_eos": True, "temperature": 0}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.site.key()}"}
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            return json.loads(response.read())["choices"][0]["text"] if response.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def worker(self, host):
        return self.site.ssh(host, "pgrep -u vllm -f Worker_TP").strip()

    def recovers(self, began, before):
        """Wait until both hosts started anew and a token came; returns the seconds since `began`."""
        self.site.wait(
            lambda: (
                all(now > then for now, then in zip(self.starts(), before, strict=True)) and self.complete() is not None
            ),
            RECOVERY_SECONDS - (time.monotonic() - began),
            "the replica serves again",
        )
        return time.monotonic() - began


@pytest.fixture(scope="module")
def pair(site):
    """The demo's hosts as one replica."""
    status, output = run(site)
    assert status == 0, output[-6000:]
    return Pair(site)


def run(site, *arguments):
    result = site.run("ansible-playbook", "-i", INVENTORY, "site.yml", *arguments, timeout=900, check=False)
    return result.returncode, result.stdout


@pytest.fixture
def measured(capsys):
    def show(what, seconds):
        with capsys.disabled():
            print(f"\n{what} after {seconds:.1f} s", flush=True)

    return show


def test_part_of_a_replica_is_refused_by_the_name_of_what_is_missing(site):
    status, output = run(site, "--limit", f"{HEAD},build01")
    assert status != 0
    assert f"cannot be planned without {MEMBER}" in output


def test_a_replica_over_two_hosts_serves(pair):
    assert pair.complete() is not None
    assert "headless" in pair.site.ssh(MEMBER, "cat /etc/vllm/instances/pair.json")


@pytest.mark.parametrize(
    ("host", "number", "what"),
    [(MEMBER, "KILL", "replica with a killed member serves again"), (HEAD, "STOP", "replica with a frozen head")],
)
def test_it_comes_back_whole(pair, measured, host, number, what):
    text, before = pair.complete(), pair.starts()
    began = time.monotonic()
    pair.site.ssh(host, f"kill -{number} {pair.worker(host)}")
    measured(what, pair.recovers(began, before))
    assert pair.complete() == text
    # far from the six starts after which a host gives up
    assert max(now - then for now, then in zip(pair.starts(), before, strict=True)) <= 2
