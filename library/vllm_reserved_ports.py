#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_reserved_ports
short_description: Keep ports from being handed out as ephemeral ports
version_added: 0.1.0
description:
  - Adds ports to C(net.ipv4.ip_local_reserved_ports), so that no outgoing connection can take the port of a service
    before it starts.
  - The kernel has one list and the last file below C(/etc/sysctl.d) wins, so what other files and the running kernel
    reserve is merged in and never lost.
options:
  ports:
    description:
      - Ports or ranges such as C(60000-60031) to reserve. An empty list takes back what this module reserved earlier.
    type: list
    elements: str
    required: true
  path:
    description: The file to keep; must sort after every other file that sets the same key.
    type: path
    default: /etc/sysctl.d/99-zz-vllm-reserved-ports.conf
attributes:
  check_mode:
    description: Reports what would change.
    support: full
  diff_mode:
    description: Shows the file and the list in the kernel before and after.
    support: full
notes:
  - Where the kernel's list cannot be written, as in an unprivileged container, the file is kept and RV(live_written) is
    V(false).
author:
  - vllm-ansible contributors (@vllm-ansible)
"""

EXAMPLES = r"""
- name: Reserve the ports of the engines
  vllm_reserved_ports:
    ports: ["8000", "60000-60031"]
"""

RETURN = r"""
reserved:
  description: The list the kernel has, or in check mode would have.
  type: str
  returned: always
  sample: 8000,60000-60031
live_written:
  description: Whether the running kernel has that list; V(false) when this host does not let it be written.
  type: bool
  returned: always
"""

import glob
import os
import re
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import reserved_ports

KEY = "net.ipv4.ip_local_reserved_ports"
LIVE = "/proc/sys/net/ipv4/ip_local_reserved_ports"
DIRECTORIES = ("/usr/lib/sysctl.d", "/usr/local/lib/sysctl.d", "/run/sysctl.d", "/etc/sysctl.d")
MARK = "# Ours: "


def read(path):
    """Return the text of a file, "" when it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def configured_elsewhere(path):
    """Return the ports that configuration files other than ours reserve."""
    files = ["/etc/sysctl.conf"] + [name for folder in DIRECTORIES for name in glob.glob(folder + "/*.conf")]
    ports = set()
    for name in files:
        if os.path.realpath(name) != os.path.realpath(path):
            pattern = r"^\s*-?" + re.escape(KEY).replace(r"\.", r"[./]") + r"\s*=([\d,\s-]*)$"
            for value in re.findall(pattern, read(name), re.MULTILINE):
                ports |= reserved_ports.parse(value)
    return ports


def render(ours, in_file):
    """Return the text of our file; "" when nothing is left to say."""
    if not ours:
        return ""
    return "# Ansible managed: vllm_reserved_ports\n{}{}\n{} = {}\n".format(
        MARK, reserved_ports.compose(ours), KEY, reserved_ports.compose(in_file)
    )


def write_file(module, path, text):
    """Replace or remove our file."""
    if not text:
        os.unlink(path)
        return
    descriptor, staging = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(staging, 0o644)
    module.atomic_move(staging, path)


def main():
    module = AnsibleModule(
        argument_spec={
            "ports": {"type": "list", "elements": "str", "required": True},
            "path": {"type": "path", "default": "/etc/sysctl.d/99-zz-vllm-reserved-ports.conf"},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    before = read(path)
    noted = re.search("^" + MARK + "(.*)$", before, re.MULTILINE)
    try:
        ours = reserved_ports.parse(",".join(module.params["ports"]))
        live = reserved_ports.parse(read(LIVE))
        in_file, in_kernel = reserved_ports.plan_changes(
            reserved_ports.parse(noted.group(1)) if noted else set(), ours, configured_elsewhere(path), live
        )
    except ValueError as error:
        module.fail_json(msg="ports: {}; set ports or ranges such as 60000-60031".format(error))
    after = render(ours, in_file)
    writable = os.access(LIVE, os.W_OK)
    live_changes = writable and in_kernel != live
    if before != after and not module.check_mode:
        write_file(module, path, after)
    if live_changes and not module.check_mode:
        try:
            with open(LIVE, "w", encoding="utf-8") as stream:
                stream.write(reserved_ports.compose(in_kernel) + "\n")
        except OSError:
            # A read-only /proc/sys passes the access check for root.
            live_changes = writable = False
    module.exit_json(
        changed=before != after or live_changes,
        reserved=reserved_ports.compose(in_kernel if writable else live),
        live_written=writable,
        diff=[
            {"before": before, "after": after, "before_header": path, "after_header": path},
            {
                "before": reserved_ports.compose(live) + "\n",
                "after": reserved_ports.compose(in_kernel if writable else live) + "\n",
                "before_header": LIVE,
                "after_header": LIVE,
            },
        ],
    )


if __name__ == "__main__":
    main()
