# SPDX-License-Identifier: Apache-2.0
"""After site.yml on a bare host, and after rollback.yml again."""

from tests.support import ascend_host

testinfra_hosts = ["ansible://engines"]


def test_the_first_set_serves(host):
    ascend_host.check(host, "4.19.90-52.22.v2207.ky10.x86_64", "25.3.rc1", "7.8.0.2.212")
