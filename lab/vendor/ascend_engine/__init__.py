# SPDX-License-Identifier: Apache-2.0
"""STAND-IN of an Ascend engine: what `ascend_release.py` lays over a CPU release. No part of it drives an NPU."""
