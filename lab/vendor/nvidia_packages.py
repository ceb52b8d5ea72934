#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds apt and dnf repositories with STAND-INS of NVIDIA's packages: genuine packages, content of our own.

Names, versions and dependencies follow NVIDIA's guides; what the packages hold is in nvidia/. The repository lies where
NVIDIA's does, below distribution and architecture, and beside it in `os` what a distribution brings: headers of a
kernel, OpenMPI.

    lab/vendor/nvidia_packages.py FOLDER ubuntu2404 --kernel $(uname -r)
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lab.vendor.kernel_packages import DEB_ARCHITECTURE, BuildError, deb, index, rpm

HERE = Path(__file__).resolve().parent
VERSIONS = ("570.172.08", "580.65.06", "580.126.09")
ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "sbsa"}
MARK = "/usr/lib/nvidia-stand-in"
# rpms of a driver have an epoch, NVIDIA's guide on version locking shows it.
EPOCH = "3"

UNIT = """\
[Unit]
Description=STAND-IN of {name}
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/{program}
"""
# Ubuntu's is started by udev alone, and without persistence.
INSTALL = "[Install]\nWantedBy=multi-user.target\n"
PERSISTENCED = "#!/bin/sh\n# STAND-IN of nvidia-persistenced\n[ -e /proc/driver/nvidia/version ]\n"
FABRIC_MANAGER = """\
#!/bin/sh
# STAND-IN of nv-fabricmanager. The line about another version is that of NVIDIA/gpu-operator#544.
if [ "$1" = --version ] || [ "$1" = -v ]; then
    echo "Fabric Manager version is : {version}"
    exit
fi
loaded=$(sed -nE '1s/.* ([0-9]{{3}}\\.[0-9.]+) .*/\\1/p' /proc/driver/nvidia/version)
[ "$loaded" = {version} ] || {{
    echo "fabric manager NVIDIA GPU driver interface version {version} don't match with driver version $loaded." \\
        "Please update with matching NVIDIA driver package." >&2
    exit 1
}}
"""
# What DKMS does: a module when the headers of the running kernel are there, a warning and no failure otherwise.
DKMS = """\
k=$(uname -r)
if [ -e /lib/modules/$k/build ]; then
    mkdir -p /lib/modules/$k/{folder}
    printf 'version={version}\\nflavour={flavour}\\n' > /lib/modules/$k/{folder}/nvidia.ko
else
    echo "Module build for kernel $k was skipped since the kernel headers for this kernel do not seem to be installed."
fi
"""
CTK = """\
#!/bin/sh
# STAND-IN of nvidia-ctk: CDI, and containerd with an import. The CDI document is invented; the genuine one lists
# devices, mounts and hooks.
if [ "$1 $2 $3" = "runtime configure --runtime=containerd" ]; then
    mkdir -p /etc/containerd/conf.d && cd /etc/containerd || exit 1
    echo 'BinaryName = "/usr/bin/nvidia-container-runtime"' > conf.d/99-nvidia.toml
    grep -qs '^imports' config.toml || echo 'imports = ["/etc/containerd/conf.d/*.toml"]' >> config.toml
    exit
fi
[ "$1 $2" = "cdi generate" ] || exit 1
printf '%s\\n' '---' 'cdiVersion: 0.5.0' 'kind: nvidia.com/gpu' 'devices:'
nvidia-smi --query-gpu=index --format=csv,noheader | while read -r number; do
    printf '%s\\n' "- name: \\"$number\\"" '  containerEdits:' '    deviceNodes:' "    - path: /dev/nvidia$number"
done
"""


@dataclass
class Package:
    """One package. Names in `depends` may carry a version, as "name = version"; `builds`: flavour of a module."""

    name: str
    version: str
    files: dict[str, str] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    builds: str = ""
    epoch: str = ""


def _smi() -> str:
    return (HERE / "nvidia/nvidia-smi").read_text()


def _driver_files(version: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Files of the library, of nvidia-smi and of nvidia-persistenced."""
    return (
        {f"{MARK}/library": f"{version}\n"},
        {"/usr/bin/nvidia-smi": _smi()},
        {"/usr/bin/nvidia-persistenced": PERSISTENCED},
    )


def _unit(name: str, program: str, install: bool = True) -> dict[str, str]:
    text = UNIT.format(name=name, program=program) + (INSTALL if install else "")
    return {f"/usr/lib/systemd/system/{name}.service": text}


def _fabric_manager(version: str) -> dict[str, str]:
    program = {"/usr/bin/nv-fabricmanager": FABRIC_MANAGER.format(version=version)}
    return program | _unit("nvidia-fabricmanager", "nv-fabricmanager")


def debs(version: str) -> Iterator[Package]:
    """The driver's packages as Ubuntu has them below branch 590: the branch in each name, dependencies of at least."""
    branch, full = version.split(".")[0], f"{version}-1ubuntu1"
    library, smi, persistenced = _driver_files(version)
    for flavour, suffix, meta in (("open", "-open", "nvidia-open"), ("proprietary", "", "cuda-drivers")):
        dkms, driver = f"nvidia-dkms-{branch}{suffix}", f"nvidia-driver-{branch}{suffix}"
        yield Package(f"{meta}-{branch}", full, depends=(f"{driver} (>= {full})",))
        yield Package(
            driver,
            full,
            depends=tuple(
                f"{name} (= {full})"
                for name in (
                    dkms,
                    f"libnvidia-compute-{branch}",
                    f"nvidia-utils-{branch}",
                    f"nvidia-compute-utils-{branch}",
                )
            ),
            provides=("nvidia-driver-binary",),
            conflicts=("nvidia-driver-binary",),
        )
        virtual = ("nvidia-kernel-dkms",)
        yield Package(dkms, full, provides=virtual, conflicts=virtual, builds=flavour)
    for name, files in (
        ("libnvidia-compute", library),
        ("nvidia-utils", smi),
        ("nvidia-compute-utils", persistenced | _unit("nvidia-persistenced", "nvidia-persistenced", install=False)),
    ):
        yield Package(f"{name}-{branch}", full, files, provides=(name,), conflicts=(name,))
    manager = "nvidia-fabricmanager" if int(branch) >= 580 else f"nvidia-fabricmanager-{branch}"
    virtual = ("nvidia-fabricmanager-any",)  # invented: files of two branches must not lie side by side
    yield Package(manager, f"{version}-1", _fabric_manager(version), provides=virtual, conflicts=virtual)


def rpms(version: str) -> Iterator[Package]:
    """The driver's packages as the guide's compute-only installation has them."""
    library, smi, persistenced = _driver_files(version)
    same = f"{EPOCH}:{version}"
    requires = (f"nvidia-driver-cuda-libs = {same}", f"nvidia-kmod = {same}", f"nvidia-persistenced = {same}")
    yield Package("nvidia-driver-cuda", version, smi, depends=requires, epoch=EPOCH)
    yield Package("nvidia-driver-cuda-libs", version, library, epoch=EPOCH)
    unit = _unit("nvidia-persistenced", "nvidia-persistenced")
    yield Package("nvidia-persistenced", version, persistenced | unit, epoch=EPOCH)
    for flavour, name, other in (
        ("open", "kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"),
        ("proprietary", "kmod-nvidia-latest-dkms", "kmod-nvidia-open-dkms"),
    ):
        yield Package(
            name, version, provides=(f"nvidia-kmod = {same}",), conflicts=(other,), builds=flavour, epoch=EPOCH
        )
    yield Package("nvidia-fabricmanager", version, _fabric_manager(version))


def others(family: str) -> Iterator[Package]:
    """What lies beside the driver: CUDA, NCCL, GDS, DCGM before and after its renaming, the container toolkit."""
    for toolkit, version in (("12-8", "12.8.1"), ("13-0", "13.0.2")):
        number = toolkit.replace("-", ".")
        content = {f"/usr/local/cuda-{number}/version.json": f'{{"cuda": {{"version": "{version}"}}}}\n'}
        yield Package(f"cuda-toolkit-{toolkit}", version, content)
        yield Package(f"nvidia-gds-{toolkit}", version)
    library, development = ("libnccl2", "libnccl-dev") if family == "deb" else ("libnccl", "libnccl-devel")
    for version in ("2.27.3-1+cuda12.9", "2.27.7-1+cuda13.0"):
        upstream = version if family == "deb" else version.partition("-")[0]
        wanted = f"{library} (= {version})" if family == "deb" else f"{library} = {version}"
        for name, depends in ((library, ()), (development, (wanted,))):
            yield Package(name, upstream if family == "deb" else version, depends=depends)
    dcgm = {
        "/usr/bin/dcgmi": "#!/bin/sh\n# STAND-IN of dcgmi\nexit 0\n",
        "/usr/bin/nv-hostengine": "#!/bin/sh\nexit 0\n",
    }
    unit = _unit("nvidia-dcgm", "nv-hostengine")
    yield Package("datacenter-gpu-manager", "3.3.9", dcgm | unit, epoch="1")
    # Both have these files: the old one has to go first.
    yield Package("datacenter-gpu-manager-4-core", "4.5.3", dcgm | unit, epoch="1")
    yield Package("datacenter-gpu-manager-4-proprietary", "4.5.3", epoch="1")
    for major in ("12", "13"):
        names = ("datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-proprietary")
        yield Package(f"datacenter-gpu-manager-4-cuda{major}", "4.5.3", depends=names, epoch="1")
    parts = ("nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")
    for name in parts:
        files = {"/usr/bin/nvidia-ctk": CTK} if name.endswith("base") else {}
        yield Package(name, "1.18.0", files)
    yield Package("nvidia-container-toolkit", "1.18.0", depends=parts)


def _scripts(package: Package, folder: str) -> tuple[str, str]:
    """What is run after an installation and after a removal."""
    version = package.version.partition("-")[0]
    after = DKMS.format(version=version, flavour=package.builds, folder=folder) if package.builds else ""
    # A module goes when it is this package's: another flavour may have taken its place.
    gone = f"rm -f $(grep -ls '^flavour={package.builds}' /lib/modules/*/{folder}/nvidia.ko)" if package.builds else ""
    return after, gone


def write_deb(package: Package, machine: str, folder: Path) -> None:
    """Build one deb; a version without revision gets 1."""
    after, gone = _scripts(package, "updates/dkms")
    version = package.version if "-" in package.version else f"{package.version}-1"
    fields = {
        "depends": ", ".join(package.depends),
        "provides": ", ".join(package.provides),
        "conflicts": ", ".join(package.conflicts),
        "postinst": f'if [ "$1" = configure ]; then\n{after}\nfi' if after else "",
        "postrm": f'if [ "$1" = remove ]; then\n{gone}\nfi' if gone else "",
    }
    version = f"{package.epoch}:{version}" if package.epoch else version
    deb(package.name, version, DEB_ARCHITECTURE[machine], folder, package.files,
        **{name: value for name, value in fields.items() if value})  # fmt: skip


def write_rpms(packages: Sequence[Package], distro: str, machine: str, folder: Path) -> None:
    """Build rpms from one description of all of them, which is quicker than one by one."""
    name = "nvidia-stand-in"
    head = f"Name: {name}\nVersion: 1\nRelease: 1\nSummary: STAND-IN\nLicense: Apache-2.0\nAutoReqProv: no\n"
    spec = [f"{head}%description\nSTAND-IN\n"]
    install, lists = [], []
    with_files = {path: text for package in packages for path, text in package.files.items()}
    release = {"kylin10": "1.ky10", "rhel8": "1.el8", "rhel9": "1.el9"}.get(distro, "1")
    for package in packages:
        version, _, own = package.version.partition("-")
        after, gone = _scripts(package, "extra")
        spec.append(f"%package -n {package.name}\nSummary: STAND-IN of {package.name}\nVersion: {version}\n"
                    f"Release: {own or release}\nAutoReqProv: no\n")  # fmt: skip
        spec.append(f"Epoch: {package.epoch}\n" if package.epoch else "")
        for title, values in (
            ("Requires", package.depends),
            ("Provides", package.provides),
            ("Conflicts", package.conflicts),
        ):
            spec += [f"{title}: {value}\n" for value in values]
        spec.append(f"%description -n {package.name}\nSTAND-IN\n")
        spec.append(f"%post -n {package.name}\n{after}:\n" if after else "")
        # why: an upgrade runs it too, with 1, after the new module was built
        spec.append(f'%postun -n {package.name}\n[ "$1" -gt 0 ] || {gone}\n:\n' if gone else "")
        lists.append(f"%files -n {package.name}\n" + "".join(f"{path}\n" for path in package.files))
    for path, text in with_files.items():
        escaped = text.replace("%", "%%")
        install.append(
            f"mkdir -p %{{buildroot}}{Path(path).parent}\n"
            f"cat > %{{buildroot}}{path} <<'END-OF-FILE'\n{escaped}END-OF-FILE\n"
        )
        install.append(f"chmod {755 if text.startswith('#!') else 644} %{{buildroot}}{path}\n")
    rpm("".join(spec) + "%install\n" + "".join(install) + "".join(lists), machine, folder)


def of_system(kernel: str, machine: str, family: str) -> Iterator[Package]:
    """What the distribution brings: headers of a kernel, a compiler's worth of nothing, OpenMPI (version invented)."""
    if family == "deb":
        tree = {f"/usr/src/linux-headers-{kernel}/include/generated/utsrelease.h": f'#define UTS_RELEASE "{kernel}"\n'}
        link = {f"/lib/modules/{kernel}/build": f"-> /usr/src/linux-headers-{kernel}"}
        yield Package(f"linux-headers-{kernel}", "1", tree | link)
        yield Package("openmpi-bin", "99.0")
    else:
        yield Package("openmpi", "99.0")


def build(distro: str, machine: str, folder: Path, kernel: str = "", versions: Sequence[str] = VERSIONS) -> Path:
    """Build the repositories of one distribution with their metadata.

    Args:
        distro: as NVIDIA names it, "ubuntu2404" or "kylin10".
        kernel: release whose headers `folder`/os offers; none when empty.
    Returns:
        the folder to give as the address of NVIDIA's repositories.
    """
    family = "deb" if re.match("ubuntu|debian", distro) else "rpm"
    target = folder / "repos" / distro / ARCHITECTURES[machine]
    groups = [(target, [list((debs if family == "deb" else rpms)(version)) for version in versions])]
    groups[0][1].append([package for package in others(family) if not package.name.endswith("13-0")])
    if kernel:
        groups.append((folder / "os", [list(of_system(kernel, machine, family))]))
    for place, sets in groups:
        place.mkdir(parents=True, exist_ok=True)
        for packages in sets:
            if family == "deb":
                for package in packages:
                    write_deb(package, machine, place)
            else:
                # One description has one package of each name.
                for number in range(2):
                    part = [p for i, p in enumerate(packages) if sum(q.name == p.name for q in packages[:i]) == number]
                    if part:
                        write_rpms(part, distro, machine, place)
        index(place, family)
    return folder / "repos"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Build stand-in repositories of NVIDIA's packages for one distribution."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("distro", help="as NVIDIA names it, such as ubuntu2404, rhel9 or kylin10")
    parser.add_argument("--machine", choices=sorted(ARCHITECTURES), default="x86_64")
    parser.add_argument("--kernel", default="", help="release whose headers the folder os offers")
    options = parser.parse_args(arguments)
    try:
        print(build(options.distro, options.machine, options.folder, options.kernel))
    except (BuildError, FileNotFoundError) as error:
        print(f"{re.sub(r'^.Errno 2. ', '', str(error))}. Run `lab/lab deps`.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
