# SPDX-License-Identifier: Apache-2.0
"""Our tested knowledge, as data: rows (versions that go together) and models. Checked before it is used."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils.vllm_ansible.plan.models import Model, read_model
from ansible.module_utils.vllm_ansible.plan.reader import Reader


class Machine(NamedTuple):
    """What a row needs of a host of one architecture: instruction sets and the oldest C library."""

    isa: Tuple[str, ...]
    glibc: str


class Row(NamedTuple):
    """One set of versions that go together. Sizes in bytes, per process as measured while serving."""

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


class Catalogue(NamedTuple):
    """All rows and models by name; an unusable entry is absent and was complained about."""

    rows: Tuple[Row, ...]
    models: Dict[str, Model]


def read_row(name: str, entry: Reader) -> Row:
    """Read one row; what is unusable is complained about through `entry`."""
    machines = entry.mapping("machines", required=True)
    memory = entry.mapping("memory", required=True)
    defaults = entry.mapping("defaults", required=True)
    service = entry.mapping("service", required=True)
    if not entry.mapping("sources", required=True).raw:
        entry.complain(entry.field("sources"), {}, "a mapping of field to where its values come from")
    return Row(
        name=name,
        engine=entry.text("engine", required=True),
        version=entry.text("version", required=True),
        backend=entry.text("backend", required=True),
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
        release_bytes=entry.integer("release_bytes", required=True, minimum=1),
        artefact_bytes=entry.integer("artefact_bytes", required=True, minimum=1),
        process_bytes=memory.integer("process_bytes", required=True, minimum=1),
        worker_bytes=memory.integer("worker_bytes", required=True, minimum=1),
        shared_memory_bytes=memory.integer("shared_memory_bytes", required=True, minimum=1),
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
    )


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
    own = Reader({} if own_models is None else own_models, "engine_models", complain_as("E_MODEL_INVALID"))
    models.update(each(own, read_model))
    return Catalogue(tuple(rows[name] for name in sorted(rows)), models)


def choose_row(catalogue: Catalogue, backend: str, version: Optional[str]) -> Optional[Row]:
    """Return the row of `version`, or the default one of `backend`; None when there is none."""
    rows = [row for row in catalogue.rows if row.backend == backend and version in (None, row.version)]
    preferred = [row for row in rows if row.default] or rows
    return preferred[0] if preferred else None
