# SPDX-License-Identifier: Apache-2.0
"""Flags and environment of an accelerator engine, the same on all hosts of a replica or one host's own."""

from typing import Any, Dict, List, Sequence

from ansible.module_utils.vllm_ansible.cpulist import format_cpulist
from ansible.module_utils.vllm_ansible.plan import rows, topology
from ansible.module_utils.vllm_ansible.plan.backends.accelerator_fit import utilisation
from ansible.module_utils.vllm_ansible.plan.backends.base import Binding, Context, Interrupts, Worker
from ansible.module_utils.vllm_ansible.plan.facts import Accelerator
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host
from ansible.module_utils.vllm_ansible.plan.meeting import meet, own_addresses
from ansible.module_utils.vllm_ansible.plan.settings import engine_flags
from ansible.module_utils.vllm_ansible.plan.stack import driver_to_be

# HCCL listens on 32 ports from its base, 60000 by default.
HCCL_FIRST, HCCL_PORTS = 60000, 32
# Versions whose division of a cpuset topology.engine_pools follows, and what it divides by number whatever is near.
BINDS_AS_READ, SLICED = ("0.23.0",), ("a3",)
# The interrupt of an NPU's send queue; the next number is its completion queue (vllm_ascend/cpu_binding.py).
NPU_INTERRUPT = "sq_send_trigger_irq"
# cpuset.cpus of cgroup v2 holds a worker that binds itself to whole nodes; systemd sets it since this version.
ALLOWED_CPUS_SINCE = 244


def decide_settings(group: Group, kind: str, context: Context) -> None:
    """What every host of the replica is started with."""
    row, model = group.row, group.model
    assert row is not None and model is not None
    layout = group.layout
    flags: Dict[str, Any] = dict(row.flags)
    flags.update(
        {
            "dtype": group.dtype,
            "max-model-len": group.max_model_len,
            "max-num-seqs": group.max_num_seqs,
            "max-num-batched-tokens": group.max_num_batched_tokens,
            "gpu-memory-utilization": utilisation(group, row),
        }
    )
    if model.task == "embed":
        flags["runner"] = "pooling"
    sizes = {"tensor": "tensor_parallel", "pipeline": "pipeline_parallel", "data": "data_parallel"}
    for name, key in sizes.items():
        if layout[key] > 1:
            flags[name + "-parallel-size"] = layout[key]
    if layout["expert_parallel"] > 1:
        flags["enable-expert-parallel"] = True
    if group.backend == "ascend" and model.quantisation is not None:
        # weights made by ModelSlim name their method in a file of their own, which this value makes the engine read
        flags["quantization"] = "ascend"
    group.flags = flags
    group.environment = {key: str(value) for key, value in row.environment.items()}
    assert group.head.hardware is not None
    driver = driver_to_be(context.catalogue, group.head, kind, group.family, group.request.version)
    for feature, component, floor in rows.missing_features(row, driver):
        context.findings.decide(
            "R_FEATURE_OFF", "engine." + feature, False,
            "{} {} is not {}".format(
                component, driver if component == "driver" else row.versions.get(component), floor),
            group=group.name,
        )  # fmt: skip
        if feature == "full_graph":
            flags["compilation-config"] = {"cudagraph_mode": "PIECEWISE"}


def decide_member(group: Group, host: Host, context: Context) -> None:
    """What is `host`'s own: its visible devices, its address, and how it finds the other hosts of the replica."""
    environment = _own_environment(group, host)
    ports: List[int] = []
    if group.backend == "ascend" and group.world > 1:
        first = HCCL_FIRST + HCCL_PORTS * group.position
        environment["HCCL_IF_BASE_PORT"] = str(first)
        ports += range(first, first + HCCL_PORTS)
    ports += meet(group, host, context)
    group.member_environment[host.name] = environment
    group.reserved_ports[host.name] = ports


def _own_environment(group: Group, host: Host) -> Dict[str, str]:
    assert host.hardware is not None
    numbers = ",".join(str(n) for n in group.devices.get(host.name, []))
    environment = {"ASCEND_RT_VISIBLE_DEVICES" if group.backend == "ascend" else "CUDA_VISIBLE_DEVICES": numbers}
    if group.backend == "cuda":
        # the engine numbers devices as the bus does, as the facts do
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    interface = host.hardware.interface
    environment.update(own_addresses(group, host))
    if group.world > 1 and interface:
        if group.backend == "ascend":
            environment["HCCL_SOCKET_IFNAME"] = interface
            environment["HCCL_IF_IP"] = host.address
        else:
            environment["NCCL_SOCKET_IFNAME"] = interface
    return environment


def place_workers(
    group: Group, host: Host, devices: Sequence[Accelerator], every: Sequence[Accelerator], binding: Binding
) -> List[Worker]:
    """Return each rank's CPUs inside the binding, in the order of `devices`; `every`: all devices of the host.

    An Ascend engine on aarch64 divides them itself, by rules of its own; of versions nobody read, and of the 950, it is
    known only that they stay inside. vLLM is told (see bind_workers).
    """
    assert host.hardware is not None and group.row is not None
    nodes = host.hardware.nodes
    numbers = group.devices[host.name]
    ranks, homes = [sorted(rank) for rank in binding.ranks], topology.homes(nodes, devices)
    near = ranks
    if group.backend == "ascend":
        known = group.row.version in BINDS_AS_READ and group.family != "950" and devices[0].number is not None
        if host.hardware.architecture == "aarch64" and known:
            pools = topology.engine_pools(nodes, every, numbers, binding.cpus, group.family in SLICED)
            ranks = [pools.get(number, []) for number in numbers]
            # it moves a worker's pages to the node of its first CPU
            near, homes = [rank[:1] for rank in ranks], [None] * len(ranks)
        else:
            ranks = [sorted(binding.cpus) for _rank in ranks]
    return [
        Worker(number, rank, topology.memory_node(nodes, cpus, home) if cpus else None)
        for number, rank, cpus, home in zip(numbers, ranks, near, homes)
    ]


def answer_interrupts(
    group: Group, devices: Sequence[Accelerator], workers: Sequence[Worker], binding: Binding
) -> List[Interrupts]:
    """Return who answers the interrupts of the devices: of an NPU the two CPUs the engine leaves free for them, of a
    GPU the worker's. The engine is no root and cannot do it; chips that share one PCI function share the first's."""
    found: Dict[str, Interrupts] = {}
    for device, worker, rank in zip(devices, workers, binding.ranks):
        pci = device.raw.get("pci") if isinstance(device.raw, dict) else None
        # a worker that may use all CPUs of the engine leaves none free: those near the device then
        cpus = worker.cpus if len(worker.cpus) < len(binding.cpus) else sorted(rank)
        if isinstance(pci, str) and pci and cpus and group.family != "950":
            npu = group.backend == "ascend"
            found.setdefault(pci, Interrupts(pci, cpus[:2] if npu else cpus, NPU_INTERRUPT if npu else None))
    return [found[pci] for pci in sorted(found)]


def bind_workers(group: Group, host: Host, binding: Binding, context: Context) -> Binding:
    """Have vLLM start each GPU's worker on its own CPUs and node; return what then holds for the workers.

    Left to itself it refuses to start inside a cpuset (vllm/utils/numa_utils.py of 0.32.0), so nodes and CPUs are
    named, one for each visible GPU; it wraps workers that are spawned, not forked. Its core process takes whole nodes:
    only a cpuset of cgroup v2 keeps that inside, so other hosts keep the binding of the unit alone.
    """
    assert host.hardware is not None and group.row is not None
    flags = engine_flags(context.flags, group.row.engine, group.row.version) or {}
    nodes = [worker.memory_node for worker in binding.workers]
    if group.backend != "cuda":
        return binding
    if (
        len(host.hardware.nodes) < 2
        or "numa-bind-cpus" not in flags
        or None in nodes
        or not all(worker.cpus for worker in binding.workers)
        or host.hardware.systemd < ALLOWED_CPUS_SINCE
        or not host.hardware.cgroup2
    ):
        return binding._replace(workers=[worker._replace(cpus=binding.cpus) for worker in binding.workers])
    group.member_flags[host.name].update(
        {
            "numa-bind": True,
            "numa-bind-nodes": nodes,
            "numa-bind-cpus": [format_cpulist(worker.cpus) for worker in binding.workers],
        }
    )
    group.member_environment[host.name]["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    context.findings.decide(
        "R_WORKERS_BOUND", "numa.workers", " ".join(format_cpulist(worker.cpus) for worker in binding.workers),
        "vLLM binds each worker itself, to CPUs near its GPU inside the cpuset of the unit",
        host.name, group.name,
    )  # fmt: skip
    return binding
