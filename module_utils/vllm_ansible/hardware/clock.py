# SPDX-License-Identifier: Apache-2.0
"""Whether the clock is synchronised, and by what."""

import re

TIMESYNCD = "/run/systemd/timesync"
# Written by each daemon while it runs.
SOURCES = (
    ("/run/chrony/chronyd.pid", "chrony"),
    ("/run/chronyd.pid", "chrony"),
    ("/run/ntpd.pid", "ntpd"),
    (TIMESYNCD, "systemd-timesyncd"),
)


def parse_timedatectl(text):
    """Return whether ``timedatectl`` or ``timedatectl show`` calls the clock synchronised; None: it says nothing."""
    names = r"(?:NTPSynchronized=|NTP synchronized:|System clock synchronized:)"
    match = re.search(r"^[ \t]*" + names + r"[ \t]*(yes|no)\b", text or "", re.MULTILINE)
    return match.group(1) == "yes" if match else None


def gather_clock(host):
    """Return the ``clock`` facts."""
    source = next((name for path, name in SOURCES if host.exists(path)), None)
    synchronised = True if host.exists(TIMESYNCD + "/synchronized") else None
    # systemd before 239 has no `show`.
    for options in [] if synchronised else ["show --property=NTPSynchronized", ""]:
        answer = host.run(["timedatectl"] + options.split())
        if answer is None or synchronised is not None:
            break
        synchronised = parse_timedatectl(answer[1]) if answer[0] == 0 else None
    return {"synchronised": synchronised, "source": source}
