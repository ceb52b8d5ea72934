# SPDX-License-Identifier: Apache-2.0
"""The planner: requests, hardware facts and the catalogue in, one plan for the whole fleet out.

Pure and total: no file, no clock, no network, and no input that makes it raise. ``fleet.plan_fleet`` is the entry.
The stages, one file each: facts, requests (with words), catalogue and models, groups, backends (layout, memory),
ports, slices. Problems, warnings and rules are registered in ``codes``.
"""
