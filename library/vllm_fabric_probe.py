#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_fabric_probe
short_description: Look at a host's fabric ports and try them against those of other hosts
version_added: 0.2.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Reads the state of the RoCE ports inside NPUs with C(hccn_tool), or of RoCE NICs with C(vllm-roce), which the role
    C(roce_fabric) installs; pings the ports of other hosts; serves and runs perftest's C(ib_write_lat) and
    C(ib_write_bw) between NICs.
  - Hosts are met in the order of a round robin, all ports of a host at once, so that time grows with the number of
    hosts and no port is pinged by a whole fleet at a time.
  - Says what it saw and judges nothing. M(vllm_fabric_report) does.
options:
  action:
    description:
      - V(state) reads the ports, V(ping) tries them.
      - V(serve) starts perftest's servers when this host is the second of its pair in the round O(round), V(measure)
        runs the clients when it is the first.
    type: str
    choices: [state, ping, serve, measure]
    required: true
  backend:
    description: Whose ports they are.
    type: str
    choices: [ascend, nic]
    required: true
  name:
    description: Name of this host in O(fleet).
    type: str
    required: true
  devices:
    description: The ports of an Ascend host as its plan has them, each with C(id) and C(address).
    type: list
    elements: dict
    default: []
  fleet:
    description:
      - Ports of all hosts by host, as O(action=state) returned them. A planned address counts before the one seen.
    type: dict
    default: {}
  pairs:
    description: V(all) tries every port against every port of another host, V(same) only those at the same place.
    type: str
    choices: [all, same]
    default: all
  round:
    description: Number of the round for O(action=serve) and O(action=measure), from 0.
    type: int
    default: 0
  seconds:
    description: Seconds that one measurement of bandwidth takes.
    type: int
    default: 5
  time_limit:
    description: Seconds after which no further ping is started; what was not tried is counted.
    type: int
    default: 1800
  install_path:
    description: Where the software of Ascend lies.
    type: path
    default: /usr/local/Ascend
  tool:
    description: Path of C(vllm-roce).
    type: path
    default: /usr/local/libexec/vllm/vllm-roce
attributes:
  check_mode:
    description: Does the same; nothing on the host is changed.
    support: full
  diff_mode:
    description: Has nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Read the ports
  vllm_fabric_probe:
    action: state
    backend: ascend
    name: npu01
    devices:
      - {id: 0, address: 10.0.0.11}
"""

RETURN = r"""
ports:
  description: The ports, for O(action=state).
  returned: success
  type: list
  elements: dict
pings:
  description: What came back from each port of other hosts, for O(action=ping).
  returned: success
  type: list
  elements: dict
measures:
  description: Latency in microseconds and bandwidth in Gb/s for each pair, for O(action=measure).
  returned: success
  type: list
  elements: dict
unasked:
  description: Pings that the time limit left out.
  returned: success
  type: int
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.fabric import hccn as settings
from ansible.module_utils.vllm_ansible.fabric import outputs
from ansible.module_utils.vllm_ansible.fabric.rounds import peers, rounds
from ansible.module_utils.vllm_ansible.hardware import hccn
from ansible.module_utils.vllm_ansible.host import Host

QUESTIONS = ("ip", "gateway", "link", "net_health", "tls", "mtu", "lldp")
# perftest's own first port; each pair of ports of two hosts takes two from there.
FIRST_TCP_PORT = 18515
PING_SECONDS = 20
START_SECONDS = 30
ARGUMENTS = {
    "action": {"type": "str", "choices": ["state", "ping", "serve", "measure"], "required": True},
    "backend": {"type": "str", "choices": ["ascend", "nic"], "required": True},
    "name": {"type": "str", "required": True},
    "devices": {"type": "list", "elements": "dict", "default": []},
    "fleet": {"type": "dict", "default": {}},
    "pairs": {"type": "str", "choices": ["all", "same"], "default": "all"},
    "round": {"type": "int", "default": 0},
    "seconds": {"type": "int", "default": 5},
    "time_limit": {"type": "int", "default": 1800},
    "install_path": {"type": "path", "default": "/usr/local/Ascend"},
    "tool": {"type": "path", "default": "/usr/local/libexec/vllm/vllm-roce"},
}


class Ascend:
    """Ports inside NPUs."""

    def __init__(self, host, params):
        self._host = host
        self._tool = settings.tool_of(params["install_path"])
        self._environment = {"LD_LIBRARY_PATH": settings.library_path(params["install_path"])}
        self._devices = params["devices"]

    def _ask(self, number, *words):
        answer = self._host.run([self._tool, "-i", str(number)] + list(words), self._environment, PING_SECONDS)
        if answer is None:
            return 127, "{0} is not there: install the driver".format(self._tool)
        return answer[0], (answer[1] + "\n" + answer[2]).strip()

    def state(self):
        """Return the ports."""
        with ThreadPoolExecutor(max(len(self._devices), 1)) as threads:
            return list(threads.map(self._port, self._devices))

    def _port(self, device):
        answers, error = {}, None
        for question in QUESTIONS:
            code, text = self._ask(device["id"], "-" + question, "-g")
            answers[question] = text
            # Only the link says for certain whether the driver answers: the others also fail when nothing is set.
            if question == "link" and code != 0:
                error = "hccn_tool left with {0}: {1}".format(code, text)
            if code in (124, 127, 137):
                error = text or "hccn_tool gave no answer in time"
                break
        address = hccn.parse_address(answers.get("ip"))
        mtu = settings.parse_answer("mtu", answers.get("mtu"))
        tls = settings.parse_answer("tls_enable", answers.get("tls"))
        return {
            "id": str(device["id"]),
            "label": "NPU {0}".format(device["id"]),
            "planned": device.get("address"),
            "address": address["address"],
            "netmask": address["netmask"],
            "gateway": hccn.parse_gateway(answers.get("gateway")),
            "link": hccn.parse_link(answers.get("link")),
            "health": hccn.parse_health(answers.get("net_health")),
            "tls": None if tls is None else int(tls),
            "mtu": int(mtu) if (mtu or "").isdigit() else None,
            "switch_port": outputs.parse_switch_port(answers.get("lldp")),
            "error": error,
        }

    def ping(self, port, address):
        """Ping an address from a port."""
        return self._ask(port["id"], "-ping", "-g", "address", address, "pkt", "64")[1]


class Nic:
    """RoCE NICs."""

    def __init__(self, host, params):
        self._host = host
        self._tool = params["tool"]

    def state(self):
        """Return the ports."""
        answer = self._host.run([self._tool, "state"])
        if answer is None or answer[0] != 0:
            said = (answer[1] + answer[2]).strip() if answer else "it is not installed"
            raise ValueError("`{0} state`: {1}. Run the role roce_fabric.".format(self._tool, said))
        return json.loads(answer[1])

    def ping(self, port, address):
        """Ping an address from the address of a port."""
        command = ["ping", "-n", "-c", "3", "-i", "0.2", "-W", "1", "-I", port["address"], address]
        answer = self._host.run(command, timeout_seconds=PING_SECONDS)
        return "ping is not installed" if answer is None else answer[1] + answer[2]


def address_of(port):
    """Return the address under which other hosts look for a port."""
    return port.get("planned") or port.get("address")


def targets(params, ports):
    """Return [(own port, [(peer, peer's port, address), …]), …] in the order in which they are tried."""
    plan = []
    for place, port in enumerate(ports):
        mine = []
        for peer in peers(list(params["fleet"]), params["name"]):
            others = params["fleet"][peer]
            # Each own port starts at another one of the peer, so that not all knock on one door.
            order = others[place % len(others) :] + others[: place % len(others)] if others else []
            if params["pairs"] == "same":
                order = others[place : place + 1]
            mine += [(peer, other["id"], address_of(other)) for other in order if address_of(other)]
        plan.append((port, mine))
    return plan


def ping_all(ports, params, backend):
    """Ping all targets, one thread a port; return (pings, how many were left out)."""
    end = time.monotonic() + params["time_limit"]

    def work(item):
        port, mine = item
        rows, left = [], 0
        for peer, peer_port, address in mine:
            if time.monotonic() > end:
                left += 1
                continue
            text = backend.ping(port, address)
            answer = outputs.parse_ping(text)
            if answer is None:
                said = text.strip().splitlines()[:1] or ["no answer in time"]
                answer = {"sent": 3, "received": 0, "milliseconds": [], "said": said[0]}
            rows.append(dict(answer, port=str(port["id"]), peer=peer, peer_port=str(peer_port)))
        return rows, left

    plan = targets(params, ports)
    with ThreadPoolExecutor(max(len(plan), 1)) as threads:
        done = list(threads.map(work, plan))
    return [row for rows, _left in done for row in rows], sum(left for _rows, left in done)


def partner(params):
    """Return (the host met in this round or None, whether this host is the client)."""
    plan = rounds(list(params["fleet"]))
    for one, other in plan[params["round"]] if params["round"] < len(plan) else ():
        if params["name"] in (one, other):
            return (other, True) if params["name"] == one else (one, False)
    return None, False


def perftest(port, place, kind, seconds):
    """Return the command of one side of a measurement."""
    number = FIRST_TCP_PORT + 2 * place + (kind == "bw")
    command = ["ib_write_" + kind, "-d", port["id"], "-i", str(port["rdma_port"]), "-x", str(port["gid_index"])]
    command += ["-p", str(number), "-F"]
    return command + (["-n", "1000"] if kind == "lat" else ["--report_gbits", "-D", str(seconds)])


def listening():
    """Return the TCP ports that something on this host listens on."""
    found = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path, encoding="ascii") as stream:
                rows = [line.split() for line in stream][1:]
        except OSError:
            continue
        found |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
    return found


def serve(host, ports, params):
    """Start the servers of this round, which end by themselves; return when they listen."""
    peer, client = partner(params)
    if peer is None or client:
        return
    limit = START_SECONDS * 2 + params["seconds"] * 4
    wanted = set()
    for place, port in enumerate(ports[: len(params["fleet"][peer])]):
        if port["gid_index"] is None:
            continue
        for kind in ("lat", "bw"):
            command = ["timeout", str(limit)] + perftest(port, place, kind, params["seconds"])
            # It outlives this module, and gives back its output at once.
            host.run(["setsid", "-f", "sh", "-c", 'exec "$@" < /dev/null > /dev/null 2>&1', "sh"] + command)
            wanted.add(FIRST_TCP_PORT + 2 * place + (kind == "bw"))
    end = time.monotonic() + START_SECONDS
    while not wanted <= listening() and time.monotonic() < end:
        time.sleep(0.1)


def measure(host, ports, params):
    """Run the clients of this round; return the measurements."""
    peer, client = partner(params)
    if peer is None or not client:
        return []

    def one(place):
        port, other = ports[place], params["fleet"][peer][place]
        row = {"port": str(port["id"]), "peer": peer, "peer_port": str(other["id"])}
        row.update(latency_us=None, bandwidth_gbps=None, error=None)
        if port["gid_index"] is None:
            row["error"] = port["error"] or "the port has no GID to use"
            return row
        for kind, name, parse in (
            ("lat", "latency_us", outputs.latency_microseconds),
            ("bw", "bandwidth_gbps", outputs.bandwidth_gbps),
        ):
            command = perftest(port, place, kind, params["seconds"]) + [address_of(other)]
            answer = host.run(command, timeout_seconds=START_SECONDS + params["seconds"] * 2)
            row[name] = parse(answer[1]) if answer else None
            if row[name] is None:
                said = (answer[2] + answer[1]).strip().splitlines() if answer else ["perftest is not installed"]
                row["error"] = "ib_write_{0} gave no figure: {1}".format(kind, said[0] if said else "no output")
                break
        return row

    count = min(len(ports), len(params["fleet"][peer]))
    with ThreadPoolExecutor(max(count, 1)) as threads:
        return list(threads.map(one, range(count)))


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    host = Host(module.run_command)
    backend = (Ascend if params["backend"] == "ascend" else Nic)(host, params)
    result = {"changed": False, "ports": [], "pings": [], "measures": [], "unasked": 0}
    try:
        if params["backend"] == "ascend" and params["action"] == "ping":
            result["pings"], result["unasked"] = ping_all(params["devices"], params, backend)
        else:
            ports = backend.state()
            if params["action"] == "state":
                result["ports"] = ports
            elif params["action"] == "ping":
                usable = [port for port in ports if port["address"]]
                result["pings"], result["unasked"] = ping_all(usable, params, backend)
            elif params["action"] == "serve":
                serve(host, ports, params)
            else:
                result["measures"] = measure(host, ports, params)
    except ValueError as error:
        module.fail_json(msg=str(error), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
