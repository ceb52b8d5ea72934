# SPDX-License-Identifier: Apache-2.0
import vllm_nvidia_driver_info
from ansible.module_utils.vllm_ansible.host import Host


def test_a_machine_without_a_driver(run_module, monkeypatch):
    """What is said itself is tested in module_utils/hardware/test_nvidia_driver.py."""
    monkeypatch.setattr(Host, "run", lambda self, argv, **_: (0, "installed bash 5.2\n", "") if "rpm" in argv else None)
    monkeypatch.setattr(Host, "exists", lambda self, path: path.startswith("/lib/modules/"))
    monkeypatch.setattr(Host, "read", lambda self, path: None)
    arguments = {"version": "580.126.09", "flavour": "open", "manager": "dnf", "packages": ["nvidia-driver-cuda"]}
    result = run_module(vllm_nvidia_driver_info, {**arguments, "nvswitch": True, "ask_gpus": True}, check_mode=True)
    assert not result["changed"] and not result["right"] and result["missing"] == ["nvidia-driver-cuda"]
    assert (result["blockers"], result["headers_package"], result["pending"]) == ([], None, [])
    assert [one["code"] for one in result["findings"]] == ["packages", "fabric_manager"]
    assert "findings" not in run_module(vllm_nvidia_driver_info, arguments)
