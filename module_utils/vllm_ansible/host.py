# SPDX-License-Identifier: Apache-2.0
"""The one door to the machine a module runs on.

Everything that describes hardware or a running unit reads through a :class:`Host`, so that a recorded machine
(``tests/fixtures/hardware``) replays the same code without the device. A replacement offers the same methods.
"""

import contextlib
import grp
import mmap
import os
import pwd
import stat
import sys
import tempfile
import threading
import time
from typing import Any, List, Optional, Tuple

# Where vendor tools live although a non-interactive ssh session or sudo does not search there.
TOOL_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

# A tool that talks to a hung driver never returns; facts must.
COMMAND_TIMEOUT_SECONDS = 60

# After its time limit a tool gets 5 s to end itself and is killed then. What is still there waits for a driver.
GRACE_SECONDS = 10


class Host:
    """The live machine.

    Args:
        run_command: ``AnsibleModule.run_command`` or a function with the same arguments and result
            ``(rc, stdout, stderr)``; None when no command may run.
    """

    def __init__(self, run_command=None):
        self._run_command = run_command

    def read(self, path):
        """Return the text of a file, or None when it cannot be read."""
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except (OSError, ValueError):
            return None

    def list_directory(self, path):
        """Return the sorted names in a directory, or [] when it cannot be read."""
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []

    def read_link(self, path):
        """Return where a symbolic link points, or None when it is none or cannot be read."""
        try:
            return os.readlink(path)
        except OSError:
            return None

    def exists(self, path):
        """Tell whether a path exists (a dangling link does not)."""
        return os.path.exists(path)

    def access(self, path):
        """Return {"owner", "group", "mode"} of a path ("root", "video", "0660"), or None when there is none."""
        try:
            status = os.stat(path)
        except OSError:
            return None
        names = {"owner": str(status.st_uid), "group": str(status.st_gid)}
        with contextlib.suppress(KeyError):  # a number without a name stays a number
            names["owner"] = pwd.getpwuid(status.st_uid).pw_name
        with contextlib.suppress(KeyError):
            names["group"] = grp.getgrgid(status.st_gid).gr_name
        return dict(names, mode=f"{stat.S_IMODE(status.st_mode):04o}")

    def real_path(self, path):
        """Return the path with every link resolved; parts that do not exist stay as they are."""
        return os.path.realpath(path)

    def usage(self, path):
        """Return {"size_bytes", "available_bytes"} of the file system of a path, or None.

        ``available_bytes`` is what an ordinary user may still write.
        """
        try:
            numbers = os.statvfs(path)
        except OSError:
            return None
        return {
            "size_bytes": numbers.f_blocks * numbers.f_frsize,
            "available_bytes": numbers.f_bavail * numbers.f_frsize,
        }

    def system(self):
        """Return what the C library and the interpreter say: machine, kernel, page_size, glibc, python, euid."""
        names = os.uname()
        try:
            glibc = os.confstr("CS_GNU_LIBC_VERSION")
        except (OSError, ValueError):
            glibc = None
        return {
            "machine": names.machine,
            "kernel": names.release,
            "page_size": os.sysconf("SC_PAGE_SIZE"),
            "glibc": glibc.split()[-1] if glibc else None,
            "python": ".".join(str(part) for part in sys.version_info[:3]),
            "euid": os.geteuid(),
        }

    def measure_read(self, device, limit_bytes, limit_seconds):
        """Return the bytes per second that one reader gets from a block device, or None when it cannot be measured.

        Reads past the page cache (O_DIRECT), 8 MiB at a time, at eight places spread over the device, until a limit.
        """

        def measure():
            descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            with open(descriptor, "rb", buffering=0) as stream, mmap.mmap(-1, 8 << 20) as block:
                size, done, start = stream.seek(0, os.SEEK_END), 0, time.perf_counter()
                for place in range(8):
                    stream.seek(size * place // 8 >> 23 << 23)
                    wanted = limit_bytes * (place + 1) // 8
                    while done < wanted and time.perf_counter() - start < limit_seconds:
                        count = stream.readinto(block)
                        if not count:
                            break
                        done += count
                seconds = time.perf_counter() - start
            return int(done / seconds) if done and seconds > 0 else None

        try:
            return _within(limit_seconds + GRACE_SECONDS, measure)
        except (OSError, ValueError):
            return None

    def run(self, arguments, environment=None, timeout_seconds=COMMAND_TIMEOUT_SECONDS):
        """Run a tool in the C locale with a time limit.

        Args:
            arguments: argv; the tool is searched in PATH and in the places vendors install to.
            environment: further environment variables.
            timeout_seconds: when to end it.
        Returns:
            (rc, stdout, stderr), or None when the tool is not installed. rc 124 or 137: the time limit ended it, or
            it could not even be ended (a process that waits for a hung driver) and was left behind.
        """
        tool = self._find_tool(arguments[0])
        if tool is None or self._run_command is None:
            return None
        argv = [tool] + list(arguments[1:])
        limiter = self._find_tool("timeout")
        if limiter is not None:
            argv = [limiter, "-k", "5", str(int(timeout_seconds) or 1)] + argv
        variables = dict(environment or {}, LC_ALL="C", LANG="C")
        answer = _within(timeout_seconds + GRACE_SECONDS, lambda: self._run_command(argv, environ_update=variables)[:3])
        return (124, "", "") if answer is None else tuple(answer)

    def write_atomically(self, path, text, mode=0o644):
        """Replace a file by rename, so that a reader or a crash never sees half of it; creates its directory."""
        directory = os.path.dirname(path)
        if not os.path.isdir(directory):
            os.makedirs(directory, 0o755)
        descriptor, staging = tempfile.mkstemp(prefix=".", dir=directory)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                os.fsync(stream.fileno())
            os.rename(staging, path)
        except BaseException:
            os.unlink(staging)
            raise

    def set_value(self, path, text):
        """Write a file of /proc or /sys in place; OSError when the kernel refuses the value."""
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)

    def remove(self, path):
        """Remove a file and then its directory if that is empty."""
        os.unlink(path)
        with contextlib.suppress(OSError):  # other files live there
            os.rmdir(os.path.dirname(path))

    @staticmethod
    def _find_tool(name):
        for directory in os.environ.get("PATH", "").split(os.pathsep) + list(TOOL_DIRECTORIES):
            candidate = os.path.join(directory, name)
            if directory and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                return candidate
        return None


def _within(seconds, function):
    """Return what a function returns, or None when it takes longer: it is left behind then, in a thread of its own."""
    outcome: List[Tuple[Any, Optional[BaseException]]] = []

    def work():
        try:
            outcome.append((function(), None))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that asked
            outcome.append((None, error))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(seconds)
    if not outcome:
        return None
    result, error = outcome[0]
    if error is not None:
        raise error
    return result
