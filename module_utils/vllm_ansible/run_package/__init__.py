# SPDX-License-Identifier: Apache-2.0
"""Ascend's ``.run`` packages: what is installed, how one is run, what its failures mean. One file each.

Runs on hosts: Python 3.6, standard library only. Texts, flags, exit codes and paths are those of the open installer
of the current HDK (github hicann/driver), of Huawei's CANN installation guides and of published logs; a guess says so.
"""
