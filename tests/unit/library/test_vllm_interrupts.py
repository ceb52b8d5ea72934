# SPDX-License-Identifier: Apache-2.0
"""The module that binds interrupts, on a directory that stands for /proc and /sys: what a kernel shows and refuses."""

import json

import pytest
import vllm_interrupts
from ansible.module_utils.vllm_ansible import interrupts
from ansible.module_utils.vllm_ansible.host import Host

NPU, NIC = "0000:c1:00.0", "0000:bd:00.0"
FUNCTIONS = [{"pci": NPU, "cpus": "2-3", "action": "sq_send_trigger_irq"}, {"pci": NIC, "cpus": "4-5", "action": None}]


class Machine:
    """Interrupts 40-42 of an NPU, 50-52 of a NIC; `fixed` ones refuse every CPU."""

    def __init__(self, root, module, monkeypatch):
        self.root, self.fixed, self.balancer = root, set(), "inactive"
        self.put("/proc/interrupts", self.lines())
        self.put("/proc/sys/kernel/random/boot_id", "one\n")
        self.put("/sys/devices/system/cpu/online", "0-7\n")
        for pci, numbers in ((NPU, (40, 41, 42)), (NIC, (50, 51, 52))):
            for number in numbers:
                self.put(f"/sys/bus/pci/devices/{pci}/msi_irqs/{number}", "msix\n")
                self.put(f"/proc/irq/{number}/smp_affinity_list", "0-7\n")
        machine = self

        class Redirected(Host):
            def read(self, path):
                return super().read(str(machine.root) + path)

            def list_directory(self, path):
                return super().list_directory(str(machine.root) + path)

            def exists(self, path):
                return super().exists(str(machine.root) + path)

            def remove(self, path):
                return super().remove(str(machine.root) + path)

            def write_atomically(self, path, text, mode=0o644):
                return super().write_atomically(str(machine.root) + path, text, mode)

            def run(self, arguments, environment=None, timeout_seconds=60):
                assert arguments == ["systemctl", "is-active", "irqbalance.service"]
                return (0 if machine.balancer == "active" else 3, machine.balancer + "\n", "")

        def write(path, text):
            number = int(path.split("/")[3])
            if number not in machine.fixed:
                machine.put(path, text + "\n")
            return number not in machine.fixed

        monkeypatch.setattr(module, "Host", Redirected)
        monkeypatch.setattr(module, "write", write)

    @staticmethod
    def lines():
        names = {40: "other", 41: "sq_send_trigger_irq", 42: "cq_update_irq", 50: "eth0-0", 51: "eth0-1", 52: "eth0-2"}
        head = "           CPU0       CPU1\n"
        return head + "".join(f" {n}:      0      7  ITS-MSI 5{n} Edge      {name}\n" for n, name in names.items())

    def put(self, path, text):
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def affinity(self):
        return {
            int(path.parent.name): path.read_text().strip()
            for path in sorted(self.root.glob("proc/irq/*/smp_affinity_list"))
        }

    @property
    def record(self):
        path = self.root / interrupts.RECORD.lstrip("/")
        return json.loads(path.read_text()) if path.exists() else None


BEFORE = dict.fromkeys((40, 41, 42, 50, 51, 52), "0-7")
BOUND = {40: "0-7", 41: "2", 42: "3", 50: "4", 51: "5", 52: "4"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, vllm_interrupts, monkeypatch)


def bind(run_module, functions=FUNCTIONS, check_mode=False):
    return run_module(vllm_interrupts, {"functions": functions}, check_mode=check_mode)


def test_bound_once_and_given_back(run_module, machine):
    foretold = bind(run_module, check_mode=True)
    assert machine.affinity() == BEFORE, "check mode wrote"
    first = bind(run_module)
    assert first["changed"] is foretold["changed"] is True
    assert first["moved"] == foretold["moved"] == [41, 42, 50, 51, 52]
    assert machine.affinity() == BOUND
    assert not bind(run_module)["changed"]
    assert not bind(run_module, check_mode=True)["changed"]
    # one function fewer: only its own go back
    assert bind(run_module, FUNCTIONS[:1])["moved"] == [50, 51, 52]
    assert machine.affinity() == {**BOUND, 50: "0-7", 51: "0-7", 52: "0-7"}
    bind(run_module, [])
    assert machine.affinity() == BEFORE
    assert machine.record is None


def test_the_verification_sees_what_was_moved_behind_it(run_module, machine):
    bind(run_module)
    machine.put("/proc/irq/51/smp_affinity_list", "0\n")
    seen = bind(run_module, check_mode=True)
    assert seen["moved"] == [51]
    assert seen["diff"]["before"] == "51: 0\n"
    # what was there first is remembered, not what a stranger put there
    bind(run_module)
    bind(run_module, [])
    assert machine.affinity() == BEFORE


def test_irqbalance_keeps_what_it_has(run_module, machine):
    machine.balancer = "active"
    seen = bind(run_module)
    assert (seen["changed"], seen["irqbalance"], seen["interrupts"]) == (False, True, {})
    assert machine.affinity() == BEFORE


def test_irqbalance_started_later_takes_them_over(run_module, machine):
    bind(run_module)
    machine.balancer = "active"
    assert not bind(run_module)["changed"]
    assert machine.record is None


def test_what_the_kernel_holds_is_told_and_not_tried_for_ever(run_module, machine):
    machine.fixed = {50, 52}
    first = bind(run_module)
    assert (first["moved"], first["fixed"]) == ([41, 42, 51], [50, 52])
    second = bind(run_module, check_mode=True)
    assert (second["changed"], second["fixed"]) == (False, [50, 52])


def test_a_record_of_another_boot_is_not_put_back(run_module, machine):
    bind(run_module)
    for number in BEFORE:
        machine.put(f"/proc/irq/{number}/smp_affinity_list", "0-3\n")
    machine.put("/proc/sys/kernel/random/boot_id", "two\n")
    bind(run_module, [])
    assert set(machine.affinity().values()) == {"0-3"}


def test_a_device_without_its_driver_is_named_and_the_rest_is_bound(run_module, machine):
    machine.put("/proc/interrupts", machine.lines().replace("sq_send_trigger_irq", "x"))
    seen = bind(run_module)
    assert NPU in seen["missing"][0]
    assert "sq_send_trigger_irq" in seen["missing"][0]
    assert seen["moved"] == [50, 51, 52]


@pytest.mark.parametrize(
    ("function", "part"),
    [
        ({"pci": NIC, "cpus": "6-9"}, "among 0-7"),
        ({"pci": NIC, "cpus": ""}, "among 0-7"),
        ({"pci": NIC, "cpus": "x"}, "'x'"),
        ({"pci": "../irq", "cpus": "0"}, "pci=../irq"),
    ],
)
def test_the_impossible_is_refused_before_anything_is_written(run_module, machine, function, part):
    seen = bind(run_module, [*FUNCTIONS, function])
    assert seen["failed"]
    assert part in seen["msg"]
    assert machine.affinity() == BEFORE
