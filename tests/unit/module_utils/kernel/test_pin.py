# SPDX-License-Identifier: Apache-2.0
import pytest
from ansible.module_utils.vllm_ansible.kernel import pin

# As dnf 4 comes with RHEL 8.
PLAIN = (
    "[main]\ngpgcheck=1\ninstallonly_limit=3\nclean_requirements_on_remove=True\nbest=True\nskip_if_unavailable=False\n"
)
NAMES = ["kernel", "kernel-devel"]


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("kernel-4.19.90-52.22.v2207.ky10", "kernel"),
        ("kernel-devel-4.19.90-52.22.v2207.ky10.aarch64", "kernel-devel"),
        ("kernel-headers-4.18.0-372.9.1.el8", "kernel-headers"),
        ("kernel-4k-core-5.14.0-1.el9", "kernel-4k-core"),
        ("kernel-devel", "kernel-devel"),
    ],
)
def test_names_of_packages(package, name):
    assert pin.rpm_name(package) == name


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PLAIN, PLAIN + "excludepkgs=kernel kernel-devel\n"),
        ("", "[main]\nexcludepkgs=kernel kernel-devel\n"),
        ("[main]\na=1\n\n[repo]\nexclude=x\n", "[main]\na=1\nexcludepkgs=kernel kernel-devel\n\n[repo]\nexclude=x\n"),
        ("[main]\nexclude=a, b,\n  c*\nb=1\n", "[main]\nexclude=a b c* kernel kernel-devel\nb=1\n"),
        ("[main]\nexclude = kernel\n", "[main]\nexclude=kernel kernel-devel\n"),
        ("[main]\nexclude=\n", "[main]\nexclude=kernel kernel-devel\n"),
        ("[main]\nexcludepkgs=kernel\nexclude=kernel-devel\n", "[main]\nexcludepkgs=kernel\nexclude=kernel-devel\n"),
    ],
)
def test_names_are_excluded_beside_those_that_are(before, after):
    assert pin.with_names(before, NAMES) == after
    assert pin.with_names(after, NAMES) == after


def test_only_ours_are_taken_back():
    text = "[main]\nexclude=a kernel b\n# kernel\nexcludepkgs=kernel-devel\n[r]\nexclude=kernel\n"
    assert pin.without_names(text, NAMES) == "[main]\nexclude=a b\n# kernel\n[r]\nexclude=kernel\n"
    assert pin.without_names(pin.with_names(PLAIN, NAMES), NAMES) == PLAIN
    assert pin.excluded(text) == ["a", "kernel", "b", "kernel-devel"]
