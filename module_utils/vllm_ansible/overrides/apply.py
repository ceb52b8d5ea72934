# SPDX-License-Identifier: Apache-2.0
"""Applies patches to a source tree: fuzz 0 and, for a release, not one line of offset.

Runs on hosts: Python 3.6, standard library only; needs the program `patch`.
"""

import os

from ansible.module_utils.vllm_ansible.overrides.series import OverridesError


def apply_patch(run, source, patch, exact=True):
    """Apply the file `patch` below `source`, or change nothing and raise OverridesError.

    run: AnsibleModule.run_command or alike. exact: refuse hunks that apply at another line than they say,
    because such a patch was written for another source than this one.
    """
    argv = ["patch", "-p1", "-F0", "--no-backup-if-mismatch", "--force", "-d", source, "-i", patch]
    rc, out, err = run(argv + ["--dry-run"], environ_update={"LC_ALL": "C"})
    name = os.path.basename(patch)
    if rc != 0:
        raise OverridesError(
            "{0} does not apply to {1}:\n{2}\nRefresh it (tools/overrides.py refresh).".format(
                name, source, (out + err).strip()
            )
        )
    moved = [line for line in out.splitlines() if "offset" in line and "succeeded" in line]
    if exact and moved:
        raise OverridesError(
            "{0} applies to {1} only with an offset:\n{2}\nRefresh it (tools/overrides.py refresh).".format(
                name, source, "\n".join(moved)
            )
        )
    rc, out, err = run(argv, environ_update={"LC_ALL": "C"})
    if rc != 0:
        raise OverridesError("{0} could not be applied to {1}: {2}".format(name, source, (out + err).strip()))


def apply_series(run, source, folder, paths, exact=True):
    """Apply the patches `paths` (relative to `folder`) in order."""
    for path in paths:
        apply_patch(run, source, os.path.join(folder, path), exact)
