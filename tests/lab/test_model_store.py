# SPDX-License-Identifier: Apache-2.0
"""Role model_store on a real host when things go wrong: runs killed halfway, a full disk, damaged files."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.vllm_ansible import artefact

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "LAB_ID": "83", "ANSIBLE_NOCOLOR": "1"}
INVENTORY = ROOT / ".cache/lab/83/inventory.yml"
MODELS = "/var/lib/vllm/models"
# 25 MB: large enough to be interrupted, small enough to be made in seconds.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 1024,
    "max_position_embeddings": 256,
    "num_attention_heads": 8,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "vocab_size": 512,
}


def lab(*arguments: str) -> str:
    done = subprocess.run(
        [ROOT / "lab/lab", *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def inside(command: str) -> str:
    return lab("exec", "store", "--", "sh", "-c", command)


@pytest.fixture(scope="module", autouse=True)
def host() -> Iterator[None]:
    """One host, switched off afterwards whatever happens."""
    try:
        lab("up", "store")
        yield
    finally:
        lab("down", "--all")


@pytest.fixture
def bare_host() -> None:
    inside(f"umount -q {MODELS}; rm -rf {MODELS} /var/cache/vllm; true")


class Site:
    """A build folder and the run that brings its model to the host."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.build = folder / "build"
        model = {
            "name": "m", "architecture": "LlamaForCausalLM", "weights": "random", "license": "MIT",
            "source": {"type": "generated", "seed": seed}, "convert": None, "config": CONFIG,
        }  # fmt: skip
        self.variables: dict[str, Any] = {
            "model_store_plan": {"models": [model]},
            "model_store_build_directory": str(self.build),
        }

    def start(self, *options: str) -> subprocess.Popen[str]:
        playbook = Path(sys.executable).with_name("ansible-playbook")
        arguments = [playbook, "-i", INVENTORY, Path(__file__).with_name("model_store.yml"), *options]
        return subprocess.Popen(
            [*arguments, "-e", json.dumps(self.variables)], cwd=ROOT, env=ENVIRONMENT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, *options: str, status: int = 0) -> str:
        with self.start(*options) as process:
            said, _err = process.communicate(timeout=300)
        assert process.returncode == status, said
        return said

    def kill_when(self, condition: Any) -> None:
        """Start a run and SIGKILL it with all its processes as soon as the condition holds."""
        with self.start() as process:
            while process.poll() is None and not condition():
                time.sleep(0.02)
            assert process.returncode is None, "the run ended before the moment to kill it came"
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)


def changes(said: str) -> set[str]:
    return set(re.findall(r"changed=(\d+)", said))


def installed() -> str:
    """sha256 of the artefact installed on the host, after a full look at its files."""
    receipt = json.loads(inside(f"cat {MODELS}/m/*/.installed.json"))
    manifest = json.loads(inside(f"cat {MODELS}/m/*/manifest.json"))
    for name, entry in manifest["files"].items():
        assert inside(f"sha256sum {MODELS}/m/*/{name}").split()[0] == entry["sha256"], name
    return receipt["artefact_sha256"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, host: None) -> str:
    """Digest of the artefact that an undisturbed run makes."""
    site = Site(tmp_path_factory.mktemp("undisturbed"), seed=1)
    site.run()
    assert changes(site.run()) == {"0"}
    assert changes(site.run("--check", "--diff")) == {"0"}
    return installed()


def test_runs_killed_one_after_the_other_are_completed_by_the_next(
    expected: str, bare_host: None, tmp_path: Path
) -> None:
    site = Site(tmp_path, seed=1)
    partial = site.build / "models"
    site.kill_when(lambda: list(partial.glob(".m.*.partial/model.safetensors")))
    assert not (partial / "m").exists()
    site.kill_when(lambda: list((site.build / "artefacts").glob("*.partial*")))
    assert not (site.build / "artefacts/model-m.artefact.tar").exists()
    site.kill_when(lambda: "tar" in inside("ls /var/cache/vllm 2>/dev/null; true"))
    assert inside(f"ls {MODELS}/m 2>/dev/null; true") in ("", f"{expected[:12]}\n")
    said = site.run()
    assert installed() == expected
    assert inside("ls -A /var/cache/vllm") == ""
    assert changes(said) != {"0"}
    assert changes(site.run()) == {"0"}


def test_a_host_that_lost_power_is_completed_by_the_next_run(expected: str, bare_host: None, tmp_path: Path) -> None:
    site = Site(tmp_path, seed=1)
    with site.start() as process:
        while process.poll() is None and "tar" not in inside("ls /var/cache/vllm 2>/dev/null; true"):
            time.sleep(0.02)
        lab("kill", "store")
        # Half a minute of silence ends the connection.
        process.communicate(timeout=90)
    assert process.returncode != 0
    lab("up", "store")
    site.run()
    assert installed() == expected
    assert changes(site.run()) == {"0"}


def test_a_full_disk_stops_before_anything_is_visible(expected: str, bare_host: None, tmp_path: Path) -> None:
    site = Site(tmp_path, seed=1)
    inside(f"mkdir -p {MODELS} && mount -t tmpfs -o size=20m tmpfs {MODELS}")
    said = site.run(status=2)
    assert "bytes free for the model m" in said
    assert "set model_store_directory" in said
    assert inside(f"ls -A {MODELS}; ls -A /var/cache/vllm") == ""
    inside(f"umount {MODELS}")
    site.run()
    assert installed() == expected


def test_a_damaged_artefact_is_refused_and_a_damaged_model_is_replaced(
    expected: str, bare_host: None, tmp_path: Path
) -> None:
    site = Site(tmp_path, seed=1)
    site.run()
    inside(f"rm {MODELS}/m/*/tokenizer.json")
    site.run()
    assert installed() == expected
    # The same size and time as before, so that only the digest can tell.
    packed = site.build / "artefacts/model-m.artefact.tar"
    before = packed.stat()
    with packed.open("r+b") as stream:
        stream.seek(before.st_size // 2)
        stream.write(b"damage")
    os.utime(packed, ns=(before.st_atime_ns, before.st_mtime_ns))
    inside(f"rm -rf {MODELS}")
    said = site.run(status=2)
    assert re.search(rf"has sha256 \w+,\s+expected {expected}", said)
    assert inside(f"ls -A {MODELS}") in ("", "m\n")
    assert inside(f"ls -A {MODELS}/m 2>/dev/null; true") == ""
    # Looking at all bytes finds it; packing again gives what was there before.
    site.run("-e", "model_store_verify=full")
    assert installed() == expected == artefact.sha256_file(str(packed))


def test_another_model_is_installed_beside_the_one_before(expected: str, bare_host: None, tmp_path: Path) -> None:
    Site(tmp_path, seed=1).run()
    Site(tmp_path, seed=2).run()
    assert len(inside(f"ls {MODELS}/m").split()) == 2


def test_url_and_remove(expected: str, bare_host: None, tmp_path: Path) -> None:
    site = Site(tmp_path, seed=1)
    site.run()
    # The host's own loopback stands for the site's mirror.
    inside(
        f"mkdir -p /srv/mirror && rm -rf {MODELS} && systemctl stop mirror 2>/dev/null;"
        " systemd-run -q --unit=mirror python3 -m http.server --bind 127.0.0.1 -d /srv/mirror 8123"
    )
    site.variables["model_store_artefact_url"] = "http://127.0.0.1:8123"
    assert "404" in site.run(status=2)
    packed = site.build / "artefacts/model-m.artefact.tar"
    inside_path = f"/srv/mirror/model-m-{expected[:12]}.artefact.tar"
    with packed.open("rb") as stream:
        subprocess.run(
            [ROOT / "lab/lab", "exec", "store", "--", "sh", "-c", f"cat > {inside_path}"],
            env=ENVIRONMENT, stdin=stream, check=True, timeout=60,
        )  # fmt: skip
    site.run()
    assert installed() == expected
    inside("systemctl stop mirror; rm -rf /srv/mirror")
    removal = tmp_path / "remove.yml"
    removal.write_text(json.dumps([{
        "hosts": "all", "gather_facts": False,
        "tasks": [{"name": "Remove", "import_role": {"name": "model_store", "tasks_from": "remove"}}],
    }]))  # fmt: skip
    command = [Path(sys.executable).with_name("ansible-playbook"), "-i", INVENTORY, removal]
    for count in ("1", "0"):
        done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert f"changed={count}" in done.stdout, done.stdout
    assert inside(f"ls -d {MODELS} 2>/dev/null; true") == ""
