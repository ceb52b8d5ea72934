# SPDX-License-Identifier: Apache-2.0
"""What differs between kinds of accelerator, one strategy each."""
