# SPDX-License-Identifier: Apache-2.0
"""Tables of test programs. Headers are as published; the figures in them are made up."""

import pytest
from ansible.module_utils.vllm_ansible.fabric import outputs

LATENCY = """
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.80           8.11         1.86               1.88           0.20            2.05                    8.11
---------------------------------------------------------------------------------------
"""  # noqa: E501
BANDWIDTH = """
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             97.11              96.42              0.183907
"""
OLD_BANDWIDTH = """
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             11000.00            10800.00           0.172800
"""
NCCL = """
#       size         count      type   redop    root     time   algbw   busbw #wrong
  1073741824     268435456     float     sum      -1  10000.0  107.37  187.90      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 93.4512
"""
HCCL = """
data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:
8192 | 116.51 | 0.07031 | success
1073741824 | 8000.00 | 134.21 | success
"""


def test_a_latency_is_found_by_its_column():
    assert outputs.latency_microseconds(LATENCY) == 1.86
    moved = LATENCY.replace("t_min[usec]    t_max[usec]  t_typical", "t_typical[usec] t_min[usec]  t_other")
    assert outputs.latency_microseconds(moved) == 1.80
    assert outputs.parse_perftest(LATENCY)[0]["99.9% percentile[usec]"] == 8.11


def test_duration_runs_have_fewer_columns():
    text = "#bytes   #iterations  t_avg[usec]  tps average\n2        2000000      2.05         487\n"
    assert outputs.latency_microseconds(text) == 2.05


def test_bandwidths():
    assert outputs.bandwidth_gbps(BANDWIDTH) == 96.42
    assert outputs.bandwidth_gbps(OLD_BANDWIDTH) == round(10800 * 8 * 2**20 / 1e9, 3)
    assert outputs.parse_perftest(BANDWIDTH)[0]["MsgRate[Mpps]"] == 0.183907


@pytest.mark.parametrize("text", [None, "", "Couldn't connect to 10.0.0.1:18515", " #bytes #iterations t_avg[usec]\n"])
def test_no_table_no_figure(text):
    assert outputs.latency_microseconds(text) is None and outputs.bandwidth_gbps(text) is None


def test_all_reduce():
    assert outputs.all_reduce_gbytes(NCCL) == {"gbytes_per_second": 93.4512, "wrong": False}
    assert outputs.all_reduce_gbytes(NCCL.replace("values : 0 OK", "values : 3 FAILED"))["wrong"]
    assert outputs.all_reduce_gbytes(HCCL) == {"gbytes_per_second": 134.21, "wrong": False}
    assert outputs.all_reduce_gbytes(HCCL.replace("134.21 | success", "134.21 | failed"))["wrong"]
    assert outputs.all_reduce_gbytes("HcclGetRootInfo failed") is None


def test_pings(project_root):
    assert outputs.parse_ping("3 packets transmitted, 0 received, 100.00% packet loss\n") == {
        "sent": 3, "received": 0, "milliseconds": []
    }  # fmt: skip
    recorded = (
        "recv seq=0,time=0.181000ms\nrecv seq=1,time=0.055000ms\n3 packets transmitted, 2 received, 33.33% packet loss"
    )
    assert outputs.parse_ping(recorded)["milliseconds"] == [0.181, 0.055]
    linux = (
        "64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.03 ms\n\n3 packets transmitted, 1 received, 66% packet loss"
    )
    assert outputs.parse_ping(linux) == {"sent": 3, "received": 1, "milliseconds": [0.03]}
    assert outputs.parse_ping("connect: Network is unreachable") is None


def test_the_port_of_the_switch():
    assert outputs.parse_switch_port("Port ID TLV\n\tIfname: 400GE1/1/20:2\n") == "400GE1/1/20:2"
    assert outputs.parse_switch_port(None) is None
