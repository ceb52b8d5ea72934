# SPDX-License-Identifier: Apache-2.0
"""The text of vllm-INSTANCE.service, and the start limit that follows from the model and the disk."""

import math
import re

INSTANCE_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,62}$")
# Folders of the host layout that an instance's own folders would collide with.
RESERVED_NAMES = ("models",)

UNIT_DIRECTORY = "/etc/systemd/system"
SUPERVISOR = "/opt/vllm/libexec/vllm-supervisor"
CREDENTIAL_DIRECTORY = "/etc/vllm/credentials"

# Oldest systemd by the way the API key is handed over. LoadCredential= came with 247; an older systemd ignores it, and
# the supervisor then refuses to start. 243 is that of Kylin V10, the oldest the other way was written for.
MINIMUM_SYSTEMD = {"credential": 247, "runtime_directory": 243}

# Exit status 78 is the supervisor's "no restart can cure this", 243 systemd's own "a credential is missing".
HOPELESS_EXIT_STATUS = "78 243"

START_FLOOR_SECONDS = 120
START_FIXED_SECONDS = 90
START_READ_FACTOR = 3
UNKNOWN_READ_BYTES_PER_S = 100 * 1000 * 1000
SHARED_MEMORY_FLOOR_BYTES = 256 * 1024 * 1024

# Groups of options, each line one systemd directive. Left out on purpose, each seen to break vLLM:
# ProcSubset=pid, MemoryDenyWriteExecute=yes, a filter on @resources without the calls given back below,
# RestrictAddressFamilies without AF_NETLINK.
SANDBOX = (
    ("UMask", "0077"),
    ("NoNewPrivileges", "yes"),
    ("CapabilityBoundingSet", ""),
    ("AmbientCapabilities", ""),
    ("KeyringMode", "private"),
    ("LockPersonality", "yes"),
    ("PrivateIPC", "yes"),
    ("PrivateTmp", "yes"),
    ("PrivateUsers", "yes"),
    ("ProtectClock", "yes"),
    ("ProtectControlGroups", "yes"),
    ("ProtectHome", "yes"),
    ("ProtectHostname", "yes"),
    ("ProtectKernelLogs", "yes"),
    ("ProtectKernelModules", "yes"),
    ("ProtectKernelTunables", "yes"),
    ("ProtectProc", "invisible"),
    ("ProtectSystem", "strict"),
    ("RemoveIPC", "yes"),
    ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
    ("RestrictNamespaces", "yes"),
    ("RestrictRealtime", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("SystemCallArchitectures", "native"),
    ("SystemCallErrorNumber", "EPERM"),
    ("SystemCallFilter", "@system-service"),
    ("SystemCallFilter", "~@privileged @resources"),
    # What thread and memory binding needs of @resources.
    (
        "SystemCallFilter",
        (
            "sched_setaffinity sched_setscheduler sched_setparam sched_setattr setpriority setrlimit prlimit64 "
            "mbind set_mempolicy migrate_pages move_pages"
        ),
    ),
)


def unit_path(instance):
    """Return the path of the unit file of an instance."""
    return "{}/vllm-{}.service".format(UNIT_DIRECTORY, instance)


def start_timeout_seconds(model_size_bytes, read_bytes_per_s=None):
    """Return TimeoutStartSec= for a model of that size on a disk of that speed.

    90 s for what does not depend on the model (interpreters, imports, engine initialisation, first token on a slow
    two-core host), plus three times the plain reading time (reading, converting, filling memory), rounded up to whole
    seconds, never below 120 s. A disk nobody measured counts as 100 MB/s.
    """
    speed = read_bytes_per_s or UNKNOWN_READ_BYTES_PER_S
    return max(START_FLOOR_SECONDS, START_FIXED_SECONDS + math.ceil(START_READ_FACTOR * model_size_bytes / speed))


def restart_interval_seconds(spec, start, stop):
    """Return StartLimitIntervalSec=, the seconds over which starts are counted.

    A host of a replica whose other hosts do not come uses up its start limit each time. The interval then has to hold
    all of restart_burst such starts, or they would go on for ever.
    """
    interval = spec["restart_interval_seconds"]
    return max(interval, spec["restart_burst"] * (start + stop)) if spec["spans_hosts"] else interval


def check(spec):
    """Return a list of problems of a unit's specification, each naming the field, the value and what to set."""
    problems = []
    if not INSTANCE_NAME.match(spec["instance"]) or spec["instance"] in RESERVED_NAMES:
        problems.append(
            "instance: {!r} cannot name a unit; use lower-case letters, digits and '-', not {}".format(
                spec["instance"], " or ".join(RESERVED_NAMES)
            )
        )
    if not 1 <= spec["port"] <= 65535:
        problems.append("port: {} is not a TCP port; set 1 to 65535".format(spec["port"]))
    for device in spec["devices"]:
        if not re.match(r"^/dev/[A-Za-z0-9/_.-]+$", device):
            problems.append("devices: {!r} is not a path below /dev".format(device))
    if spec["environment_file"] and not re.match(r"^/[A-Za-z0-9/_.-]+$", spec["environment_file"]):
        problems.append("environment_file: {!r} is not an absolute path".format(spec["environment_file"]))
    for group in spec["supplementary_groups"]:
        if not re.match(r"^[A-Za-z_][A-Za-z0-9_-]*$", group):
            problems.append("supplementary_groups: {!r} is not the name of a group".format(group))
    for network in spec["allowed_networks"]:
        if not re.match(r"^[0-9A-Fa-f.:]+(/\d{1,3})?$", network):
            problems.append("allowed_networks: {!r} is not an address or network such as 10.1.0.0/16".format(network))
    for field in ("memory_max_bytes", "model_size_bytes", "stop_timeout_seconds", "restart_burst"):
        if spec[field] is not None and spec[field] <= 0:
            problems.append("{}: {} must be greater than 0".format(field, spec[field]))
    return problems


def render(spec):
    """Return the text of the unit file.

    Args:
        spec: dict with instance, served_model_name, listen_address, port, user, group, model_size_bytes,
            read_bytes_per_s (or None), memory_max_bytes (or None), shared_memory_bytes, devices, environment_file
            (or None), supplementary_groups, allowed_networks, spans_hosts, restart_burst,
            restart_interval_seconds, stop_timeout_seconds, watchdog_seconds; as the options of the
            module vllm_service_unit, checked by :func:`check`.
    """
    instance = spec["instance"]
    start = start_timeout_seconds(spec["model_size_bytes"], spec["read_bytes_per_s"])
    # The supervisor ends the engine itself first, so that systemd's own time limit stays the last resort.
    stop = spec["stop_timeout_seconds"]
    command = "/opt/vllm/instances/{0}/current/bin/python3 -I -B {1} --start-timeout={2} --stop-timeout={3} {0}".format(
        instance, SUPERVISOR, start, max(1, stop - 5)
    )
    service = [
        ("Type", "notify"),
        ("NotifyAccess", "main"),
        ("ExecStart", command),
        ("User", spec["user"]),
        ("Group", spec["group"]),
        ("WorkingDirectory", "/var/lib/vllm/" + instance),
        ("StateDirectory", "vllm/" + instance),
        ("StateDirectoryMode", "0750"),
        ("CacheDirectory", "vllm/" + instance),
        ("CacheDirectoryMode", "0750"),
        ("RuntimeDirectory", "vllm/" + instance),
        ("RuntimeDirectoryMode", "0750"),
        ("Environment", "HOME=/var/lib/vllm/{} LANG=C.UTF-8".format(instance)),
    ]
    service += _handover(spec)
    service += [
        ("StandardOutput", "journal"),
        ("StandardError", "journal"),
        ("SyslogIdentifier", "vllm-" + instance),
        # vLLM exits 0 when its engine core dies: only a stop on request may leave it down.
        ("Restart", "always"),
        ("RestartSec", "1"),
        ("RestartPreventExitStatus", HOPELESS_EXIT_STATUS),
        ("KillMode", "control-group"),
        ("TimeoutStartSec", str(start)),
        ("TimeoutStopSec", str(stop)),
        ("WatchdogSec", str(spec["watchdog_seconds"])),
        ("LimitNOFILE", "1048576"),
        ("LimitCORE", "0"),
        ("TasksMax", "infinity"),
    ]
    if spec["environment_file"]:
        service.append(("EnvironmentFile", spec["environment_file"]))
    if spec["supplementary_groups"]:
        service.append(("SupplementaryGroups", " ".join(spec["supplementary_groups"])))
    if spec["memory_max_bytes"]:
        service.append(("MemoryMax", str(spec["memory_max_bytes"])))
    service.append(
        (
            "TemporaryFileSystem",
            "/dev/shm:rw,nosuid,nodev,mode=1777,size={}".format(
                max(SHARED_MEMORY_FLOOR_BYTES, spec["shared_memory_bytes"] or 0)
            ),
        )
    )
    if spec["devices"]:
        # PrivateDevices= would hide them. Pinned memory for accelerator transfers needs the limit.
        service.append(("LimitMEMLOCK", "infinity"))
        service.append(("DevicePolicy", "closed"))
        service += [("DeviceAllow", device + " rw") for device in spec["devices"]]
    else:
        service.append(("PrivateDevices", "yes"))
        service.append(("DevicePolicy", "closed"))
    service += SANDBOX
    service.append(("IPAddressDeny", "any"))
    service.append(("IPAddressAllow", " ".join(_allowed(spec))))
    sections = [
        (
            "Unit",
            [
                ("Description", "vLLM serving {} ({})".format(spec["served_model_name"], instance)),
                ("Wants", "network-online.target"),
                ("After", "network-online.target"),
                ("RequiresMountsFor", "/opt/vllm /var/lib/vllm /var/cache/vllm"),
                ("StartLimitIntervalSec", str(restart_interval_seconds(spec, start, stop))),
                ("StartLimitBurst", str(spec["restart_burst"])),
            ],
        ),
        ("Service", service),
        ("Install", [("WantedBy", "multi-user.target")]),
    ]
    lines = ["# Ansible managed: vllm_service_unit, instance {}".format(instance)]
    for name, entries in sections:
        lines.append("\n[{}]".format(name))
        # systemd expands % in values, and a line break would start another directive.
        lines += [key + "=" + " ".join(value.replace("%", "%%").split("\n")) for key, value in entries]
    return "\n".join(lines) + "\n"


def _handover(spec):
    """How the supervisor gets the API key. Either way a missing key keeps the unit down."""
    key = "{}/{}.key".format(CREDENTIAL_DIRECTORY, spec["instance"])
    if spec["key_handover"] == "credential":
        return [("LoadCredential", "api-key:" + key)]
    # The runtime directory is new at each start and gone after each stop; "+" runs as root, outside the sandbox.
    directory = "/run/vllm/" + spec["instance"]
    copy = "+/usr/bin/install --no-target-directory --mode=0400 --owner={} --group={} {} {}/api-key".format(
        spec["user"], spec["group"], key, directory
    )
    return [("ExecStartPre", copy), ("Environment", "CREDENTIALS_DIRECTORY=" + directory)]


def _allowed(spec):
    """Networks that may talk to the engine: this host itself, the address it listens on, and those of the plan."""
    networks = ["localhost"]
    if spec["listen_address"] not in ("", "0.0.0.0", "::", "127.0.0.1", "::1"):
        networks.append(spec["listen_address"])
    return networks + [network for network in spec["allowed_networks"] if network not in networks]
