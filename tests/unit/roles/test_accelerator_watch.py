# SPDX-License-Identifier: Apache-2.0
"""The watch over lines as public reports recorded them or the drivers' sources print them; never from a device here.

In-process for what it decides, as a process over a pretended journalctl for what a power cut does to it.
"""

import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles/accelerator_watch"
PROGRAM = ROLE / "files/accelerator-watch"
RULES = yaml.safe_load((ROLE / "vars/main/rules.yml").read_text(encoding="utf-8"))["__accelerator_watch_rules"]


def load():
    loader = importlib.machinery.SourceFileLoader("accelerator_watch", str(PROGRAM))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("accelerator_watch", loader))
    dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = dont_write
    return module


watch = load()

XID = "NVRM: Xid (PCI:0000:04:00): {}, pid='<unknown>', name=<unknown>, {}"
OFF = XID.format(79, "GPU has fallen off the bus.")
# kernel.org: one printk over several lines is one entry of the journal.
OFF_BUS = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
    "               NVRM: fallen off the bus and is not responding to commands."
)
MISMATCH = (
    "NVRM: API mismatch: the client has the version 550.54.14, but\n               "
    "NVRM: this kernel module has the version 545.23.08.  Please"
)
HEARTBEAT = (
    "[ascend] [ERROR] [soft_fault] [hb_read_one_device_count 190] <kworker/u16:2:14887,14887> Heartbeat lost! "
    "(device_id=3; old_count=7; current_count=7; lost_count=3; total_lost_count=3; miss_read_count=0; "
    "hb_read_fail_count=0)."
)
PAGE_FAULT = (
    "[ascend] [ERROR] [devmm] [devmm_svm_device_fault 438] <kworker/u16:186:9871,9871> Vm fault failed. "
    "(hostpid=1885445; devid=0; vfid=0; ret=64; fault_addr=0x1240f1fa0000; start=0x1240f1fa0000)"
)
TIMEOUT = (
    "[rank3]:[E1206 18:44:13.275158817 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout"
    ": WorkNCCL(SeqNum=7753, "
    "OpType=_REDUCE_SCATTER_BASE, NumelIn=544997376, NumelOut=68124672, Timeout(ms)=600000) ran "
    "for 600089 milliseconds before timing out."
)
COMPLETION = (
    "gpu01:982:1261 [2] NCCL WARN NET/IB : Got completion from peer 198.51.100.7<55921> with status=12 opcode=1 len=0 "
    "vendor err 129 (Send) localGid ::ffff:198.51.100.4 remoteGids::ffff:198.51.100.7"
)
SOCKET = (
    "[PID: 108272] 2026-05-21-21:41:11.284.296 Communication_Error_Get_Socket(EI0006): Getting socket times out. Reason"
    ": No abnormal periods were discovered."
)
BIND = (
    "(Worker_DP0_TP0_EP0 pid=60571) ERROR 12-04 14:46:08 [multiproc_executor.py:597] [PID: 60571] "
    "2025-12-04-14:46:07.669.968 Bind_Failed(EJ0003): Failed to bind the IP port."
)
OLD_SOCKET = "[rank1]: EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out."
HCCL = (
    "[ERROR] HCCL(2717288,python3):2025-07-23-03:49:57.177.194 [hccl_socket_manager.cc:778] "
    "[2734049][Wait][LinkEstablish]wait socket establish timeout, role[1] rank[12] timeout[120]"
)

KERNEL_LINES = [
    (OFF, "nvidia_xid", "79", "0000:04:00", "drain"),
    ("NVRM: Xid (PCI:0000:4E:00): 31, pid=77, Ch 00000008", "nvidia_xid", "31", "0000:4e:00", "report"),
    ("NVRM: Xid (PCI:0000:4e:00): 999, something new", "nvidia_xid", "999", "0000:4e:00", "report"),
    (
        "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        *("nvidia_xid", "154", "0008:01:00", "drain"),
    ),
    (OFF_BUS, "nvidia_off_bus", "", "0000:b3:00", "drain"),
    ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", "nvidia_off_bus", "", "0000:01:00", "drain"),
    (MISMATCH, "nvidia_version_mismatch", "", "unknown", "report"),
    (
        "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        *("nvidia_nvswitch", "20034", "0000:00:00.0", "drain"),
    ),
    (
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        *("nvidia_nvswitch_warning", "12028", "0000:05:00.0", "report"),
    ),
    (HEARTBEAT, "ascend_heartbeat_lost", "", "3", "drain"),
    (PAGE_FAULT, "ascend_driver", "devmm", "0", "report"),
    ("mlx5_core 0000:08:00.0 mlx5_0: Port: 1 Link DOWN", "rdma_link_down", "", "mlx5_0", "report"),
    ("igc 0000:05:00.0 eth5: NIC Link is Down", "network_link_down", "", "eth5", "report"),
    ("hns3 0000:bd:00.0 enp189s0f0: link down", "network_link_down", "", "enp189s0f0", "report"),
]
ENGINE_LINES = [
    (TIMEOUT, "nccl_timeout", "", "3"),
    ("(Worker_TP3 pid=7) " + TIMEOUT, "nccl_timeout", "", "3"),
    (COMPLETION, "nccl_network", "12", "2"),
    ("gpu01:982:1261 [2] misc/socket.cc:47 NCCL WARN socketStartConnect: Connect failed", "nccl_warning", "", "2"),
    (SOCKET, "ascend_runtime", "EI0006", "unknown"),
    (BIND, "ascend_runtime", "EJ0003", "unknown"),
    (OLD_SOCKET, "ascend_runtime", "EI0006", "unknown"),
    ("[PID: 389] 2026-05-01-10:59:14.702.326 Device_Absent/Abnormal(EL0001): Device not found or invalid.",
     "ascend_runtime", "EL0001", "unknown"),
    (HCCL, "hccl_error", "", "unknown"),
]  # fmt: skip
ENGINE = {"_TRANSPORT": "stdout", "_SYSTEMD_UNIT": "vllm-chat.service"}
KERNEL = {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "SYSLOG_IDENTIFIER": "kernel"}

# Lines that only look like errors: (message, fields of the entry).
HARMLESS = [
    (OFF, {"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel"}),
    (OFF, {"_TRANSPORT": "journal", "_SYSTEMD_UNIT": "vllm-chat.service"}),
    (OFF, ENGINE),
    (OFF, {"_TRANSPORT": "stdout", "_SYSTEMD_UNIT": "accelerator-watch.service"}),
    # As journald 252 recorded them, written to /dev/kmsg as "test[1]: …", "kernel: …" and without a name.
    (OFF, {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "1", "SYSLOG_IDENTIFIER": "test", "SYSLOG_PID": "1"}),
    (OFF, {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "1", "SYSLOG_IDENTIFIER": "kernel"}),
    (OFF.replace("NVRM: ", ""), {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "1", "SYSLOG_IDENTIFIER": "NVRM"}),
    (f"audit: type=1400 msg={OFF}", KERNEL),
    (f"bash[77]: {OFF}", KERNEL),
    (f"INFO 12-04 14:46:08 [logger.py:39] Received request cmpl-1: prompt: '{TIMEOUT}'", ENGINE),
    (f"INFO 12-04 14:46:08 [logger.py:39] Received request cmpl-1: prompt: 'what is {SOCKET}'", ENGINE),
    (f"prompt: {COMPLETION}", ENGINE),
    (COMPLETION, {"_TRANSPORT": "stdout", "_SYSTEMD_UNIT": "training.service"}),
    (COMPLETION, KERNEL),
    ("gpu01:980:1265 [0] NCCL INFO misc/socket.cc:47 -> 3", ENGINE),
    (
        "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)",
        KERNEL,
    ),
    ("NVRM: Xid (PCI:0000:66:00): abc, pid=2280636", KERNEL),
    ("nvidia-nvswitch2: SXid (PCI:0000:00:09.0): 11004, Severity 0 Engine instance 42 Sub-engine instance 00", KERNEL),
    ("mlx5_core 0000:08:00.0 rdmap8s0f0: Port: 2 Link ACTIVE", KERNEL),
    ("igc 0000:05:00.0 eth5: NIC Link is Up 100 Mbps Full Duplex, Flow Control: RX", KERNEL),
    ("[ascend] [WARN] [soft_fault] [log_heart_beat_debug_info 90] heart beat debug info.", KERNEL),
]


class Journal:
    """A journal in memory: lines with places, the events that were sent, and a clock."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.lines: list[bytes] = []
        self.events: list[dict[str, Any]] = []
        self.now = 1_800_000_000.0
        self.boot = "boot-1"
        self.broken = False
        self.settings = {
            "hook": [],
            "hook_timeout_seconds": 5,
            "hook_tries": 3,
            "hook_retry_seconds": 10,
            "quiet_seconds": "3600",  # as ansible-core 2.16 writes it
            "actions": {},
            "engine_units": r"^vllm-.+\.service$",
            "state": str(folder / "state.json"),
            "metrics": str(folder / "accelerator_watch.prom"),
            "rules": RULES,
            **settings,
        }

    def add(self, message: str | list[int], fields: dict[str, str] = KERNEL) -> bytes:
        entry = {
            "__CURSOR": f"s=1;i={len(self.lines):x};b={self.boot}",
            "__REALTIME_TIMESTAMP": str(int(self.now * 1e6)),
            "_BOOT_ID": self.boot,
            "MESSAGE": message,
            **fields,
        }
        self.lines.append(json.dumps(entry, separators=(",", ":")).encode())
        return self.lines[-1]

    def send(self, fields: dict[str, Any]) -> None:
        if self.broken:
            raise ConnectionRefusedError(111, "Connection refused")
        self.events.append(fields)

    def start(self) -> Any:
        """A watch that begins, or begins again, as the program does."""
        subject = watch.Watch(self.settings, send=self.send, clock=lambda: self.now)
        subject.reconcile({event["VLLM_EVENT"] for event in self.events})
        return subject

    def after(self, cursor: str | None) -> list[bytes]:
        known = [json.loads(line)["__CURSOR"] for line in self.lines]
        return self.lines[known.index(cursor) + 1 if cursor in known else 0 :]


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path)


def look(journal, message, fields):
    return journal.start().rules.look({"MESSAGE": message, **fields})


# --- the rules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("message", "rule", "code", "device", "action"), KERNEL_LINES)
def test_kernel_lines(journal, message, rule, code, device, action):
    found = look(journal, message, KERNEL)
    assert (found["rule"], found["code"], found["device"], found["action"]) == (rule, code, device, action)
    assert journal.start().rules.may_match(journal.add(message)), "the needle would have hidden it"


@pytest.mark.parametrize(("message", "rule", "code", "device"), ENGINE_LINES)
def test_engine_lines(journal, message, rule, code, device):
    found = look(journal, message, ENGINE)
    assert (found["rule"], found["code"], found["device"]) == (rule, code, "vllm-chat.service:" + device)
    assert found["action"] == "report", "a request can make an engine print nearly anything"
    assert journal.start().rules.may_match(journal.add(message, ENGINE))


@pytest.mark.parametrize(("message", "fields"), HARMLESS)
def test_lines_that_only_quote_an_error(journal, message, fields):
    assert look(journal, message, fields) is None


def test_every_rule_is_used_and_says_where_it_is_from(journal):
    used = {rule for _message, rule, *_ in [*KERNEL_LINES, *ENGINE_LINES]}
    assert used == {rule["id"] for rule in RULES}
    for rule in RULES:
        assert rule["reference"] and rule["meaning"], rule["id"]
        assert rule["severity"] in watch.PRIORITIES and rule["action"] in ("drain", "report")
        assert rule["source"] == "kernel" or rule["action"] == "report"
        assert "".join(rule["pattern"]).startswith("^"), "a quoted line would match"
        for code, known in rule.get("codes", {}).items():
            assert isinstance(code, str) and set(known) <= {"meaning", "severity", "action"}, code


def test_a_message_that_is_not_text(journal):
    subject = journal.start()
    assert subject.rules.may_match(journal.add([*b"NVRM: Xid (PCI:0000:04:00): 79, \xff\x00"]))
    for line in [*journal.lines, b"", b"{", b"[]", b'{"__CURSOR":"x"}', b'NVRM: Xid ({"MESSAGE":null}']:
        subject.take(line)
    assert subject.state.counters == {"nvidia_xid|79|0000:04:00": 1}


def test_a_module_with_a_facility_of_its_own(journal):
    """The log header of the Ascend driver hands a facility to printk."""
    assert look(journal, HEARTBEAT, {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "1"})["device"] == "3"


def test_actions_and_rules_of_the_site(tmp_path):
    extra = {**RULES[0], "id": "site", "needle": "BMC", "pattern": "^BMC says (?P<code>no)", "codes": None}
    journal = Journal(tmp_path, rules=[extra, *RULES], actions={"rdma_link_down": "drain", "nvidia_nvswitch": "report"})
    assert look(journal, "mlx5_core 0000:08:00.0 mlx5_0: Port: 1 Link DOWN", KERNEL)["action"] == "drain"
    assert look(journal, KERNEL_LINES[7][0], KERNEL)["action"] == "report"
    assert look(journal, "BMC says no", KERNEL)["code"] == "no"


# --- events, counts, incidents ------------------------------------------------------------------------------------


def test_one_event_for_an_incident_and_code(journal):
    subject = journal.start()
    for message in (OFF, OFF, OFF_BUS.replace("b3", "04"), OFF.replace("04:00", "05:00"), OFF):
        subject.take(journal.add(message))
    assert [(event["VLLM_RULE"], event["VLLM_DEVICE"]) for event in journal.events] == [
        ("nvidia_xid", "0000:04:00"),
        ("nvidia_off_bus", "0000:04:00"),
        ("nvidia_xid", "0000:05:00"),
    ]
    first = journal.events[0]
    assert first["MESSAGE_ID"] == watch.MESSAGE_ID and first["PRIORITY"] == 2
    assert first["MESSAGE"].startswith("nvidia_xid 79 on 0000:04:00: the GPU has fallen off the bus")
    assert journal.events[1]["VLLM_INCIDENT"] == first["VLLM_INCIDENT"] != journal.events[2]["VLLM_INCIDENT"]
    assert subject.state.counters["nvidia_xid|79|0000:04:00"] == 3


def test_a_new_incident_after_a_quiet_time_or_a_new_start_of_the_host(journal):
    subject = journal.start()
    for seconds, boot in ((0, "boot-1"), (3599, "boot-1"), (3601, "boot-1"), (1, "boot-2")):
        journal.now += seconds
        journal.boot = boot
        subject.take(journal.add(OFF))
    assert len(journal.events) == 3


def test_a_flood_is_counted_and_stays_small(journal):
    subject = journal.start()
    line = journal.add(OFF)
    for _ in range(20_000):
        subject.take(line)
    for number in range(3000):
        subject.take(journal.add(f"NVRM: Xid (PCI:{number:04x}:04:00): 31, x"))
    subject.take(line)
    subject.save()
    assert subject.state.counters["nvidia_xid|79|0000:04:00"] == 20_001
    assert sum(subject.state.counters.values()) == 23_001
    assert len(subject.state.counters) <= watch.MOST_SERIES + 1
    assert len(subject.state.incidents) <= watch.MOST_INCIDENTS
    assert (journal.folder / "state.json").stat().st_size < 1_000_000


def test_metrics_are_in_the_format_of_the_collector(journal):
    subject = journal.start()
    subject.take(journal.add(OFF))
    subject.save()
    text = (journal.folder / "accelerator_watch.prom").read_text()
    assert 'vllm_accelerator_errors_total{rule="nvidia_xid",code="79",device="0000:04:00"} 1\n' in text
    assert "vllm_accelerator_watch_alive_seconds 1800000000\n" in text
    for line in text.splitlines():
        assert re.match(r'(# (HELP|TYPE) \w+ .+|\w+(\{(\w+="([^"\\]|\\.)*",?)+\})? [\d.]+)$', line), line
    assert (journal.folder / "accelerator_watch.prom").stat().st_mode & 0o777 == 0o644
    subject.state.counters = {'a|"\\\n|d': 1}
    assert r'code="\"\\\n"' in subject.state.metrics(0)
    assert sorted(os.listdir(journal.folder)) == ["accelerator_watch.prom", "state.json"]


def test_an_event_as_the_journal_takes_it():
    assert watch.journal_entry({"A": 1, "B": "x\ny"}) == b"A=1\nB\n" + (3).to_bytes(8, "little") + b"x\ny\n"


# --- power cuts ---------------------------------------------------------------------------------------------------


STORY = [OFF, "usb 1-1: new device", PAGE_FAULT, OFF, HEARTBEAT, "x", OFF_BUS, KERNEL_LINES[7][0], PAGE_FAULT, OFF]


@pytest.mark.parametrize("saved_at", range(len(STORY)))
def test_nothing_is_lost_or_doubled_wherever_the_power_goes(tmp_path, saved_at):
    """Cut after any line, with the state of any earlier line on the disk."""
    straight = Journal(tmp_path / "straight")
    straight.folder.mkdir()
    whole = straight.start()
    for message in STORY:
        whole.take(straight.add(message))
    for cut_at in range(saved_at, len(STORY)):
        journal = Journal(tmp_path / str(cut_at))
        journal.folder.mkdir()
        for message in STORY:
            journal.add(message)
        first = journal.start()
        for number, line in enumerate(journal.lines[: cut_at + 1]):
            first.take(line)
            if number == saved_at:
                first.save()
        second = journal.start()
        for line in journal.after(second.state.cursor):
            second.take(line)
        assert second.state.counters == whole.state.counters
        assert second.state.events == whole.state.events
        assert [event["VLLM_EVENT"] for event in journal.events] == [event["VLLM_EVENT"] for event in straight.events]


def test_an_event_that_the_journal_lost_is_sent_again_but_no_old_one(journal):
    subject = journal.start()
    subject.take(journal.add(OFF))
    subject.save()
    journal.events.clear()
    journal.start()
    assert len(journal.events) == 1
    journal.events.clear()
    journal.now += watch.RECONCILE_SECONDS + 1
    journal.start()
    assert journal.events == []


def test_an_event_waits_for_a_journal_that_does_not_answer(journal):
    subject = journal.start()
    journal.broken = True
    subject.take(journal.add(OFF))
    subject.tick()
    assert journal.events == []
    journal.broken = False
    subject.tick()
    subject.tick()
    assert len(journal.events) == 1


def test_a_damaged_state_is_kept_aside(journal):
    (journal.folder / "state.json").write_text("{")
    subject = journal.start()
    assert subject.state.cursor is None
    assert (journal.folder / "state.json.damaged").read_text() == "{"


def test_a_full_disk_does_not_keep_it_from_draining(tmp_path, monkeypatch):
    journal = Journal(tmp_path, hook=["/bin/sh", "-c", f"echo >> {tmp_path}/drained"])
    subject = journal.start()

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(watch, "write_durably", full)
    subject.take(journal.add(OFF))
    finish(subject)
    assert (tmp_path / "drained").read_text() == "\n"


# --- the hook -----------------------------------------------------------------------------------------------------


def finish(subject):
    """Tick until no hook runs."""
    subject.tick()
    deadline = time.monotonic() + 5
    while subject.hook is not None and time.monotonic() < deadline:
        time.sleep(0.005)
        subject.tick()


def hooked(tmp_path, body, **settings):
    script = tmp_path / "hook"
    script.write_text(f"#!/bin/sh\ncd {tmp_path}\n{body}\n")
    script.chmod(0o755)
    return Journal(tmp_path, hook=[str(script)], **settings)


def runs(tmp_path):
    path = tmp_path / "runs"
    return path.read_text().splitlines() if path.exists() else []


NOTE_RUN = 'echo "$VLLM_RULE $VLLM_CODE $VLLM_DEVICE $VLLM_SEVERITY" >> runs'


def test_the_hook_runs_once_for_an_incident(tmp_path):
    journal = hooked(tmp_path, NOTE_RUN)
    subject = journal.start()
    for message in (PAGE_FAULT, OFF, OFF_BUS.replace("b3", "04"), OFF):
        for _ in range(50):
            subject.take(journal.add(message))
        finish(subject)
    journal.now += 1000
    finish(subject)
    again = journal.start()
    finish(again)
    assert runs(tmp_path) == ["nvidia_xid 79 0000:04:00 critical"]
    assert 'hook_total{result="succeeded"} 1' in (tmp_path / "accelerator_watch.prom").read_text()


def test_a_hook_that_fails_is_tried_again_later_and_later_and_given_up(tmp_path):
    journal = hooked(tmp_path, NOTE_RUN + "; exit 3")
    subject = journal.start()
    subject.take(journal.add(OFF))
    seen = []
    for _second in range(100):
        before = len(runs(tmp_path))
        finish(subject)
        seen += [_second] * (len(runs(tmp_path)) - before)
        journal.now += 1
    assert seen == [0, 10, 30]
    assert subject.state.hooks == {"failed": 3, "succeeded": 0}


def test_a_hook_that_succeeds_at_its_second_try(tmp_path):
    journal = hooked(tmp_path, NOTE_RUN + "; test -e tried || { touch tried; exit 1; }")
    subject = journal.start()
    subject.take(journal.add(OFF))
    for _ in range(100):
        finish(subject)
        journal.now += 1
    assert len(runs(tmp_path)) == 2 and subject.state.hooks == {"failed": 1, "succeeded": 1}


def test_a_hook_that_hangs_is_ended_with_its_children(tmp_path):
    journal = hooked(tmp_path, "sleep 600 & echo $! > child; wait", hook_tries=1)
    subject = journal.start()
    subject.take(journal.add(OFF))
    subject.tick()
    deadline = time.monotonic() + 5
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    journal.now += 6
    subject.tick()
    assert subject.hook is None and subject.state.hooks["failed"] == 1
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_run_that_is_cut_off_in_its_hook_runs_it_again_but_not_for_ever(tmp_path):
    journal = hooked(tmp_path, NOTE_RUN)
    journal.start().take(journal.add(OFF))  # cut off before it was saved: nothing has run
    for expected in (1, 2, 3, 3):
        subject = journal.start()
        for line in journal.after(subject.state.cursor):
            subject.take(line)
        subject.tick()
        if subject.hook is not None:
            subject.hook[2].wait()  # it ran, and the power goes before that is noted
        assert len(runs(tmp_path)) == expected
        journal.now += 100


def test_hooks_of_several_devices_run_one_after_the_other(tmp_path):
    journal = hooked(tmp_path, "echo start >> runs; sleep 0.02; echo end >> runs")
    subject = journal.start()
    for number in range(4):
        subject.take(journal.add(OFF.replace("04:00", f"0{number}:00")))
    for _ in range(4):
        finish(subject)
    assert runs(tmp_path) == ["start", "end"] * 4


def test_a_hook_that_cannot_start_is_a_failed_one(tmp_path):
    journal = Journal(tmp_path, hook=[str(tmp_path / "missing")])
    subject = journal.start()
    subject.take(journal.add(OFF))
    subject.tick()
    assert subject.state.hooks["failed"] == 1


# --- as a process -------------------------------------------------------------------------------------------------


def test_a_line_without_end_is_passed_over(tmp_path):
    subject = watch.Journal([])
    reader, writer = os.pipe()
    subject.process = subprocess.Popen(["true"])
    subject.process.wait()
    subject.process.stdout = os.fdopen(reader, "rb", 0)
    found = []
    for piece in (b"a\n", *[b"x" * 60_000] * 40, b"tail\nb\n"):
        os.write(writer, piece)
        found += subject.lines(1)
        assert len(subject.rest) <= watch.LARGEST_LINE
    os.close(writer)
    assert found == [b"a", b"b"]
    subject.process.stdout.close()


# Prints what follows --after-cursor of a file, and then what is added to it.
JOURNALCTL = """
import json, sys, time
cursor = [word.split("=", 1)[1] for word in sys.argv if word.startswith("--after-cursor=")]
path, follow, seen = sys.argv[1], "--follow" in sys.argv, not cursor
stream = open(path)
while True:
    line = stream.readline()
    if not line:
        if not follow:
            break
        time.sleep(0.01)
    elif not seen:
        seen = json.loads(line)["__CURSOR"] == cursor[0]
    elif follow:
        print(line, end="", flush=True)
"""


@pytest.mark.slow
def test_killed_again_and_again_over_a_growing_journal(tmp_path):
    """The events go nowhere, as no journal listens here; counts and the hook tell."""
    (tmp_path / "journalctl.py").write_text(JOURNALCTL)
    (tmp_path / "journal").write_text("")
    command = [sys.executable, str(tmp_path / "journalctl.py"), str(tmp_path / "journal")]
    journal = hooked(tmp_path, "sleep 0.05; " + NOTE_RUN, journalctl=command)
    (tmp_path / "settings.json").write_text(json.dumps(journal.settings))
    journal.now = time.time()

    def grow(stream, message):
        stream.write(journal.add(message).decode() + "\n")
        stream.flush()

    def start():
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path / "settings.json")], stdout=subprocess.DEVNULL
        )

    with open(tmp_path / "journal", "a", encoding="utf-8") as stream:
        for _ in range(5):
            running = start()
            for _ in range(40):
                grow(stream, PAGE_FAULT)
                time.sleep(0.005)
            running.kill()
            running.wait()
        grow(stream, OFF)
        running = start()
        deadline = time.monotonic() + 20
        while not runs(tmp_path) or "succeeded" not in (tmp_path / "accelerator_watch.prom").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=10) == 0
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["counters"] == {"ascend_driver|devmm|0": 200, "nvidia_xid|79|0000:04:00": 1}
    assert runs(tmp_path) == ["nvidia_xid 79 0000:04:00 critical"]


@pytest.mark.parametrize("change", [{"rules": [{}]}, {"engine_units": "("}, {"state": None}])
def test_a_configuration_that_no_restart_can_cure(tmp_path, change, capsys):
    journal = Journal(tmp_path, **change)
    if change == {"state": None}:
        del journal.settings["state"]
    (tmp_path / "settings.json").write_text(json.dumps(journal.settings))
    assert watch.main([str(tmp_path / "settings.json")]) == 78
    assert "configuration:" in capsys.readouterr().out
