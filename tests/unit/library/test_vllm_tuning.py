# SPDX-License-Identifier: Apache-2.0
"""Kernel settings on pretended machines below a folder, whose systemctl, tuned-adm and nvidia-smi are a few lines here.

STAND-IN level: formats of /proc and /sys from kernel documentation; what a real tuned does is proven in tests/lab.
"""

import configparser
import json
import os
from pathlib import Path
from typing import Any

import pytest
import vllm_tuning
from ansible.module_utils.vllm_ansible.host import Host
from ansible.module_utils.vllm_ansible.tuning import files, services, settings

PLAN = {
    "profile": "vllm-ascend",
    "sysctls": {
        "vm.swappiness": "0",
        "net.ipv4.tcp_rmem": "4096 131072 6291456",
        "kernel.sched_migration_cost_ns": "1",
    },
    "transparent_hugepages": "madvise",
    "governor": "performance",
    "irqbalance": "stop",
    "hugepages": [{"size_kib": 2048, "count": 512, "node": 1}],
}
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
POOL = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
SWAPPINESS = "/proc/sys/vm/swappiness"


class Machine(Host):
    """Files below a folder; commands change them as the real ones change the kernel."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = str(root)
        self.commands: list[str] = []
        self.units = {"irqbalance.service": {"active": True, "enabled": True, "pid": 77}}
        self.power = {"0": 700.0, "1": 700.0}
        self.saved: dict[str, str] = {}
        self.refused = ""
        for path, text in {
            SWAPPINESS: "60\n",
            "/proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
            "/proc/sys/net/ipv4/ip_local_reserved_ports": "8000\n",
            "/proc/cmdline": "quiet\n",
            THP: "[always] madvise never\n",
            POOL: "0\n",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
            "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
            **{
                f"/sys/devices/system/cpu/cpufreq/policy{number}/scaling_{name}": text
                for number in range(3)
                for name, text in (("governor", "powersave\n"), ("available_governors", "performance powersave\n"))
            },
        }.items():
            self.put(path, text)

    def put(self, path: str, text: str) -> None:
        place = Path(self.root + path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def read(self, path: str) -> str | None:
        return super().read(self.root + path)

    def list_directory(self, path: str) -> list[str]:
        return super().list_directory(self.root + path)

    def exists(self, path: str) -> bool:
        return super().exists(self.root + path)

    def read_link(self, path: str) -> str | None:
        return super().read_link(self.root + path)

    def write_atomically(self, path: str, text: str, mode: int = 0o644) -> None:
        super().write_atomically(self.root + path, text, mode)

    def remove(self, path: str) -> None:
        super().remove(self.root + path)

    def set_value(self, path: str, text: str) -> None:
        """The kernel's part: choose a word, give fewer pages than asked for, refuse a value."""
        if path == self.refused:
            raise OSError(22, "Invalid argument")
        value = text.strip()
        if path == THP:
            value = "always madvise never".replace(value, f"[{value}]")
        self.put(path, value + "\n")

    def run(self, arguments: list[str], *_rest: Any, **_options: Any) -> tuple[int, str, str] | None:
        words = [word for word in arguments if word != "--now"]
        if words[:2] != ["systemctl", "show"] and "--query-gpu" not in words[-2]:
            self.commands.append(" ".join(words))
        return getattr(self, "_" + words[0].replace("-", "_"))(words[1:], "--now" in arguments)

    def _systemctl(self, words: list[str], now: bool) -> tuple[int, str, str]:
        unit = self.units.get(words[-2] if words[0] == "show" else words[-1])
        if words[0] == "show":
            unit = self.units.get(words[1])
            if unit is None:
                return 0, "LoadState=not-found\nActiveState=inactive\nUnitFileState=\nMainPID=0\n", ""
            active = "active" if unit["active"] else "inactive"
            enabled = "enabled" if unit["enabled"] else "disabled"
            pid = unit.get("pid", 0)
            return 0, f"LoadState=loaded\nActiveState={active}\nUnitFileState={enabled}\nMainPID={pid}\n", ""
        if words[0] in ("enable", "disable") and words[1] in (files.UNIT, services.POWER_UNIT):
            target = "sysinit" if "tuned-profile" in words[1] else "multi-user"
            link = Path(f"{self.root}/etc/systemd/system/{target}.target.wants/{words[1]}")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to("/dev/null") if words[0] == "enable" else link.unlink()
        elif unit is not None:
            unit["enabled"] = {"enable": True, "disable": False}.get(words[0], unit["enabled"])
            if now or words[0] in ("start", "restart"):
                unit["active"] = words[0] != "disable"
            if words[0] == "restart":
                text = self.read(services.BANNED_FILE) or ""
                self.put("/proc/77/environ", "\0".join(line for line in text.splitlines() if "=" in line))
        return 0, "", ""

    def _tuned_adm(self, words: list[str], _now: bool) -> tuple[int, str, str]:
        for path, value in self.saved.items():
            self.set_value(path, value)
        self.saved = {}
        name = {"profile": words[-1], "off": "", "auto_profile": "balanced"}[words[0]]
        config = configparser.ConfigParser(delimiters="=", interpolation=None)
        config.optionxform = str  # type: ignore[assignment,method-assign]
        config.read(f"{self.root}/etc/tuned/{name}/tuned.conf")
        sections = {section: dict(config[section]) for section in config.sections()}
        values = {settings.sysctl_path(key): value for key, value in sections.get("sysctl", {}).items()}
        values.update(sections.get("sysfs", {}))
        if "vm" in sections:
            values[THP] = sections["vm"]["transparent_hugepages"]
        for path in settings.governor_files(self) if "cpu" in sections else []:
            values[path] = sections["cpu"]["governor"]
        for path, value in values.items():
            self.saved[path] = settings.read(self, path) or ""
            self.set_value(path, value)
        self.put("/etc/tuned/active_profile", name + "\n")
        self.put("/etc/tuned/profile_mode", "auto\n" if words[0] == "auto_profile" else "manual\n")
        return 0, "", ""

    def _nvidia_smi(self, words: list[str], _now: bool) -> tuple[int, str, str]:
        if words[0] == "-i":
            self.power[words[1]] = float(words[3])
            return 0, "", ""
        lines = [f"{index}, {limit:.2f}, 700.00, 200.00, 700.00" for index, limit in self.power.items()]
        return 0, "\n".join([*lines, "2, [N/A], [N/A], [N/A], [N/A]"]) + "\n", ""

    def files(self) -> dict[str, str]:
        """Everything on the machine, for "as it was before"."""
        found = {}
        for folder, _names, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                found[str(path)] = path.read_text() if not path.is_symlink() else "a link"
        return found


@pytest.fixture
def machine(tmp_path, monkeypatch):
    subject = Machine(tmp_path / "host")
    monkeypatch.setattr(vllm_tuning, "Host", lambda _run: subject)
    return subject


@pytest.fixture
def tune(run_module, machine):
    """Run the module; check mode has to foretell and to leave everything alone."""

    def run(**changes):
        params = {**PLAN, **changes} if changes.get("state") != "absent" else changes
        before, commands = machine.files(), list(machine.commands)
        foretold = run_module(vllm_tuning, params, check_mode=True, diff=True)
        assert (machine.files(), machine.commands) == (before, commands), "check mode changed something"
        result = run_module(vllm_tuning, params, diff=True)
        if not result.get("failed"):
            assert result == foretold
            assert bool(result["diff"]) is result["changed"]
            again = run_module(vllm_tuning, params, diff=True)
            assert not again["changed"], again
        return result

    return run


def start_tuned(machine, profile="balanced", mode="auto"):
    machine.units["tuned.service"] = {"active": True, "enabled": True}
    machine.put("/etc/tuned/active_profile", profile + "\n")
    machine.put("/etc/tuned/profile_mode", mode + "\n")


def live(machine):
    paths = [SWAPPINESS, THP, POOL, "/sys/devices/system/cpu/cpufreq/policy2/scaling_governor"]
    return [settings.read(machine, path) for path in paths]


def test_without_tuned_and_back(machine, tune):
    before = machine.files()
    result = tune()
    assert result["method"] == "systemd"
    assert live(machine) == ["0", "madvise", "512", "performance"]
    assert machine.units["irqbalance.service"] == {"active": False, "enabled": False, "pid": 77}
    assert "kernel.sched_migration_cost_ns; it is passed over" in result["absent"][0]
    text = machine.read("/etc/sysctl.d/99-vllm-tuned-profile.conf")
    assert "vm/swappiness = 0\n" in text and "sched_migration" not in text
    kept = machine.read("/etc/vllm/tuned-profile.conf")
    assert "w /sys/devices/system/cpu/cpufreq/policy*/scaling_governor - - - - performance\n" in kept
    assert f"w {POOL} - - - - 512\n" in kept
    assert "systemctl enable tuned-profile.service" in machine.commands
    assert not machine.exists("/etc/tuned")
    assert "governor: seen powersave in 3 places" in " ".join(result["differences"])
    tune(state="absent")
    assert machine.files() == before
    assert machine.units["irqbalance.service"] == {"active": True, "enabled": True, "pid": 77}


@pytest.mark.parametrize(
    ("profile", "mode", "command"),
    [
        ("balanced", "auto", "tuned-adm auto_profile"),
        ("throughput-performance mine", "manual", "tuned-adm profile throughput-performance mine"),
        ("", "manual", "tuned-adm off"),
    ],
)
def test_with_tuned_and_back(machine, tune, profile, mode, command):
    start_tuned(machine, profile, mode)
    before = live(machine)
    result = tune()
    assert result["method"] == "tuned"
    assert live(machine) == ["0", "madvise", "512", "performance"]
    assert not machine.exists("/etc/sysctl.d") and not machine.exists("/etc/systemd/system")
    assert "vm.swappiness=0\n" in machine.read("/etc/tuned/vllm-ascend/tuned.conf")
    tune(state="absent")
    assert live(machine) == before
    assert machine.commands.count(command) == 1
    assert not machine.exists("/etc/tuned/vllm-ascend")
    assert not machine.exists("/var/lib/vllm/tuning.json")


def test_the_two_ways_are_never_both(machine, tune):
    tune()
    start_tuned(machine)
    tune()
    assert not machine.exists("/etc/sysctl.d") and not machine.exists("/etc/systemd/system/tuned-profile.service")
    assert live(machine) == ["0", "madvise", "512", "performance"]
    assert machine.saved[SWAPPINESS] == "60", "tuned would go back to our value"
    tune(method="systemd")
    assert not machine.exists("/etc/tuned/vllm-ascend")
    assert machine.read("/etc/tuned/active_profile") == "balanced\n"
    tune(state="absent")
    assert live(machine) == ["60", "always", "0", "powersave"]


def test_a_profile_that_shrinks_gives_back_what_it_no_longer_sets(machine, tune):
    tune()
    tune(sysctls={}, governor=None)
    assert live(machine) == ["60", "madvise", "512", "powersave"]
    assert not machine.exists("/etc/sysctl.d/99-vllm-tuned-profile.conf")


def test_what_somebody_else_set_meanwhile_stays(machine, tune):
    tune()
    machine.put(SWAPPINESS, "33\n")
    tune(state="absent")
    assert settings.read(machine, SWAPPINESS) == "33"


def test_another_profile_chosen_meanwhile_stays_active(machine, tune):
    start_tuned(machine)
    tune()
    machine._tuned_adm(["profile", "mine"], False)
    tune(state="absent")
    assert machine.read("/etc/tuned/active_profile") == "mine\n"


def look(run_module, **changes):
    return run_module(vllm_tuning, {**PLAN, **changes}, check_mode=True)


def test_drift_is_named_with_who_may_have_set_it(machine, tune, run_module):
    tune()
    assert look(run_module)["differences"] == []
    machine.put(SWAPPINESS, "10\n")
    machine.put("/etc/sysctl.d/50-early.conf", "vm.swappiness = 1\n")
    machine.put("/usr/lib/sysctl.d/99-zz-late.conf", "-vm/swappiness = 10\n")
    machine.put("/etc/sysctl.conf", "# vm.swappiness = 3\n")
    machine.put(THP, "[always] madvise never\n")
    machine.put("/proc/cmdline", "quiet transparent_hugepage=always\n")
    machine.put(POOL, "100\n")
    machine.units["irqbalance.service"]["active"] = True
    seen = look(run_module, reserved_ports="8000,60000-60031")
    assert seen["differences"] == [
        "vm.swappiness: seen 10, planned 0. It may have been set by /usr/lib/sysctl.d/99-zz-late.conf.",
        (
            "transparent_hugepages: seen always, planned madvise. It may have been set by transparent_hugepage= of the "
            "kernel's command line."
        ),
        (
            "hugepages of 2048 KiB on node 1: seen 100, planned 512. It may have been set by too little free or too "
            "fragmented memory, which gives fewer pages."
        ),
        "irqbalance: seen running, planned stopped.",
    ]
    assert seen["overridden"] == [
        "vm.swappiness: /usr/lib/sysctl.d/99-zz-late.conf sets 10 at the next boot, planned 0. Take it out there."
    ]
    assert seen["unreserved_ports"] == "60000-60031"
    machine.put("/etc/sysctl.d/99-zz-late.conf", "")
    assert look(run_module)["overridden"] == [], "a file of /etc replaces the one of its name"


def test_drift_under_tuned_names_the_other_profile_and_sysctl_files(machine, tune, run_module):
    start_tuned(machine)
    tune()
    machine._tuned_adm(["profile", "powersave"], False)
    machine.put("/etc/sysctl.d/50-early.conf", "vm.swappiness = 60\n")
    first = look(run_module)["differences"][0]
    assert "seen 60, planned 0" in first and "/etc/sysctl.d/50-early.conf, tuned's profile powersave" in first


def test_a_hand_edited_file_is_named_and_mended(machine, tune, run_module):
    tune()
    machine.put("/etc/sysctl.d/99-vllm-tuned-profile.conf", "vm.swappiness = 5\n")
    assert look(run_module)["files"] == ["/etc/sysctl.d/99-vllm-tuned-profile.conf"]
    assert tune()["changed"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"hugepages": [{"size_kib": 524288, "count": 4}]},
            "this kernel has no pages of 524288 KiB; it has 2048, 1048576",
        ),
        ({"hugepages": [{"size_kib": 2048, "count": 4, "node": 7}]}, "node 7 has no pages of 2048 KiB; it has none"),
        ({"governor": "schedutil"}, "offers performance, powersave, not schedutil"),
        ({"gpu_power_limit_watts": 900}, "GPU 0 takes 200 to 700 W, not 900"),
        ({"irqbalance": "banned"}, "banned_cpus: needed"),
        ({"method": "tuned"}, "tuned.service does not run here"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_changes(machine, tune, changes, message):
    before = machine.files()
    result = tune(**changes)
    assert result["failed"] and message in result["msg"]
    assert machine.files() == before


def test_absent_cpufreq_is_tolerated_and_said(machine, tune):
    for path in settings.governor_files(machine):
        Path(machine.root + path).unlink()
    result = tune()
    assert "The kernel offers no cpufreq" in result["absent"][1]
    assert "scaling_governor" not in machine.read("/etc/vllm/tuned-profile.conf")


def test_a_run_that_was_cut_off_can_be_taken_back(machine, tune, run_module):
    before = live(machine)
    machine.refused = POOL
    result = run_module(vllm_tuning, PLAN)
    assert result["failed"] and "does not take '512': Invalid argument" in result["msg"]
    machine.refused = ""
    tune(state="absent")
    assert live(machine) == before and not machine.exists("/etc/sysctl.d")


def test_a_kernel_that_gives_fewer_pages_is_an_error(machine, run_module, monkeypatch):
    whole = machine.set_value
    monkeypatch.setattr(machine, "set_value", lambda path, text: whole(path, "7" if path == POOL else text))
    result = run_module(vllm_tuning, PLAN)
    assert result["failed"] and "seen 7, planned 512" in result["msg"] and "fragmented" in result["msg"]


def test_irqbalance_is_kept_off_cpus(machine, tune):
    tune(irqbalance="banned", banned_cpus="0-3,33")
    assert "IRQBALANCE_BANNED_CPUS=00000002,0000000f\n" in machine.read(services.BANNED_FILE)
    assert "systemctl restart irqbalance.service" in machine.commands
    tune(irqbalance="stop")
    assert not machine.exists(services.BANNED_FILE)
    tune(irqbalance="keep")
    assert machine.units["irqbalance.service"]["active"] and machine.units["irqbalance.service"]["enabled"]


def test_power_limit_and_back(machine, tune):
    machine.power["1"] = 650.0
    result = tune(gpu_power_limit_watts=500)
    assert machine.power == {"0": 500.0, "1": 500.0}
    assert "power limit of GPU 1: seen 650 W, planned 500 W." in result["differences"]
    assert "-pl 500\n" in machine.read(services.POWER_FILE)
    tune()
    assert machine.power == {"0": 700.0, "1": 650.0} and not machine.exists(services.POWER_FILE)


def test_the_note_is_kept_and_a_damaged_one_named(machine, tune, run_module):
    tune()
    note = json.loads(machine.read("/var/lib/vllm/tuning.json"))
    assert note["values"][SWAPPINESS] == {"before": "60", "ours": "0"}
    machine.put("/var/lib/vllm/tuning.json", "{")
    assert "tuning.json is damaged" in run_module(vllm_tuning, PLAN)["msg"]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("net.ipv4.ip_forward", "net/ipv4/ip_forward"),
        ("net/ipv4/conf/eth0.100/rp_filter", "net/ipv4/conf/eth0.100/rp_filter"),
        ("net.ipv4.conf.eth0/100.rp_filter", "net/ipv4/conf/eth0.100/rp_filter"),
    ],
)
def test_names_of_sysctls(name, path):
    assert settings.sysctl_path(name) == "/proc/sys/" + path
