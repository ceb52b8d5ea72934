# SPDX-License-Identifier: Apache-2.0
"""Flags and environment of an accelerator engine, the same on all hosts of a replica or one host's own."""

from typing import Any, Dict, List

from ansible.module_utils.vllm_ansible.plan import rows
from ansible.module_utils.vllm_ansible.plan.backends.accelerator_fit import utilisation
from ansible.module_utils.vllm_ansible.plan.backends.base import Context
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host
from ansible.module_utils.vllm_ansible.plan.meeting import meet, own_addresses
from ansible.module_utils.vllm_ansible.plan.stack import driver_to_be

# HCCL listens on 32 ports from its base, 60000 by default.
HCCL_FIRST, HCCL_PORTS = 60000, 32


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
