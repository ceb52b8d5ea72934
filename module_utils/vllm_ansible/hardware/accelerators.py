# SPDX-License-Identifier: Apache-2.0
"""Accelerators: PCI says which are there, the vendor's tool adds what only the driver knows."""

from ansible.module_utils.vllm_ansible.hardware import npu_smi, nvidia_smi, pci
from ansible.module_utils.vllm_ansible.hardware.values import word

# Huawei's NPUs by PCI device id; other functions of that vendor are NICs and bridges of the Kunpeng itself.
NPU_DEVICES = frozenset(("d100", "d105", "d107", "d500", "d801", "d802", "d803", "d806"))
# Display controllers (VGA, 3D). An NVSwitch is a bridge (0680) and no accelerator.
GPU_CLASSES = frozenset(("0300", "0302"))

# ldconfig does not know the driver's libraries on every installation, and this shell has read no set_env.sh.
_NPU_LIBRARIES = ":".join("/usr/local/Ascend/driver/lib64" + part for part in ("/common", "/driver", ""))


def gather_accelerators(host, warn):
    """Return the ``accelerators`` facts, ordered by PCI address, one entry per chip."""
    npus, gpus = [], []
    for address, function in sorted(pci.gather_functions(host).items()):
        if function["vendor"] == "19e5" and function["device"] in NPU_DEVICES:
            npus.append(_entry(host, "npu", "huawei", address, function))
        elif function["vendor"] == "10de" and function["class"] in GPU_CLASSES:
            gpus.append(_entry(host, "gpu", "nvidia", address, function))
    if npus:
        npus = _enrich_npus(host, npus, warn)
    if gpus:
        _enrich_gpus(host, gpus, warn)
    return sorted(npus + gpus, key=lambda entry: (entry["pci"], -1 if entry["index"] is None else entry["index"]))


def _entry(host, kind, vendor, address, function):
    return {
        "kind": kind,
        "vendor": vendor,
        "pci": address,
        "device_id": f"{function['vendor']}:{function['device']}",
        "index": None,
        "model": None,
        "memory_bytes": None,
        "numa_node": pci.numa_node(host, address),
        "health": None,
        "driver": None,
    }


def _enrich_npus(host, npus, warn):
    """Return one entry per chip that npu-smi lists on these functions; a 300I Duo has two chips on one function."""
    version = npu_smi.parse_version_info(host.read("/usr/local/Ascend/driver/version.info"))
    for entry in npus:
        entry["driver"] = version
    answers = {
        option: host.run(["npu-smi", "info"] + option.split(), environment={"LD_LIBRARY_PATH": _NPU_LIBRARIES})
        for option in ("", "-m", "-l")
    }
    if answers[""] is None:
        warn("W_NPU_TOOL", "NPUs are present but npu-smi is not installed: model, memory and health are unknown")
        return npus
    code, output, error = answers[""]
    info = npu_smi.parse_info(output)
    if code != 0 or not info["chips"]:
        reason = word(output + error) or f"exit status {code}"
        if npu_smi.NO_DRIVER in reason and host.system()["euid"] != 0:
            reason += " (an ordinary user gets this on a healthy machine too: use become)"
        warn("W_NPU_DRIVER", f"npu-smi cannot read the NPUs: {reason}")
        return npus
    mapping = npu_smi.parse_mapping(answers["-m"][1]) if answers["-m"] else []
    logic_ids = {(chip["npu"], chip["chip"]): chip["logic_id"] for chip in mapping}
    listed = npu_smi.parse_list(answers["-l"][1])["total"] if answers["-l"] else None
    result = []
    for entry in npus:
        chips = [chip for chip in info["chips"] if chip["pci"] == entry["pci"]]
        result += [
            dict(
                entry,
                index=logic_ids.get((chip["npu"], chip["chip"]), chip["phy_id"]),
                model=chip["name"],
                memory_bytes=chip["memory_bytes"],
                health=chip["health"],
                driver=info["version"] or version,
            )
            for chip in chips
        ]
        if not chips:
            warn("W_NPU_LOST", f"PCI lists the NPU {entry['pci']} but npu-smi does not: it has failed or is not ready")
            result.append(entry)
    if listed is not None and listed != len({chip["npu"] for chip in info["chips"]}):
        warn("W_NPU_COUNT", f"`npu-smi info -l` counts {listed} NPUs, `npu-smi info` shows another number")
    return result


def _enrich_gpus(host, gpus, warn):
    answer = host.run(list(nvidia_smi.COMMAND))
    if answer is None:
        warn("W_GPU_TOOL", "GPUs are present but nvidia-smi is not installed: model, memory and driver are unknown")
        return
    code, output, error = answer
    if code != 0:
        warn("W_GPU_DRIVER", f"nvidia-smi cannot read the GPUs: {word(output + error) or f'exit status {code}'}")
        return
    found = {gpu["pci"]: gpu for gpu in nvidia_smi.parse_query(output)}
    for entry in gpus:
        gpu = found.get(entry["pci"])
        if gpu is None:
            warn("W_GPU_LOST", f"PCI lists the GPU {entry['pci']} but nvidia-smi does not: it has failed")
            continue
        entry.update(index=gpu["index"], model=gpu["name"], memory_bytes=gpu["memory_bytes"], driver=gpu["driver"])
