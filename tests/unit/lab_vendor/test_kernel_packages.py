# SPDX-License-Identifier: Apache-2.0
"""The kernel repositories: genuine packages and metadata, stand-in content."""

import gzip
import re
import subprocess
from pathlib import Path

import pytest

from lab.vendor import kernel_packages

# Builds packages with what `lab/lab deps` installs.
pytestmark = pytest.mark.lab


def query(path: Path, *words: str) -> str:
    command = ["rpm", "--query", "--package", *words, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_an_rpm_repository(tmp_path: Path) -> None:
    assert kernel_packages.main([str(tmp_path), "kylin-v10-sp2", "--machine", "aarch64"]) == 0
    packages = tmp_path / "os"
    release = "4.19.90-24.4.v2101.ky10.aarch64"
    devel = packages / f"kernel-devel-{release}.rpm"
    assert query(devel, "--queryformat", "%{NAME} %{VERSION} %{RELEASE} %{ARCH}") == (
        "kernel-devel 4.19.90 24.4.v2101.ky10 aarch64"
    )
    assert f"/usr/src/kernels/{release}\n" in query(devel, "--list")
    core = packages / f"kernel-core-{release}.rpm"
    assert f"/boot/vmlinuz-{release}\n" in query(core, "--list")
    assert "--copy-default" in query(core, "--scripts") and "--remove-kernel" in query(core, "--scripts")
    # dnf keeps several of them side by side
    assert "installonlypkg(kernel)" in query(devel, "--provides")
    metadata = (packages / "repodata/repomd.xml").read_text()
    primary = re.search(r'href="(repodata/\w+-primary\.xml\.gz)"', metadata)
    assert primary
    listed = gzip.decompress((packages / primary[1]).read_bytes()).decode()
    assert listed.count("<name>kernel</name>") == 2 and "<name>tuned</name>" not in listed
    for path in kernel_packages.packages_of(tmp_path, "kylin-v10-sp2", "aarch64", "4.19.90-24.4.v2101.ky10"):
        assert path.is_file()


def test_a_deb_repository(tmp_path: Path) -> None:
    kernel_packages.build("kylin-v10-desktop", "x86_64", tmp_path)
    index = (tmp_path / "os/Packages").read_text()
    assert gzip.decompress((tmp_path / "os/Packages.gz").read_bytes()).decode() == index
    assert "Package: linux-image-5.4.18-85-generic\nVersion: 5.4.18-85.74\nArchitecture: amd64" in index
    image = tmp_path / "os/linux-image-5.4.18-85-generic_5.4.18-85.74_amd64.deb"
    listed = subprocess.run(["dpkg-deb", "--contents", image], capture_output=True, text=True, check=True).stdout
    assert "./boot/vmlinuz-5.4.18-85-generic" in listed and "root/root" in listed
    for path in kernel_packages.packages_of(tmp_path, "kylin-v10-desktop", "x86_64", "5.4.18-35.21"):
        assert path.is_file()


def test_what_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(kernel_packages.BuildError, match=r"rpmbuild failed: .*Name"):
        kernel_packages.rpm("%description\n", "noarch", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kernel_packages.main([str(tmp_path), "kylin-v10-sp3"]) == 1
    assert "'rpmbuild'. Run `lab/lab deps`" in capsys.readouterr().err
