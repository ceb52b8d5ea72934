# SPDX-License-Identifier: Apache-2.0
"""STAND-IN of the plugin vllm-ascend: the entry point by which vLLM finds its platform, and nothing else."""


def register() -> str:
    """The platform's class, as the plugin's own entry point names it."""
    return "vllm_ascend.platform.NPUPlatform"
