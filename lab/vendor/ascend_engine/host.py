# SPDX-License-Identifier: Apache-2.0
"""STAND-IN: what an Ascend engine needs from its unit and its host, looked at instead of used.

The real engine fails on each of these in its own words; the sentences here are invented.
"""

import errno
import glob
import os
import re
import stat

from .versions import matches

SHARED_DEVICES = ("davinci_manager", "devmm_svm", "hisi_hdc")
# Directories of the search path for libraries, by what the real engine loads from them first.
LIBRARIES = {
    "libascend_hal.so of the driver": r"/driver/lib64(/driver|/common)?/?$",
    "libascendcl.so of CANN": r"/(cann|latest|ascend-toolkit)[^/]*/lib64/?$",
    "libatb.so of NNAL": r"/atb/cxx_abi_[01]/lib/?$",
}
LINUX_MEMORY_DEVICES = 1  # major number of /dev/null and its like, which every unit may open


def problems(wanted, environment, root=""):
    """Everything that keeps the engine from starting, as sentences; empty when it would start.

    wanted: {"versions": {"cann", "nnal"}, "drivers": [range, …]} of the version row. environment: the process's own.
    root: put before every path.
    """
    found = []
    paths = {}
    for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ATB_HOME_PATH"):
        paths[name] = environment.get(name)
        if not paths[name]:
            found.append(f"{name} is not set: the unit does not read the environment of CANN and NNAL")
        elif not os.path.isdir(root + paths[name]):
            found.append(f"{name}={paths[name]} is no directory")
    found += _libraries(environment.get("LD_LIBRARY_PATH", "").split(":"), root)
    found += _python(environment.get("PYTHONPATH", "").split(":"), paths["ASCEND_HOME_PATH"], root)
    found += _versions(wanted, paths, root)
    return found + _devices(environment.get("ASCEND_RT_VISIBLE_DEVICES"), root)


def _libraries(search, root):
    return [
        f"{what} is not found: no directory of LD_LIBRARY_PATH that exists holds it ({':'.join(search) or 'empty'})"
        for what, pattern in LIBRARIES.items()
        if not any(re.search(pattern, path) and os.path.isdir(root + path) for path in search)
    ]


def _python(search, home, root):
    wanted = f"{home}/python/site-packages"
    if home and (wanted not in search or not os.path.isdir(root + wanted)):
        return [f"CANN's Python packages are not found: {wanted} is no directory of PYTHONPATH"]
    return []


def _read(pattern, key, root):
    """The value of `key` in the first file that matches `pattern`, or None."""
    for path in sorted(glob.glob(root + pattern)):
        with open(path, encoding="utf-8", errors="replace") as file:
            match = re.search(rf"^\s*{key}\s*[=:]\s*(\S+)\s*$", file.read(), re.MULTILINE)
        if match:
            return match.group(1)
    return None


def _versions(wanted, paths, root):
    home, atb = paths["ASCEND_HOME_PATH"] or "/absent", paths["ATB_HOME_PATH"] or "/absent"
    driver = _read("/usr/local/Ascend/driver/version.info", "package_version", root) or _read(
        "/usr/local/Ascend/driver/version.info", "Version", root
    )
    found = []
    if driver is None:
        found.append("no driver: /usr/local/Ascend/driver/version.info is missing or names no version")
    elif not matches(driver, wanted["drivers"]):
        found.append(f"driver {driver} does not go with this engine, it needs {' or '.join(wanted['drivers'])}")
    for name, seen in (
        ("cann", _read(f"{home}/*-linux/ascend_toolkit_install.info", "version", root)),
        ("nnal", _read(f"{os.path.normpath(os.path.join(atb, '../..'))}/version.info", "Ascend-cann-atb", root)),
    ):
        if seen != wanted["versions"][name]:
            found.append(f"{name} is {seen or 'absent'}, this engine was built for {wanted['versions'][name]}")
    return found


def visible_devices(text):
    """The numbers in ASCEND_RT_VISIBLE_DEVICES; ValueError when it is no such list."""
    return [int(word) for word in (text or "").split(",")]


def _devices(text, root):
    try:
        numbers = visible_devices(text)
    except ValueError:
        return [f"ASCEND_RT_VISIBLE_DEVICES={text!r} names no devices"]
    found = []
    for name in [f"davinci{number}" for number in numbers] + list(SHARED_DEVICES):
        error = _open(f"{root}/dev/{name}")
        if error:
            found.append(f"/dev/{name} cannot be opened: {error}")
    for path in sorted(glob.glob(f"{root}/dev/davinci[0-9]*")):
        number = int(re.sub(r"\D", "", os.path.basename(path)))
        info = os.stat(path)
        # Units can only be kept from devices, and from no device of the memory driver.
        device = stat.S_ISCHR(info.st_mode) and os.major(info.st_rdev) != LINUX_MEMORY_DEVICES
        if device and number not in numbers and not _open(path):
            found.append(f"/dev/davinci{number} can be opened, and it is not this engine's: it belongs to another one")
    return found


def _open(path):
    """Why `path` cannot be opened for reading and writing; empty when it can.

    A node without a driver behind it, as lab hosts have, passes: mode and unit are looked at before the driver is.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return "" if error.errno in (errno.ENXIO, errno.ENODEV) else error.strerror
    return ""
