# SPDX-License-Identifier: Apache-2.0
"""Which parallel sizes carry a model on given devices, in a fixed order of preference.

The order: the context length that was wished for before a shorter one, fewer hosts before more, and on those hosts

* dense models: the smallest tensor size whose weights take at most ROOMY of a device, then the smallest that fits at
  all; devices that are left run data-parallel copies. Over several hosts, where one does not hold it, a pipeline stage
  on all devices of each.
* mixtures of experts: all devices, experts divided among them; the largest tensor size inside a host that keeps the
  heads of a rank in the preferred set (latent attention) or does not copy KV heads, data-parallel attention for the
  rest; then the other tensor sizes, then one pipeline stage per host.
* last, whatever the model: tensor parallelism across hosts.
"""

import functools
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ansible.module_utils.vllm_ansible.plan.fit.sizes import (
    Layout,
    Load,
    Memory,
    Overheads,
    Scheme,
    memory,
    sequence_bytes,
)
from ansible.module_utils.vllm_ansible.plan.models import Shape

ROOMY = 0.6


class Pins(NamedTuple):
    """Sizes the operator fixed; None leaves them to the plan."""

    tensor: Optional[int] = None
    pipeline: Optional[int] = None
    data: Optional[int] = None


class Question(NamedTuple):
    """One model on one kind of device: everything a layout is judged by.

    lengths: context lengths that would do, best first. hosts: how many hosts a replica may take, best first.
    per_host: devices of each. device_bytes: what a framework can use of the smallest. heads: heads per rank that latent
    attention should have; () for any. drafts, cache_bytes: as in `sizes.Load`.
    """

    shape: Shape
    scheme: Scheme
    overheads: Overheads
    device_bytes: int
    per_host: int
    hosts: Tuple[int, ...]
    lengths: Tuple[int, ...]
    sequences: int
    step_tokens: int
    pins: Pins = Pins()
    heads: Tuple[int, ...] = ()
    drafts: int = 0
    cache_bytes: int = 0

    def load(self, length: int) -> Load:
        return Load(length, self.sequences, self.step_tokens, self.drafts, self.cache_bytes)


class Answer(NamedTuple):
    """A layout and what a rank of it holds. `fits`: it carries at least one sequence of the full length."""

    layout: Layout
    load: Load
    memory: Memory
    fits: bool


def tensor_sizes(shape: Shape, limit: int) -> List[int]:
    """Tensor sizes up to `limit` that divide the attention heads, and the KV heads or are a multiple of them."""
    return [
        size
        for size in range(1, min(limit, shape.heads) + 1)
        if shape.heads % size == 0 and (shape.mla or shape.kv_heads % size == 0 or size % shape.kv_heads == 0)
    ]


def divides_blocks(shape: Shape, scheme: Scheme, layout: Layout) -> bool:
    """Whether every rank gets whole blocks of the MLPs, quantised ones in blocks of `scheme.block` columns."""
    quantised = [part for part, _size in scheme.quantised]

    def whole(width: int, part: str, ranks: int) -> bool:
        if width % ranks:
            return False
        block = scheme.block if part in quantised else 0
        return not block or width % block != 0 or (width // ranks) % block == 0

    dense = not shape.experts or shape.dense_layers > 0
    if dense and not whole(shape.intermediate, "dense_mlp", layout.tensor):
        return False
    return not shape.experts or layout.expert > 1 or whole(shape.moe_intermediate, "experts", layout.tensor)


def layouts(question: Question, hosts: int) -> Iterator[Layout]:
    """Yield the layouts over exactly `hosts` hosts, best first."""
    wanted = _mixture(question, hosts) if question.shape.experts else _dense(question, hosts)
    seen = set()
    pins = question.pins
    for layout in wanted:
        if layout in seen or layout.pipeline > question.shape.layers:
            continue
        seen.add(layout)
        if pins.tensor not in (None, layout.tensor) or pins.pipeline not in (None, layout.pipeline):
            continue
        if pins.data in (None, layout.data) and divides_blocks(question.shape, question.scheme, layout):
            yield layout


def _dense(question: Question, hosts: int) -> Iterator[Layout]:
    per_host = question.per_host
    sizes = tensor_sizes(question.shape, per_host)
    for pipeline in range(1, per_host + 1) if hosts == 1 else [1]:
        fitting = [size for size in sizes if size * pipeline <= per_host]
        for roomy in (True, False):
            for tensor in fitting:
                layout = Layout(tensor, pipeline, 1, 1, hosts)
                if roomy and not is_roomy(question, layout):
                    continue
                for copies in _copies(question, per_host // (tensor * pipeline)):
                    yield layout._replace(data=copies * hosts)
    if hosts > 1:
        for tensor in reversed(sizes):
            yield Layout(tensor, hosts, 1, 1, hosts)
        for tensor in tensor_sizes(question.shape, per_host * hosts):
            if tensor % hosts == 0:
                yield Layout(tensor, 1, 1, 1, hosts)


def _copies(question: Question, most: int) -> List[int]:
    """Data-parallel copies on each host to try: as many as there are devices for, or fewer where the size is pinned."""
    return [most] if question.pins.data is None else list(range(most, 0, -1))


def is_roomy(question: Question, layout: Layout) -> bool:
    """Whether weights leave the rest of a device to KV cache and all else."""
    found = memory(question.shape, question.scheme, layout, question.load(1), question.overheads, question.device_bytes)
    return found.weights <= ROOMY * question.device_bytes


def _mixture(question: Question, hosts: int) -> Iterator[Layout]:
    shape, per_host = question.shape, question.per_host
    for used in range(per_host, 0, -1):
        sizes = [size for size in tensor_sizes(shape, used) if used % size == 0]
        for tensor in _preferred(question, sizes):
            ranks = used * hosts
            if ranks <= shape.experts:
                yield Layout(tensor, 1, ranks // tensor, ranks, hosts)
        if hosts > 1:
            for tensor in _preferred(question, sizes):
                if tensor == used:
                    yield Layout(tensor, hosts, 1, tensor if tensor <= shape.experts else 1, hosts)
    if hosts > 1:
        for tensor in tensor_sizes(shape, per_host * hosts):
            if tensor % hosts == 0 and tensor <= shape.experts:
                yield Layout(tensor, 1, 1, tensor, hosts)


def _preferred(question: Question, sizes: Sequence[int]) -> List[int]:
    shape = question.shape
    if shape.mla:
        good = [size for size in sizes if not question.heads or shape.heads // size in question.heads]
        return sorted(good, reverse=True) + sorted((s for s in sizes if s not in good), reverse=True)
    good = [size for size in sizes if size <= shape.kv_heads]
    return sorted(good, reverse=True) + sorted(size for size in sizes if size not in good)


def judge(question: Question, layout: Layout, length: int) -> Answer:
    """Return what one layout carries at one context length."""
    load = question.load(length)
    found = memory(question.shape, question.scheme, layout, load, question.overheads, question.device_bytes)
    needed = sequence_bytes(found, length, question.overheads.block_tokens)
    return Answer(layout, load, found, found.kv_cache >= needed and found.total <= found.capacity)


@functools.lru_cache(maxsize=4096)
def choose(question: Question) -> Optional[Answer]:
    """Return the first layout that fits, or None. Remembered: a fleet asks the same question for every replica."""
    for length in question.lengths:
        for hosts in question.hosts:
            for layout in layouts(question, hosts):
                answer = judge(question, layout, length)
                if answer.fits:
                    return answer
    return None


def closest(question: Question) -> Optional[Answer]:
    """Return the layout that misses by least at the shortest length, for the message; None when there is no layout."""
    answers = [
        judge(question, layout, question.lengths[-1]) for hosts in question.hosts for layout in layouts(question, hosts)
    ]
    return max(answers, key=lambda answer: answer.memory.kv_cache) if answers else None
