# SPDX-License-Identifier: Apache-2.0
"""Preflight: what the hosts of a plan are like against what serving there needs, each with the value seen and needed.

A problem is what no role of the run repairs and no engine would start with. A warning is what a role repairs on the
way, or what only costs speed. Nothing here chooses anything.
"""

import re
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from ansible.module_utils.vllm_ansible.plan import nvidia, specifications
from ansible.module_utils.vllm_ansible.plan.backends.base import Context
from ansible.module_utils.vllm_ansible.plan.canonical import gib, show
from ansible.module_utils.vllm_ansible.plan.devices import Device
from ansible.module_utils.vllm_ansible.plan.facts import Accelerator, driver_of, mount_of
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host
from ansible.module_utils.vllm_ansible.plan.specifications import Specification
from ansible.module_utils.vllm_ansible.plan.storage import MODELS

FACTS = "vllm_hardware."
# Warnings of the facts that a check below says more exactly.
SAID_HERE = ("W_NPU_FIRMWARE", "W_NPU_NOT_ROOT", "W_NPU_REBOOT")
KINDS = {"ascend": "npu", "cuda": "gpu"}
# Share of its memory that an idle device shows as used: published captures of npu-smi stay below it.
IDLE = 0.1
OWN_UNIT = re.compile(r"vllm-.*\.service\Z")


class Preflight:
    """The checks of one host, which all speak of it in the same form."""

    def __init__(
        self, host: Host, groups: List[Group], context: Context, stack: Optional[Dict[str, Any]] = None
    ) -> None:
        """`stack`: the slices of what lies below the engines."""
        assert host.hardware is not None
        self.stack = stack or {}
        self.host, self.groups, self.hardware = host, groups, host.hardware
        self.findings: Findings = context.findings
        self.raw: Dict[str, Any] = self.hardware.raw if isinstance(self.hardware.raw, dict) else {}
        backends = [g.backend for g in groups if g.backend]
        present = [d.kind for d in self.hardware.accelerators if d.kind in KINDS.values()]
        # Before a backend was chosen, the devices say what would be.
        self.kind = next((KINDS[b] for b in backends if b in KINDS), "") if backends else (present + [""])[0]
        self.devices = [d for d in self.hardware.accelerators if d.kind == self.kind]
        known = [context.catalogue.devices.identify(d.raw) for d in self.devices]
        self.device: Optional[Device] = next((device for device in known if device is not None), None)
        self.specifications = specifications.choose(
            context.catalogue.specifications, self.device, self.hardware.architecture, self.hardware.cpu_model
        )

    def warn(self, code: str, field: str, what: str, seen: Any, needed: Any, set_to: str) -> None:
        seen = show(seen) if isinstance(seen, str) else seen
        message = "{}: {}, needed: {}".format(what, seen, needed)
        self.findings.warning(code, message, self.host.name, FACTS + field, seen=seen, needed=needed, set=set_to)

    def refuse(self, code: str, field: str, what: str, seen: Any, needed: Any, set_to: str) -> None:
        self.findings.problem(
            code, "{}: {}, needed: {}".format(what, show(seen), needed), set_to,
            host=self.host.name, field=FACTS + field, seen=seen, needed=needed,
        )  # fmt: skip

    def part(self, *keys: str) -> Dict[str, Any]:
        """A mapping of the facts; empty where they have none."""
        value: Any = self.raw
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, dict) else {}

    def entries(self, key: str) -> List[Dict[str, Any]]:
        """The mappings in a list of the facts."""
        return _mappings(self.raw.get(key))

    def check(self) -> None:
        self.clock()
        if self.kind == "npu":
            self.root()
            self.kernel()
            self.firmware()
            self.device_files()
        if self.kind == "gpu":
            self.gpu_driver()
        if self.kind:
            self.device_memory()
            self.links()
        for specification in self.specifications:
            self.specification(specification)
        self.memory_channels()

    def clock(self) -> None:
        clock = self.part("clock")
        if clock.get("synchronised") is False:
            source = clock.get("source")
            self.warn("W_CLOCK", "clock.synchronised", "The clock is not synchronised",
                      "{} runs".format(source) if source else "no time service runs", "a synchronised clock",
                      "the site's time source in the configuration of {}".format(source or "chrony"))  # fmt: skip

    def root(self) -> None:
        if any(code == "W_NPU_NOT_ROOT" for code, _message in self.hardware.warnings):
            self.warn("W_NPU_NOT_ROOT", "accelerators", "npu-smi answered nobody but root",
                      "an ordinary user", "root",
                      "become: true for role hardware_facts; the driver may be healthy")  # fmt: skip

    def kernel(self) -> None:
        kernel = self.part("kernel")
        running, entry = _text(kernel.get("release")), _text(kernel.get("default_entry"))
        if entry and running and entry != running:
            self.warn("W_KERNEL_ENTRY", "kernel.default_entry",
                      "The boot loader starts another kernel next than the one that runs", entry, running,
                      "grubby --set-default /boot/vmlinuz-{}".format(running)
                      + "; role kernel does it for the kernel of the plan" * (self.kind == "npu"))  # fmt: skip
        if not running or not _texts(kernel.get("installed")):
            return  # the host does not show its kernels at all, as a container
        for key, package in (("devel", "kernel-devel or linux-headers"), ("headers", "kernel-headers")):
            found = _texts(kernel.get(key))
            if running not in found and (key == "devel" or running in _texts(kernel.get("devel"))):
                self.warn("W_KERNEL_DEVEL", "kernel." + key,
                          "The driver is built with the {} of the running kernel".format(package),
                          ", ".join(found) or "none", running,
                          "role {} installs the package of {}; its repository has to carry it".format(
                              "kernel" if self.kind == "npu" else "nvidia_driver", running))  # fmt: skip

    def gpu_driver(self) -> None:
        """What stands in the way of NVIDIA's driver: other modules, another kernel's files, signatures."""
        installed = driver_of(self.hardware, "gpu")
        wanted = self.stack.get("nvidia_driver", {}).get("version", installed)
        if nvidia.nouveau(self.raw):
            self.warn("W_NOUVEAU", "software.nvidia.nouveau", "The kernel's own driver holds the GPUs",
                      "nouveau is loaded", "nouveau kept out",
                      "role nvidia_driver keeps it out; then a reboot")  # fmt: skip
        loaded, library = _text(self.part("software", "nvidia").get("driver")), nvidia.library(self.raw)
        if loaded and library and loaded != library:
            self.warn("W_GPU_REBOOT", "software.nvidia.driver",
                      "Another driver of the GPUs is loaded than its libraries are of, and nvidia-smi fails",
                      loaded, library, "a reboot of the host")  # fmt: skip
        if not wanted or wanted == installed:
            return
        self.kernel()
        if nvidia.secure_boot(self.raw) and not self.host.signed:
            self.refuse("E_SECURE_BOOT", "kernel.secure_boot",
                        "The firmware takes signed modules only, and the driver's are compiled on the host",
                        "Secure Boot is on", "Secure Boot off, or the key that signs them enrolled",
                        "Secure Boot off in the firmware; or enrol the key of DKMS (mokutil --import) and say so: "
                        "nvidia_driver_modules_signed: true")  # fmt: skip

    def firmware(self) -> None:
        bad = [d for d in self.devices if _text(d.raw.get("compatibility")) not in ("", "OK")]
        if bad:
            self.warn("W_NPU_FIRMWARE", "accelerators.compatibility",
                      "Driver and firmware do not match on {}".format(_named(bad)),
                      "{} (driver {}, firmware {})".format(
                          bad[0].raw["compatibility"], bad[0].driver or "unknown", bad[0].firmware or "unknown"),
                      "OK",
                      "the pair of the plan's row; role ascend_driver installs it, then the host reboots")  # fmt: skip
        installed = driver_of(self.hardware, "npu")
        running = sorted({d.driver for d in self.devices if d.driver and installed and d.driver != installed})
        if running:
            self.warn("W_NPU_REBOOT", "accelerators.driver", "Another driver runs than is installed",
                      ", ".join(running), installed, "a reboot of the host")  # fmt: skip

    def device_files(self) -> None:
        davinci = self.part("davinci")
        if not davinci or not driver_of(self.hardware, "npu"):
            return
        managers = _mappings(davinci.get("managers"))
        missing = [_text(m.get("path")) for m in managers if m.get("present") is False]
        found, chips = len(_texts(davinci.get("devices"))), sum(d.healthy for d in self.devices)
        if missing or found < chips:
            self.warn("W_NPU_DEVICES", "davinci.devices", "Device files of NPUs are missing",
                      "{} of /dev/davinci*{}".format(found, ", no " + ", ".join(missing) if missing else ""),
                      "{} of /dev/davinci* and their managers".format(chips),
                      "role ascend_driver repairs the driver; after it a reboot")  # fmt: skip
        group = _text(davinci.get("ascend_group"))
        shut = [
            entry for entry in _mappings(davinci.get("access")) + [m for m in managers if m.get("present") is True]
            if not _may(entry, -1)
        ]  # fmt: skip
        wrong = [e for e in shut if group and (_text(e.get("group")) != group or not _may(e, -2))]
        if wrong:
            self.refuse("E_NPU_ACCESS", "davinci.access",
                        "The members of group {} cannot open the device files of NPUs".format(group),
                        "{}:{} {}".format(*(wrong[0].get(key) for key in ("owner", "group", "mode"))),
                        "group {} with mode 0660".format(group),
                        "the driver installed for user and group of /etc/ascend_install.info, or no udev rule of "
                        "your own for davinci*")  # fmt: skip

    def device_memory(self) -> None:
        """Memory that somebody else holds; an engine starts only where its share of each device is free."""
        needed = {
            number: g.memory.get("budget_bytes", 0) for g in self.groups for number in g.devices.get(self.host.name, [])
        }
        busy: List[Tuple[Accelerator, int]] = []
        for device in self.devices:
            used, processes = _number(device.raw.get("used_bytes")), device.raw.get("processes")
            known = _mappings(processes)
            own = sum(_number(p.get("memory_bytes")) for p in known if OWN_UNIT.match(_text(p.get("unit"))))
            total = device.memory_bytes or (self.device.memory_bytes if self.device else 0)
            if not device.healthy or not total or used - own <= IDLE * total:
                continue
            if not isinstance(processes, list) and self.host.applied:
                continue  # nobody says whose it is, and an engine of ours may run
            free, budget = total - (used - own), needed.get(device.number if device.number is not None else -1, 0)
            if isinstance(processes, list) and free + IDLE * total < budget:
                others = sorted({_holder(p) for p in known if not OWN_UNIT.match(_text(p.get("unit")))})
                self.refuse("E_DEVICE_BUSY", "accelerators.used_bytes",
                            "The memory of {} is taken{}".format(
                                _named([device]), " by " + ", ".join(others[:4]) if others else ""),
                            "{} free".format(gib(free)), "{} free".format(gib(budget)),
                            "stop what holds it, or a smaller extra_args: {gpu-memory-utilization: …}")  # fmt: skip
                continue
            busy.append((device, used - own))
        if busy:
            self.warn("W_DEVICE_BUSY", "accelerators.used_bytes",
                      "{} device(s) have memory in use that is no engine's of ours".format(len(busy)),
                      "up to {}".format(gib(max(used for _device, used in busy))), "idle devices",
                      "stop what holds it: {}".format(_named([device for device, _used in busy])))  # fmt: skip

    def links(self) -> None:
        """PCI links that run below what the device, its slot or the specification has."""
        width = max([s.pcie_width for s in self.specifications] or [0])
        speed = max([s.pcie_speed_gts for s in self.specifications] or [0.0])
        slow: Dict[Tuple[str, str], List[Accelerator]] = {}
        for device in self.devices:
            link, slot = _mapping(device.raw.get("link")), _mapping(device.raw.get("slot"))
            lanes, most = _number(link.get("width")), _number(link.get("max_width"))
            # An idle GPU slows its link down; an NPU does not.
            rate = _number(link.get("speed_gts" if self.kind == "npu" else "max_speed_gts"))
            wanted, fastest = width or most, speed or (_number(link.get("max_speed_gts")) if self.kind == "npu" else 0)
            parts = [("x{}", lanes, wanted), ("{} GT/s", rate, fastest)]
            low = [(form, seen, need) for form, seen, need in parts if seen and need and seen < need]
            if low:
                narrow = _number(slot.get("max_width"))
                seen = " at ".join(form.format(_plain(value)) for form, value, _need in low)
                if narrow and narrow < wanted:
                    seen += " in a slot of x{}".format(narrow)
                need_text = " at ".join(form.format(_plain(need)) for form, _value, need in low)
                slow.setdefault((seen, need_text), []).append(device)
        for seen, needed in sorted(slow):
            self.warn("W_PCIE_LINK", "accelerators.link", "The PCI link of {}".format(_named(slow[(seen, needed)])),
                      seen, needed, "reseat the card, or a slot and riser that have {}".format(needed))  # fmt: skip

    def specification(self, spec: Specification) -> None:
        count = len(self.devices)
        if spec.device_counts and count < max(spec.device_counts) and count not in spec.device_counts:
            self.warn("W_DEVICE_COUNT", "accelerators", "Devices on the PCI bus", count,
                      " or ".join(str(n) for n in spec.device_counts),
                      "look for the missing ones in the management controller of the server")  # fmt: skip
        if spec.device_links:
            self._device_links(spec)
        if spec.nic_mbps and self.hardware.interface:
            speeds = [_number(n.get("speed_mbps")) for n in self.entries("nics")
                      if n.get("name") == self.hardware.interface]  # fmt: skip
            if speeds and 0 < speeds[0] < spec.nic_mbps:
                self.warn("W_NIC_SPEED", "nics.speed_mbps",
                          "Interface {} carries the host's address".format(self.hardware.interface),
                          "{} Mbit/s".format(speeds[0]), "{} Mbit/s".format(spec.nic_mbps),
                          "a faster port, or engine_address of one")  # fmt: skip
        slow = [p for p in self.entries("hccn") if 0 < _number(p.get("speed_mbps")) < spec.fabric_mbps]
        if slow:
            self.warn("W_NPU_PORT_SPEED", "hccn.speed_mbps",
                      "RoCE ports of NPU {}".format(", ".join(str(_number(p.get("device"))) for p in slow)),
                      "{} Mbit/s".format(min(_number(p["speed_mbps"]) for p in slow)),
                      "{} Mbit/s".format(spec.fabric_mbps), "cable, optics and switch port of that rate")  # fmt: skip
        for field, seen, needed, what, set_to in (
            ("cpu.cores", _number(self.part("cpu").get("cores")), spec.cores, "CPU cores online",
             "all sockets present and enabled in the firmware"),
            ("numa.nodes", len(_mappings(self.part("numa").get("nodes"))), spec.numa_nodes, "NUMA nodes",
             "in the firmware: NUMA on, die interleaving off"),
        ):  # fmt: skip
            if 0 < seen < needed:
                self.warn("W_CPU_LAYOUT", field, what, seen, needed, set_to)
        self._disks(spec)

    def _device_links(self, spec: Specification) -> None:
        numbers = sorted(d.number for d in self.devices if d.healthy and d.number is not None)
        words = {
            (_number(e.get("a")), _number(e.get("b"))): _text(e.get("link"))
            for e in self.entries("accelerator_links") if e.get("kind") == self.kind
        }  # fmt: skip
        if not words:
            return  # no tool showed them
        pairs = [(a, b) for index, a in enumerate(numbers) for b in numbers[index + 1 :]]
        allowed = re.compile("(?:{})\\Z".format("|".join(spec.device_links)))
        odd = [pair for pair in pairs if not allowed.match(words.get(pair, ""))]
        if odd:
            self.warn("W_DEVICE_LINKS", "accelerator_links", "Links between devices",
                      "{} between {} and {}{}".format(
                          words.get(odd[0]) or "none", odd[0][0], odd[0][1],
                          ", {} more pairs".format(len(odd) - 1) if len(odd) > 1 else ""),
                      "{} between all".format(" or ".join(spec.device_links)),
                      "reseat the modules, or ask the vendor to look at the link board")  # fmt: skip

    def _disks(self, spec: Specification) -> None:
        disks = {_text(d.get("mount")): d for d in self.entries("disks")}
        needed: Dict[str, int] = {}
        for path, size in spec.disk_bytes.items():
            mount = _holding(disks, path)
            needed[mount] = max(size, needed.get(mount, 0))
        for mount in sorted(needed):
            size = _number(disks.get(mount, {}).get("size_bytes"))
            if 0 < size < needed[mount]:
                self.warn("W_DISK_SIZE", "disks.size_bytes", "The file system {}".format(mount), gib(size),
                          gib(needed[mount]), "a larger disk for {}".format(mount))  # fmt: skip
        mount = mount_of(self.hardware, MODELS) or ""
        disk = disks.get(mount, {})
        kind, raid = _text(disk.get("kind")), _text(disk.get("raid"))
        # A controller hides what its disks are, and a virtual disk may be anything.
        if spec.weights_disks and kind == "hdd" and kind not in spec.weights_disks:
            self.warn("W_DISK_KIND", "disks.kind", "The disk of the weights ({})".format(mount),
                      kind + (" behind {}".format(raid) if raid else ""), " or ".join(spec.weights_disks),
                      "another disk for {}; models load as fast as it reads".format(MODELS))  # fmt: skip

    def memory_channels(self) -> None:
        modules = self.part("memory", "modules")
        filled, channels = _number(modules.get("populated_channels")), _number(modules.get("channels"))
        per_socket = max([s.channels_per_socket for s in self.specifications] or [0])
        needed = per_socket * _number(self.part("cpu").get("sockets")) or channels
        if 0 < filled < needed:
            self.warn("W_MEMORY_CHANNELS", "memory.modules", "Memory channels with a module", filled, needed,
                      "a module of the same kind in every channel: an empty one costs its bandwidth")  # fmt: skip


def check_hosts(
    on_host: Dict[str, List[Group]],
    hosts: Dict[str, Host],
    context: Context,
    fabrics: Dict[str, Dict[str, Any]],
    stacks: Dict[str, Dict[str, Any]],
) -> None:
    """Check every host that is to serve, and what the hosts of one replica have to share. `fabrics` and `stacks`:
    host -> what the plan sets up of its network between devices, and below its engines."""
    for host in hosts.values():
        if host.engine and host.hardware is not None and not host.left_out:
            Preflight(host, on_host.get(host.name, []), context, stacks.get(host.name)).check()
    checked: Set[str] = set()
    for groups in on_host.values():
        for group in groups:
            if len(group.hosts) > 1 and group.backend == "ascend" and group.name not in checked:
                checked.add(group.name)
                _check_network(group, context, fabrics)


def _check_network(group: Group, context: Context, fabrics: Dict[str, Dict[str, Any]]) -> None:
    """The RoCE ports by which the NPUs of a replica over several hosts reach each other. What role roce_fabric is
    about to set is no complaint: addresses, the health that follows from them, the TLS switch."""
    switches: Dict[bool, List[Tuple[Host, int]]] = {}
    for host in group.hosts:
        assert host.hardware is not None
        say = Preflight(host, [group], context)
        ports = host.hardware.ports
        for port in ports:
            if port.tls is not None and fabrics.get(host.name, {}).get("tls") is None:
                switches.setdefault(port.tls, []).append((host, port.device))
        down = [port.device for port in ports if port.link == "DOWN"]
        # Hosts of one A3 super pod reach each other without these ports.
        if down and say.device is not None and say.device.family == "a2":
            say.refuse("E_NPU_LINK", "hccn.link",
                       "RoCE ports of NPUs in a replica over {} hosts".format(len(group.hosts)),
                       "DOWN on NPU {}".format(", ".join(str(n) for n in down)), "UP on all",
                       "cable, optics and switch port; hccn_tool -i {} -link -g shows it".format(
                           down[0]))  # fmt: skip
            ports = tuple(port for port in ports if port.device not in down)
        bad = [p for p in ports if not p.address or p.link != "UP" or p.health not in ("Success", "")]
        if host.name in fabrics:
            bad = [p for p in ports if p.link not in ("UP", "")]
        if bad or not (host.hardware.ports or host.name in fabrics):
            say.warn("W_NPU_NETWORK", "hccn", "The NPUs cannot be seen to reach other hosts",
                     "; ".join("NPU {} has address {}, link {}, health {}".format(
                         p.device, p.address or "none", p.link or "unknown", p.health or "unknown") for p in bad)
                     or "nothing is known of their RoCE ports",
                     "an address, link UP and health Success on every NPU",
                     "engine_fabric: {devices: …}, a range role roce_fabric gives them addresses from; for the health "
                     "its netdetect")  # fmt: skip
    if len(switches) > 1:
        fewer = min(sorted(switches), key=lambda state: len(switches[state]))
        host, device = switches[fewer][0]
        others = {True: "on", False: "off"}
        Preflight(host, [group], context).refuse(
            "E_NPU_TLS", "hccn.tls", "The TLS switch of the NPUs of one replica differs",
            "{} for {} of them, first NPU {}".format(others[fewer], len(switches[fewer]), device),
            "{}, as for the other {}".format(others[not fewer], len(switches[not fewer])),
            "engine_fabric: {{tls: {0}}} for all of them, or hccn_tool -i {1} -tls -s enable {0} on this host".format(
                int(not fewer), device),
        )  # fmt: skip


def _may(entry: Dict[str, Any], digit: int) -> bool:
    """Whether one class of users, by the place of its digit in the mode, may read and write."""
    mode = _text(entry.get("mode"))
    return len(mode) >= 3 and mode[digit] in "67"


def _holder(process: Dict[str, Any]) -> str:
    return "{} ({})".format(_text(process.get("name")) or "a process", _text(process.get("unit")) or process.get("pid"))


def _named(devices: Sequence[Accelerator]) -> str:
    """Devices by number; those that no tool numbers by their PCI address."""
    names = [str(d.number) if d.number is not None else _text(d.raw.get("pci")) or "?" for d in devices]
    return "device " + ", ".join(names)


def _holding(disks: Dict[str, Any], path: str) -> str:
    """The mount point that holds `path`."""
    return max((m for m in disks if m and (path + "/").startswith(m.rstrip("/") + "/")), key=len, default="")


def _plain(number: float) -> str:
    return "{:g}".format(number)


def _mapping(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> List[Dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _texts(value: Any) -> List[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> Any:
    """A number of the facts, 0 where they have none."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
