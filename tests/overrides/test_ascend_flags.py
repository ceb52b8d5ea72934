# SPDX-License-Identifier: Apache-2.0
"""The flags of vLLM 0.23.0 against its real argument parser, which the stand-in of an Ascend release brings along."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from lab.vendor import ascend_release
from tools import golden, overrides

pytestmark = pytest.mark.engine

# Run by the release's Python: parses each list of arguments as `vllm` would, prints what became of it.
PARSE = r"""
import contextlib, io, json, sys
from stand_in_ascend import serve
for words in json.load(sys.stdin):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            serve.parse(words)
        print("PARSED " + json.dumps([0, ""]))
    except SystemExit as end:
        print("PARSED " + json.dumps([end.code, said.getvalue()]))
"""


@pytest.fixture(scope="module")
def python(release: Path, newest_receipt: dict, project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter for which vLLM is the 0.23.0 of the stand-in release; only its own payload is unpacked."""
    out = project_root / ".cache" / "lab" / "ascend"
    command = [sys.executable, ascend_release.__file__, newest_receipt["path"], "--build=vllm-0.23.0-ascend-x86_64"]
    done = subprocess.run(
        [*command, f"--out={out}", f"--release={release}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    folder = tmp_path_factory.mktemp("stand-in")
    with tarfile.open(made["path"]) as outer, tarfile.open(fileobj=outer.extractfile("stand-in.tar")) as payload:
        payload.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none
        payload.extractall(folder)
    wrapper = folder / "python3"
    first = f"import sys; sys.path.insert(0, {str(folder / ascend_release.FOLDER)!r}); exec(sys.argv.pop(1))"
    # overrides.record_flags calls it with -I -c PROGRAM
    wrapper.write_text(f'#!/bin/sh\nshift 2\nexec {release}/bin/python3 -I -B -c "{first}" "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def parse(python: Path, *lists: list[str]) -> list[tuple[int, str]]:
    """(exit status, what the parser said) of each list of arguments."""
    environment = {"HOME": str(python.parent), "PATH": "/usr/bin:/bin", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        [str(python), "-I", "-c", PARSE], input=json.dumps(lists), env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("PARSED ")]
    return [tuple(json.loads(line[len("PARSED ") :])) for line in lines]


def test_the_recorded_flags_are_the_parsers(python: Path, project_root: Path, tmp_path: Path) -> None:
    recorded = project_root / "engine_overrides" / "vllm" / "0.23.0" / "flags.yml"
    folder = tmp_path / "vllm" / "0.23.0"
    folder.mkdir(parents=True)
    overrides.record_flags(folder, python)
    assert yaml.safe_load((folder / "flags.yml").read_text()) == yaml.safe_load(recorded.read_text())


def test_the_parser_takes_every_recipe_and_refuses_what_it_does_not_know(python: Path) -> None:
    files = sorted(golden.GOLDEN.glob("*/units/*.arguments"))
    assert len(files) == 6
    lists = [file.read_text().splitlines() for file in files]
    lists = [words[words.index("serve") :] for words in lists]
    found = parse(python, *lists, [*lists[0], "--device=ascend"], [*lists[0], "--max-num-seqs=many"])
    assert found[:-2] == [(0, "")] * len(files)
    assert [status for status, _said in found[-2:]] == [2, 2]
    assert "unrecognized arguments: --device=ascend" in found[-2][1]
    assert "--max-num-seqs" in found[-1][1]
