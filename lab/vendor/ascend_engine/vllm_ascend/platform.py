# SPDX-License-Identifier: Apache-2.0
"""STAND-IN of the plugin's platform: what vLLM's argument parser asks of it, as in 0.23.0.post1."""

import torch
from vllm.platforms.interface import Platform, PlatformEnum

# As importing torch_npu does.
torch.utils.rename_privateuse1_backend("npu")


class NPUPlatform(Platform):
    """An NPU by name only."""

    _enum = PlatformEnum.OOT
    device_name = "npu"
    device_type = "npu"
    dispatch_key = "PrivateUse1"
    supported_quantization = ["ascend", "compressed-tensors", "fp8", "deepseek_v4_fp8"]

    @classmethod
    def pre_register_and_update(cls, parser=None) -> None:
        """Add the plugin's own method to the choices of --quantization, where the version has choices."""
        action = parser._option_string_actions.get("--quantization") if parser else None
        if action is not None and action.choices and "ascend" not in action.choices:
            action.choices.append("ascend")
