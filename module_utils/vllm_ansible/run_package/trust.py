# SPDX-License-Identifier: Apache-2.0
"""Whether a package is the one that was meant: its digest, and the vendor's signature where there is one."""

import hashlib
import os
import shutil
import tempfile
from typing import Callable, Optional

from ansible.module_utils.vllm_ansible.run_package.packages import PackageError


def check_digest(path: str, sha256: str, progress: Optional[Callable[[str, int, int], None]] = None) -> None:
    """Raise PackageError unless the file has this digest. progress: called as ``progress("verify", done, total)``."""
    digest = hashlib.sha256()
    try:
        total = os.path.getsize(path)
        done = 0
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
                done += len(block)
                if progress:
                    progress("verify", done, total)
    except OSError as error:
        message = "{0} cannot be read: {1}. Set src to the package.".format(path, error.strerror)
        raise PackageError(message, code="no_file") from error
    if digest.hexdigest() != sha256.strip().lower():
        raise PackageError(
            "{0} is not the package that was meant: its SHA-256 is {1}, it should be {2}. Nothing was run. Fetch the "
            "file again, or state the digest of the package you want.".format(path, digest.hexdigest(), sha256),
            code="wrong_digest",
        )


def check_signature(run_command, path: str, signature: str, authority: str, revoked: Optional[str] = None) -> None:
    """Raise PackageError unless `signature` (CMS, DER or PEM) is one of `path` by an authority of `authority`.

    run_command: ``AnsibleModule.run_command``. authority, revoked: certificates and revocation lists in PEM.
    """
    try:
        with open(signature, "rb") as stream:
            form = "PEM" if stream.read(11) == b"-----BEGIN " else "DER"
        bundle = b""
        for name in [authority] + ([revoked] if revoked else []):
            with open(name, "rb") as stream:
                bundle += stream.read() + b"\n"
    except OSError as error:
        message = "The signature of {0} cannot be checked: {1}: {2}.".format(path, error.filename, error.strerror)
        raise PackageError(message, code="no_signature") from error
    if shutil.which("openssl") is None:
        message = "The signature of {0} cannot be checked: openssl is not installed. Install it.".format(path)
        raise PackageError(message, code="no_openssl")
    with tempfile.NamedTemporaryFile(suffix=".pem") as trusted:
        trusted.write(bundle)
        trusted.flush()
        # The vendor's signing certificates carry purposes of their own, so none is demanded.
        argv = ["openssl", "cms", "-verify", "-binary", "-purpose", "any", "-inform", form, "-in", signature]
        argv += ["-content", path, "-CAfile", trusted.name, "-out", os.devnull]
        argv += ["-crl_check_all"] if revoked else []
        rc, out, err = run_command(argv, environ_update={"LC_ALL": "C", "LANG": "C"})[:3]
    if rc != 0:
        raise PackageError(
            "The signature {0} does not prove {1}: {2} Nothing was run. Fetch package, signature and certificates "
            "again from the vendor; do not install a package whose signature does not hold.".format(
                signature, path, _reason(out + "\n" + err)
            ),
            code="bad_signature",
        )


def _reason(text):
    """The line of openssl that a person understands."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    return (telling or lines or ["openssl gave no reason"])[-1].rstrip(".") + "."
