# SPDX-License-Identifier: Apache-2.0
"""Which kernel a host starts next, with which parameters, and what keeps its packages as they are."""
