# SPDX-License-Identifier: Apache-2.0
"""What is blamed for failed pairs, on a fleet of eight hosts with eight ports each."""

import itertools
import time
from collections import Counter

import pytest
from ansible.module_utils.vllm_ansible.fabric.blame import blame
from ansible.module_utils.vllm_ansible.fabric.rounds import peers, rounds

HOSTS = [f"npu{number:02}" for number in range(1, 9)]


def pairs_of(hosts, ports=8, same=False):
    ends = [(host, str(port)) for host in hosts for port in range(ports)]
    pairs = {tuple(sorted(pair)) for pair in itertools.combinations(ends, 2)}
    return {pair for pair in pairs if pair[0][0] != pair[1][0] and (not same or pair[0][1] == pair[1][1])}


def touching(tested, *ends):
    return {pair for pair in tested if set(ends) & set(pair)}


def between(tested, left, right):
    return {pair for pair in tested if {pair[0][0], pair[1][0]} & left and {pair[0][0], pair[1][0]} & right}


def blamed(tested, bad, known=()):
    return [(entry["kind"], entry["items"], entry["pairs"]) for entry in blame(tested, bad, known)]


ALL = pairs_of(HOSTS)
SAME = pairs_of(HOSTS, same=True)


def test_nothing_is_blamed_for_nothing():
    assert blame(ALL, set()) == []


def test_one_bad_port_among_64_is_named_once():
    bad = touching(ALL, ("npu03", "5"))
    assert len(bad) == 56
    assert blamed(ALL, bad) == [("port", [("npu03", "5")], 56)]


def test_the_same_with_pairs_of_one_number_only():
    assert blamed(SAME, touching(SAME, ("npu03", "5"))) == [("port", [("npu03", "5")], 7)]


def test_a_port_that_fails_now_and_then():
    bad = set(sorted(touching(ALL, ("npu03", "5")))[:50])
    assert blamed(ALL, bad) == [("port", [("npu03", "5")], 50)]


def test_several_things_at_once():
    ends = [("npu03", "5"), ("npu03", "6"), ("npu07", "0")]
    one = (("npu01", "1"), ("npu02", "2"))
    bad = touching(ALL, *ends) | {one} | touching(ALL, ("npu08", "0"))
    found = blamed(ALL, bad, known=[("npu08", "0")])
    assert found[0] == ("known", [("npu08", "0")], 56)
    assert sorted(item[0] for kind, item, _ in found if kind == "port") == ends
    assert found[-1] == ("pair", list(one), 1) and len(found) == 5


def test_a_whole_host():
    bad = between(ALL, {"npu04"}, set(HOSTS))
    assert blamed(ALL, bad) == [("host", ["npu04"], 448)]
    bad |= between(ALL, {"npu06"}, set(HOSTS)) | touching(ALL, ("npu01", "1"))
    assert [entry[:2] for entry in blamed(ALL, bad)] == [
        ("host", ["npu04"]), ("host", ["npu06"]), ("port", [("npu01", "1")])
    ]  # fmt: skip


def test_two_hosts_that_do_not_reach_each_other():
    bad = between(ALL, {"npu02"}, {"npu05"})
    assert blamed(ALL, bad) == [("hosts", ["npu02", "npu05"], 64)]
    two = pairs_of(HOSTS[:2])
    assert blamed(two, two) == [("hosts", HOSTS[:2], 64)]


def test_two_groups_of_hosts():
    bad = between(ALL, set(HOSTS[:3]), set(HOSTS[3:]))
    assert blamed(ALL, bad) == [("apart", [HOSTS[:3], HOSTS[3:]], 3 * 5 * 64)]
    port = touching(ALL, ("npu03", "5"))
    assert [entry[:2] for entry in blamed(ALL, bad | port)] == [
        ("apart", [HOSTS[:3], HOSTS[3:]]), ("port", [("npu03", "5")])
    ]  # fmt: skip


def test_nothing_works():
    assert blamed(ALL, ALL) == [("everywhere", [], len(ALL))]


def test_rails_are_one_finding():
    found = blamed(ALL, ALL - SAME)
    assert found == [("rails", [], len(ALL) - len(SAME))]
    found = blamed(ALL, (ALL - SAME) | touching(SAME, ("npu03", "5")))
    assert [entry[:2] for entry in found] == [("rails", []), ("port", [("npu03", "5")])]


def test_two_ends_that_cannot_be_told_apart_are_a_pair():
    two = pairs_of(HOSTS[:2], same=True)
    pair = (("npu01", "3"), ("npu02", "3"))
    assert blamed(two, {pair}) == [("pair", list(pair), 1)]
    # With all pairs the same fault can be told.
    two = pairs_of(HOSTS[:2])
    assert blamed(two, touching(two, ("npu01", "3"))) == [("port", [("npu01", "3")], 8)]


@pytest.mark.parametrize("end", [(host, str(port)) for host in HOSTS for port in (0, 3, 7)])
def test_any_single_port_is_found(end):
    assert [entry["items"] for entry in blame(ALL, touching(ALL, end))] == [[end]]


def test_a_large_fleet_is_explained_in_time():
    hosts = [f"h{number:03}" for number in range(32)]
    tested = pairs_of(hosts)
    bad = touching(tested, ("h003", "5"), ("h030", "1"), ("h031", "2"))
    start = time.monotonic()
    assert len(blame(tested, bad)) == 3
    assert time.monotonic() - start < 10  # 31,744 pairs


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 16])
def test_every_pair_of_hosts_meets_once_and_no_host_twice_in_a_round(count):
    hosts = [f"h{number:02}" for number in range(count)]
    plan = rounds(hosts)
    assert len(plan) == count - 1 + count % 2
    met = Counter(tuple(sorted(pair)) for pairs in plan for pair in pairs)
    assert met == Counter(itertools.combinations(hosts, 2))
    for pairs in plan:
        busy = [host for pair in pairs for host in pair]
        assert len(busy) == len(set(busy))
    assert sorted(peers(hosts, hosts[1])) == [host for host in hosts if host != hosts[1]]


def test_few_hosts_meet_nobody():
    assert rounds([]) == [] and rounds(["a"]) == [] and peers(["a"], "a") == []
