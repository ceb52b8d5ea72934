# SPDX-License-Identifier: Apache-2.0
"""Row, machine, model, data type and layout of a CPU engine: what runs at all, and how it is divided."""

from ansible.module_utils.vllm_ansible.plan.backends.base import Context, fail
from ansible.module_utils.vllm_ansible.plan.canonical import version_key
from ansible.module_utils.vllm_ansible.plan.catalogue import Row
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host
from ansible.module_utils.vllm_ansible.plan.models import DTYPE_BYTES

BFLOAT16_ISA = ("amx_bf16", "avx512_bf16", "bf16")


def decide_row(group: Group, row: Row, context: Context) -> None:
    context.findings.decide(
        "R_ROW_PINNED" if group.request.version else "R_ROW_DEFAULT",
        "engine.version",
        "{} {}".format(row.engine, row.version),
        "engine_request.version asks for it"
        if group.request.version
        else "row {} is the {} of backend {} for {}".format(
            row.name, "tested default" if row.default else "row", row.backend, " and ".join(row.architectures)
        ),
        group=group.name,
    )


def check_machine(group: Group, row: Row, host: Host, context: Context) -> None:
    """Architecture, instruction sets and C library of one host against the row."""
    hardware = host.hardware
    assert hardware is not None
    machine = row.machines.get(hardware.architecture)
    if machine is None:
        fail(
            group,
            context,
            "E_ARCHITECTURE",
            "{} is {}, and row {} has a locked set of packages for {} only".format(
                host.name, hardware.architecture, row.name, ", ".join(sorted(row.machines))
            ),
            "hosts of these architectures in {}, or another version".format(group.pool),
            "vllm_hardware.architecture",
            hardware.architecture,
            host,
        )
        return
    missing = [isa for isa in machine.isa if isa not in hardware.isa]
    if missing:
        fail(
            group,
            context,
            "E_ISA",
            "The kernels of {} {} need {}, which {} ({}) does not have".format(
                row.engine, row.version, ", ".join(missing), host.name, hardware.cpu_model or "unknown CPU"
            ),
            "another host in {}, or expose these instructions to the virtual machine".format(group.pool),
            "vllm_hardware.cpu.isa",
            ", ".join(sorted(hardware.isa)) or "none",
            host,
        )
    if version_key(hardware.glibc) < version_key(machine.glibc):
        fail(
            group,
            context,
            "E_GLIBC",
            "{} runs glibc {}, and the engine needs {} or newer".format(
                host.name, hardware.glibc or "of unknown version", machine.glibc
            ),
            "a host with a newer operating system than {}".format(hardware.os_name or "this one"),
            "vllm_hardware.os.glibc",
            hardware.glibc,
            host,
        )


def check_alike(group: Group, context: Context) -> None:
    """The workers of one replica run the same build."""
    for host in group.hosts[1:]:
        own, head = host.hardware, group.head.hardware
        if own is not None and head is not None and own.architecture != head.architecture:
            fail(
                group,
                context,
                "E_GROUP_MIXED",
                "{} is {} and {} is {}; the hosts of one replica run the same build".format(
                    group.head.name, head.architecture, host.name, own.architecture
                ),
                "hosts of one architecture in {}, or nodes: 1".format(group.pool),
                "vllm_hardware.architecture",
                own.architecture,
                host,
            )


def check_model(group: Group, row: Row, context: Context) -> None:
    model = group.model
    assert model is not None
    if model.architecture not in row.model_architectures:
        fail(
            group,
            context,
            "E_MODEL_ARCHITECTURE",
            "{} {} on {} does not serve {} ({})".format(
                row.engine, row.version, row.backend, model.architecture, model.name
            ),
            "a model of one of these architectures: " + ", ".join(sorted(row.model_architectures)),
            "engine_request.model",
            model.architecture,
        )
    if model.shape.mla:
        numbers = {"kv_lora_rank": model.shape.kv_lora_rank, "qk_rope_head_dim": model.shape.rope_dim}
        for key in sorted(numbers):
            if key in row.mla and numbers[key] != row.mla[key]:
                fail(
                    group,
                    context,
                    "E_MODEL_SHAPE",
                    "The latent-attention kernel of {} {} on {} is compiled for {} {} only; {} has {}".format(
                        row.engine, row.version, row.backend, key, row.mla[key], model.name, numbers[key]
                    ),
                    "a model with {}: {}".format(key, row.mla[key]),
                    "engine_request.model",
                    numbers[key],
                )


def decide_dtype(group: Group, row: Row, context: Context) -> None:
    """The requested data type; else the stored one, unless the CPU is slow in it: then float32, which loses nothing."""
    assert group.model is not None
    stored = group.model.dtype
    slow = [h.name for h in group.hosts if h.hardware and not h.hardware.isa.intersection(BFLOAT16_ISA)]
    if group.request.dtype not in (None, "auto"):
        group.dtype, rule, because = group.request.dtype, "R_DTYPE_PINNED", "engine_request.dtype asks for it"
    elif slow and DTYPE_BYTES[stored] < DTYPE_BYTES["float32"]:
        group.dtype, rule = "float32", "R_DTYPE_FLOAT32"
        because = (
            "{} has none of {} and is slower in {}; weights are converted when loaded: "
            "{} bytes per weight and KV cache element instead of {}".format(
                ", ".join(slow), ", ".join(BFLOAT16_ISA), stored, DTYPE_BYTES["float32"], DTYPE_BYTES[stored]
            )
        )
    elif stored == "bfloat16":
        group.dtype, rule = stored, "R_DTYPE_NATIVE"
        because = "the weights are stored in it and the CPU computes it natively"
    else:
        group.dtype, rule, because = stored, "R_DTYPE_MODEL", "the weights are stored in it"
    if group.dtype not in row.dtypes:
        fail(
            group,
            context,
            "E_DTYPE",
            "{} {} on {} does not compute in {}".format(row.engine, row.version, row.backend, group.dtype),
            "dtype: " + " or ".join(row.dtypes),
            "engine_request.dtype",
            group.dtype,
        )
        return
    context.findings.decide(rule, "engine.dtype", group.dtype, because, group=group.name)


def decide_layout(group: Group, context: Context) -> None:
    """One worker per host unless pinned: on CPUs a second replica gains more than splitting one."""
    request, model, hosts = group.request, group.model, len(group.hosts)
    assert model is not None
    if (request.pipeline_parallel_size or 1) > 1:
        fail(
            group,
            context,
            "E_LAYOUT",
            "Pipeline parallelism fails in eager mode, and the CPU engine runs in eager mode",
            "pipeline_parallel_size: 1",
            "engine_request.pipeline_parallel_size",
            request.pipeline_parallel_size,
        )
    if (request.data_parallel_size or 1) > 1:
        fail(
            group,
            context,
            "E_LAYOUT",
            "Data parallelism inside one CPU engine is not tested",
            "replicas_per_host: {}".format(request.data_parallel_size),
            "engine_request.data_parallel_size",
            request.data_parallel_size,
        )
    size = request.tensor_parallel_size or hosts
    heads, kv_heads = model.shape.heads, model.shape.kv_heads

    def divides(count: int) -> bool:
        return heads % count == 0 and (model.shape.mla or kv_heads % count == 0 or count % kv_heads == 0)

    if size % hosts:
        fail(
            group,
            context,
            "E_LAYOUT",
            "tensor_parallel_size {} cannot be spread evenly over the {} hosts of a replica".format(size, hosts),
            "nodes: 1, or tensor_parallel_size: a multiple of {}".format(hosts),
            "engine_request.tensor_parallel_size",
            size,
        )
        return
    if not divides(size):
        pinned = request.tensor_parallel_size is not None
        fits = [n for n in range(1, heads + 1) if divides(n) and n % (hosts if pinned else 1) == 0]
        fail(
            group,
            context,
            "E_LAYOUT" if pinned else "E_MULTI_NODE",
            "{} does not divide the {} attention heads ({} KV heads) of {}".format(
                "tensor_parallel_size {}".format(size) if pinned else "A replica over {} hosts".format(hosts),
                heads,
                kv_heads,
                model.name,
            ),
            ("tensor_parallel_size: " if pinned else "nodes: ") + " or ".join(str(n) for n in fits)
            if fits
            else "nodes: 1",
            "engine_request.tensor_parallel_size" if pinned else "engine_request.nodes",
            size,
        )
        return
    group.layout["tensor_parallel"] = size
    if request.tensor_parallel_size:
        rule, because = "R_LAYOUT_PINNED", "engine_request.tensor_parallel_size asks for it"
    elif hosts > 1:
        rule, because = "R_LAYOUT_HOSTS", "one worker on each of the {} hosts of a replica".format(hosts)
    else:
        rule, because = "R_LAYOUT_ONE_WORKER", "one worker per replica; replicas_per_host uses further NUMA nodes"
    context.findings.decide(rule, "engine.tensor_parallel", size, because, group=group.name)
