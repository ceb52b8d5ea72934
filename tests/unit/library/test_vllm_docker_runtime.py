# SPDX-License-Identifier: Apache-2.0
import json

import pytest
import vllm_docker_runtime

CUSTOM = """{
  "log-driver": "json-file",
  "features": {"buildkit": true},
  "runtimes": {
    "kata": {"path": "/opt/kata/bin/kata-runtime"}
  },
  "data-root": "/data/docker"
}
"""


@pytest.fixture
def docker(tmp_path, run_module):
    path = tmp_path / "docker/daemon.json"

    def run(text=None, check=False, **params):
        if text is not None:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        result = run_module(vllm_docker_runtime, {"path": str(path), **params}, check_mode=check, diff=True)
        return result, path.read_text() if path.exists() else None

    return run


def test_other_keys_and_their_order_stay(docker):
    preview, text = docker(CUSTOM, check=True)
    assert preview["changed"] and not preview["right"] and text == CUSTOM
    result, text = docker()
    assert text == result["diff"]["after"] == preview["diff"]["after"]
    before, after = json.loads(CUSTOM), json.loads(text)
    assert list(after) == list(before) and after.pop("runtimes") == {
        **before.pop("runtimes"), "nvidia": {"args": [], "path": "nvidia-container-runtime"}
    }  # fmt: skip
    assert after == before and '\n  "log-driver"' in text
    with open(result["backup_file"]) as stream:
        assert stream.read() == CUSTOM
    again, _ = docker()
    assert not again["changed"] and again["right"]
    removed, text = docker(state="absent")
    assert removed["changed"] and json.loads(text) == json.loads(CUSTOM)
    assert not docker(state="absent")[0]["changed"]


def test_a_file_that_is_not_there_is_made_and_the_default_is_taken_only_when_asked(docker):
    result, text = docker()
    assert result["changed"] and "backup_file" not in result and "default-runtime" not in text
    result, text = docker(default=True)
    assert result["changed"] and json.loads(text)["default-runtime"] == "nvidia"
    assert not docker(default=False)[0]["changed"]
    assert json.loads(docker(state="absent")[1]) == {}


def test_arguments_of_the_runtime_stay(docker):
    mine = '{"runtimes": {"nvidia": {"path": "/old/path", "runtimeArgs": ["--debug"]}}}'
    assert json.loads(docker(mine)[1])["runtimes"]["nvidia"] == {
        "path": "nvidia-container-runtime", "runtimeArgs": ["--debug"]
    }  # fmt: skip
    fitting = '{"runtimes":{"nvidia":{"path":"nvidia-container-runtime","runtimeArgs":["--debug"]}}}'
    result, text = docker(fitting)
    assert not result["changed"] and text == fitting


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1,}', "not valid JSON"),
        ("[]", "no JSON object"),
        ('{"runtimes": []}', '"runtimes" in it is no JSON object'),
        ('{"bip": "10.0.0.1/24", "bip": "10.1.0.1/24"}', '"bip" is there twice'),
    ],
)
def test_a_file_that_docker_would_not_take_is_left_alone(docker, text, reason):
    result, after = docker(text)
    assert result["failed"] and reason in result["msg"] and "is left as it is" in result["msg"] and after == text
