# SPDX-License-Identifier: Apache-2.0
"""Lays a patched plugin over the published one: its compiled kernels stay, its Python files become ours.

The vendor's wheel is for one SoC and carries kernels that only CANN's compiler makes. A series that touches Python
files alone needs none of it: each file it touches is taken from the patched source archive, after the wheel's own was
found to be the archive's.

Runs on hosts: Python 3.6, standard library only.
"""

import os
import re
import shutil

from ansible.module_utils.vllm_ansible.artefact import sha256_file
from ansible.module_utils.vllm_ansible.build.tree import BuildError, remove
from ansible.module_utils.vllm_ansible.overrides import apply, series

# What setup.py of vllm-ascend 0.23.0.post1 (soc_to_device) writes into a wheel for SoCs whose names begin so.
_DEVICE_TYPES = (("ascend910b", "A2"), ("ascend910_93", "A3"), ("ascend310p", "_310P"), ("ascend950", "A5"))
_BUILD_INFO = re.compile(r"^__device_type__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def without_triton(soc_version):
    """Whether the SoC has no triton: the 310P family (docs/source/installation.md of vllm-ascend)."""
    return (soc_version or "").startswith("ascend310p")


def check_series(paths):
    """Raise BuildError when `paths`, the files that a series touches, need more than a copy."""
    others = [path for path in paths if not path.endswith(".py") or path.startswith("csrc/") or "/" not in path]
    if others:
        raise BuildError(
            "the plugin's series touches {0}. Compiled files need a full build of the plugin: a host of the target's "
            "architecture with the row's CANN toolkit and NNAL, cmake, g++ newer than 8 (C++17) and the plugin's git "
            "submodules; this builder lays Python files over the published wheel only.".format(", ".join(others))
        )


def lay_over(run, site, source, folder, paths, result_sha256, name, version, local_version):
    """Apply the series `paths` of `folder` to the unpacked `source` and lay the result over the package in `site`.

    The distribution is called version+local_version afterwards. Raises BuildError, OverridesError.
    """
    touched = sorted({item for path in paths for item in series.touched_files(series.read_patch(folder, path))})
    check_series(touched)
    for item in touched:
        published, installed = os.path.join(source, item), os.path.join(site, item)
        if os.path.exists(published) != os.path.exists(installed) or (
            os.path.exists(published) and sha256_file(published) != sha256_file(installed)
        ):
            raise BuildError(
                "{0} of the {1} wheel is not that of its source archive: the patch was written for another file. "
                "Provide the published wheel of {2}.".format(item, name, version)
            )
    apply.apply_series(run, source, folder, paths)
    seen = series.result_digest(source, touched)
    if seen != result_sha256:
        raise BuildError(
            "the patched {0} has the digest {1}, manifest.yml names {2}. Run tools/overrides.py lock.".format(
                name, seen, result_sha256
            )
        )
    for item in touched:
        patched, installed = os.path.join(source, item), os.path.join(site, item)
        remove(installed)
        if os.path.exists(patched):
            os.makedirs(os.path.dirname(installed), exist_ok=True)
            shutil.copyfile(patched, installed)
    _rename(site, name, version, local_version, touched)


def _rename(site, name, version, local_version, touched):
    package = name.replace("-", "_")
    old = "{0}-{1}.dist-info".format(package, version)
    new = "{0}-{1}+{2}.dist-info".format(package, version, local_version)
    os.rename(os.path.join(site, old), os.path.join(site, new))
    metadata = os.path.join(site, new, "METADATA")
    with open(metadata, encoding="utf-8") as stream:
        text = stream.read()
    with open(metadata, "w", encoding="utf-8") as stream:
        stream.write(re.sub(r"(?m)^Version: .*$", "Version: {0}+{1}".format(version, local_version), text, count=1))
    record = os.path.join(site, new, "RECORD")
    with open(record, encoding="utf-8") as stream:
        lines = [line.replace(old + "/", new + "/") for line in stream]
    listed = {line.split(",")[0] for line in lines}
    with open(record, "w", encoding="utf-8") as stream:
        stream.writelines(lines + [item + ",,\n" for item in touched if item not in listed])


def device_type(soc_version):
    """The family name that the plugin's wheel carries for a SoC. Raises BuildError for a SoC it does not know."""
    for start, name in _DEVICE_TYPES:
        if soc_version.startswith(start):
            return name
    raise BuildError(
        "soc_version {0!r} is none of {1}…".format(soc_version, "…, ".join(start for start, _name in _DEVICE_TYPES))
    )


def check_soc(site, name, soc_version):
    """Raise BuildError unless the wheel in `site` was made for the family of `soc_version`."""
    path = os.path.join(site, name.replace("-", "_"), "_build_info.py")
    try:
        with open(path, encoding="utf-8") as stream:
            match = _BUILD_INFO.search(stream.read())
    except OSError:
        match = None
    seen, wanted = match.group(1) if match else "an unknown device", device_type(soc_version)
    if seen != wanted:
        raise BuildError(
            "the {0} wheel was made for {1}, the plan wants {2} ({3}). Provide that wheel through "
            "engine_build_wheel_directories or engine_build_index_urls.".format(name, seen, wanted, soc_version)
        )


def check_triton(site, soc_version):
    """Raise BuildError when packages in `site` would overwrite each other's import name triton."""
    names = {item.split("-")[0].lower() for item in os.listdir(site) if item.endswith(".dist-info")}
    seen = sorted(names & {"triton", "triton_ascend"})
    if len(seen) > 1 or "triton" in seen:
        raise BuildError(
            "{0} in one tree: triton and triton-ascend both are the package triton, and the last one installed wins. "
            "Leave triton out of the row.".format(" and ".join(name.replace("_", "-") for name in seen))
        )
    if seen and without_triton(soc_version):
        raise BuildError("triton-ascend has no kernels for {0}. Leave it out of the row.".format(soc_version))
