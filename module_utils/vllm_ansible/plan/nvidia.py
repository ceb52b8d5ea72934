# SPDX-License-Identifier: Apache-2.0
"""What a host with NVIDIA GPUs needs below its engine: the driver of its row, and what of CUDA a site asks for.

The engine's wheels bring CUDA, cuDNN and NCCL; the host brings the driver. Everything else is there on request.
"""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ansible.module_utils.vllm_ansible.plan import versions
from ansible.module_utils.vllm_ansible.plan.reader import Reader

FLAVOURS = ("open", "proprietary")
# The only kernel module of these families; the others run with both.
ONLY = {"volta": "proprietary", "blackwell": "open"}
# GPUDirect Storage needs this kernel.
GDS_KERNEL = (4, 15)
CUDA_KEYS = ("container_toolkit", "dcgm", "gds", "nccl", "openmpi", "toolkit")


class GpuDriver(NamedTuple):
    """One release of the driver. `flavours`: device family -> the kernel module it gets; others do not run with it."""

    name: str
    version: str
    flavours: Dict[str, str]
    unverified: Dict[str, str] = {}


class Repository(NamedTuple):
    """NVIDIA's packages for one operating system; `name` is NVIDIA's word for it, such as ``rhel9``.

    `ids` and the pattern `version` are ID and VERSION_ID of os-release, `architectures` the machine's name -> NVIDIA's,
    `drivers` the releases of the driver it has, `cuda` its newest toolkit, `dcgm` the branch of DCGM, `gds` whether
    GPUDirect Storage is supported there.
    """

    name: str
    kind: str
    ids: Tuple[str, ...]
    version: str
    architectures: Dict[str, str]
    drivers: Tuple[str, ...]
    cuda: str
    dcgm: str = ""
    gds: bool = False
    unverified: Dict[str, str] = {}


class Toolkit(NamedTuple):
    """One CUDA toolkit: the oldest driver that has all of it, and the oldest (`floor`) on which it runs at all."""

    name: str
    version: str
    driver: str
    floor: str
    unverified: Dict[str, str] = {}


class Planned(NamedTuple):
    """The driver a host will have, its kernel module, and why."""

    version: str
    flavour: str
    rule: str
    because: str


DRIVER_KEYS = frozenset(GpuDriver._fields) - {"name"} | {"sources"}
REPOSITORY_KEYS = frozenset(Repository._fields) - {"name"} | {"sources"}
TOOLKIT_KEYS = frozenset(Toolkit._fields) - {"name"} | {"sources"}


def _version(entry: Reader, key: str) -> str:
    text = entry.text(key, required=True)
    if text and not versions.valid(text):
        entry.complain(entry.field(key), text, "a version")
    return text


def read_driver(name: str, entry: Reader) -> GpuDriver:
    """Read one release; what is unusable is complained about through `entry`."""
    entry.only(DRIVER_KEYS)
    entry.sources()
    flavours = entry.mapping("flavours", required=True)
    found = {family: flavours.choice(family, FLAVOURS) for family in flavours.raw}
    return GpuDriver(name, _version(entry, "version"), found, entry.text_map("unverified"))


def read_repository(name: str, entry: Reader) -> Repository:
    """Read one repository; what is unusable is complained about through `entry`."""
    entry.only(REPOSITORY_KEYS)
    entry.sources()
    pattern = entry.text("version", required=True)
    try:
        re.compile(pattern)
    except re.error:
        entry.complain(entry.field("version"), pattern, "a regular expression")
    return Repository(
        name=name,
        kind=entry.choice("kind", ("apt", "dnf")),
        ids=tuple(entry.texts("ids", required=True)),
        version=pattern,
        architectures=entry.text_map("architectures"),
        drivers=tuple(entry.texts("drivers", required=True)),
        cuda=_version(entry, "cuda"),
        dcgm=entry.text("dcgm"),
        gds=entry.flag("gds"),
        unverified=entry.text_map("unverified"),
    )


def read_toolkit(name: str, entry: Reader) -> Toolkit:
    """Read one toolkit; what is unusable is complained about through `entry`."""
    entry.only(TOOLKIT_KEYS)
    entry.sources()
    own = [_version(entry, key) for key in ("version", "driver", "floor")]
    return Toolkit(name, own[0], own[1], own[2], entry.text_map("unverified"))


def repository_of(catalogue: Any, os_id: str, os_version: str, architecture: str) -> Optional[Repository]:
    """Return NVIDIA's repository for an operating system by its os-release, None when there is none."""
    for repository in catalogue.gpu_repositories:
        named = os_id.lower() in repository.ids and re.match(repository.version + r"\Z", os_version, re.IGNORECASE)
        if named and architecture in repository.architectures:
            return repository
    return None


def offered(catalogue: Any, repository: Optional[Repository], families: Sequence[str]) -> List[GpuDriver]:
    """Return the releases in `repository` that drive all of `families`, newest first."""
    names = repository.drivers if repository is not None else ()
    fitting = [d for d in catalogue.gpu_drivers if d.version in names and set(families) <= set(d.flavours)]
    return sorted(fitting, key=lambda d: (versions.key(d.version), d.name), reverse=True)


def for_row(catalogue: Any, row: Any, repository: Optional[Repository], families: Sequence[str]) -> List[GpuDriver]:
    """Return the releases in `repository` that `row` takes, newest first."""
    return [d for d in offered(catalogue, repository, families) if versions.matches(d.version, row.drivers)]


def plan_driver(catalogue: Any, row: Any, family: str, hardware: Any, installed: str, pinned: str) -> Optional[Planned]:
    """Return the driver for `row` on a host, None when none can be installed.

    A pin wins; an installed driver that the row takes stays; else the newest release that is offered.
    """
    repository = repository_of(catalogue, hardware.os_id, hardware.os_version, hardware.architecture)
    there = bool(installed) and versions.valid(installed)
    if pinned and not (there and versions.valid(pinned) and versions.compare(installed, pinned) == 0):
        for release in offered(catalogue, repository, [family]):
            if versions.valid(pinned) and versions.compare(release.version, pinned) == 0:
                return Planned(
                    release.version, release.flavours[family], "R_DRIVER_PINNED", "engine_driver asks for it"
                )
        return None
    needs = "CUDA {} of row {}".format(row.versions.get("cuda", "?"), row.name)
    if there and (pinned or versions.matches(installed, row.drivers)):
        if pinned:
            return Planned(installed, _flavour(hardware, family), "R_DRIVER_PINNED", "engine_driver asks for it")
        return Planned(installed, _flavour(hardware, family), "R_DRIVER_KEPT",
                       "it is installed, and {} takes {}".format(needs, _words(row.drivers)))  # fmt: skip
    releases = for_row(catalogue, row, repository, [family])
    if not releases:
        return None
    assert repository is not None
    return Planned(
        releases[0].version, releases[0].flavours[family], "R_DRIVER_INSTALL",
        "{}; the newest release for {} of those that {} takes ({}) in NVIDIA's repository {}".format(
            "{} is installed".format(installed) if installed else "none is installed", family, needs,
            _words(row.drivers), repository.name))  # fmt: skip


def _words(ranges: Sequence[str]) -> str:
    return " or ".join(re.sub(r"^>=\s*(\S+)\Z", r"\1 or newer", text) for text in ranges)


def _flavour(hardware: Any, family: str) -> str:
    """The kernel module of an installed driver: as loaded, unless the family has only one."""
    loaded = loaded_module(hardware.raw)
    return ONLY.get(family) or (loaded if loaded in FLAVOURS else "open")


def loaded_module(raw: Any) -> str:
    """Return ``open`` or ``proprietary`` as the facts have it, empty when they do not say."""
    value = _nvidia(raw).get("kernel_module")
    return value if isinstance(value, str) else ""


def library(raw: Any) -> str:
    """Return the version of the driver's libraries, empty when the facts do not say."""
    value = _nvidia(raw).get("library")
    return value if isinstance(value, str) else ""


def nouveau(raw: Any) -> bool:
    """Whether the kernel's own driver holds the GPUs."""
    return _nvidia(raw).get("nouveau") is True


def secure_boot(raw: Any) -> Optional[bool]:
    """Return whether only signed modules are loaded, None when the facts do not say."""
    kernel = raw.get("kernel") if isinstance(raw, dict) else None
    value = kernel.get("secure_boot") if isinstance(kernel, dict) else None
    return value if isinstance(value, bool) else None


def switches(raw: Any, devices: Sequence[Any]) -> bool:
    """Whether the GPUs of a host are joined by NVSwitches: by PCI, or by the board where PCI does not show them."""
    count = raw.get("nvswitches") if isinstance(raw, dict) else None
    seen = isinstance(count, int) and not isinstance(count, bool) and count > 0
    return seen or any(device is not None and device.nvswitch for device in devices)


def _nvidia(raw: Any) -> Dict[str, Any]:
    software = raw.get("software") if isinstance(raw, dict) else None
    own = software.get("nvidia") if isinstance(software, dict) else None
    return own if isinstance(own, dict) else {}


def decide_driver(host: Any, group: Any, devices: Sequence[Any], context: Any, installed: str) -> Dict[str, Any]:
    """Return the slice nvidia_driver of `host` as {"nvidia_driver": …}, {} when nothing is known to install it from."""
    hardware, findings = host.hardware, context.findings
    planned = plan_driver(context.catalogue, group.row, group.family, hardware, installed, host.driver)
    repository = repository_of(context.catalogue, hardware.os_id, hardware.os_version, hardware.architecture)
    if planned is None:
        if host.driver:
            known = [d.version for d in for_row(context.catalogue, group.row, repository, [group.family])]
            findings.problem(
                "E_GPU_DRIVER",
                "The catalogue knows no driver {} for {} in NVIDIA's repository {}".format(
                    host.driver, group.family, repository.name if repository else "for this system"),
                "engine_driver: {}, or that release in deployment_plan_catalogue_overrides.gpu_drivers and "
                "gpu_repositories".format(" or ".join(known) or "none"),
                host=host.name, field="engine_driver", seen=host.driver,
            )  # fmt: skip
        return {}
    findings.decide(planned.rule, "nvidia_driver.version", planned.version, planned.because, host.name)
    if repository is None:
        findings.warning(
            "W_GPU_REPOSITORY",
            "NVIDIA has no packages for {} on {}: driver {} of {} is used as it is, and no role looks after it".format(
                hardware.os_label or hardware.os_name, hardware.architecture, planned.version, host.name),
            host.name, "vllm_hardware.os",
            seen="{} {}".format(hardware.os_id, hardware.os_version).strip(),
            set="this system under ids of an entry of deployment_plan_catalogue_overrides.gpu_repositories, where "
            "another system's packages are known to work",
        )  # fmt: skip
        return {}
    switched = switches(hardware.raw, devices)
    rule = "R_GPU_MODULE"
    if planned.rule == "R_DRIVER_KEPT" and loaded_module(hardware.raw) == planned.flavour:
        rule, because = planned.rule, "it is loaded"
    elif group.family in ONLY:
        because = "{} runs with no other".format(group.family)
    else:
        because = "NVIDIA recommends it from Turing on" if planned.flavour == "open" else "its packages have no other"
    findings.decide(rule, "nvidia_driver.flavour", planned.flavour, because, host.name)
    if switched:
        findings.decide("R_NVSWITCH", "nvidia_driver.nvswitch", True,
                        "the GPUs are joined by NVSwitches: CUDA starts only with a fabric manager of exactly "
                        "version {}".format(planned.version), host.name)  # fmt: skip
    return {
        "nvidia_driver": {
            "version": planned.version,
            "flavour": planned.flavour,
            "gpus": len(devices),
            "nvswitch": switched,
            "repository": {
                "kind": repository.kind,
                "distro": repository.name,
                "architecture": repository.architectures[hardware.architecture],
            },
            "secure_boot": secure_boot(hardware.raw),
        }
    }


def read_wishes(raw: Any, complain: Any) -> Dict[str, Any]:
    """Read ``engine_cuda`` of a host; what is unusable is complained about."""
    entry = Reader(raw, "engine_cuda", complain)
    entry.only(CUDA_KEYS)
    wishes: Dict[str, Any] = {
        key: entry.flag(key) for key in CUDA_KEYS if key != "toolkit" and entry.raw.get(key) is not None
    }
    toolkit = entry.text("toolkit")
    if toolkit and not re.match(r"[0-9]+\.[0-9]+\Z", toolkit):
        complain("engine_cuda.toolkit", toolkit, 'a toolkit in quotes such as "12.8"')
        toolkit = ""
    return dict(wishes, toolkit=toolkit)


def decide_cuda(host: Any, group: Any, driver: str, kernel: str, context: Any) -> Dict[str, Any]:
    """Return the slice nvidia_cuda of `host` as {"nvidia_cuda": …}, {} where NVIDIA has no packages for the host."""
    hardware, wishes, findings = host.hardware, host.cuda, context.findings
    repository = repository_of(context.catalogue, hardware.os_id, hardware.os_version, hardware.architecture)
    asked = sorted(key for key in ("dcgm", "gds", "nccl", "toolkit", "container_toolkit", "openmpi") if wishes.get(key))
    system = "{} on {}".format(hardware.os_label or hardware.os_name, hardware.architecture)
    if repository is None:
        if asked:
            _refuse(findings, host, asked[0], wishes[asked[0]], "E_CUDA",
                    "NVIDIA has no packages for {}: {} cannot be installed".format(system, ", ".join(asked)),
                    "engine_cuda without {}".format(", ".join(asked)))  # fmt: skip
        return {}
    toolkit = wishes.get("toolkit") or None
    if toolkit:
        _check_toolkit(host, toolkit, driver, repository, context)
    if wishes.get("gds"):
        _check_gds(host, repository, kernel, system, findings)
    if wishes.get("dcgm") and not repository.dcgm:
        _refuse(findings, host, "dcgm", True, "E_CUDA", "NVIDIA has no DCGM for {}".format(system),
                "engine_cuda: {dcgm: false}")  # fmt: skip
    major = str(group.row.versions.get("cuda", "")).partition(".")[0]
    dcgm = repository.dcgm if wishes.get("dcgm", True) and repository.dcgm else None
    rest = [key for key in asked if key != "dcgm"]
    findings.decide(
        "R_CUDA_ASKED" if rest else "R_CUDA", "nvidia_cuda.toolkit", toolkit,
        "engine_cuda asks for {}".format(", ".join(rest)) if rest
        else "the engine's wheels bring CUDA {} and NCCL; nothing more is asked for".format(
            group.row.versions.get("cuda", "")),
        host.name,
    )  # fmt: skip
    return {
        "nvidia_cuda": {
            "toolkit": toolkit,
            "nccl": wishes.get("nccl", False),
            "gds": wishes.get("gds", False),
            "dcgm": dcgm,
            "cuda_major": toolkit.partition(".")[0] if toolkit else major,
            "container_toolkit": wishes.get("container_toolkit", False),
            "openmpi": wishes.get("openmpi", False),
        }
    }


def _refuse(findings: Any, host: Any, key: str, seen: Any, code: str, message: str, set_to: str) -> None:
    findings.problem(code, message, set_to, host=host.name, field="engine_cuda." + key, seen=seen)


def _check_toolkit(host: Any, asked: str, driver: str, repository: Repository, context: Any) -> None:
    """The toolkit has to be known, in the repository, and served by the driver."""
    catalogue, findings = context.catalogue, context.findings
    known = [t for t in catalogue.cuda_toolkits if versions.compare(t.version, repository.cuda) <= 0]
    toolkit = next((t for t in known if t.version == asked), None)
    if toolkit is None:
        _refuse(findings, host, "toolkit", asked, "E_CUDA",
                "NVIDIA's repository {} has no CUDA toolkit {}, or nothing is known of it".format(
                    repository.name, asked),
                "toolkit: one of {}".format(
                    ", ".join(t.version for t in sorted(known, key=lambda t: versions.key(t.version)))))  # fmt: skip
    elif versions.compare(driver, toolkit.floor) < 0:
        _refuse(findings, host, "toolkit", asked, "E_CUDA",
                "CUDA {} runs on driver {} or newer, and {} will have {}".format(
                    asked, toolkit.floor, host.name, driver),
                "an older toolkit, or a newer driver: engine_driver")  # fmt: skip
    elif versions.compare(driver, toolkit.driver) < 0:
        findings.warning(
            "W_CUDA_MINOR",
            "All of CUDA {} needs driver {}, and {} will have {}: kernels compiled at run time do not work".format(
                asked, toolkit.driver, host.name, driver),
            host.name, "engine_cuda.toolkit", seen=driver, needed=toolkit.driver,
            set="engine_driver, or an older toolkit",
        )  # fmt: skip


def _check_gds(host: Any, repository: Repository, kernel: str, system: str, findings: Any) -> None:
    """GPUDirect Storage is supported on few systems; there, and only there, it is installed."""
    found = re.match(r"([0-9]+)\.([0-9]+)", kernel)
    old = found is not None and (int(found.group(1)), int(found.group(2))) < GDS_KERNEL
    if repository.gds and not old:
        return
    why = "needs kernel {}.{} or newer, and {} is there".format(GDS_KERNEL[0], GDS_KERNEL[1], kernel)
    _refuse(findings, host, "gds", True, "E_GDS",
            "GPUDirect Storage {}".format(why if repository.gds else "is not supported by NVIDIA on {}".format(system)),
            "gds: false: models are read through the page cache then")  # fmt: skip
