# SPDX-License-Identifier: Apache-2.0
"""Versions of the vendors' software, from the vendors' own files; their tools only where no file says it."""

import json
import re

from ansible.module_utils.vllm_ansible.hardware.npu_smi import parse_version_info
from ansible.module_utils.vllm_ansible.hardware.nvidia_smi import parse_banner
from ansible.module_utils.vllm_ansible.hardware.values import known, named_values, word

ASCEND_ROOT = "/usr/local/Ascend"
ASCEND_INSTALL_INFO = "/etc/ascend_install.info"
NVIDIA_MODULE = "/proc/driver/nvidia/version"
FABRIC_MANAGER = "nvidia-fabricmanager"
NOUVEAU = "/sys/module/nouveau"
# Where distributions keep the driver's libraries; the name that programs load is a link to the one with the version.
LIBRARY = "libnvidia-ml.so.1"
LIBRARIES = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")


def ascend_root(host):
    """Return the directory that the Ascend driver was installed to."""
    return known(named_values(host.read(ASCEND_INSTALL_INFO), "=").get("Driver_Install_Path_Param")) or ASCEND_ROOT


def parse_install_info(text):
    """Parse an ``ascend_…_install.info``: {"kind", "version", "path"}, or None when it names no version.

    ``kind`` is the package without its family: toolkit, nnal, nnrt, 910b-ops, kernels-910b …
    """
    values = named_values(text, "=")
    version = known(values.get("version"))
    if version is None:
        return None
    kind = re.sub(r"\A(?:Ascend|Atlas-A3)-cann-", "", values.get("package_name", "")) or None
    return {"kind": kind, "version": version, "path": known(values.get("path"))}


def parse_atb_version(text):
    """Return the version in the ``version.info`` of NNAL's transformer library, or None."""
    return known(named_values(text).get("Ascend-cann-atb"))


def parse_module_version(text):
    """Parse /proc/driver/nvidia/version: {"driver", "kernel_module": "open" or "proprietary"}, or both None."""
    match = re.search(r"^NVRM version:\s*NVIDIA UNIX (.*?)\s([0-9]+(?:\.[0-9]+)+)\s", text or "", re.MULTILINE)
    if match is None:
        return {"driver": None, "kernel_module": None}
    return {
        "driver": match.group(2),
        "kernel_module": "open" if "Open Kernel Module" in match.group(1) else "proprietary",
    }


def parse_library(link):
    """Return the version in ``libnvidia-ml.so.580.126.09``, where a library's link leads to, or None."""
    match = re.search(r"libnvidia-ml\.so\.([0-9]+(?:\.[0-9]+)+)\Z", link or "")
    return match.group(1) if match else None


def parse_cuda_version(text):
    """Return the version in a toolkit's ``version.json`` or, of an old one, ``version.txt``; or None."""
    try:
        document = json.loads(text or "")
    except (ValueError, RecursionError):
        match = re.search(r"CUDA Version ([0-9][0-9.]*)", text or "")
        return match.group(1) if match else None
    cuda = document.get("cuda") if isinstance(document, dict) else None
    version = cuda.get("version") if isinstance(cuda, dict) else None
    return word(version) if isinstance(version, str) else None


def parse_fabric_manager(text):
    """Return the version that ``nv-fabricmanager --version`` prints, or None."""
    match = re.search(r"Fabric Manager version is\s*:\s*([0-9][0-9.]*)", text or "")
    return match.group(1) if match else None


def parse_ofed(text):
    """Return what ``ofed_info -s`` prints without its colon, or None."""
    match = re.match(r"\s*(\S*OFED\S*?|\S*DOCA\S*?):?\s*\Z", (text or "").splitlines()[0] if text else "")
    return match.group(1) if match else None


def gather_software(host):
    """Return the ``software`` facts. What is not installed is null or []; nothing here is missed on a CPU host."""
    root = ascend_root(host)
    ofed = host.run(["ofed_info", "-s"])
    module = host.read(NVIDIA_MODULE)
    screen = host.run(["nvidia-smi"]) if module is not None else None
    return {
        "ascend": {
            "driver": parse_version_info(host.read(root + "/driver/version.info")),
            "firmware": parse_version_info(host.read(root + "/firmware/version.info")),
            "cann": _cann(host),
        },
        "nvidia": {
            **parse_module_version(module),
            "library": next(filter(None, (parse_library(host.read_link(f"{d}/{LIBRARY}")) for d in LIBRARIES)), None),
            "nouveau": host.exists(NOUVEAU),
            "cuda": parse_banner(screen[1])["cuda"] if screen is not None else None,
            "cuda_toolkits": _cuda_toolkits(host),
            "fabric_manager": _fabric_manager(host),
        },
        "ofed": parse_ofed(ofed[1]) if ofed is not None else None,
    }


def _cann(host):
    """Return [{"path", "version", "kind"}] of the CANN packages, each once although links lead to it.

    Up to 8.3 the toolkit is ascend-toolkit/<version>, since 8.5 cann-<version>; each package keeps a record in the
    directory of its architecture. NNAL keeps its version beside the transformer library.
    """
    machine = host.system()["machine"]
    places = [f"{ASCEND_ROOT}/{name}" for name in host.list_directory(ASCEND_ROOT) if name.startswith("cann-")]
    for name in host.list_directory(ASCEND_ROOT + "/ascend-toolkit"):
        places.append(f"{ASCEND_ROOT}/ascend-toolkit/{name}")
    packages = {}
    for place in sorted({host.real_path(place) for place in places}):
        directory = f"{place}/{machine}-linux"
        for name in host.list_directory(directory):
            if re.match(r"ascend_\w+_install\.info\Z", name):
                record = parse_install_info(host.read(f"{directory}/{name}"))
                if record is not None:
                    packages[(place, record["kind"])] = {
                        "path": place,
                        "version": record["version"],
                        "kind": record["kind"],
                    }
    library = ASCEND_ROOT + "/nnal/atb"
    for place in sorted({host.real_path(f"{library}/{name}") for name in host.list_directory(library)}):
        version = parse_atb_version(host.read(place + "/version.info"))
        if version is not None:
            packages[(place, "nnal")] = {"path": place, "version": version, "kind": "nnal"}
    return [packages[key] for key in sorted(packages, key=str)]


def _cuda_toolkits(host):
    """Return [{"path", "version"}] of the CUDA toolkits in /usr/local, each once although ``cuda`` links to one."""
    places = [f"/usr/local/{name}" for name in host.list_directory("/usr/local") if re.match(r"cuda(?:-|\Z)", name)]
    toolkits = []
    for place in sorted({host.real_path(place) for place in places}):
        version = parse_cuda_version(host.read(place + "/version.json") or host.read(place + "/version.txt"))
        if version is not None:
            toolkits.append({"path": place, "version": version})
    return toolkits


def _fabric_manager(host):
    """Return {"version", "active"} of NVIDIA's fabric manager, or None when it is not installed."""
    answer = host.run(["nv-fabricmanager", "--version"])
    if answer is None:
        return None
    state = host.run(["systemctl", "is-active", FABRIC_MANAGER])
    return {
        "version": parse_fabric_manager(answer[1] + answer[2]),
        "active": state is not None and state[1].strip() == "active",
    }
