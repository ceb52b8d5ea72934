# SPDX-License-Identifier: Apache-2.0
"""The roles nvidia_driver and nvidia_cuda against stand-in packages and the real apt, in a mount namespace of their own.

Everything the roles change lies in folders that are laid over this machine's for the length of one test. No host is
booted: the kernel, its modules and running services are stand-ins, and a reboot is what it does to these.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab.vendor import nvidia_packages

ROOT = Path(__file__).resolve().parents[2]
MACHINE, KERNEL = os.uname().machine, os.uname().release
OVERLAID = ("/etc", "/usr", "/var")
EMPTIED = ("/run", "/proc/driver", "/sys/module", "/sys/firmware", "/sys/bus/pci", "/srv")
REBOOT = "pretend-kernel; rm -rf /run/vllm*"

pytestmark = pytest.mark.lab

OLDER, OLD, NEW = "570.172.08", "580.65.06", "580.126.09"
PLAYBOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: "{{ role }}"
        tasks_from: "{{ entry }}"
    - ansible.builtin.debug:
        msg: "reboot required: {{ nvidia_driver_reboot_required | default('unknown') }}"
"""
BUSES = {"h200": "1b 43 52 61 9d c3 d1 df", "l20": "3b 86"}
SETUP = """
mkdir -p /srv/nvidia /sys/bus/pci/devices
mount --bind {repositories} /srv/nvidia
mv /usr/bin/systemctl /usr/bin/systemctl.real
install -m 755 {root}/tests/support/systemctl.py /usr/bin/systemctl
cp {root}/lab/vendor/nvidia/pretend-kernel /usr/local/sbin/
for tool in modprobe modinfo update-initramfs; do ln -sf pretend-kernel /usr/local/sbin/$tool; done
rm -rf /usr/lib/modules/{kernel}; mkdir -p /usr/lib/modules/{kernel} /etc/modprobe.d /etc/modules-load.d
echo 'APT::Sandbox::User "root";' > /etc/apt/apt.conf.d/zz-test
echo 'deb [trusted=yes] file:/srv/nvidia/os ./' > /etc/apt/sources.list.d/os.list
apt-get -qq update -o Dir::Etc::SourceList=/etc/apt/sources.list.d/os.list -o Dir::Etc::SourceParts=-
for bus in {buses}; do
    mkdir /sys/bus/pci/devices/0000:$bus:00.0
    echo pci:v000010DEd00002335sv000010DEsd000018BEbc03sc02i00 > /sys/bus/pci/devices/0000:$bus:00.0/modalias
done
"""


class Step(NamedTuple):
    """One run of a role, with `shell` before it."""

    role: str
    entry: str
    check: bool = False
    shell: str = ":"
    variables: dict[str, Any] = {}


class Result(NamedTuple):
    rc: int
    text: str

    @property
    def changed(self) -> int:
        match = re.search(r"changed=(\d+)", self.text)
        assert match, self.text
        return int(match.group(1))

    @property
    def plain(self) -> str:
        """The text without the line breaks and escapes of Ansible's output."""
        return re.sub(r"\s+", " ", self.text.replace("\\n", " ").replace('\\"', '"'))


def plan(version: str = NEW, **changes: Any) -> dict[str, Any]:
    repository = {"kind": "apt", "distro": "ubuntu2404", "architecture": nvidia_packages.ARCHITECTURES[MACHINE]}
    whole = {"version": version, "flavour": "open", "gpus": 8, "nvswitch": True, "repository": repository}
    return {"nvidia_driver_plan": {**whole, **changes}}


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvidia")
    nvidia_packages.build("ubuntu2404", MACHINE, folder, KERNEL)
    return folder


@pytest.fixture
def story(tmp_path: Path, repositories: Path) -> Any:
    """Play steps one after the other on one pretended machine with GPUs; returns their results."""
    if os.geteuid() != 0:
        pytest.fail("mount namespaces need root")
    (tmp_path / "play.yml").write_text(PLAYBOOK)

    def run(*steps: Step, product: str = "h200", after: str = ":") -> list[Result]:
        (tmp_path / "over").mkdir()
        lines = ["set -e", f"mount -t tmpfs tmpfs {tmp_path}/over", f"echo product={product} > {tmp_path}/over/conf"]
        for number, folder in enumerate(OVERLAID):
            upper, work = f"{tmp_path}/over/{number}u", f"{tmp_path}/over/{number}w"
            lines.append(f"mkdir {upper} {work}")
            lines.append(f"mount -t overlay over -o lowerdir={folder},upperdir={upper},workdir={work} {folder}")
        lines += [f"mount -t tmpfs tmpfs {folder}" for folder in EMPTIED]
        lines.append(f"cp {tmp_path}/over/conf /etc/nvidia-stand-in.conf")
        lines.append(SETUP.format(repositories=repositories, root=ROOT, kernel=KERNEL, buses=BUSES[product]))
        lines.append("set +e")
        for number, step in enumerate(steps):
            variables: dict[str, Any] = {
                "role": step.role,
                "entry": step.entry,
                "nvidia_driver_repository_url": "file:///srv/nvidia/repos",
                "nvidia_driver_gpg_check": False,
                "nvidia_driver_reboot": False,
                **plan(),
                **step.variables,
            }
            (tmp_path / f"{number}.json").write_text(json.dumps(variables))
            program = f"{Path(sys.executable).parent}/ansible-playbook -i localhost, {tmp_path}/play.yml"
            lines.append(step.shell)
            check = "--check --diff" if step.check else ""
            lines.append(f"{program} -e @{tmp_path}/{number}.json {check} > {tmp_path}/{number}.out 2>&1")
            lines.append(f"echo $? > {tmp_path}/{number}.rc")
        lines.append(f"({after}) > {tmp_path}/after 2>&1; true")
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        environment["ANSIBLE_PYTHON_INTERPRETER"] = "/usr/bin/python3"  # the one that has apt
        environment["ANSIBLE_ROLES_PATH"] = str(ROOT / "roles")
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", "\n".join(lines)],
            cwd=ROOT,
            env=environment,
            check=True,
        )
        return [
            Result(int((tmp_path / f"{number}.rc").read_text()), (tmp_path / f"{number}.out").read_text())
            for number in range(len(steps))
        ]

    return run


def texts(results: list[Result]) -> str:
    return "\n".join(result.text for result in results)


def test_from_bare_to_verified_and_back(story: Any, tmp_path: Path) -> None:
    results = story(
        Step("nvidia_driver", "main", check=True),
        Step("nvidia_driver", "verify"),
        Step("nvidia_driver", "main"),
        Step("nvidia_driver", "verify"),
        Step("nvidia_driver", "main"),
        Step("nvidia_driver", "main", check=True),
        Step("nvidia_driver", "verify", shell=REBOOT),
        Step("nvidia_driver", "remove"),
        Step("nvidia_driver", "remove", shell=REBOOT),
        after="dpkg-query -W '*nvidia*' 2>/dev/null | grep -c '[0-9]\\.[0-9]'; ls /etc/*/*vllm*",
    )
    assert [result.rc for result in results] == [0, 2, 0, 0, 0, 0, 0, 0, 0], texts(results)
