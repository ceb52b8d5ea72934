# SPDX-License-Identifier: Apache-2.0
"""NPUs and GPUs until the catalogue has a row for them: the machine is read, laid out and then refused by name."""

from typing import Dict, List

from ansible.module_utils.vllm_ansible.plan.backends.base import Backend, Binding, Context, fail
from ansible.module_utils.vllm_ansible.plan.canonical import gib
from ansible.module_utils.vllm_ansible.plan.facts import Accelerator
from ansible.module_utils.vllm_ansible.plan.groups import Group, Host
from ansible.module_utils.vllm_ansible.plan.models import DTYPE_BYTES


class AcceleratorBackend(Backend):
    """Devices of one kind; `kind` is the facts' word for it."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind

    def plan(self, group: Group, context: Context) -> None:
        devices = [self._devices(host, context) for host in group.hosts]
        if all(devices):
            self._layout(group, devices, context)
        else:
            empty = [h for h, d in zip(group.hosts, devices) if not d]
            fail(
                group,
                context,
                "E_NO_DEVICE",
                "{} has no healthy {}".format(", ".join(h.name for h in empty), self.kind.upper()),
                "another host, or a backend this one has",
                "engine_request.backend",
                self.name,
                empty[0],
            )
        fail(
            group,
            context,
            "E_NO_ENGINE",
            "No engine for backend {} yet: the catalogue has no row for it".format(self.name),
            "hosts without {}s in {}, or backend: cpu for those with a fitting CPU".format(
                self.kind.upper(), group.pool
            ),
            "engine_request.backend",
            self.name,
        )

    def _devices(self, host: Host, context: Context) -> List[Accelerator]:
        assert host.hardware is not None
        own = [d for d in host.hardware.accelerators if d.kind == self.kind]
        healthy = [d for d in own if d.healthy]
        if len(healthy) < len(own):
            context.findings.warning(
                "W_DEVICE_SICK", "{} of {} devices of {} are not healthy".format(
                    len(own) - len(healthy), len(own), host.name), host.name
            )  # fmt: skip
        if healthy:
            nodes = ", ".join("?" if d.numa_node is None else str(d.numa_node) for d in healthy)
            context.findings.decide(
                "R_DEVICES",
                "devices.count",
                len(healthy),
                "{} healthy {} of {} on NUMA nodes {}".format(
                    len(healthy), healthy[0].model or self.kind, gib(healthy[0].memory_bytes), nodes
                ),
                host.name,
            )
        return healthy

    def _layout(self, group: Group, devices: List[List[Accelerator]], context: Context) -> None:
        """The smallest tensor parallel size whose devices hold weights and one full request."""
        model = group.model
        assert model is not None
        group.dtype = group.request.dtype if group.request.dtype not in (None, "auto") else model.dtype
        group.max_model_len = min(group.request.max_model_len or model.shape.positions, model.shape.positions)
        weights = model.shape.parameters() * DTYPE_BYTES[group.dtype]
        cache = group.max_model_len * model.shape.kv_bytes_per_token(DTYPE_BYTES[group.dtype])
        capacity = min(d.memory_bytes for host in devices for d in host)
        available = min(len(host) for host in devices) * len(devices)
        sizes = [n for n in range(1, available + 1) if model.shape.heads % n == 0]
        pinned = group.request.tensor_parallel_size
        if pinned:
            sizes = [n for n in sizes if n == pinned]
        fitting = [n for n in sizes if weights // n + (cache if model.shape.mla else cache // n) <= capacity]
        if not fitting:
            context.findings.warning(
                "W_DOES_NOT_FIT",
                "{} needs {} for weights and one request of {} tokens; no tensor parallel size of {} fits {} device(s)"
                " of {}".format(model.name, gib(weights + cache), group.max_model_len, sizes or "none", available,
                                gib(capacity)),
                group.head.name,
            )  # fmt: skip
            return
        group.layout["tensor_parallel"] = fitting[0]
        context.findings.decide(
            "R_LAYOUT_SMALLEST_FIT",
            "engine.tensor_parallel",
            fitting[0],
            "smallest size that divides {} heads and holds {} weights and {} KV cache of one request on devices of {}"
            .format(model.shape.heads, gib(weights), gib(cache), gib(capacity)),
            group=group.name,
        )  # fmt: skip

    def bind(self, host: Host, groups: List[Group], context: Context) -> Dict[str, Binding]:
        return {}

    def settle(self, host: Host, groups: List[Group], bindings: Dict[str, Binding], context: Context) -> None:
        return None
