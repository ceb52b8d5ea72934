# SPDX-License-Identifier: Apache-2.0
"""What role model_store promises, looked at from outside Ansible."""

import json

MODELS = "/var/lib/vllm/models"


def test_engine_hosts_hold_the_whole_model_and_no_transport(host):
    if host.ansible.get_variables()["inventory_hostname"] == "builder":
        assert not host.file(MODELS).exists
        return
    (digest,) = host.file(f"{MODELS}/tiny-random").listdir()
    directory = f"{MODELS}/tiny-random/{digest}"
    receipt = json.loads(host.file(f"{directory}/.installed.json").content)
    assert receipt["artefact_sha256"].startswith(digest) and receipt["read_bytes_per_s"] > 0
    manifest = json.loads(host.file(f"{directory}/manifest.json").content)
    assert (manifest["weights"], manifest["architecture"]) == ("random", "LlamaForCausalLM")
    for name, entry in manifest["files"].items():
        file = host.file(f"{directory}/{name}")
        assert (file.sha256sum, file.user, file.mode) == (entry["sha256"], "root", 0o644), name
    assert host.file("/var/cache/vllm").listdir() == []


def test_build_host_keeps_source_and_artefact_and_nothing_half_done(host):
    if host.ansible.get_variables()["inventory_hostname"] != "builder":
        assert not host.file("/var/lib/vllm/build").exists
        return
    found = host.run("find /var/lib/vllm/build -mindepth 2 -maxdepth 2 -not -name '.*'").stdout.split()
    assert sorted(path.removeprefix("/var/lib/vllm/build/") for path in found) == [
        "artefacts/model-tiny-random.artefact.tar",
        "artefacts/model-tiny-random.artefact.tar.json",
        "models/tiny-random",
        "models/tiny-random.source.json",
    ]
    assert host.run("find /var/lib/vllm/build -name '*partial*'").stdout == ""
