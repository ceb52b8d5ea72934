# SPDX-License-Identifier: Apache-2.0
"""Pure code about the systemd unit of one engine instance: its text and what a running start was made from."""
