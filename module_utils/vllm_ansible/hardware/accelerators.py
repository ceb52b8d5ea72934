# SPDX-License-Identifier: Apache-2.0
"""Accelerators: PCI says which are there, the vendor's tool adds what only the driver knows."""

from typing import Any, Dict, List, Tuple

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist, read_cpulist
from ansible.module_utils.vllm_ansible.hardware import hccn, npu_smi, nvidia_smi, pci, topology
from ansible.module_utils.vllm_ansible.hardware.cgroup import unit_of
from ansible.module_utils.vllm_ansible.hardware.software import (
    NVIDIA_MODULE,
    ascend_root,
    parse_module_version,
)
from ansible.module_utils.vllm_ansible.hardware.values import word

# Huawei's NPUs by PCI device id; other functions of that vendor are NICs and bridges of the Kunpeng itself.
NPU_DEVICES = frozenset(("d100", "d105", "d107", "d500", "d801", "d802", "d803", "d806"))
# The 950 knows no chips inside an NPU, and its npu-smi no option for one.
ONE_CHIP = "19e5:d806"
# Display controllers (VGA, 3D). An NVSwitch is a bridge (0680) and no accelerator.
GPU_CLASSES = frozenset(("0300", "0302"))
NVSWITCH_CLASS = "0680"

# The health of a device that PCI lists and its tool does not, or cannot read; all other words are the tools' own.
HEALTHY = "OK"
LOST = "Lost"
WARNING = "Warning"


def gather_accelerators(host, nodes, warn):
    """Return the facts about accelerators.

    Args:
        nodes: the ``numa.nodes`` facts, for the node of a device whose CPUs are known and whose node is not.
    Returns:
        {"accelerators", "accelerator_links", "hccn", "nvswitches"}; accelerators ordered by PCI address, one entry
        per chip.
    """
    npus, gpus, switches = [], [], 0
    for address, function in sorted(pci.gather_functions(host).items()):
        if function["vendor"] == "19e5" and function["device"] in NPU_DEVICES:
            npus.append(_entry(host, "npu", "huawei", address, function))
        elif function["vendor"] == "10de" and function["class"] in GPU_CLASSES:
            gpus.append(_entry(host, "gpu", "nvidia", address, function))
        elif function["vendor"] == "10de" and function["class"] == NVSWITCH_CLASS:
            switches += 1
    links, ports = [], []
    if npus:
        npus, links, ports = _enrich_npus(host, npus, warn)
    if gpus:
        links += _enrich_gpus(host, gpus, warn)
    found = sorted(npus + gpus, key=lambda entry: (entry["pci"], -1 if entry["chip"] is None else entry["chip"]))
    for entry in found:
        _place(entry, nodes)
    return {"accelerators": found, "accelerator_links": links, "hccn": ports, "nvswitches": switches}


def _entry(host, kind, vendor, address, function):
    return {
        "kind": kind,
        "vendor": vendor,
        "pci": address,
        "device_id": f"{function['vendor']}:{function['device']}",
        "subsystem": function["subsystem"],
        "link": pci.link(host, address),
        "slot": pci.slot(host, address),
        "numa_node": pci.numa_node(host, address),
        "cpus": pci.near_cpus(host, address),
        "index": None,
        "board": None,
        "chip": None,
        "phy_id": None,
        "uuid": None,
        "model": None,
        "soc": None,
        "memory_bytes": None,
        "used_bytes": None,
        "health": None,
        "problems": [],
        "driver": None,
        "firmware": None,
        "compatibility": None,
        "processes": None,
        "mig": None,
        "ecc_uncorrected": None,
    }


def _place(entry, nodes):
    """Fill in the NUMA node of a device from its CPUs, or its CPUs from its node, where one of them is unknown."""
    if entry["numa_node"] is None and entry["cpus"]:
        near = set(read_cpulist(entry["cpus"]) or ())
        holding = [node["id"] for node in nodes if near & set(read_cpulist(node["cpus"]) or ())]
        if len(holding) == 1 and len(nodes) > 1:
            entry["numa_node"] = holding[0]
    elif entry["cpus"] is None and entry["numa_node"] is not None:
        entry["cpus"] = next((node["cpus"] for node in nodes if node["id"] == entry["numa_node"]), None) or None


def _enrich_npus(host, npus, warn):
    """Return (entries, links, ports); a 300I Duo has two chips on one function and therefore two entries."""
    root = ascend_root(host)
    # ldconfig does not know the driver's libraries on every installation, and this shell has read no set_env.sh.
    environment = {"LD_LIBRARY_PATH": ":".join(root + "/driver/lib64" + part for part in ("/common", "/driver", ""))}
    version = npu_smi.parse_version_info(host.read(root + "/driver/version.info"))
    for entry in npus:
        entry["driver"] = version

    def ask(options):
        answer = host.run(["npu-smi", "info"] + options.split(), environment=environment)
        return answer or (127, "", "")

    answer = host.run(["npu-smi", "info"], environment=environment)
    if answer is None:
        warn("W_NPU_TOOL", "NPUs are present but npu-smi is not installed: model, memory and health are unknown")
        return npus, [], []
    code, output, error = answer
    info = npu_smi.parse_info(output)
    if not info["chips"]:
        reason = word(output + error) or f"exit status {code}"
        if host.system()["euid"] != 0:
            warn(
                "W_NPU_NOT_ROOT",
                f"npu-smi tells an ordinary user nothing, also on a healthy machine: use become ({_short(reason)})",
            )
        else:
            warn("W_NPU_DRIVER", f"npu-smi cannot read the NPUs: {_short(reason)}")
        return npus, [], []
    mapping = {(chip["npu"], chip["chip"]): chip for chip in npu_smi.parse_mapping(ask("-m")[1])}
    chips = info["chips"]
    processes = _processes(host, output)
    single = len({chip["npu"] for chip in chips}) == len(chips)
    for chip in chips:
        known = mapping.get((chip["npu"], chip["chip"]), {})
        if chip["phy_id"] is None:
            # Without a column for it, boards have one chip each and NPU id N is /dev/davinciN.
            chip["phy_id"] = chip["npu"] if known.get("phy_id") is None and single else known.get("phy_id")
        chip["index"] = known.get("logic_id")
        if chip["index"] is None:
            chip["index"] = chip["phy_id"]
    boards = {npu: npu_smi.parse_board(ask(f"-t board -i {npu}")[1]) for npu in sorted({c["npu"] for c in chips})}
    entries = []
    for chip in chips:
        board = boards[chip["npu"]]
        chip["pci"] = chip["pci"] or board["pci"]
        function = next((entry for entry in npus if entry["pci"] == chip["pci"]), None)
        if function is None:
            warn("W_NPU_COUNT", f"npu-smi lists NPU {chip['npu']} at {chip['pci']}, where PCI has none")
            continue
        entries.append(_npu(function, chip, board, board["driver"] or info["version"] or version))
        if processes is not None:
            entries[-1]["processes"] = processes.get((chip["npu"], chip["chip"]), [])
        _examine(entries[-1], ask)
    for entry in npus:
        if entry["pci"] not in {other["pci"] for other in entries}:
            warn("W_NPU_LOST", f"PCI lists the NPU {entry['pci']} but npu-smi does not: it has failed or is not ready")
            lost = "PCI lists it, npu-smi does not: it has failed or is not ready"
            entries.append(dict(entry, health=LOST, problems=[lost]))
    listed = npu_smi.parse_list(ask("-l")[1])["total"]
    if listed is not None and listed != len(boards):
        warn("W_NPU_COUNT", f"`npu-smi info -l` counts {listed} NPUs, `npu-smi info` shows {len(boards)}")
    for npu, board in boards.items():
        if board["compatibility"] not in (None, "OK"):
            warn("W_NPU_FIRMWARE", f"driver and firmware of NPU {npu} do not match: {board['compatibility']}")
        if board["driver"] and version and board["driver"] != version:
            warn("W_NPU_REBOOT", f"NPU {npu} runs driver {board['driver']}, {version} is installed: reboot the host")
    _warn_sick(entries, warn)
    links = _links(npu_smi_topology(ask, entries), entries, "npu")
    return entries, links, hccn.gather_hccn(host, entries, environment, warn)


def _npu(function, chip, board, driver):
    return dict(
        function,
        index=chip["index"],
        board=chip["npu"],
        chip=chip["chip"],
        phy_id=chip["phy_id"],
        model=chip["name"],
        soc=chip["name"],
        memory_bytes=chip["memory_bytes"],
        used_bytes=chip["used_bytes"],
        health=chip["health"],
        problems=[],
        driver=driver,
        firmware=board["firmware"],
        compatibility=board["compatibility"],
    )


def _processes(host, output):
    """Return {(NPU, chip): its processes} of ``npu-smi info``, or None when it shows no table of them."""
    table = npu_smi.parse_processes(output)
    if table is None:
        return None
    found: Dict[Tuple[int, int], List[Dict[str, Any]]] = {}
    for row in table:
        unit = unit_of(host.read(f"/proc/{row['pid']}/cgroup"))
        entry = {"pid": row["pid"], "name": row["name"], "memory_bytes": row["memory_bytes"], "unit": unit}
        found.setdefault((row["npu"], row["chip"]), []).append(entry)
    return found


def _examine(entry, ask):
    """Ask further about a chip that is not healthy, or whose memory the overview does not show."""
    if entry["health"] != HEALTHY:
        chip = "" if entry["device_id"] == ONE_CHIP else f" -c {entry['chip']}"
        detail = npu_smi.parse_health(ask(f"-t health -i {entry['board']}{chip}")[1])
        parts = [f"npu-smi says {entry['health'] or 'nothing of its health'}"]
        parts += [f"error code {detail['code']}"] if detail["code"] else []
        parts += [detail["information"]] if detail["information"] else []
        entry["problems"].append(_short(", ".join(parts)))
        entry["health"] = entry["health"] or detail["status"] or "UNKNOWN"
    if entry["memory_bytes"] is None:
        usages = npu_smi.parse_usages(ask(f"-t usages -i {entry['board']}")[1])
        entry.update(usages.get(entry["chip"], {}))


def npu_smi_topology(ask, entries):
    """Return the topology of the NPUs by the positions of their entries, and note the CPUs near each."""
    matrix = topology.parse_matrix(ask("-t topo")[1])

    def position(name):
        prefix, number = topology.device_number(name)
        key = "phy_id" if prefix == "Phy-ID" else "board"
        found = [place for place, entry in enumerate(entries) if entry[key] == number]
        return found[0] if prefix != "GPU" and len(found) == 1 else None

    return _positions(matrix, position, entries)


def _positions(matrix, position, entries):
    for name, cpus in matrix["cpus"].items():
        place = position(name)
        if place is not None:
            entries[place]["cpus"] = format_cpulist(read_cpulist(cpus) or ()) or entries[place]["cpus"]
    links = {}
    for names, link in matrix["links"].items():
        first, second = (position(name) for name in names)
        if first is not None and second is not None:
            links[(first, second)] = link
    return links


def _links(links, entries, kind):
    """Return the ``accelerator_links`` facts of links between positions: by index, each pair once, ordered."""
    result = []
    for (first, second), link in links.items():
        numbers = [entries[first]["index"], entries[second]["index"]]
        if None not in numbers and numbers[0] != numbers[1]:
            result.append({"a": min(numbers), "b": max(numbers), "kind": kind, "link": link})
    return sorted(result, key=lambda entry: (entry["a"], entry["b"]))


def _enrich_gpus(host, gpus, warn):
    """Add what nvidia-smi knows to the entries; return the links between them."""
    fields = list(nvidia_smi.FIELDS)
    answer = host.run(nvidia_smi.query(fields))
    if answer is None:
        warn("W_GPU_TOOL", "GPUs are present but nvidia-smi is not installed: model, memory and driver are unknown")
        return []
    while nvidia_smi.parse_unknown_field(answer[1] + answer[2]) in fields:
        fields.remove(nvidia_smi.parse_unknown_field(answer[1] + answer[2]))
        answer = host.run(nvidia_smi.query(fields)) or (127, "", "")
    code, output, error = answer
    found = {gpu["pci"]: gpu for gpu in nvidia_smi.parse_query(output)}
    lost = nvidia_smi.parse_lost(output + "\n" + error)
    if not found and not lost:
        reason = _short(word(output + error) or f"exit status {code}")
        loaded = parse_module_version(host.read(NVIDIA_MODULE))["driver"]
        library = nvidia_smi.parse_library_version(output + error)
        if library and loaded and library != loaded:
            reason += f"; the loaded kernel module is {loaded}: reboot or reload the modules"
        warn("W_GPU_DRIVER", f"nvidia-smi cannot read the GPUs: {reason}")
        return []
    for entry in gpus:
        gpu = found.get(entry["pci"])
        if gpu is not None:
            _gpu(entry, gpu)
        reason = lost.get(entry["pci"]) or (gpu["lost"] if gpu else "nvidia-smi does not list it")
        if reason:
            warn("W_GPU_LOST", f"the GPU {entry['pci']} does not answer: {_short(reason)}")
            entry.update(health=LOST, problems=[_short(f"it does not answer: {reason}")])
    _warn_sick(gpus, warn)
    answer = host.run(["nvidia-smi", "topo", "-m"]) or (127, "", "")
    matrix = topology.parse_matrix(answer[1])

    def position(name):
        prefix, number = topology.device_number(name)
        places = [place for place, entry in enumerate(gpus) if entry["index"] == number]
        return places[0] if prefix == "GPU" and len(places) == 1 else None

    return _links(_positions(matrix, position, gpus), gpus, "gpu")


def _gpu(entry, gpu):
    entry.update(
        index=gpu["index"],
        board=gpu["index"],
        chip=0,
        uuid=gpu["uuid"],
        model=gpu["name"],
        memory_bytes=gpu["memory_bytes"],
        used_bytes=gpu["used_bytes"],
        driver=gpu["driver"],
        mig=gpu["mig"],
        ecc_uncorrected=gpu["ecc_uncorrected"],
        health=HEALTHY,
    )
    if gpu["ecc_uncorrected"]:
        entry["health"] = WARNING
        entry["problems"] = [
            f"{gpu['ecc_uncorrected']} uncorrectable memory errors since the driver was loaded: drain and reset it"
        ]


def _warn_sick(entries, warn):
    for entry in entries:
        if entry["health"] not in (None, HEALTHY, LOST):
            code = "W_NPU_SICK" if entry["kind"] == "npu" else "W_GPU_SICK"
            warn(code, f"the {entry['kind'].upper()} {entry['pci']} is not healthy: {'; '.join(entry['problems'])}")


def _short(text):
    """Return a tool's words on one line of a bounded length."""
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:299] + "…"
