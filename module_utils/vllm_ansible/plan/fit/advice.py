# SPDX-License-Identifier: Apache-2.0
"""What would make a model fit that does not: each proposal is planned again before it is made."""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible.module_utils.vllm_ansible.plan.fit.layouts import Pins, Question, choose, judge, layouts
from ansible.module_utils.vllm_ansible.plan.fit.sizes import Scheme
from ansible.module_utils.vllm_ansible.plan.models import Shape

MOST_HOSTS = 16


class Alternative(NamedTuple):
    """Another way to store the same weights: the name of the model or quantisation to set, its scheme and shape (its
    MLPs may be padded)."""

    name: str
    scheme: Scheme
    is_model: bool
    shape: Shape


class Proposal(NamedTuple):
    """One change to the request or the hosts that makes it fit; `sets` are keys of engine_request."""

    text: str
    sets: Dict[str, Any]


def fewer_sequences(question: Question) -> Optional[int]:
    """Return the most concurrent sequences that fit at the wished length, or None."""
    return _largest(question, lambda value: question._replace(sequences=value), question.sequences)


def shorter_length(question: Question) -> Optional[int]:
    """Return the longest context length that fits, in whole blocks, or None."""
    best = 0
    block = question.overheads.block_tokens
    longest = question.lengths[0]
    for hosts in question.hosts:
        for layout in layouts(question, hosts):
            answer = judge(question, layout, block)
            if answer.fits:
                best = max(best, min(longest, answer.memory.tokens // block * block))
    return best or None


def more_hosts(question: Question, most: int = MOST_HOSTS) -> Optional[int]:
    """Return the smallest number of hosts per replica, beyond those tried, that fits."""
    for hosts in range(max(question.hosts) + 1, most + 1):
        if choose(question._replace(hosts=(hosts,))):
            return hosts
    return None


def more_devices(question: Question, most: int) -> Optional[int]:
    """Return the smallest number of devices per host, beyond those there, that fits one host, or None."""
    for count in (2, 4, 8, 16):
        if question.per_host < count <= most and choose(question._replace(per_host=count, hosts=(1,))):
            return count
    return None


def larger_device(question: Question, others: Mapping[str, int]) -> Optional[str]:
    """Return the device with the least memory of `others` (name -> usable bytes) on which it fits, or None."""
    for name in sorted(others, key=lambda name: (others[name], name)):
        if others[name] > question.device_bytes and choose(question._replace(device_bytes=others[name])):
            return name
    return None


def proposals(
    question: Question,
    alternatives: Sequence[Alternative] = (),
    devices: int = 8,
    others: Optional[Mapping[str, int]] = None,
    most: int = MOST_HOSTS,
) -> List[Proposal]:
    """Return the changes that would make `question` fit, the smallest intervention first, each tried.

    `devices`: how many a host of this kind can have. `others`: devices to use instead, name -> usable bytes. `most`:
    hosts a replica may take.
    """
    found = []
    sequences = fewer_sequences(question)
    if sequences is not None:
        found.append(Proposal("max_num_seqs: {}".format(sequences), {"max_num_seqs": sequences}))
    length = shorter_length(question)
    if length is not None:
        found.append(Proposal("max_model_len: {}".format(length), {"max_model_len": length}))
    for alternative in alternatives:
        if choose(question._replace(scheme=alternative.scheme, shape=alternative.shape)):
            found.append(
                Proposal("model: {}".format(alternative.name), {"model": alternative.name})
                if alternative.is_model
                else Proposal("a model quantised to {}".format(alternative.name), {})
            )
            break
    count = more_devices(question, devices)
    if count is not None:
        found.append(Proposal("hosts with {} such devices each".format(count), {}))
    hosts = more_hosts(question, most)
    if hosts is not None:
        found.append(Proposal("nodes: {} (that many such hosts per replica)".format(hosts), {"nodes": hosts}))
    device = larger_device(question, others or {})
    if device is not None:
        found.append(Proposal("as many devices of the kind {}".format(device), {}))
    return found


def _largest(question: Question, change: Any, most: int) -> Optional[int]:
    """Bisect the largest value below `most` for which the changed question fits; fitting is monotone in it."""
    low, high = 1, most - 1
    if high < 1 or not choose(change(low)):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if choose(change(middle)):
            low = middle
        else:
            high = middle - 1
    return low


def other_pins(question: Question) -> List[Proposal]:
    """Return the changes of one pinned size after which some layout divides, those that fit where there are any.

    None without pins, or when the change of one is not enough.
    """
    found = []
    for field in Pins._fields:
        if getattr(question.pins, field) is None:
            continue
        freed = question._replace(pins=question.pins._replace(**{field: None}))
        every = [layout for hosts in question.hosts for layout in layouts(freed, hosts)]
        fitting = [layout for layout in every if judge(freed, layout, question.lengths[-1]).fits]
        sizes = sorted({getattr(layout, field) for layout in fitting or every})
        if sizes:
            key = field + "_parallel_size"
            found.append(Proposal("{}: {}".format(key, " or ".join(str(n) for n in sizes)), {key: sizes[0]}))
    return found


def as_text(found: Sequence[Proposal], otherwise: str) -> str:
    """Return the proposals as the `set` of a problem."""
    return ", or ".join(proposal.text for proposal in found) or otherwise
