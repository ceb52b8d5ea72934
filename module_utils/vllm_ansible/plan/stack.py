# SPDX-License-Identifier: Apache-2.0
"""What a host needs below its engines: with NPUs kernel, driver with firmware, CANN with NNAL, with GPUs driver and
CUDA, all of one row; and how its operating system is tuned."""

import re
from typing import Any, Dict, List, NamedTuple, Optional

from ansible.module_utils.vllm_ansible.plan import hdk, nvidia, platforms, rows, tuning, versions
from ansible.module_utils.vllm_ansible.plan.backends.base import Context
from ansible.module_utils.vllm_ansible.plan.canonical import natural_key
from ansible.module_utils.vllm_ansible.plan.catalogue import Catalogue, Row
from ansible.module_utils.vllm_ansible.plan.facts import Hardware, driver_of
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host

# PCI functions of one NPU as `npu-smi` counts them: the two dies of an A3 have a bus id each, the two chips of a 300I
# Duo share one (npu-smi info on both, tests/fixtures/hardware).
FUNCTIONS = {"a3": 2}


class Driver(NamedTuple):
    """The driver a host will have, the firmware with it (empty: nobody knows it), and why."""

    driver: str
    firmware: str
    rule: str
    because: str


def plan_driver(catalogue: Catalogue, row: Row, family: str, hardware: Hardware, pinned: str) -> Optional[Driver]:
    """Return the driver for `row` on a host, None when none can be installed.

    A pin wins; an installed driver that the row takes stays; else the best release of the catalogue.
    """
    architecture = hardware.architecture
    installed, firmware = driver_of(hardware, "npu"), driver_of(hardware, "npu", "firmware")
    if pinned and not (installed and same(installed, pinned)):
        known = hdk.of_driver(catalogue.hdk, pinned, family, architecture)
        if not known:
            return None
        return Driver(
            known[0].driver, known[0].families[family].firmware, "R_DRIVER_PINNED", "engine_driver asks for it"
        )
    if installed and versions.valid(installed) and versions.matches(installed, row.drivers):
        pairs = hdk.of_driver(catalogue.hdk, installed, family, architecture)
        pair = pairs[0].families[family].firmware if pairs else ""
        if pinned:
            return Driver(installed, pair or firmware, "R_DRIVER_PINNED", "engine_driver asks for it")
        return Driver(
            installed,
            firmware or pair,
            "R_DRIVER_KEPT",
            "it is installed, and {} of row {} takes {}".format(_cann(row), row.name, rows.in_words(row.drivers)),
        )
    releases = hdk.for_row(catalogue.hdk, row, [family], architecture)
    if not releases:
        return None
    best = releases[0]
    why = (
        "none is installed"
        if not installed
        else "{} is installed, which {} does not take".format(installed, _cann(row))
    )
    return Driver(
        best.driver, best.families[family].firmware, "R_DRIVER_INSTALL",
        "{}; the best of the releases {} takes ({}) whose firmware for {} is known".format(
            why, _cann(row), rows.in_words(row.drivers), family))  # fmt: skip


def driver_to_be(catalogue: Catalogue, host: Host, kind: str, family: str, version: Optional[str]) -> str:
    """Return the driver `host` will have under the row that fits it best, "" without any."""
    assert host.hardware is not None
    installed = driver_of(host.hardware, kind)
    if kind not in ("npu", "gpu"):
        return installed
    facts = rows.facts_of(host.hardware, [family], installed, pinned=host.driver)
    row = rows.choose(catalogue, "ascend" if kind == "npu" else "cuda", version, facts).row
    if row is None:
        return host.driver or installed
    if kind == "gpu":
        own = nvidia.plan_driver(catalogue, row, family, host.hardware, installed, host.driver)
        return own.version if own is not None else host.driver or installed
    planned = plan_driver(catalogue, row, family, host.hardware, host.driver)
    return planned.driver if planned is not None else host.driver or installed


def same(one: str, other: str) -> bool:
    """Whether two spellings are one version."""
    if versions.valid(one) and versions.valid(other):
        return versions.compare(one, other) == 0
    return one == other


def _cann(row: Row) -> str:
    return "CANN {}".format(row.versions.get("cann", "?"))


def plan_stack(host: Host, groups: List[Group], context: Context) -> Dict[str, Any]:
    """Return the slices kernel, ascend_driver and ascend_cann, or nvidia_driver and nvidia_cuda, and tuned_profile.

    A part nobody knows enough of to install has no slice; for a row that can be installed that is a problem.
    """
    if host.hardware is None or not groups:
        return {}
    slices = _gpu_slices(host, groups, context) or _npu_slices(host, groups, context)
    families = sorted({g.family for g in groups if g.family})
    kernel = slices.get("kernel", {}).get("release") or host.hardware.kernel
    slices.update(tuning.decide(host, tuple(families), kernel, context))
    return slices


def _gpu_slices(host: Host, groups: List[Group], context: Context) -> Dict[str, Any]:
    group = next((g for g in groups if g.backend == "cuda" and g.row is not None), None)
    if group is None:
        return {}
    assert host.hardware is not None
    installed = driver_of(host.hardware, "gpu")
    own = [d for d in host.hardware.accelerators if d.kind == "gpu"]
    devices = [context.catalogue.devices.identify(d.raw) for d in own]
    slices = nvidia.decide_driver(host, group, devices, context, installed)
    driver = slices["nvidia_driver"]["version"] if slices else installed
    slices.update(nvidia.decide_cuda(host, group, driver, host.hardware.kernel, context))
    return slices


def _npu_slices(host: Host, groups: List[Group], context: Context) -> Dict[str, Any]:
    group = next((g for g in groups if g.backend == "ascend" and g.row is not None), None)
    if group is None:
        return {}
    assert host.hardware is not None
    row = group.row
    assert row is not None
    slices: Dict[str, Any] = {}
    kernel = _kernel(host, group.family, context)
    if kernel is not None:
        slices["kernel"] = kernel
    chip = row.chips.get(group.family, "")
    driver = _driver(host, group, context)
    if driver is not None and chip:
        slices["ascend_driver"] = {
            "driver": driver.driver,
            "firmware": driver.firmware,
            "chip": chip,
            "npus": npus(host.hardware, group.family) or None,
        }
    if chip:
        slices["ascend_cann"] = {
            "cann": row.versions["cann"],
            "nnal": row.versions["nnal"],
            "chip": chip,
            "cxx_abi": row.cxx_abi,
        }
        context.findings.decide(
            "R_CANN", "ascend_cann.cann", row.versions["cann"],
            "row {} goes with it; its torch {} has C++ ABI {}".format(row.name, row.versions["torch"], row.cxx_abi),
            host.name,
        )  # fmt: skip
    return slices


def npus(hardware: Hardware, family: str) -> int:
    """Return how many NPUs the host has by its PCI functions: what does not answer is counted too."""
    functions = {str((d.raw or {}).get("pci")) for d in hardware.accelerators if d.kind == "npu"}
    return len(functions - {"None"}) // FUNCTIONS.get(family, 1)


def _driver(host: Host, group: Group, context: Context) -> Optional[Driver]:
    assert host.hardware is not None and group.row is not None
    row, findings = group.row, context.findings
    planned = plan_driver(context.catalogue, row, group.family, host.hardware, host.driver)
    if planned is None or not planned.firmware:
        if row.status == "installable":
            known = hdk.for_row(context.catalogue.hdk, row, [group.family], host.hardware.architecture)
            version = planned.driver if planned else host.driver
            findings.problem(
                "E_HDK",
                "The catalogue knows no driver release {} with firmware for {} on {}".format(
                    version, group.family, host.hardware.architecture),
                "engine_driver: {}, or a release in deployment_plan_catalogue_overrides.hdk".format(
                    " or ".join(release.driver for release in known) or "one of a release to be added"),
                host=host.name,
                field="engine_driver" if host.driver else "vllm_hardware.software.ascend.firmware",
                seen=host.driver or (planned and planned.driver),
            )  # fmt: skip
        return None
    findings.decide(planned.rule, "ascend_driver.driver", planned.driver, planned.because, host.name)
    findings.decide(
        planned.rule, "ascend_driver.firmware", planned.firmware, "it belongs to driver " + planned.driver, host.name
    )
    return planned


def _kernel(host: Host, family: str, context: Context) -> Optional[Dict[str, Any]]:
    hardware, findings = host.hardware, context.findings
    assert hardware is not None
    system = platforms.find(context.catalogue.platforms, hardware.os_id, hardware.os_version, hardware.os_label)
    named = system.kernels.get(hardware.architecture, ()) if system is not None else ()
    where = "{} on {}".format(hardware.os_label or hardware.os_name, hardware.architecture)
    running = hardware.kernel
    if host.kernel:
        if named and host.kernel not in named:
            assert system is not None
            findings.problem(
                "E_KERNEL",
                "The driver for {} is offered for other kernels of {}".format(family, where),
                "engine_kernel: {}, or add it to deployment_plan_catalogue_overrides.platforms.{}.kernels.{}".format(
                    " or ".join(named), system.name, hardware.architecture),
                host=host.name, field="engine_kernel", seen=host.kernel,
            )  # fmt: skip
        release, rule, because = host.kernel, "R_KERNEL_PINNED", "engine_kernel asks for it"
    elif named and running not in named:
        release, rule = sorted(named, key=natural_key)[-1], "R_KERNEL"
        because = "{} runs, and the driver for {} is offered for {} only ({})".format(
            running or "an unknown kernel", family, " and ".join(named), where
        )
    else:
        release, rule = running, "R_KERNEL_KEPT"
        because = "it runs, and the driver {}".format(
            "is offered for it" if named
            else "is offered for no named kernel of {}: its source is compiled for it".format(where))  # fmt: skip
    if not release:
        return None
    findings.decide(rule, "kernel.release", release, because, host.name)
    profile = tuning.choose(context.catalogue.tuning, (family,), hardware.architecture)
    parameters = list(profile.kernel_parameters) if profile is not None else []
    if profile is not None and parameters:
        findings.decide("R_BOOT_PARAMETERS", "kernel.boot_parameters", " ".join(parameters),
                        "tuning profile {} has them".format(profile.name), host.name)  # fmt: skip
    return {
        "release": release,
        "packages": kernel_packages(release, whole=bool(named or host.kernel)),
        "boot_parameters": parameters,
        # the driver's module is compiled for this kernel: an update of the system must not change it
        "pinned": True,
    }


def kernel_packages(release: str, whole: bool) -> List[str]:
    """Return the packages of a kernel by their exact names: `whole`, or only what a driver is compiled against.

    `uname -r` of an rpm system ends with the architecture, which the names of its packages do not have.
    """
    rpm = re.match(r"(.+)\.(aarch64|x86_64)\Z", release)
    if rpm:
        names = ["kernel"] * whole + ["kernel-devel", "kernel-headers"]
        return ["{}-{}".format(name, rpm.group(1)) for name in names]
    return ["{}-{}".format(name, release) for name in ["linux-image"] * whole + ["linux-headers"]]
