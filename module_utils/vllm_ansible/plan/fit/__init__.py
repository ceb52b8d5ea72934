# SPDX-License-Identifier: Apache-2.0
"""Does a model fit, how is it divided, and what would make it fit: pure arithmetic, no findings."""
