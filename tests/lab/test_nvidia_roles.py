# SPDX-License-Identifier: Apache-2.0
"""The roles nvidia_driver and nvidia_cuda against stand-in packages and the real apt, in their own mount namespace.

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
            lines.append(f"{{ {step.shell}\n}} >> {tmp_path}/said 2>&1")
            check = "--check --diff" if step.check else ""
            lines.append(f"{program} -e @{tmp_path}/{number}.json {check} > {tmp_path}/{number}.out 2>&1")
            lines.append(f"echo $? > {tmp_path}/{number}.rc")
        lines.append(f"({after}) > {tmp_path}/after 2>&1; true")
        path = f"/usr/local/sbin:{os.environ['PATH']}"  # where the pretended kernel's tools are
        environment = {**os.environ, "PATH": path, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        environment["ANSIBLE_PYTHON_INTERPRETER"] = "/usr/bin/python3"  # the one that has apt
        environment |= {"ANSIBLE_ROLES_PATH": str(ROOT / "roles"), "ANSIBLE_PIPELINING": "1"}
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


def test_from_bare_over_upgrade_and_rollback_to_bare(story: Any, tmp_path: Path) -> None:
    old, older = plan(OLD), plan(OLDER, flavour="proprietary")
    nouveau = "printf 'has_nouveau=1\\npeermem=1\\n' >> /etc/nvidia-stand-in.conf; pretend-kernel"
    installed = (
        "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n' | grep '^installed.*\\(nvidia\\|cuda\\)'"
    )
    results = story(
        Step("nvidia_driver", "main", check=True, variables=old),
        Step("nvidia_driver", "main", shell=nouveau, variables=old),
        Step(
            "nvidia_driver",
            "main",
            shell=f"{REBOOT}; mkdir /sys/module/ib_core; modprobe nvidia-peermem",
            variables=old,
        ),
        Step("nvidia_driver", "main", shell="ls /etc/*/*vllm* > /srv/written", variables=old),
        Step("nvidia_driver", "main"),
        Step("nvidia_driver", "verify"),
        Step("nvidia_driver", "main", shell=REBOOT, variables=older),
        Step("nvidia_driver", "verify", shell=REBOOT, variables=older),
        Step("nvidia_driver", "remove", shell=f"apt-get --simulate upgrade; {installed}"),
        after=f"cat /srv/written; echo; ls /etc/*/*vllm*; {installed}; ls /usr/lib/modules/*",
    )
    assert [result.rc for result in results] == [0, 0, 0, 0, 0, 2, 0, 0, 0], texts(results)
    assert results[0].changed > 0 and "would install linux-headers-" in results[0].plain
    # nouveau held the GPUs, so what was installed waits; the run after the reboot only looks to nvidia-peermem.
    assert "reboot required: True" in results[1].text and "reboot required: False" in results[2].text
    assert (results[2].changed, results[3].changed) == (1, 0)
    assert "reboot required: True" in results[4].text and "reboot required: True" in results[6].text
    assert "the library is 580.126, the loaded kernel module 580.65.06 (exit code 18" in results[5].plain
    assert "stop what uses the GPUs and reboot" in results[5].plain
    written, _, left = (tmp_path / "after").read_text().partition("\n\n")
    assert "vllm-nvidia-peermem.conf" in written and "vllm-nouveau.conf" in written
    assert "vllm" not in left.replace("cannot access '/etc/*/*vllm*'", "") and "nvidia" not in left, left
    said = (tmp_path / "said").read_text()
    assert "0 upgraded" in said and f"cuda-drivers-570 {OLDER}-1ubuntu1" in said and " 580." not in said, said


def test_what_forbids_it_is_said_before_anything_changes(story: Any) -> None:
    bare = """
        mkdir -p /sys/firmware/efi/efivars /usr/src/linux-headers-6.1.0-9-generic
        rm /etc/apt/sources.list.d/os.list /var/lib/apt/lists/*srv_nvidia*
        printf '\\6\\0\\0\\0\\1' > /sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
    """
    heal = "rm -r /sys/firmware/efi; mkdir -p /usr/lib/modules/$(uname -r)/build"
    elsewhere = {"nvidia_driver_repository_url": "file:///nowhere"}
    results = story(
        Step("nvidia_driver", "main", shell=bare), Step("nvidia_driver", "main", shell=heal, variables=elsewhere)
    )
    assert [result.rc for result in results] == [2, 2], texts(results)
    assert results[0].changed == 0 and "nothing was changed" in results[0].plain
    assert "Secure Boot is on" in results[0].plain and "mokutil --import" in results[0].plain
    assert f"no repository has linux-headers-{KERNEL}" in results[0].plain and "6.1.0-9-generic" in results[0].plain
    assert "cannot read file:///nowhere/ubuntu2404" in results[1].plain


def test_cuda_and_containers(story: Any, tmp_path: Path) -> None:
    wanted = {"toolkit": "12.8", "nccl": True, "dcgm": "4", "cuda_major": "12", "container_toolkit": True}
    variables = {
        "nvidia_cuda_plan": {**wanted, "openmpi": True},
        "nvidia_cuda_container_repository_url": "",
        "nvidia_cuda_gpg_check": False,
        "nvidia_cuda_container_engines": ["docker", "podman", "containerd"],
    }
    before = """
        echo "deb [trusted=yes] file:$(ls -d /srv/nvidia/repos/*/*)/ /" > /etc/apt/sources.list.d/nvidia.list
        apt-get -qq update -o Dir::Etc::SourceList=/etc/apt/sources.list.d/nvidia.list -o Dir::Etc::SourceParts=- \\
            -o APT::Get::List-Cleanup=0
        apt-get -qq install linux-headers-$(uname -r) nvidia-open-580 datacenter-gpu-manager && modprobe nvidia
        mkdir -p /etc/docker /etc/containerd && touch /usr/bin/dockerd /usr/bin/podman /usr/bin/containerd
        echo '# ours' > /etc/containerd/config.toml
        echo '{"registry-mirrors": ["https://mirror.example.com"], "log-opts": {"max-size": "10m"},
              "runtimes": {"kata": {"path": "/opt/kata"}}}' > /etc/docker/daemon.json
    """
    gds = {**variables, "nvidia_cuda_plan": {**wanted, "gds": True}}
    results = story(
        Step("nvidia_cuda", "main", shell=before, variables=gds),
        Step("nvidia_cuda", "main", variables=variables),
        Step("nvidia_cuda", "main", variables=variables),
        Step("nvidia_cuda", "verify", variables=variables),
        after="""cat /etc/docker/daemon.json /etc/cdi/nvidia.yaml; cd /etc/containerd; head config.toml* conf.d/*
            dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n' '*nccl*' 'data*' openmpi-bin""",
    )
    assert [result.rc for result in results] == [2, 0, 0, 0], texts(results)
    assert "cannot have GPUDirect Storage, and nothing was changed: NVIDIA lists Ubuntu and RedHat" in results[0].plain
    assert results[0].changed == 0 and results[2].changed == 0
    left = (tmp_path / "after").read_text()
    settings, _ = json.JSONDecoder().raw_decode(left)
    assert list(settings) == ["registry-mirrors", "log-opts", "runtimes"]
    assert list(settings["runtimes"]) == ["kata", "nvidia"]
    assert "config.toml.before-vllm <==\n# ours\n\n" in left and "nvidia-container-runtime" in left
    assert 'name: "7"' in left and "libnccl2 2.27.3-1+cuda12.9" in left and "openmpi-bin" in left
    assert "datacenter-gpu-manager-4-core" in left and "installed datacenter-gpu-manager 1:3" not in left
