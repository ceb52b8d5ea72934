# SPDX-License-Identifier: Apache-2.0
"""After the upgrade."""

from tests.support import ascend_host

testinfra_hosts = ["ansible://engines"]


def test_the_second_set_serves(host):
    ascend_host.check(host, "4.19.90-52.39.v2207.ky10.x86_64", "25.5.0", "7.8.0.5.201")
