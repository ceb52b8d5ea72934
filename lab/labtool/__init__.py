# SPDX-License-Identifier: Apache-2.0
"""Real systemd hosts on one machine, by systemd-nspawn. See docs/lab.md."""
