# SPDX-License-Identifier: Apache-2.0
"""What role engine_release promises, looked at from outside Ansible."""

import json

RELEASES = "/opt/vllm/releases"


def test_the_release_is_whole_and_belongs_to_root(host):
    (name,) = host.file(RELEASES).listdir()
    directory = f"{RELEASES}/{name}"
    receipt = json.loads(host.file(f"{directory}/.installed.json").content)
    assert name == f"small-{receipt['artefact_sha256'][:12]}" and receipt["read_bytes_per_s"] > 0
    program = host.file(f"{directory}/bin/python3")
    assert (program.user, program.group, program.mode, program.content) == ("root", "root", 0o755, b"#!/bin/sh\n")
    assert host.file(f"{directory}/lib").is_symlink
    assert host.file(directory).mode == 0o755


def test_nothing_is_left_of_the_transport(host):
    assert host.file("/var/cache/vllm").listdir() == []
    hidden = host.run(f"find {RELEASES} -maxdepth 1 -name '.*'").stdout
    assert hidden == ""
