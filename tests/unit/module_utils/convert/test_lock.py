# SPDX-License-Identifier: Apache-2.0
"""The tests run the converter with the versions it is shipped with."""

import re
from importlib.metadata import version
from pathlib import Path


def test_the_tests_use_the_locked_versions(project_root: Path) -> None:
    lock = (project_root / "requirements/converter-gguf.lock").read_text()
    pins = dict(re.findall(r"^(\S+)==(\S+)", lock, re.MULTILINE))
    assert set(pins) == {"gguf", "numpy", "PyYAML", "tokenizers", "tqdm"}
    for name in ("gguf", "numpy", "tokenizers"):
        assert version(name) == pins[name], name
    entries = re.findall(r"^\S+==\S+((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", lock, re.MULTILINE)
    assert len(entries) == len(pins)
