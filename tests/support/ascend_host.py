# SPDX-License-Identifier: Apache-2.0
"""What a host of the scenario molecule/ascend shows, looked at without our modules. STAND-IN level."""

import json
from typing import Any

UNIT = "vllm-chat.service"
# Runs on the host, whose Python is old and which has no curl.
ASK = """
import json, socket, urllib.request
question = {"model": "smollm2-135m-instruct", "prompt": "The capital of France is", "max_tokens": 3, "temperature": 0}
headers = {"Authorization": "Bearer stand-in-key", "Content-Type": "application/json"}
url = "http://%s:8000/v1/completions" % socket.gethostbyname(socket.gethostname())
request = urllib.request.Request(url, json.dumps(question).encode(), headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["text"])
"""


def check(host: Any, kernel: str, driver: str, firmware: str) -> None:
    """The host has these versions, records them, and its engine generates tokens.

    Args:
        kernel: as `uname -r` prints it.
    """
    release = host.check_output("uname -r")
    assert release == kernel
    assert host.file(f"/usr/src/kernels/{kernel}").is_directory
    assert host.check_output("grubby --default-kernel") == f"/boot/vmlinuz-{kernel}"
    for part, version in (("driver", driver), ("firmware", firmware)):
        installed = host.file(f"/usr/local/Ascend/{part}/version.info").content_string
        assert f"Version={version}\n" in installed
    board = host.check_output("npu-smi info -t board -i 0")
    assert driver in board and firmware in board
    assert host.file("/etc/vllm/ascend.env").contains("ASCEND_HOME_PATH=/usr/local/Ascend/cann")
    device = host.file("/dev/davinci0")
    assert (device.group, device.mode) == ("HwHiAiUser", 0o660)

    service = host.service(UNIT)
    assert service.is_running and service.is_enabled
    assert "Paris" in host.check_output(f"python3 -c '{ASK}'")

    slices = json.loads(host.file("/etc/vllm/plan.json").content_string)["slices"]
    assert slices["kernel"]["release"] == kernel
    assert (slices["ascend_driver"]["driver"], slices["ascend_driver"]["firmware"]) == (driver, firmware)
