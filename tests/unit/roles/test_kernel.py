# SPDX-License-Identifier: Apache-2.0
"""What role kernel makes of the words of dnf, rpm, apt and dpkg."""

import re

import pytest
import yaml

# The words of dnf 4 and libdnf, rpm, apt 2 and Ansible's modules; names and numbers are invented.
SAID = [
    ("Error Summary ------------- Disk Requirements: At least 17MB more space needed on the /boot filesystem.", "full"),
    ("dpkg: error processing archive: cannot copy extracted data: failed to write (No space left on device)", "full"),
    ("E: You don't have enough free space in /var/cache/apt/archives/.", "full"),
    ("Failed to validate GPG signature for kernel-1: Public key for kernel.rpm is not installed", "key"),
    ("W: GPG error: InRelease: The following signatures couldn't be verified: NO_PUBKEY 871920D1991BC93C", "key"),
    ("Failed to download metadata for repo 'ks10-adv-os': Cannot download repomd.xml: All mirrors", "answer"),
    ("Curl error (7): Couldn't connect to server for http://mirror/repodata/repomd.xml", "answer"),
    ("Failed to update apt cache: E:The repository 'http://mirror 10.1' no longer has a file.", "answer"),
    ("Err:1 http://mirror ./ Packages Could not connect to mirror:80 - connect (111: Connection refused)", "answer"),
    ("Failed to install some of the specified packages No package kernel-4.19.90-1 available.", "no such package"),
    ("No match for argument: kernel-4.19.90-1", "no such package"),
    ("No package matching 'linux-image-5.4.18-85-generic' is available", "no such package"),
    ("E: Unable to locate package linux-image-5.4.18-85-generic", "no such package"),
    ("Could not find or access '/srv/kernel.rpm' on the Ansible Controller.", "no such package"),
    ("Depsolve Error occurred: - nothing provides linux-firmware >= 20100806-2 needed by kernel-4.19.90-1", "need"),
    ("packages have unmet dependencies: E: Unable to correct problems, you have held broken packages.", "need"),
    ("Unknown Error occurred: Transaction test error", "by hand"),
]  # fmt: skip
ADVICE = {
    "full": "A file system is full", "key": "A signature cannot be checked", "answer": "A repository does not answer",
    "no such package": "there is no such package", "need": "What these packages need", "by hand": "by hand",
}  # fmt: skip


@pytest.fixture(scope="module")
def variables(project_root):
    return yaml.safe_load((project_root / "roles/kernel/vars/main.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("said", "kind"), SAID)
def test_each_failure_gets_its_advice(variables, said, kind):
    advice = [one["advice"] for one in variables["__kernel_failures"] if re.search("|".join(one["said"]), said)]
    assert ADVICE[kind] in (advice or [variables["__kernel_general_advice"]])[0]
