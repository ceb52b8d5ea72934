# SPDX-License-Identifier: Apache-2.0
"""Accelerator devices of the catalogue, and which of them a machine has."""

import re
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from ansible.module_utils.vllm_ansible.plan.reader import Reader

BACKENDS = ("ascend", "cuda")
FAMILIES = ("a1", "a2", "a3", "310p", "310b", "950", "volta", "turing", "ampere", "ada", "hopper", "blackwell")
LINKS = ("hccs", "nvlink", "pcie")
QUANTISATIONS = ("bf16", "fp16", "fp32", "fp8", "w8a8", "w4a8", "w4a16", "awq", "gptq")


class Device(NamedTuple):
    """One kind of NPU chip or GPU.

    `memory_bytes`: what the vendor's tool reports in all, 0 when boards with this PCI id differ and the facts do not
    say which it is (no driver yet). `soc_version`: build target of vllm-ascend. `quantisations`: what the device
    computes in. `link`: what joins the devices of one host; `nvswitch`: by switches that PCI does not show.
    `because`: why it is not `supported`.
    """

    name: str
    kind: str
    backend: str
    family: str
    soc_version: str
    compute_capability: str
    memory_bytes: int
    dtypes: Tuple[str, ...]
    quantisations: Tuple[str, ...]
    link: str
    supported: bool
    because: str
    pci: Tuple[str, ...] = ()
    subsystems: Tuple[str, ...] = ()
    models: Tuple[str, ...] = ()
    nvswitch: bool = False
    unverified: Dict[str, str] = {}

    def named(self, model: str) -> bool:
        """Whether the vendor's tool calls this device `model`."""
        return any(re.match(pattern + r"\Z", model, re.IGNORECASE) for pattern in self.models)


def read_device(name: str, entry: Reader) -> Device:
    """Read one device; what is unusable is complained about through `entry`."""
    entry.only(DEVICE_KEYS)
    entry.sources()
    backend = entry.choice("backend", BACKENDS)
    device = Device(
        name=name,
        kind="npu" if backend == "ascend" else "gpu",
        backend=backend,
        family=entry.choice("family", FAMILIES),
        soc_version=entry.text("soc_version"),
        compute_capability=entry.text("compute_capability"),
        memory_bytes=entry.integer("memory_bytes", required=True, minimum=1),
        dtypes=tuple(entry.texts("dtypes")),
        quantisations=tuple(entry.choices("quantisations", QUANTISATIONS)),
        link=entry.choice("link", LINKS),
        supported=entry.flag("supported", default=True),
        because=entry.text("because"),
        pci=tuple(entry.texts("pci", required=True)),
        subsystems=tuple(entry.texts("subsystems")),
        models=tuple(entry.texts("models", required=True)),
        nvswitch=entry.flag("nvswitch"),
        unverified=entry.text_map("unverified"),
    )
    for pattern in device.models:
        try:
            re.compile(pattern)
        except re.error:
            entry.complain(entry.field("models"), pattern, "regular expressions")
            return device._replace(models=())
    if not device.supported and not device.because:
        entry.complain(entry.field("because"), None, "the reason, since supported is false")
    return device


DEVICE_KEYS = frozenset(Device._fields) - {"name", "kind"} | {"sources"}


class Devices:
    """The catalogue's devices, looked up by what the facts say of an accelerator."""

    def __init__(self, devices: Sequence[Device] = ()) -> None:
        self.all = tuple(devices)
        self._by_pci: Dict[str, Tuple[Device, ...]] = {}
        for device in self.all:
            for pci in device.pci:
                self._by_pci[pci] = self._by_pci.get(pci, ()) + (device,)
        self._found: Dict[Tuple[str, str, str, str, int], Optional[Device]] = {}

    def identify(self, accelerator: Any, model: str = "") -> Optional[Device]:
        """Return the device of one entry of the facts' ``accelerators`` (mapping or object), or None.

        The PCI id decides; subsystem, name (``model`` or ``soc``) and memory only choose between boards that share the
        id. Without an id the name alone has to be enough. `model` is the name where no tool said one. The memory of
        the result is 0 when boards of different size are left.
        """
        key = (
            _lower(accelerator, "device_id"),
            _lower(accelerator, "subsystem"),
            _lower(accelerator, "model") or model.strip().lower(),
            _lower(accelerator, "soc"),
            _field(accelerator, "memory_bytes") or 0,
        )
        if key not in self._found:
            self._found[key] = self._identify(*key)
        return self._found[key]

    def sharing(self, device: Device) -> Tuple[Device, ...]:
        """The devices with the PCI ids of `device`, itself among them."""
        return tuple(other for other in self.all if set(other.pci) & set(device.pci))

    def _identify(self, pci: str, subsystem: str, model: str, soc: str, memory_bytes: int) -> Optional[Device]:
        known = self._by_pci.get(pci, ()) if pci else self.all
        boards = [d for d in known if subsystem and subsystem in d.subsystems] or list(known)
        named = [d for d in boards if any(name and d.named(name) for name in (model, soc))]
        if not named and not pci:
            return None
        boards = named or boards
        if not boards:
            return None
        if memory_bytes:
            return min(boards, key=lambda d: abs(d.memory_bytes - memory_bytes))
        if len({d.memory_bytes for d in boards}) > 1:
            return boards[0]._replace(memory_bytes=0)
        return boards[0]


def _field(accelerator: Any, field: str) -> Any:
    return accelerator.get(field) if isinstance(accelerator, dict) else getattr(accelerator, field, None)


def _lower(accelerator: Any, field: str) -> str:
    value = _field(accelerator, field)
    return value.strip().lower() if isinstance(value, str) else ""
