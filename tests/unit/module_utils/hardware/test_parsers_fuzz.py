# SPDX-License-Identifier: Apache-2.0
"""Nothing in a vendor's output makes a parser or the whole gathering raise, or gives facts of the wrong shape."""

import json
import re
import time

import pytest
from ansible.module_utils.vllm_ansible.binding import parse_dropin, parse_numa_maps
from ansible.module_utils.vllm_ansible.hardware import (
    clock,
    hccn,
    kernel,
    memory,
    network,
    npu_smi,
    nvidia_smi,
    rdma,
    software,
    storage,
    topology,
    values,
)
from ansible.module_utils.vllm_ansible.hardware.facts import gather_hardware
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.hardware_machines import MACHINES, ReplayHost, load_machine

ACCELERATED = (
    "atlas-800i-a2", "atlas-800i-a3", "atlas-800i-a3-old", "atlas-300i-pro", "atlas-300i-duo",
    "h200-8", "a100-4", "l20-2",
)  # fmt: skip
HOSTS = {name: load_machine(MACHINES / name) for name in ACCELERATED}
VENDORS = ("/usr/local", "/etc", "/proc/driver", "/boot/grub2")
OUTPUTS = sorted(
    {output for host in HOSTS.values() for _, output, _ in host.commands.values()}
    | {path.read_text() for path in (MACHINES / "captures").glob("*.txt")}
    | {text for host in HOSTS.values() for path, text in host.files.items() if path.startswith(VENDORS)}
)  # fmt: skip


def parse_entry(text):
    return kernel.parse_entry(text, "id")


PARSERS = (
    parse_entry,
    npu_smi.parse_info,
    npu_smi.parse_mapping,
    npu_smi.parse_list,
    npu_smi.parse_board,
    npu_smi.parse_health,
    npu_smi.parse_usages,
    npu_smi.parse_version_info,
    npu_smi.parse_processes,
    nvidia_smi.parse_query,
    nvidia_smi.parse_lost,
    nvidia_smi.parse_unknown_field,
    nvidia_smi.parse_banner,
    nvidia_smi.parse_library_version,
    topology.parse_matrix,
    hccn.parse_address,
    hccn.parse_gateway,
    hccn.parse_link,
    hccn.parse_health,
    hccn.parse_tls,
    hccn.parse_configuration,
    hccn.parse_speed,
    clock.parse_timedatectl,
    kernel.parse_grubenv,
    kernel.parse_menu,
    kernel.parse_secure_boot,
    kernel.release_of,
    kernel.natural,
    memory.parse_modules,
    storage.parse_block_name,
    rdma.parse_state,
    software.parse_install_info,
    software.parse_atb_version,
    software.parse_module_version,
    software.parse_cuda_version,
    software.parse_fabric_manager,
    software.parse_library,
    software.parse_ofed,
    values.named_values,
    values.decimal,
    values.integer,
    values.known,
    network.parse_ip_json,
)
NUMA_MAPS = "7f00 bind:1 anon=13 dirty=13 N0=3 N1=10 kernelpagesize_kB=4\n7f10 bind:1 file=/x anon=1 N0=9\n"
NOISE = [
    "",
    "|",
    "\n",
    " / ",
    "-",
    "NA",
    "[N/A]",
    "[GPU is lost]",
    "\x00",
    "\x1b[4m",
    "\ud800",
    "9" * 400,
    "-1",
    "٣",
    "²",
    ",",
    "\t",
    ":",
]


def damage(text, choice):
    """Return a capture as a broken tool, terminal or next version of it may print it.

    ``choice`` is a :class:`random.Random`: lines are cut, doubled, dropped or moved, columns swapped or given another
    width, pieces replaced by noise.
    """
    for _ in range(choice.randint(1, 5)):
        lines = text.splitlines(keepends=True) or [""]
        place = choice.randrange(len(lines))
        line = lines[place]
        kind = choice.randrange(8)
        if kind == 0:
            lines[place] = line[: choice.randint(0, len(line))]
        elif kind == 1:
            lines[place] = line * 2
        elif kind == 2:
            del lines[place]
        elif kind == 3:
            lines.insert(choice.randrange(len(lines)), lines.pop(place))
        elif kind == 4:
            mark = choice.choice(["|", ",", "  ", "\t", ":"])
            cells = line.split(mark)
            choice.shuffle(cells)
            lines[place] = mark.join(cells)
        elif kind == 5:
            width = choice.choice(["", " ", "     ", "\t"])
            lines[place] = re.sub(r" {2,}", width, line)
        elif kind == 6:
            at = choice.randint(0, len(line))
            lines[place] = line[:at] + choice.choice(NOISE) + line[at + choice.randint(0, 12) :]
        else:
            lines[place] = re.sub(r"\d+", choice.choice(NOISE), line, count=choice.randint(1, 4))
        text = "".join(lines)
    return text


def test_numa_maps_count_private_memory_by_page_size():
    assert parse_numa_maps(NUMA_MAPS) == {0: 3 * 4096, 1: 10 * 4096}
    huge = "7f00 default anon=2 huge N0=2 kernelpagesize_kB=2048\n8000 default anon=1 N1=1 kernelpagesize_kB=64\n"
    assert parse_numa_maps(huge) == {0: 2 * 2048 * 1024, 1: 64 * 1024}


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: f"{parse.__module__.rsplit('.', 1)[-1]}.{parse.__name__}")
@settings(deadline=None, max_examples=70)  # machines that run tests are busy
@given(st.sampled_from(OUTPUTS), st.randoms(use_true_random=False))
def test_no_damaged_output_makes_a_parser_raise(parse, text, choice):
    json.dumps(str(parse(damage(text, choice))))


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: f"{parse.__module__.rsplit('.', 1)[-1]}.{parse.__name__}")
@settings(deadline=None, max_examples=50)
@given(st.text())
def test_no_text_makes_a_parser_raise(parse, text):
    parse(text)


@pytest.mark.parametrize(
    "piece", ["| ", "0", " ", "A: ", "[ ]", "NPU0 X ", "GPU 0000:", "| 0 ", "\t-", "pci.bus_id,", "a\n"]
)
def test_endless_lines_are_read_in_no_time(piece):
    text = piece * (100_000 // len(piece))
    for parse in PARSERS:
        before = time.process_time()
        parse(text)
        parse("NPU ID  Chip ID\n| NPU  Name | Health | x |\n| Chip | Bus-Id | y |\n" + text)
        assert time.process_time() - before < 5, parse


@settings(deadline=None, max_examples=150)
@given(st.sampled_from([text for text in OUTPUTS if "Bus-Id" in text]), st.randoms(use_true_random=False))
def test_damaged_npu_smi_info_gives_only_well_formed_chips(text, choice):
    chips = npu_smi.parse_info(damage(text, choice))["chips"]
    for chip in chips:
        assert isinstance(chip["npu"], int)
        assert isinstance(chip["chip"], int)
        assert isinstance(chip["name"], str)
        assert chip["memory_bytes"] is None or chip["memory_bytes"] > 0
        assert chip["used_bytes"] is None or chip["used_bytes"] >= 0
        assert chip["pci"] is None or re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", chip["pci"])
    assert len({(chip["npu"], chip["chip"]) for chip in chips}) == len(chips)


@pytest.mark.parametrize("name", ACCELERATED)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(choice=st.randoms(use_true_random=False))
def test_a_machine_whose_tools_misbehave_is_described_all_the_same(name, choice):
    host = HOSTS[name]
    commands, files = dict(host.commands), dict(host.files)
    for command in sorted(commands):
        code, output, error = commands[command]
        fate = choice.randrange(10)
        if fate == 0:
            del commands[command]
        elif fate == 1:
            commands[command] = (choice.choice([1, 9, 124, 137, 255]), "", output)
        elif fate < 6:
            commands[command] = (code, damage(output, choice), error)
    for path in choice.sample(sorted(files), 20):
        files[path] = damage(files[path], choice)
    facts = gather_hardware(ReplayHost(host.machine, files, host.links, commands))
    text = json.dumps(facts)
    assert json.loads(text) == facts
    assert len(text) < 200_000
    assert "\x1b" not in text
    indexes = {entry["index"] for entry in facts["accelerators"]}
    for entry in facts["accelerators"]:
        assert entry["kind"] in ("npu", "gpu")
        assert isinstance(entry["problems"], list)
        assert entry["memory_bytes"] is None or 0 < entry["memory_bytes"] < 2**90
        assert entry["index"] is None or entry["index"] >= 0
    for link in facts["accelerator_links"]:
        assert link["a"] < link["b"]
        assert {link["a"], link["b"]} <= indexes


@settings(deadline=None)
@given(st.text())
def test_drop_ins_and_numa_maps_may_hold_anything(text):
    assert set(parse_dropin(text)) == {"managed", "cpus", "memory_nodes"}
    assert isinstance(parse_numa_maps(text), dict)
