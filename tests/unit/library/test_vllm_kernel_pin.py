# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
import vllm_kernel_pin
from ansible.module_utils.vllm_ansible.host import Host

PACKAGES = ["kernel-4.19.90-52.22.v2207.ky10", "kernel-devel-4.19.90-52.22.v2207.ky10"]
IMAGE, HEADERS = "linux-image-5.4.18-85-generic", "linux-headers-5.4.18-85-generic"


@pytest.fixture
def pin(tmp_path, monkeypatch, run_module):
    conf = tmp_path / "dnf.conf"
    conf.write_text("[main]\ngpgcheck=1\nexclude=theirs\n")
    monkeypatch.setattr(vllm_kernel_pin, "DNF", (str(conf),))
    monkeypatch.setattr(vllm_kernel_pin, "NOTE", str(tmp_path / "note"))

    def run(check=False, **params):
        arguments = {"manager": "dnf", "packages": PACKAGES, **params}
        return run_module(vllm_kernel_pin, arguments, check_mode=check, diff=True)

    return run


def test_dnf_leaves_the_kernel_alone_and_what_was_excluded_stays(pin, tmp_path):
    conf = tmp_path / "dnf.conf"
    preview = pin(check=True)
    assert preview["changed"] and preview["pinned"] == ["theirs"]
    assert "exclude=theirs\n" in preview["diff"]["before"]
    assert "exclude=theirs kernel kernel-core kernel-devel kernel-modules*\n" in preview["diff"]["after"]
    assert conf.read_text() == preview["diff"]["before"]
    assert pin()["changed"] and not pin()["changed"]
    assert conf.read_text() == preview["diff"]["after"]
    assert pin(state="absent", packages=[])["changed"]
    assert conf.read_text() == preview["diff"]["before"]
    assert not pin(state="absent", packages=[])["changed"] and not (tmp_path / "note").exists()


def test_what_others_excluded_before_stays_when_ours_goes(pin, tmp_path):
    (tmp_path / "dnf.conf").write_text("[main]\nexclude=kernel\n")
    pin()
    pin(state="absent")
    assert (tmp_path / "dnf.conf").read_text() == "[main]\nexclude=kernel\n"


class Dpkg(Host):
    """A host whose dpkg is in memory: package → [wanted, status]."""

    def __init__(self, packages):
        super().__init__(None)
        self.packages = packages

    def run(self, arguments, environment=None, timeout_seconds=60):
        return 0, "".join(f"{' '.join(state)} {name}\n" for name, state in self.packages.items()), ""

    def mark(self, arguments):
        for name in arguments[2:]:
            self.packages[name][0] = {"hold": "hold", "unhold": "install"}[arguments[1]]
        return 0, "", ""


def test_apt_holds_what_is_installed(pin, monkeypatch):
    packages = {
        IMAGE: ["install", "installed"],
        HEADERS: ["hold", "installed"],
        "linux-image-old": ["deinstall", "config-files"],
    }
    host = Dpkg(packages)
    monkeypatch.setattr(vllm_kernel_pin, "Host", lambda _: host)
    command = "ansible.module_utils.basic.AnsibleModule.run_command"
    monkeypatch.setattr(command, lambda _module, arguments, **_options: host.mark(arguments))
    wanted = [IMAGE, HEADERS, "linux-modules-absent"]
    preview = pin(check=True, manager="apt", packages=wanted)
    assert preview["changed"] and preview["pinned"] == [HEADERS] and packages[IMAGE][0] == "install"
    assert pin(manager="apt", packages=wanted)["changed"]
    assert packages[IMAGE][0] == "hold" and json.loads(Path(vllm_kernel_pin.NOTE).read_text()) == [IMAGE]
    assert not pin(manager="apt", packages=wanted)["changed"]
    assert not pin(check=True, manager="apt", packages=[IMAGE, HEADERS])["changed"]
    assert pin(manager="apt", packages=[], state="absent")["changed"]
    assert (packages[IMAGE][0], packages[HEADERS][0]) == ("install", "hold")
