# SPDX-License-Identifier: Apache-2.0
"""The roles ascend_driver and ascend_cann against stand-in packages, in a mount namespace of their own.

Everything the roles change lies in folders that are laid over this machine's for the length of one test. No host is
booted, so a reboot is what it does to files: /run is emptied.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab.vendor import run_packages
from lab.vendor.run_packages import Package

ROOT = Path(__file__).resolve().parents[2]
MACHINE = os.uname().machine
OVERLAID = ("/etc", "/usr/local", "/usr/src", "/var", "/run", "/home")
REBOOT = "rm -rf /run/ascend-stand-in /run/vllm-reboot-required"

pytestmark = pytest.mark.lab

OLD = {"driver": "25.0.rc1.1", "firmware": "7.7.0.1.231"}
NEW = {"driver": "25.5.0", "firmware": "7.8.0.5.201"}
PLAYBOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: "{{ role }}"
        tasks_from: "{{ entry }}"
    - ansible.builtin.debug:
        msg: "reboot required: {{ ascend_driver_reboot_required | default('unknown') }}"
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


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, str]]]:
    """Packages as the roles' variables take them: {"old": {component: package}, "new": …}."""
    folder = tmp_path_factory.mktemp("mirror")

    def entry(component: str, version: str, release: str) -> dict[str, str]:
        path = run_packages.build(
            Package(component, version, arch=MACHINE, package_version=release, prebuilt_kernel=os.uname().release),
            folder,
        )
        # One from the controller, the others from a mirror.
        where = {"path": str(path)} if component in ("driver", "nnal") else {"url": f"file://{path}"}
        return {"file": path.name, "sha256": run_packages.sha256(path), **where}

    return {
        name: {
            **{component: entry(component, versions[component], versions["driver"]) for component in versions},
            **{component: entry(component, cann, cann) for component in ("toolkit", "ops", "nnal")},
        }
        for name, versions, cann in (("old", OLD, "8.3.RC2"), ("new", NEW, "9.1.0"))
    }


@pytest.fixture
def story(tmp_path: Path, mirror: Any) -> Any:
    """Play steps one after the other on one pretended machine; returns their results and what /var/log holds."""
    if os.geteuid() != 0:
        pytest.fail("mount namespaces need root")
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    settings = f"uid=0\npci_ids=19e5:d802\nproduct=a2\nkernel={os.uname().release}\nfree_mb=50000\n"

    def run(*steps: Step) -> tuple[list[Result], str]:
        lines = ["set -e", f"mount -t tmpfs tmpfs {tmp_path}/over"]
        (tmp_path / "over").mkdir()
        for number, folder in enumerate(OVERLAID):
            upper, work = f"{tmp_path}/over/{number}u", f"{tmp_path}/over/{number}w"
            lines.append(f"mkdir {upper} {work}")
            lines.append(f"mount -t overlay over -o lowerdir={folder},upperdir={upper},workdir={work} {folder}")
        lines.append(f"printf '{settings}' > /etc/ascend-stand-in.conf")
        lines.append("set +e")
        for number, step in enumerate(steps):
            release = step.variables.get("release", "new")
            packages = mirror[release]
            versions = OLD if release == "old" else NEW
            cann = "8.3.RC2" if release == "old" else "9.1.0"
            variables: dict[str, Any] = {
                "role": step.role,
                "entry": step.entry,
                "ascend_driver_plan": {**versions, "chip": "910b", "npus": 8},
                "ascend_driver_packages": {name: packages[name] for name in ("driver", "firmware")},
                "ascend_driver_reboot": False,
                "ascend_cann_plan": {"cann": cann, "nnal": cann, "chip": "910b", "cxx_abi": 1},
                "ascend_cann_packages": {name: packages[name] for name in ("toolkit", "ops", "nnal")},
                "ascend_cann_accept_eula": True,
                **{name: value for name, value in step.variables.items() if name != "release"},
            }
            (tmp_path / f"{number}.json").write_text(json.dumps(variables))
            program = f"{Path(sys.executable).parent}/ansible-playbook -i localhost, {tmp_path}/play.yml"
            lines.append(step.shell)
            check = "--check" if step.check else ""
            lines.append(f"{program} -e @{tmp_path}/{number}.json {check} > {tmp_path}/{number}.out 2>&1")
            lines.append(f"echo $? > {tmp_path}/{number}.rc")
        lines.append(f"cat /var/log/ascend_seclog/operation.log > {tmp_path}/operations 2>/dev/null")
        lines.append(f"ls /var/cache/vllm > {tmp_path}/transport 2>/dev/null; true")
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        environment["ANSIBLE_PYTHON_INTERPRETER"] = sys.executable
        environment["ANSIBLE_ROLES_PATH"] = str(ROOT / "roles")
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", "\n".join(lines)],
            cwd=ROOT,
            env=environment,
            check=True,
        )
        results = [
            Result(int((tmp_path / f"{number}.rc").read_text()), (tmp_path / f"{number}.out").read_text())
            for number in range(len(steps))
        ]
        assert (tmp_path / "transport").read_text() == "", "packages are left on the host"
        return results, (tmp_path / "operations").read_text()

    return run


def plain(result: Result) -> str:
    """The text without the line breaks and escapes of Ansible's output."""
    return re.sub(r"\s+", " ", result.text.replace("\\n", " "))


def test_from_bare_to_verified_and_back(story: Any) -> None:
    names = ["check", "verify bare", "main", "verify pending", "verify", "again", "check again"]
    results, operations = story(
        Step("ascend_driver", "main", check=True),
        Step("ascend_driver", "verify"),
        Step("ascend_driver", "main"),
        Step("ascend_driver", "verify"),
        Step("ascend_driver", "verify", shell=REBOOT),
        Step("ascend_driver", "main"),
        Step("ascend_driver", "main", check=True),
        Step("ascend_driver", "remove"),
        Step("ascend_driver", "remove", shell=REBOOT),
    )
    by_name = dict(zip(names, results, strict=False))
    assert [result.rc for result in results] == [0, 2, 0, 2, 0, 0, 0, 0, 0], "\n".join(r.text for r in results)
    assert by_name["check"].changed > 0
    assert "driver absent, the plan has 25.5.0" in plain(by_name["verify bare"])
    assert "reboot required: True" in by_name["main"].text
    assert "has not been rebooted since its driver and firmware changed" in plain(by_name["verify pending"])
    assert by_name["again"].changed == 0 and "reboot required: False" in by_name["again"].text
    assert by_name["check again"].changed == 0
    assert results[7].changed > 0 and results[8].changed == 0
    assert re.findall(r"(\S+)-npu-(driver|firmware)_", operations)[:2] == [
        ("Ascend-hdk-910b", "driver"),
        ("Ascend-hdk-910b", "firmware"),
    ]


def test_an_upgrade_takes_the_firmware_first_and_can_go_back(story: Any) -> None:
    old, new = {"release": "old"}, {"release": "new"}
    results, operations = story(
        Step("ascend_driver", "main", variables=old),
        Step("ascend_driver", "verify", shell=REBOOT, variables=old),
        Step("ascend_driver", "main", variables=new),
        Step("ascend_driver", "verify", shell=REBOOT, variables=new),
        Step("ascend_driver", "main", variables=old),
        Step("ascend_driver", "verify", shell=REBOOT, variables=old),
    )
    assert [result.rc for result in results] == [0] * 6, "\n".join(r.text for r in results)
    assert [name for _, name in re.findall(r"(\S+)-npu-(driver|firmware)_", operations)] == [
        "driver", "firmware", "firmware", "driver", "firmware", "driver"
    ]  # fmt: skip


def test_cann_and_its_environment(story: Any) -> None:
    old, new = {"release": "old"}, {"release": "new"}
    results, _ = story(
        Step("ascend_cann", "main", check=True),
        Step("ascend_cann", "main", variables={"ascend_cann_accept_eula": False}),
        Step("ascend_cann", "main", variables=old),
        Step("ascend_cann", "verify", variables=old),
        Step("ascend_cann", "verify", variables=new),
        Step("ascend_cann", "main", variables=new),
        Step("ascend_cann", "verify", variables=new),
        Step("ascend_cann", "main", variables=new),
        Step("ascend_cann", "verify", variables=new, shell="echo 'A=1' >> /etc/vllm/ascend.env"),
        Step("ascend_cann", "main", variables=old),
        Step("ascend_cann", "verify", variables=old),
        Step("ascend_cann", "remove", variables=old),
    )
    assert [result.rc for result in results] == [0, 2, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0], "\n".join(r.text for r in results)
    assert results[0].changed > 0 and results[7].changed == 0
    assert "set accept_eula" in plain(results[1])
    assert "toolkit 8.3.RC2, the plan has 9.1.0" in plain(results[4])
    assert "is not what CANN's set_env.sh says" in plain(results[8])


def test_failures_stop_with_what_to_do(story: Any) -> None:
    busy = "printf 'holders=docker\\n' >> /etc/ascend-stand-in.conf"
    free = "sed -i /holders/d /etc/ascend-stand-in.conf"
    lost = "printf 'lost=\"3 5\"\\n' >> /etc/ascend-stand-in.conf"
    results, _ = story(
        Step("ascend_driver", "main", variables={"ascend_driver_packages": {}}),
        Step("ascend_driver", "main", shell=busy),
        Step("ascend_driver", "main", shell=free, variables={"ascend_driver_reboot": True}),
        Step("ascend_driver", "verify", shell=REBOOT),
        Step("ascend_driver", "verify", shell=lost),
    )
    assert [result.rc for result in results] == [2, 2, 2, 0, 2], "\n".join(r.text for r in results)
    assert "Set ascend_driver_packages.driver to its file and sha256" in plain(results[0])
    assert "/dev/davinci_manager has used by docker" in plain(results[1])
    assert "ascend_install.log" in plain(results[1]) and "Stop what uses the devices" in plain(results[1])
    # Ansible does not reboot the machine it runs on: the message is that of a host that does not come back.
    assert "the reboot did not end well" in plain(results[2]) and "Look at its console" in plain(results[2])
    assert "lists 6 NPUs (0, 1, 2, 4, 6, 7), the plan has 8" in plain(results[4])


def test_power_lost_between_driver_and_firmware(story: Any, mirror: Any) -> None:
    """The run ends with the driver installed and its firmware not: what a power cut at that moment leaves."""
    no_firmware = {"ascend_driver_packages": {"driver": mirror["new"]["driver"]}}
    results, operations = story(
        Step("ascend_driver", "main", variables=no_firmware),
        Step("ascend_driver", "verify", shell=REBOOT),
        Step("ascend_driver", "main"),
        Step("ascend_driver", "verify", shell=REBOOT),
    )
    assert [result.rc for result in results] == [2, 2, 0, 0], "\n".join(r.text for r in results)
    assert "firmware absent, the plan has 7.8.0.5.201" in plain(results[1])
    assert [name for _, name in re.findall(r"(\S+)-npu-(driver|firmware)_", operations)] == ["driver", "firmware"]
