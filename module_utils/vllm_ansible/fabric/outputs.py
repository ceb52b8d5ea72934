# SPDX-License-Identifier: Apache-2.0
"""What the tools of a fabric test print, read by the names of their columns, which move between versions."""

import re

from ansible.module_utils.vllm_ansible.hardware.values import decimal

_BLANKS = re.compile(r"\s{2,}|\t")


def parse_ping(text):
    """Parse a ping of hccn_tool or iputils: {"sent", "received", "milliseconds": [...]}, or None without a summary."""
    match = re.search(r"(\d+) packets transmitted, (\d+) (?:packets )?received", text or "")
    if not match:
        return None
    times = [float(value) for value in re.findall(r"time=([0-9.]+) ?ms", text)]
    return {"sent": int(match.group(1)), "received": int(match.group(2)), "milliseconds": times}


def parse_perftest(text):
    """Parse the table of a perftest program: [{column: number}, …], one per row; [] when there is none.

    Columns carry their unit, such as ``t_avg[usec]`` and ``BW average[Gb/sec]`` (github linux-rdma/perftest).
    """
    rows, columns = [], []
    for line in (text or "").splitlines():
        if line.strip().startswith("#bytes"):
            # Names hold single blanks ("BW peak[Gb/sec]"); older versions set some names apart by one blank as well.
            spread = re.sub(r"(\]|#bytes|#iterations)\s+", r"\1  ", line.strip())
            columns = _BLANKS.split(spread)
        elif columns and re.match(r"\s*\d", line):
            fields = line.split()
            if len(fields) >= len(columns):
                rows.append({name: decimal(field) for name, field in zip(columns, fields)})
    return rows


def latency_microseconds(text):
    """Return the typical latency of an ``ib_*_lat`` run, in microseconds; None without a result."""
    return _column(text, ("t_typical[usec]", "t_avg[usec]"))


def bandwidth_gbps(text):
    """Return the average bandwidth of an ``ib_*_bw --report_gbits`` run, in Gb/s; None without a result."""
    value = _column(text, ("BW average[Gb/sec]",))
    if value is None:
        megabytes = _column(text, ("BW average[MB/sec]", "BW average[MiB/sec]"))
        # perftest counts 2**20 bytes to a MB.
        value = None if megabytes is None else round(megabytes * 8 * 2**20 / 1e9, 3)
    return value


def _column(text, names):
    rows = parse_perftest(text)
    for name in names:
        if rows and rows[-1].get(name) is not None:
            return rows[-1][name]
    return None


def all_reduce_gbytes(text):
    """Parse an all_reduce test: {"gbytes_per_second", "wrong": bool}, or None without a result.

    nccl-tests prints its average bus bandwidth. hccl_test prints a table with one row per size, of which the largest
    algorithm bandwidth counts; its check is ``success``, ``failed`` or ``NULL`` for not checked.
    """
    text = text or ""
    average = re.search(r"# Avg bus bandwidth\s*:\s*([0-9.]+)", text)
    if average:
        outside = re.search(r"# Out of bounds values\s*:\s*(\d+)", text)
        return {"gbytes_per_second": float(average.group(1)), "wrong": bool(outside and int(outside.group(1)))}
    columns, best, wrong = [], None, False
    for line in text.splitlines():
        fields = [field.strip().rstrip(":") for field in line.split("|")]
        if fields[0].startswith("data_size"):
            columns = [field.partition("(")[0] for field in fields]
        elif columns and len(fields) == len(columns) and fields[0].isdigit():
            row = dict(zip(columns, fields))
            value = decimal(row.get("alg_bandwidth"))
            best = value if best is None else max(best, value or 0.0)
            wrong = wrong or row.get("check_result") == "failed"
    return None if best is None else {"gbytes_per_second": best, "wrong": wrong}


def parse_switch_port(text):
    """Return the name of the switch's port from ``-lldp -g``, such as "200GE1/0/8"; None when no switch tells."""
    match = re.search(r"Ifname:\s*(\S+)", text or "")
    return match.group(1) if match else None
