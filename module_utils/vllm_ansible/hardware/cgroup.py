# SPDX-License-Identifier: Apache-2.0
"""Control groups: what the kernel allows to a system service on this host.

The limits that count are those of the group that services will run in, not those of the login session that asks:
a session may be confined (``user.slice``) or pinned to housekeeping CPUs while services are not.
"""

SERVICE_SLICE = "/system.slice"


def parse_cgroups(text):
    """Return {controller: path} of a ``/proc/<pid>/cgroup``; the v2 hierarchy has the controller ""."""
    groups = {}
    for line in (text or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and fields[2].startswith("/"):
            for controller in fields[1].split(","):
                groups[controller] = fields[2]
    return groups


def unit_of(text):
    """Return the innermost systemd unit in a ``/proc/<pid>/cgroup`` (``ssh.service``), or None."""
    for path in parse_cgroups(text).values():
        for part in reversed(path.split("/")):
            if part.endswith((".service", ".scope", ".socket")):
                return part
    return None


def service_values(host, controller, names):
    """Return the values that bind a system service, from the root of the hierarchy down to ``system.slice``.

    Args:
        controller: "memory" or "cpuset".
        names: file names to try in each group, the first readable one counts (v2 name, v1 names).
    """
    groups = parse_cgroups(host.read("/proc/1/cgroup"))
    values = []
    for root, path in (
        ("/sys/fs/cgroup/" + controller, groups.get(controller)),
        ("/sys/fs/cgroup/unified", groups.get("")),
        ("/sys/fs/cgroup", groups.get("")),
    ):
        if path is None:
            continue
        chain = [root]
        # Process 1 of systemd sits in /init.scope, a sibling of the slice; of a container it is the group itself.
        own = [part for part in path.split("/") if part and part != "init.scope"]
        for depth in range(len(own)):
            chain.append(root + "/" + "/".join(own[: depth + 1]))
        chain.append(chain[-1] + SERVICE_SLICE)
        for group in chain:
            for name in names:
                text = host.read(group + "/" + name)
                if text is not None:
                    values.append(text.strip())
                    break
    return values
