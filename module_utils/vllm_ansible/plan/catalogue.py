# SPDX-License-Identifier: Apache-2.0
"""Our tested knowledge, as data: rows (versions that go together), devices, platforms, models, tuning.

Checked before it is used. What nobody verified is named in an entry's `unverified` (field -> what is missing).
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.plan import nvidia, versions
from ansible.module_utils.vllm_ansible.plan.devices import FAMILIES, QUANTISATIONS, Device, Devices, read_device
from ansible.module_utils.vllm_ansible.plan.hdk import Hdk, read_hdk
from ansible.module_utils.vllm_ansible.plan.models import Model, read_model
from ansible.module_utils.vllm_ansible.plan.platforms import Platform, read_platform
from ansible.module_utils.vllm_ansible.plan.reader import Reader
from ansible.module_utils.vllm_ansible.plan.specifications import Specification, read_specification
from ansible.module_utils.vllm_ansible.plan.tuning import Tuning, read_tuning

DEVICE_MEMORY = ("context_bytes", "graph_bytes", "comm_bytes")


class Machine(NamedTuple):
    """What a row needs of a host of one architecture: instruction sets and the oldest C library."""

    isa: Tuple[str, ...]
    glibc: str


class Row(NamedTuple):
    """One set of versions that go together. Sizes in bytes; those of processes as measured while serving.

    Accelerators: `versions` are the components (cann, nnal, torch, torch_npu, triton_ascend, cuda, …), `families` the
    device families it runs on, `drivers` the ranges its toolkit was released for (see `versions.matches`), `features`
    a name to the floors below which the engine works without it (component or ``driver`` -> range), `quantisations`
    what this engine version runs, `chips` a family to its name in the vendor's packages, `cxx_abi` the C++ ABI its
    torch was built with, `flag_choices` what the plugin adds to the choices of the engine's flags, `flag_keys` the keys
    that it reads in those that take a mapping.
    `memory` holds `utilisation` (share of a device the engine may take) and, per rank, `context_bytes`, `graph_bytes`
    and `comm_bytes`; one nobody published is absent. `release_bytes` and `artefact_bytes` are 0 where nobody measured.
    `status`: ``installable`` by this version of the project, or ``plannable`` only.
    """

    name: str
    engine: str
    version: str
    backend: str
    default: bool
    requires_series: bool
    machines: Dict[str, Machine]
    dtypes: Tuple[str, ...]
    model_architectures: Tuple[str, ...]
    mla: Dict[str, Any]
    block_tokens: int
    mla_block_tokens: int
    release_bytes: int
    artefact_bytes: int
    process_bytes: int
    worker_bytes: int
    shared_memory_bytes: int
    defaults: Dict[str, Any]
    service: Dict[str, Any]
    flags: Dict[str, Any]
    environment: Dict[str, Any]
    flag_choices: Dict[str, List[str]] = {}
    flag_keys: Dict[str, List[str]] = {}
    plugin: str = ""
    plugin_version: str = ""
    versions: Dict[str, str] = {}
    families: Tuple[str, ...] = ()
    drivers: Tuple[str, ...] = ()
    python: str = ""
    page_sizes: Tuple[int, ...] = ()
    features: Dict[str, Dict[str, str]] = {}
    quantisations: Tuple[str, ...] = ()
    memory: Dict[str, Any] = {}
    status: str = "installable"
    unverified: Dict[str, str] = {}
    cxx_abi: int = 1
    chips: Dict[str, str] = {}

    def flags_with_choices(self, known: Dict[str, Any]) -> Dict[str, Any]:
        """Return the engine's flags (``flags.yml``) with the choices the plugin adds and the keys it reads."""
        extended = {
            flag: dict(known[flag], choices=known[flag]["choices"] + extra)
            for flag, extra in self.flag_choices.items()
            if isinstance(known.get(flag, {}).get("choices"), list)
        }
        extended.update({flag: dict(known[flag], keys=keys) for flag, keys in self.flag_keys.items() if flag in known})
        return dict(known, **extended)

    @property
    def architectures(self) -> Tuple[str, ...]:
        return tuple(sorted(self.machines))

    @property
    def release(self) -> str:
        """The version that orders rows: the plugin's, where there is one."""
        return self.plugin_version or self.version

    @property
    def final(self) -> bool:
        return not versions.prerelease(self.release)


ROW_KEYS = frozenset(Row._fields) - {"name", "process_bytes", "worker_bytes", "shared_memory_bytes"} | {"sources"}


class Catalogue(NamedTuple):
    """All entries by name; an unusable one is absent and was complained about."""

    rows: Tuple[Row, ...]
    models: Dict[str, Model]
    devices: Devices = Devices()
    platforms: Tuple[Platform, ...] = ()
    tuning: Tuple[Tuning, ...] = ()
    specifications: Tuple[Specification, ...] = ()
    hdk: Tuple[Hdk, ...] = ()
    gpu_drivers: Tuple[nvidia.GpuDriver, ...] = ()
    gpu_repositories: Tuple[nvidia.Repository, ...] = ()
    cuda_toolkits: Tuple[nvidia.Toolkit, ...] = ()


def read_row(name: str, entry: Reader) -> Row:
    """Read one row; what is unusable is complained about through `entry`."""
    entry.only(ROW_KEYS)
    entry.sources()
    backend = entry.text("backend", required=True)
    cpu = backend == "cpu"
    status = entry.choice("status", ("installable", "plannable"), default="installable")
    doubts = entry.text_map("unverified")
    # sizes of what nobody has built yet are unknown
    measured = {key: status == "installable" and key not in doubts for key in ("release_bytes", "artefact_bytes")}
    machines = entry.mapping("machines", required=True)
    memory = entry.mapping("memory", required=True)
    defaults = entry.mapping("defaults", required=True)
    service = entry.mapping("service", required=True)
    choices, keys, features = (entry.mapping(key) for key in ("flag_choices", "flag_keys", "features"))
    row = Row(
        name=name,
        engine=entry.text("engine", required=True),
        version=entry.text("version", required=True),
        backend=backend,
        default=entry.flag("default"),
        requires_series=entry.flag("requires_series"),
        machines={
            architecture: Machine(tuple(m.texts("isa", required=True)), m.text("glibc", required=True))
            for architecture in machines.raw
            for m in [machines.mapping(architecture)]
        },
        dtypes=tuple(entry.texts("dtypes", required=True)),
        model_architectures=tuple(entry.texts("model_architectures", required=True)),
        mla=entry.mapping("mla").raw,
        block_tokens=entry.integer("block_tokens", default=16, minimum=1),
        mla_block_tokens=entry.integer("mla_block_tokens", default=16, minimum=1),
        release_bytes=entry.integer("release_bytes", required=measured["release_bytes"], minimum=1),
        artefact_bytes=entry.integer("artefact_bytes", required=measured["artefact_bytes"], minimum=1),
        process_bytes=memory.integer("process_bytes", required=cpu, minimum=1),
        worker_bytes=memory.integer("worker_bytes", required=cpu, minimum=1),
        shared_memory_bytes=memory.integer("shared_memory_bytes", required=cpu, minimum=1),
        defaults={
            key: defaults.integer(key, default=1, required=True, minimum=1)
            for key in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
        },
        service={
            key: service.integer(key, default=1, required=True, minimum=1)
            for key in ("stall_after_seconds", "max_step_seconds")
        },
        flags=entry.mapping("flags").raw,
        environment=entry.mapping("environment").raw,
        flag_choices={key: choices.texts(key) for key in choices.raw},
        flag_keys={key: keys.texts(key) for key in keys.raw},
        plugin=entry.text("plugin"),
        plugin_version=entry.text("plugin_version"),
        versions=entry.text_map("versions"),
        families=tuple(entry.choices("families", FAMILIES)),
        drivers=tuple(entry.texts("drivers")),
        python=entry.text("python"),
        page_sizes=tuple(size for size in entry.list("page_sizes") if isinstance(size, int)),
        features={key: features.text_map(key) for key in features.raw},
        quantisations=tuple(entry.choices("quantisations", QUANTISATIONS)),
        memory=_memory(memory, cpu),
        status=status,
        unverified=doubts,
        cxx_abi=entry.integer("cxx_abi", default=1, required=backend == "ascend"),
        chips=entry.text_map("chips"),
    )
    if backend == "ascend" and set(row.families) - set(row.chips):
        entry.complain(entry.field("chips"), sorted(row.chips), "a name for each of the families")
    if not cpu and not row.families:
        entry.complain(entry.field("families"), None, "the device families the row runs on")
    for field in sorted(set(row.unverified) - ROW_KEYS - set(DEVICE_MEMORY)):
        entry.complain(entry.field("unverified"), field, "the name of a field of the row")
    _check_versions(row, entry)
    return row


def _memory(memory: Reader, cpu: bool) -> Dict[str, Any]:
    if cpu:
        return memory.raw
    memory.only(DEVICE_MEMORY + ("utilisation", "process_bytes", "worker_bytes", "shared_memory_bytes"))
    share = memory.number("utilisation", default=0.9)
    if not 0 < share <= 1:
        memory.complain(memory.field("utilisation"), share, "a share above 0 and at most 1")
    known = {key: memory.integer(key, minimum=0) for key in DEVICE_MEMORY if memory.raw.get(key) is not None}
    return dict(known, utilisation=share)


def _check_versions(row: Row, entry: Reader) -> None:
    """Complain about every version and range of `row` that cannot be compared."""
    exact = dict(row.versions, version=row.version, plugin_version=row.plugin_version)
    exact.update(("machines.{}.glibc".format(name), machine.glibc) for name, machine in row.machines.items())
    for key in sorted(k for k in exact if exact[k] and not versions.valid(exact[k])):
        entry.complain(entry.field(key), exact[key], "a version")
    ranges = [("drivers", r) for r in row.drivers] + [("python", row.python)] * bool(row.python)
    ranges += [("features", floor) for floors in row.features.values() for floor in floors.values()]
    for field, text in ranges:
        try:
            versions.matches("0", text)
        except ValueError:
            entry.complain(entry.field(field), text, "a range of versions such as 25.2.X or >=25.5.1")


def read_catalogue(raw: Any, own_models: Any, report: Callable[[str, str, Any, str], None]) -> Catalogue:
    """Read the catalogue with the site's own models laid over it.

    `report(code, field, seen, wanted)` is called for everything unusable.
    """
    bad: List[str] = []

    def complain_as(code: str) -> Callable[[str, Any, str], None]:
        def complain(field: str, seen: Any, wanted: str) -> None:
            bad.append(field)
            report(code, field, seen, wanted)

        return complain

    def each(entries: Reader, read: Any) -> Dict[str, Any]:
        result = {}
        for name in sorted(n for n in entries.raw if isinstance(n, str)):
            before = len(bad)
            item = read(name, entries.mapping(name))
            if len(bad) == before:
                result[name] = item
        return result

    catalogue = Reader(raw, "catalogue", complain_as("E_CATALOGUE"))
    rows = each(catalogue.mapping("rows", required=True), read_row)
    models = each(catalogue.mapping("models"), read_model)
    devices: Dict[str, Device] = each(catalogue.mapping("devices"), read_device)
    platforms = each(catalogue.mapping("platforms"), read_platform)
    tuning = each(catalogue.mapping("tuning"), read_tuning)
    specifications = each(catalogue.mapping("specifications"), read_specification)
    releases = each(catalogue.mapping("hdk"), read_hdk)
    drivers = each(catalogue.mapping("gpu_drivers"), nvidia.read_driver)
    repositories = each(catalogue.mapping("gpu_repositories"), nvidia.read_repository)
    toolkits = each(catalogue.mapping("cuda_toolkits"), nvidia.read_toolkit)
    own = Reader({} if own_models is None else own_models, "engine_models", complain_as("E_MODEL_INVALID"))
    models.update(each(own, read_model))
    return Catalogue(
        tuple(rows[name] for name in sorted(rows)),
        models,
        Devices(list(devices.values())),
        tuple(platforms.values()),
        tuple(tuning.values()),
        tuple(specifications.values()),
        tuple(releases.values()),
        tuple(drivers.values()),
        tuple(repositories.values()),
        tuple(toolkits.values()),
    )


def choose_row(catalogue: Catalogue, backend: str, version: Optional[str], architecture: str) -> Optional[Row]:
    """Return the row of `version`, or the default one of `backend`, if possible for `architecture`; None without any.

    A row for other architectures is returned when there is no better one: its check says what is wrong with the host.
    """
    rows = [row for row in catalogue.rows if row.backend == backend and version in (None, row.version)]
    rows = [row for row in rows if architecture in row.machines] or rows
    preferred = [row for row in rows if row.default] or rows
    return preferred[0] if preferred else None
