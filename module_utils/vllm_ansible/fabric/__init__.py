# SPDX-License-Identifier: Apache-2.0
"""The network between accelerators: its settings, what its tools print, what a fleet's results mean."""
