# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver on a host: what is installed, built, loaded and what it answers, against the version of the plan.

Findings are {"code", "seen", "todo"}: what was seen and what to do, for a person. Exit codes of nvidia-smi: its manual
page; of the mismatch also github anderskm/gputil#55.
"""

import re
from typing import Dict, List, NamedTuple, Optional

from ansible.module_utils.vllm_ansible.hardware import nvidia_smi, pci
from ansible.module_utils.vllm_ansible.hardware.accelerators import GPU_CLASSES
from ansible.module_utils.vllm_ansible.hardware.software import (
    FABRIC_MANAGER,
    NVIDIA_MODULE,
    parse_module_version,
)
from ansible.module_utils.vllm_ansible.hardware.values import word

SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
PERSISTENCED = "nvidia-persistenced"
# What the headers of a running kernel are called.
HEADERS = {"apt": "linux-headers-{0}", "dnf": "kernel-devel-{0}"}
_AVAILABLE = {"apt": ["apt-cache", "show", "--no-all-versions"], "dnf": ["dnf", "--quiet", "list"]}
_INSTALLED = {
    "apt": ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package} ${Version}\\n"],
    "dnf": ["rpm", "--query", "--all", "--queryformat", "installed %{NAME} %{VERSION}-%{RELEASE}\\n"],
}
# Packages of a driver have its number: three digits first, unlike those of the container toolkit.
_NAME = re.compile(r"nvidia|\Acuda-drivers")
_VERSION = re.compile(r"(?:\d+:)?(\d{3}\.\d{2,3}(?:\.\d{2})?)(?=-|\Z)")
# These may stay at another number beside a driver.
_LOOSE = re.compile(r"settings|xconfig|modprobe|-egl-|pinning")
_STATE = ("ActiveState", "UnitFileState")
_NVML_MISMATCH = 18
_NO_DEVICES = 6
_HUNG = (124, 137)


class Wanted(NamedTuple):
    """What the plan says of a host; `manager` is "apt" or "dnf", `gpus` None where nobody knows."""

    version: str
    flavour: str
    manager: str
    packages: List[str]
    gpus: Optional[int]
    nvswitch: bool
    modules_signed: bool


def parse_installed(text):
    """Return {name: version} of the driver's packages in the list of installed ones; no epoch, no revision."""
    found: Dict[str, str] = {}
    for line in (text or "").splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[0] == "installed" and _NAME.search(parts[1]):
            version = _VERSION.match(parts[2])
            if version:
                found[parts[1]] = version.group(1)
    return found


def ask(host, wanted):
    """Return what is installed, built for the running kernel and loaded, without asking the driver itself."""
    kernel = host.system()["kernel"]
    answer = host.run(_INSTALLED[wanted.manager])
    installed = parse_installed(answer[1] if answer else "")
    built = host.run(["modinfo", "--field", "version", "nvidia"])
    loaded = parse_module_version(host.read(NVIDIA_MODULE))
    secure_boot = host.read(SECURE_BOOT)
    return {
        "kernel": kernel,
        "installed": installed,
        "missing": [name for name in wanted.packages if installed.get(name) != wanted.version],
        "strays": sorted(
            f"{name} {version}"
            for name, version in installed.items()
            if version != wanted.version and not _LOOSE.search(name)
        ),
        "built": word(built[1]) if built and built[0] == 0 else None,
        "loaded": loaded["driver"],
        "loaded_flavour": loaded["kernel_module"],
        "nouveau": host.exists("/sys/module/nouveau"),
        # The byte after four of attributes.
        "secure_boot": bool(secure_boot) and secure_boot.endswith("\x01"),
        # None: those of the running kernel are there; else the kernels whose headers are.
        "headers": _headers(host, kernel),
        "on_bus": _on_bus(host),
    }


def _headers(host, kernel):
    """Return None when the headers of the running kernel are there, else the kernels whose headers are."""
    build = f"/lib/modules/{kernel}/build"
    texts = [host.read(f"{build}/include/{name}") for name in ("generated/utsrelease.h", "utsrelease.h")]
    said = re.search(r'UTS_RELEASE "([^"]*)"', "".join(text or "" for text in texts))
    if host.exists(build) and (said is None or said.group(1) == kernel):
        return None
    others = [name[len("linux-headers-") :] for name in host.list_directory("/usr/src") if name.startswith("linux-h")]
    return sorted(others + host.list_directory("/usr/src/kernels"))


def is_right(seen, wanted):
    """Whether packages and module are those of the plan, so that nothing has to be built."""
    return not seen["missing"] and not seen["strays"] and seen["built"] == wanted.version


def before(host, seen, wanted):
    """Return (findings that forbid an installation, the package of headers to install with it or None)."""
    findings: List[Dict[str, str]] = []
    if is_right(seen, wanted):
        return findings, None
    if seen["secure_boot"] and not wanted.modules_signed:
        findings.append(
            _finding(
                "secure_boot",
                "Secure Boot is on, and modules that are built on the host carry no signature that it accepts",
                "Enrol a key that DKMS signs with (mokutil --import) and set nvidia_driver_modules_signed to true, or"
                " turn Secure Boot off in the firmware.",
            )
        )
    headers = None
    if seen["headers"] is not None:
        package = HEADERS[wanted.manager].format(seen["kernel"])
        query = _AVAILABLE[wanted.manager] + [package]
        answer = host.run(query, timeout_seconds=120)
        if answer is None and wanted.manager == "dnf":
            answer = host.run(["yum"] + query[1:], timeout_seconds=120)
        if answer is not None and answer[0] == 0:
            headers = package
        else:
            findings.append(_finding("headers", *_no_headers(seen, package)))
    return findings, headers


def _no_headers(seen, package):
    others = ", ".join(seen["headers"]) or "no kernel"
    what = f"the running kernel is {seen['kernel']}, headers are there for {others}, and no repository has {package}"
    todo = "Start the kernel that the headers are for, or add a repository that has them; role kernel installs both."
    return f"{what}: no module can be built", todo


def pending(seen, wanted):
    """Return what waits for a reboot, as words for a message."""
    if not is_right(seen, wanted):
        return []
    if seen["nouveau"]:
        return ["NVIDIA driver (nouveau is loaded)"]
    if (seen["loaded"], seen["loaded_flavour"]) != (wanted.version, wanted.flavour):
        return [f"NVIDIA driver ({seen['loaded'] or 'none'} is loaded)"]
    return []


def verify(host, seen, wanted):
    """Ask the driver and its services too; return the findings."""
    findings = []
    if seen["missing"]:
        there = ", ".join(f"{name} {seen['installed'].get(name, 'absent')}" for name in seen["missing"])
        findings.append(_finding("packages", there, f"The plan has {wanted.version}. Run the role's entry point main."))
    if seen["strays"]:
        findings.append(
            _finding(
                "strays",
                f"packages of another driver are installed: {', '.join(seen['strays'])}",
                f"The plan has {wanted.version}; kernel module and libraries must be of one version. Run the role's"
                " entry point main.",
            )
        )
    findings += _answers(host, seen, wanted)
    findings += _fabric_manager(host, seen, wanted)
    return findings


def _answers(host, seen, wanted):
    fields = ("index", "uuid", "pci.bus_id", "driver_version", "persistence_mode")
    answer = host.run(nvidia_smi.query(fields))
    if answer is None:
        if seen["missing"]:
            return []
        return [_finding("smi", "nvidia-smi is not installed", "Look at which files the driver's packages hold.")]
    code, text = answer[0], answer[1] + "\n" + answer[2]
    gpus, lost = nvidia_smi.parse_query(answer[1]), nvidia_smi.parse_lost(text)
    if not gpus and not lost:
        return [_silent(code, text, seen, wanted)]
    findings = []
    lost.update((gpu["pci"], gpu["lost"]) for gpu in gpus if gpu["lost"])
    for address in sorted(lost):
        findings.append(
            _finding(
                "lost",
                f"the GPU {address} does not answer: {lost[address]}",
                "It has fallen off the bus (Xid 79 in the kernel's log): reboot the host, or power-cycle it. Lost"
                " again, it is a matter of hardware.",
            )
        )
    answering = [gpu for gpu in gpus if not gpu["lost"]]
    there = len(answering) + len(lost)
    # Some branches stop at the first GPU they cannot open.
    if wanted.gpus is not None and gpus and there != wanted.gpus:
        silent = sorted(set(seen["on_bus"]) - {gpu["pci"] for gpu in gpus} - set(lost))
        where = f"; PCI also lists {', '.join(silent)}" if silent else "; PCI lists no more of them"
        findings.append(
            _finding(
                "missing",
                f"nvidia-smi lists {there} GPUs, the plan has {wanted.gpus}{where}",
                "Look at dmesg for NVRM, and at the seat and power of the missing one.",
            )
        )
    other = sorted({gpu["driver"] for gpu in answering if gpu["driver"] not in (None, wanted.version)})
    if other or (seen["loaded"] and (seen["loaded"], seen["loaded_flavour"]) != (wanted.version, wanted.flavour)):
        loaded = f"the loaded driver is {', '.join(other) or seen['loaded']} ({seen['loaded_flavour']})"
        findings.append(
            _finding("loaded", loaded, f"The plan has {wanted.version} ({wanted.flavour}). Reboot the host.")
        )
    if re.search(r",\s*Disabled\s*$", answer[1], re.MULTILINE):
        findings.append(
            _finding(
                "persistence",
                "persistence mode is off on a GPU",
                f"Start {PERSISTENCED} and look at its journal.",
            )
        )
    return findings


def _silent(code, text, seen, wanted):
    """The finding about an nvidia-smi that shows no GPU at all."""
    said = " ".join(text.split())[:300] or "nothing"
    library = nvidia_smi.parse_library_version(text)
    if code == _NVML_MISMATCH or "version mismatch" in text:
        return _finding(
            "mismatch",
            f"the library is {library or 'another version'}, the loaded kernel module {seen['loaded'] or 'unknown'}"
            f" (exit code {code}: {said})",
            "The packages changed and the module did not: stop what uses the GPUs and reboot.",
        )
    if code in _HUNG:
        return _finding("hung", "nvidia-smi does not return", "Reboot the host; look at dmesg for NVRM and Xid.")
    if code == _NO_DEVICES or "No devices were found" in text:
        return _finding(
            "no_devices",
            f"the driver finds none of the {len(seen['on_bus'])} GPUs on the bus (exit code {code}: {said})",
            "A GPU that the driver does not know (open modules need Turing or newer), or one that failed to start: look"
            " at dmesg for NVRM.",
        )
    reason = "the module is not loaded: look at dmesg for nvidia and NVRM, then modprobe nvidia"
    if seen["nouveau"]:
        reason = "nouveau holds the GPUs: reboot"
    elif seen["built"] is None and seen["headers"] is not None:
        reason = (
            f"there is no module for the running kernel {seen['kernel']}, nor its headers (there are headers for"
            f" {', '.join(seen['headers']) or 'no kernel'}): the kernel was updated without them. Install them and run"
            " the role's entry point main, or start the earlier kernel"
        )
    elif seen["built"] is None:
        reason = f"there is no module for the running kernel {seen['kernel']}: look at dkms status"
    elif seen["secure_boot"] and not wanted.modules_signed:
        reason = "Secure Boot is on and the module has no signature it accepts: see nvidia_driver_modules_signed"
    what = f"nvidia-smi cannot talk to the driver (exit code {code}: {said})"
    return _finding("silent", what, f"{reason[0].upper()}{reason[1:]}.")


def _on_bus(host):
    """Return the PCI addresses of NVIDIA's GPUs, which are there whether a driver is or not."""
    return sorted(
        address
        for address, function in pci.gather_functions(host).items()
        if function["vendor"] == "10de" and function["class"] in GPU_CLASSES
    )


def _fabric_manager(host, seen, wanted):
    names = [name for name in seen["installed"] if re.search(r"nvidia-fabric-?manager", name) and "-dev" not in name]
    answer = host.run(["systemctl", "show", FABRIC_MANAGER, "--property=" + ",".join(_STATE)])
    state = dict(line.split("=", 1) for line in (answer[1] if answer else "").splitlines() if "=" in line)
    runs, starts = state.get("ActiveState") == "active", state.get("UnitFileState") == "enabled"
    if not wanted.nvswitch:
        if runs or starts:
            return [
                _finding(
                    "fabric_manager",
                    f"{FABRIC_MANAGER} {'runs' if runs else 'is enabled'} on a host without NVSwitch",
                    "It has nothing to manage here and fails at each start. Run the role's entry point main.",
                )
            ]
        return []
    versions = sorted({seen["installed"][name] for name in names})
    if versions != [wanted.version]:
        return [
            _finding(
                "fabric_manager",
                f"{FABRIC_MANAGER} is {', '.join(versions) or 'absent'}, the driver of the plan {wanted.version}",
                "They must be of exactly one version, or CUDA ends with error 802 (system not yet initialized). Run the"
                " role's entry point main.",
            )
        ]
    if not runs or not starts:
        return [
            _finding(
                "fabric_manager",
                f"{FABRIC_MANAGER} is {' and '.join(state.get(name) or 'unknown' for name in _STATE)}",
                "Without it CUDA ends with error 802 (system not yet initialized). Look at"
                f" journalctl -u {FABRIC_MANAGER}.",
            )
        ]
    return []


def _finding(code, seen, todo):
    return {"code": code, "seen": seen, "todo": todo}
