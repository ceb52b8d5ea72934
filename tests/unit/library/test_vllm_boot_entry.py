# SPDX-License-Identifier: Apache-2.0
import json

import pytest
import vllm_boot_entry
from ansible.module_utils.vllm_ansible.kernel import grub

OLD, NEW = "4.19.90-52.15.v2207.ky10.aarch64", "4.19.90-52.22.v2207.ky10.aarch64"
UUID = "1"


class Machine:
    """A host with a boot loader that keeps its entries in memory; offers what the module asks of a Host."""

    def __init__(self, loader="grubby", running=OLD, arguments="ro quiet"):
        self.loader = loader
        self.files = {"/proc/cmdline": f"BOOT_IMAGE=/vmlinuz-{running} {arguments}\n"}
        self.running = running
        self.default = OLD
        self.entries = {}
        self.commands = []
        self.broken = ""
        self.install(OLD, arguments)
        if loader == "grub":
            self.run(["update-grub"])

    def install(self, release, arguments="ro quiet"):
        self.entries[release] = arguments.split()
        self.files[f"/boot/vmlinuz-{release}"] = self.files[f"/boot/initramfs-{release}.img"] = "x"
        if self.loader == "grub":
            self.commands.clear()
            self.update_grub()

    def update_grub(self):
        settings = self.files.get(grub.FILE, "")
        default = next((line.split('"')[1] for line in settings.splitlines() if "GRUB_DEFAULT" in line), "0")
        more = next((line.split("DEFAULT ")[1][:-1] for line in settings.splitlines() if "CMDLINE" in line), "")
        lines = [f'set default="{default}"', f"submenu 'Advanced' $menuentry_id_option 'gnulinux-advanced-{UUID}' {{"]
        for release, words in self.entries.items():
            ident = f"gnulinux-{release}-advanced-{UUID}"
            lines += [f"menuentry 'Linux {release}' $menuentry_id_option '{ident}' {{"]
            lines += [f"linux /vmlinuz-{release} root=/dev/sda {' '.join(words)} {more}"]
            lines += [f"initrd /initramfs-{release}.img", "}"]
        self.files[grub.CONFIGURATION] = "\n".join([*lines, "}"])

    def run(self, arguments, environment=None, timeout_seconds=60):
        tool, *rest = arguments
        if tool not in (self.loader, "update-grub" if self.loader == "grub" else ""):
            return None
        self.commands.append(arguments)
        if self.broken and self.broken in " ".join(arguments):
            return 1, "", "no space left on device\n"
        if tool == "update-grub":
            self.update_grub()
            return 0, "", ""
        return 0, self.grubby(dict(word.partition("=")[::2] for word in rest)), ""

    def grubby(self, options):
        if "--info" in options:
            return "".join(
                f'index={number}\nkernel=/boot/vmlinuz-{release}\nargs="{" ".join(words)}"\nroot=/dev/sda\n'
                f"initrd=/boot/initramfs-{release}.img\ntitle=Kylin ({release})\n"
                for number, (release, words) in enumerate(self.entries.items())
            )
        if "--default-kernel" in options:
            return f"/boot/vmlinuz-{self.default}\n"
        if "--set-default" in options:
            self.default = options["--set-default"].rpartition("vmlinuz-")[2]
        if "--update-kernel" in options:
            words = self.entries[options["--update-kernel"].rpartition("vmlinuz-")[2]]
            new = options.get("--args", "").split()
            names = {word.partition("=")[0] for word in new}
            words[:] = [word for word in words if word.partition("=")[0] not in names] + new
            words[:] = [word for word in words if word not in options.get("--remove-args", "").split()]
        return "grubby version 8.40\n"

    def read(self, path):
        return self.files.get(path)

    def exists(self, path):
        return path in self.files

    def write_atomically(self, path, text, mode=0o644):
        self.files[path] = text

    def remove(self, path):
        del self.files[path]

    def system(self):
        return {"kernel": self.running}


@pytest.fixture
def ensure(monkeypatch, run_module):
    def run(machine, check=False, diff=False, **params):
        monkeypatch.setattr(vllm_boot_entry, "Host", lambda _: machine)
        params.setdefault("release", NEW)
        return run_module(vllm_boot_entry, params, check_mode=check, diff=diff)

    return run


@pytest.mark.parametrize("loader", ["grubby", "grub"])
def test_a_kernel_becomes_the_default_with_its_parameter(ensure, loader):
    machine = Machine(loader)
    machine.install(NEW)
    result = ensure(machine, parameters=["iommu.passthrough=1"], diff=True)
    assert result["changed"] and result["loader"] == loader
    assert (result["running"], result["default"], result["inactive"]) == (OLD, OLD, ["iommu.passthrough=1"])
    assert result["diff"]["before"].startswith(f"default: {OLD}\n")
    assert result["diff"]["after"].startswith(f"default: {NEW}\n")
    assert f"{NEW}: " in result["diff"]["after"] and "iommu.passthrough=1" in result["diff"]["after"]
    again = ensure(machine, parameters=["iommu.passthrough=1"])
    assert not again["changed"] and again["default"] == NEW
    assert again["entries"][NEW][-1] == "iommu.passthrough=1"
    assert "quiet" in again["entries"][NEW]
    if loader == "grubby":
        assert "iommu.passthrough=1" not in again["entries"][OLD]


@pytest.mark.parametrize("loader", ["grubby", "grub"])
def test_check_mode_changes_nothing_and_tells_the_truth(ensure, loader):
    machine = Machine(loader)
    before = dict(machine.files), machine.default
    absent = ensure(machine, check=True, parameters=["a=1"], diff=True)
    assert absent["changed"] and f"no entry for {NEW}" in absent["problems"][0]
    assert absent["diff"]["after"].splitlines()[0] == f"default: {NEW}"
    machine.install(NEW)
    assert not ensure(machine, check=True)["problems"]
    assert ensure(machine, check=True)["changed"]
    assert machine.default == before[1] and grub.FILE not in machine.files
    ensure(machine)
    assert not ensure(machine, check=True)["changed"]


@pytest.mark.parametrize("loader", ["grubby", "grub"])
def test_a_kernel_that_cannot_start_is_refused(ensure, loader):
    machine = Machine(loader)
    assert "only for " + OLD in ensure(machine)["msg"]
    machine.install(NEW)
    del machine.files[f"/boot/initramfs-{NEW}.img"]
    result = ensure(machine)
    assert result["failed"] and "initial RAM disk" in result["msg"] and "/boot" in result["msg"]
    assert machine.default == OLD


def test_a_parameter_that_is_no_longer_wanted_goes_and_a_replaced_one_comes_back(ensure):
    machine = Machine()
    machine.install(NEW, "ro quiet iommu.passthrough=0 mine=1")
    ensure(machine, parameters=["iommu.passthrough=1", "mine=1", "a=1"])
    assert machine.entries[NEW] == ["ro", "quiet", "mine=1", "iommu.passthrough=1", "a=1"]
    note = json.loads(machine.files[vllm_boot_entry.NOTE])
    assert note == {"parameters": {"a=1": None, "iommu.passthrough=1": "iommu.passthrough=0"}}
    ensure(machine, parameters=["iommu.passthrough=1"])
    assert machine.entries[NEW] == ["ro", "quiet", "mine=1", "iommu.passthrough=1"]
    assert ensure(machine, state="absent")["changed"]
    assert machine.entries[NEW] == ["ro", "quiet", "mine=1", "iommu.passthrough=0"]
    assert machine.default == NEW and vllm_boot_entry.NOTE not in machine.files
    assert not ensure(machine, state="absent")["changed"]


def test_grub_forgets_what_was_ours(ensure):
    machine = Machine("grub")
    machine.install(NEW)
    ensure(machine, parameters=["a=1"])
    ensure(machine, parameters=["b=1"])
    assert "a=1" not in machine.files[grub.CONFIGURATION]
    assert ensure(machine, state="absent")["changed"]
    assert grub.FILE not in machine.files and "b=1" not in machine.files[grub.CONFIGURATION]
    assert not ensure(machine, state="absent")["changed"]


def test_grub_cfg_that_lost_our_settings_is_made_anew(ensure):
    machine = Machine("grub")
    machine.install(NEW)
    ensure(machine, parameters=["a=1"])
    machine.files[grub.CONFIGURATION] = machine.files[grub.CONFIGURATION].replace(" a=1", "")
    assert ensure(machine, parameters=["a=1"])["changed"]
    assert not ensure(machine, parameters=["a=1"])["changed"]


def test_update_grub_that_fails_leaves_our_file_as_it_was(ensure):
    machine = Machine("grub")
    machine.install(NEW)
    machine.broken = "update-grub"
    result = ensure(machine)
    assert "update-grub failed: no space left on device" in result["msg"]
    assert grub.FILE not in machine.files


def test_a_change_that_did_not_take_is_a_failure(ensure, monkeypatch):
    machine = Machine()
    machine.install(NEW)
    monkeypatch.setattr(vllm_boot_entry.Grubby, "set_default", lambda self, entry: None)
    result = ensure(machine, parameters=["a=1"])
    assert result["failed"] and f"told to start {NEW}, but it starts {OLD}" in result["msg"]


def test_grubby_that_fails_is_quoted(ensure):
    machine = Machine()
    machine.install(NEW)
    machine.broken = "--set-default"
    message = ensure(machine)["msg"]
    assert "--set-default" in message and "exit code 1: no space left on device" in message


def test_a_host_without_a_boot_loader(ensure):
    machine = Machine("none")
    assert "no boot loader that this knows" in ensure(machine)["msg"]
    preview = ensure(machine, check=True, diff=True)
    assert preview["changed"] and preview["loader"] is None and preview["running"] == OLD
    assert not ensure(machine, state="absent")["changed"]


def test_what_runs_is_told(ensure):
    machine = Machine(running=NEW, arguments="ro iommu.passthrough=1")
    machine.install(NEW, "ro iommu.passthrough=1")
    assert ensure(machine, check=True, parameters=["iommu.passthrough=1"])["inactive"] == []
    assert ensure(machine, check=True, parameters=["iommu.passthrough=0"])["inactive"] == ["iommu.passthrough=0"]
