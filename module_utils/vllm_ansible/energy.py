# SPDX-License-Identifier: Apache-2.0
"""Energy of processor packages and memory from the counters of the powercap framework (RAPL on x86).

Source: kernel Documentation/power/powercap/powercap.rst. Counters are in microjoules and start again from 0 after
max_energy_range_uj. Reading them needs root. Kunpeng has none.
"""

ROOT = "/sys/class/powercap"


def read(host):
    """Return [{zone, name, microjoules, range_microjoules}] of all zones that count; [] where nothing counts.

    A zone such as intel-rapl:0 is a package; intel-rapl:0:0 is a part of it, and its energy is in the package's.
    """
    found = []
    for zone in host.list_directory(ROOT):
        folder = "{0}/{1}".format(ROOT, zone)
        texts = [host.read("{0}/{1}".format(folder, name)) for name in ("energy_uj", "max_energy_range_uj", "name")]
        if texts[0] is not None and texts[1] is not None:
            found.append(
                {
                    "zone": zone,
                    "name": (texts[2] or zone).strip(),
                    "microjoules": int(texts[0]),
                    "range_microjoules": int(texts[1]),
                }
            )
    return found


def joules(before, after):
    """Return the joules that the host's packages used between two answers of :func:`read`, or None.

    Packages only, without their parts and without the MMIO and psys views, which count the same energy again. One turn
    of a counter is made good; more than one between two readings cannot be seen. None when no package counts or a zone
    of the first answer is missing in the second.
    """
    later = {counter["zone"]: counter for counter in after}
    total = 0
    packages = [c for c in before if c["zone"].count(":") == 1 and c["name"].startswith("package") and _counts(c)]
    if not packages or any(counter["zone"] not in later for counter in packages):
        return None
    for counter in packages:
        used = later[counter["zone"]]["microjoules"] - counter["microjoules"]
        total += used if used >= 0 else used + counter["range_microjoules"]
    return total / 1e6


def _counts(counter):
    return not counter["zone"].startswith("intel-rapl-mmio")
