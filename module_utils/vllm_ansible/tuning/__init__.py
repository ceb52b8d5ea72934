# SPDX-License-Identifier: Apache-2.0
"""Kernel settings of a host: read, compared with a profile, written by tuned or by sysctl.d and a unit."""
