#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record a machine for tests/fixtures/hardware: everything the hardware probes read, and nothing else.

Run as root on the machine itself, from a copy of tools/record_hardware.py and module_utils/ (Python 3.6 or later, no
other package)::

    python3 tools/record_hardware.py OUTPUT_DIRECTORY --source "where this machine is and who recorded it"

MAC addresses, the host's names, UUIDs and serial numbers of devices, and established connections never reach the
output. IP addresses do (root/proc/net/route and the GIDs of RDMA ports have them in hexadecimal): replace them, and
anything else that must not leave the site, by ``--redact OLD=NEW``; then read the result before passing it on.
Afterwards run ``python tools/hardware_machines.py`` in the repository to write its facts.json.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import types

PATHS = ("/opt/vllm", "/var/cache/vllm", "/var/lib/vllm")
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b")
_EUI64 = re.compile(r"\b[0-9a-f]{1,4}:[0-9a-f]{0,2}ff:fe[0-9a-f]{2}:[0-9a-f]{1,4}\b")
_UUID = re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
# A link-local GID holds the port's own number.
_GID = re.compile(r"\bfe80(?::[0-9a-f]{4}){7}\b")
_SERIAL = re.compile(r"^(\s*(?:Serial Number|Asset Tag|[VN]Die ID)\s*: ).*$", re.MULTILINE)
_NO_MAC = ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff")


class Recorder:
    """Passes every question on to a live host and keeps the answers."""

    def __init__(self, host):
        self._host = host
        self.files, self.links, self.commands = {}, {}, {}
        self.usages, self.real_paths, self.existing, self.read_speeds = {}, {}, set(), {}
        self.accesses = {}

    def read(self, path):
        text = self._host.read(path)
        if text is not None:
            self.files[path] = text
        return text

    def list_directory(self, path):
        return self._host.list_directory(path)

    def read_link(self, path):
        target = self._host.read_link(path)
        if target is not None:
            self.links[path] = target
        return target

    def exists(self, path):
        found = self._host.exists(path)
        if found:
            self.existing.add(path)
        return found

    def access(self, path):
        access = self._host.access(path)
        if access is not None:
            self.accesses[path] = access
        return access

    def real_path(self, path):
        real = self._host.real_path(path)
        if real != path:
            self.real_paths[path] = real
        return real

    def usage(self, path):
        usage = self._host.usage(path)
        if usage is not None:
            self.usages[path] = usage
        return usage

    def system(self):
        return self._host.system()

    def measure_read(self, device, limit_bytes, limit_seconds):
        speed = self._host.measure_read(device, limit_bytes, limit_seconds)
        if speed is not None:
            self.read_speeds[device] = speed
        return speed

    def run(self, arguments, environment=None, timeout_seconds=60):
        answer = self._host.run(arguments, environment, timeout_seconds)
        if answer is not None:
            self.commands[" ".join(arguments)] = answer
        return answer


class Redactor:
    """Replaces what identifies a machine, the same value always by the same replacement."""

    def __init__(self, host_names, replacements):
        self._macs, self._uuids = {}, {}
        self._names = sorted((name for name in host_names if name and name != "localhost"), key=len, reverse=True)
        self._replacements = replacements

    def __call__(self, text):
        for old, new in self._replacements:
            text = text.replace(old, new)
        text = _GID.sub("fe80:0000:0000:0000:0000:0000:0000:0001", text)
        text = _SERIAL.sub(r"\1redacted", text)
        text = _MAC.sub(self._mac, text)
        text = _EUI64.sub("0000:00ff:fe00:0001", text)
        text = _UUID.sub(self._uuid, text)
        for name in self._names:
            text = re.sub(r"(?<![\w.-])" + re.escape(name) + r"(?![\w-])", "recorded-host", text)
        return text

    def _mac(self, match):
        mac = match.group(0).lower()
        if mac in _NO_MAC:
            return mac
        number = self._macs.setdefault(mac, len(self._macs) + 1)
        return "02:00:00:00:{:02x}:{:02x}".format(*divmod(number, 256))

    def _uuid(self, match):
        number = self._uuids.setdefault(match.group(0), len(self._uuids))
        return f"GPU-00000000-0000-0000-0000-{number:012d}"


def keep_listening(text):
    """Return a /proc/net/tcp without its connections: peers are nobody's business."""
    lines = text.splitlines(True)
    return "".join(lines[:1] + [line for line in lines[1:] if line.split()[3:4] == ["0A"]])


def write_machine(directory, recorder, redact, sources, storage):
    """Write what a recorder saw as a machine directory; `storage` is the module that knows what a disk is."""
    files = dict(recorder.files)
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        if name in files:
            files[name] = keep_listening(files[name])
    # Only the file systems that facts can name, and not their options: those hold paths and user names.
    files["/proc/self/mountinfo"] = "".join(
        " ".join(line.split(" ")[: line.split(" ").index("-") + 3]) + "\n"
        for line in files.get("/proc/self/mountinfo", "").splitlines(True)
        if any(storage.is_disk(mount) for mount in storage.parse_mountinfo(line))
    )
    sockets = {
        f"socket:[{line.split()[9]}]"
        for name in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in files.get(name, "").splitlines()[1:]
    }
    for path in sorted(files):
        target = directory + "/root" + redact(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as stream:
            stream.write(redact(files[path]))
    links = {
        path: link for path, link in recorder.links.items() if link in sockets or not re.match(r"/proc/\d+/fd/", path)
    }
    os.makedirs(directory + "/commands", exist_ok=True)
    captures = {}  # type: dict
    for command, (code, output, error) in sorted(recorder.commands.items()):
        if output and not output.endswith("\n"):
            output += "\n"
        text = f"$ {command}\nrc {code}\n{output}" + (f"--- stderr\n{error.rstrip()}\n" if error else "")
        captures.setdefault(os.path.basename(command.split(" ")[0]), []).append(text)
    for tool, texts in captures.items():
        with open(f"{directory}/commands/{tool}.txt", "w", encoding="utf-8") as stream:
            stream.write(redact("".join(texts)))
    machine = {
        "provenance": "recorded",
        "system": recorder.system(),
        "usage": recorder.usages,
        "real_paths": recorder.real_paths,
        "existing": sorted(recorder.existing),
        "access": recorder.accesses,
        "read_bytes_per_s": recorder.read_speeds,
        "links": links,
    }
    with open(directory + "/machine.json", "w", encoding="utf-8") as stream:
        machine = dict(json.loads(redact(json.dumps(machine))), sources=sources)
        json.dump(machine, stream, indent=1, sort_keys=True)
        stream.write("\n")


def import_module_utils():
    """Import our code under its usual name on a machine that has no ansible."""
    root = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "module_utils")
    try:
        import ansible.module_utils as package
    except ImportError:
        package = types.ModuleType("ansible.module_utils")
        package.__path__ = []
        sys.modules["ansible"] = types.ModuleType("ansible")
        sys.modules["ansible"].__path__ = []
        sys.modules["ansible.module_utils"] = package
    package.__path__.append(root)


def run_command(argv, environ_update):
    """Stand in for AnsibleModule.run_command."""
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        env=dict(os.environ, **environ_update),
    )
    output, error = process.communicate()
    return process.returncode, output, error


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("directory", help="new directory to write the machine to")
    parser.add_argument("--source", action="append", required=True, help="what this machine is (repeatable)")
    parser.add_argument("--redact", action="append", default=[], metavar="OLD=NEW", help="replace a text (repeatable)")
    options = parser.parse_args(arguments)
    if os.path.exists(options.directory):
        parser.error(f"{options.directory} exists: name a new directory")
    if any("=" not in pair for pair in options.redact):
        parser.error("--redact wants OLD=NEW")
    import_module_utils()
    from ansible.module_utils.vllm_ansible.hardware import storage
    from ansible.module_utils.vllm_ansible.hardware.facts import gather_hardware
    from ansible.module_utils.vllm_ansible.host import Host

    recorder = Recorder(Host(run_command))
    gather_hardware(recorder, PATHS)
    names = {socket.gethostname(), socket.gethostname().split(".")[0]}
    redact = Redactor(names, [pair.split("=", 1) for pair in options.redact])
    write_machine(options.directory, recorder, redact, options.source, storage)


if __name__ == "__main__":
    main()
