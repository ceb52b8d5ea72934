#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_fabric_report
short_description: Say what the results of a fabric test mean
version_added: 0.2.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Takes what M(vllm_fabric_probe) saw on all hosts and returns the cable, port or host behind what failed, a table for
    a person and one document for a machine. Runs on the controller and asks no host.
options:
  hosts:
    description: The hosts.
    type: list
    elements: str
    required: true
  ports:
    description: The ports of each host, in the order of O(hosts); null for a host that gave nothing.
    type: list
    elements: raw
    required: true
  pings:
    description: The pings of each host.
    type: list
    elements: raw
    default: []
  unasked:
    description: How many pings of each host were left out.
    type: list
    elements: int
    default: []
  measures:
    description: The measurements of each host.
    type: list
    elements: raw
    default: []
  latency_us:
    description: Most microseconds that C(ib_write_lat) may take; 0 for no bound.
    type: float
    default: 5.0
  bandwidth_gbps:
    description: Least Gb/s that C(ib_write_bw) has to reach; 0 for no bound.
    type: float
    default: 0.0
  all_reduce_output:
    description: What an all_reduce test of NCCL or HCCL printed.
    type: str
  all_reduce_gbytes:
    description: Least GB/s it has to reach, bus bandwidth of nccl-tests or algorithm bandwidth of hccl_test.
    type: float
    default: 0.0
  seconds:
    description: How long the test took.
    type: float
attributes:
  check_mode:
    description: Does the same; nothing is changed.
    support: full
  diff_mode:
    description: Has nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Say what it means
  vllm_fabric_report:
    hosts: [npu01, npu02]
    ports: "{{ ['npu01', 'npu02'] | map('extract', hostvars) | map(attribute='seen.ports', default=none) | list }}"
  delegate_to: localhost
"""

RETURN = r"""
passed:
  description: Whether no finding is an error.
  returned: success
  type: bool
findings:
  description: What is wrong, with code, level, what, todo, hosts, ends and the number of failed pairs it explains.
  returned: success
  type: list
  elements: dict
summary:
  description: The findings as text, one line each.
  returned: success
  type: str
table:
  description: The matrix, the measurements and the findings as text.
  returned: success
  type: str
document:
  description: Everything for a machine, with one row for each pair.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.fabric import diagnosis, outputs

ARGUMENTS = {
    "hosts": {"type": "list", "elements": "str", "required": True},
    "ports": {"type": "list", "elements": "raw", "required": True},
    "pings": {"type": "list", "elements": "raw", "default": []},
    "unasked": {"type": "list", "elements": "int", "default": []},
    "measures": {"type": "list", "elements": "raw", "default": []},
    "latency_us": {"type": "float", "default": 5.0},
    "bandwidth_gbps": {"type": "float", "default": 0.0},
    "all_reduce_output": {"type": "str"},
    "all_reduce_gbytes": {"type": "float", "default": 0.0},
    "seconds": {"type": "float"},
}


def all_reduce_findings(output, least):
    """Return the findings about an all_reduce test, and its figure."""
    seen = outputs.all_reduce_gbytes(output)
    todo = "Run it by hand with NCCL_DEBUG=INFO, or look at the logs of HCCL."
    if seen is None:
        return [diagnosis.finding("all_reduce", "The all_reduce test gave no result", todo)], None
    if seen["wrong"]:
        return [diagnosis.finding("all_reduce", "The all_reduce test computed wrong values", todo)], seen
    if seen["gbytes_per_second"] < least:
        what = "all_reduce reaches {0} GB/s of {1}".format(seen["gbytes_per_second"], least)
        return [diagnosis.finding("all_reduce", what, todo)], seen
    return [], seen


def results_of(params):
    """Return the results by host, None for a host whose ports are unknown."""
    results = {}
    for place, (host, ports) in enumerate(zip(params["hosts"], params["ports"])):
        rest = {name: params[name][place] if place < len(params[name]) else None for name in ("pings", "measures")}
        unasked = params["unasked"][place] if place < len(params["unasked"]) else 0
        found = {"ports": ports, "unasked": unasked, "pings": rest["pings"] or [], "measures": rest["measures"] or []}
        results[host] = found if ports is not None else None
    return results


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    results = results_of(params)
    bounds = {name: params[name] or None for name in ("latency_us", "bandwidth_gbps")}
    findings = diagnosis.diagnose(results, bounds)
    all_reduce = None
    if params["all_reduce_output"] is not None:
        more, all_reduce = all_reduce_findings(params["all_reduce_output"], params["all_reduce_gbytes"])
        findings += more
    passed = not any(entry["level"] == "error" for entry in findings)
    module.exit_json(
        changed=False,
        passed=passed,
        findings=findings,
        summary="\n".join(diagnosis.findings_lines(findings)),
        table=diagnosis.table(results, findings, params["seconds"]),
        document={
            "schema": 1,
            "passed": passed,
            "bounds": dict(bounds, all_reduce_gbytes=params["all_reduce_gbytes"] or None),
            "seconds": params["seconds"],
            "hosts": {host: result and result["ports"] for host, result in results.items()},
            "pairs": diagnosis.pairs_of(results),
            "all_reduce": all_reduce,
            "findings": findings,
        },
    )


if __name__ == "__main__":
    main()
