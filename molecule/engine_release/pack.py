# SPDX-License-Identifier: Apache-2.0
"""Pack a small artefact in the folder argv[1] and print what engine_build would hand on, as JSON."""

import json
import sys
import tempfile
from pathlib import Path

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[2] / "module_utils"))

from ansible.module_utils.vllm_ansible import artefact  # noqa: E402  # after the path above
from ansible.module_utils.vllm_ansible.build import scan  # noqa: E402

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
with tempfile.TemporaryDirectory() as tree:
    (Path(tree) / "bin").mkdir()
    (Path(tree) / "bin" / "python3").write_text("#!/bin/sh\n")
    (Path(tree) / "bin" / "python3").chmod(0o755)
    (Path(tree) / "lib").symlink_to("bin")
    # A path that takes a GNU tar header of its own, which Python 3.7 reads another way.
    deep = Path(tree) / ("a" * 60) / ("b" * 60) / "__pycache__"
    deep.mkdir(parents=True)
    (deep / "file").write_text("deep\n")
    made = artefact.pack(
        tree, str(folder / "small.artefact.tar"), "engine-release", "small",
        metadata={"requires": scan.requirements(tree)},
        layers=[{"file": "runtime.tar.gz", "compression": "gzip", "paths": [""]}], python=sys.executable,
    )  # fmt: skip
print(json.dumps({"path": made["path"], "sha256": made["sha256"], "size_bytes": made["size_bytes"],
                  "release_id": artefact.release_id("small", made["sha256"])}))  # fmt: skip
