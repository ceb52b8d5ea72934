# SPDX-License-Identifier: Apache-2.0
"""The lab tool's pure parts."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from lab.labtool import base, cgroup, cli, interpreters, network, registry, render, systems
from lab.labtool.common import EXIT_NO_PYTHON, EXIT_USAGE, Lab, LabError, locked, mounts_below

HYBRID = """\
30 24 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
34 30 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"


def host(name: str = "cpu01", octet: int = 11, **more: object) -> render.Host:
    return render.Host(name, octet, f"198.18.77.{octet}", "/base", **more)  # type: ignore[arg-type]


class TestLab:
    def test_everything_carries_the_lab_id(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("LAB_ID", "254")
        monkeypatch.setenv("LAB_STORE", str(tmp_path))
        lab = Lab.from_environment()
        assert (lab.tag, lab.gateway, lab.address(11)) == ("vlab254", "198.18.254.1", "198.18.254.11")
        assert lab.state == tmp_path / "254"
        assert len(f"vb-{lab.machine(254)}") <= 15, "longer link names are hashed by nspawn and could not be found"

    @pytest.mark.parametrize("value", ["0", "255", "x", "", "-1", "7 7"])
    def test_an_impossible_id_is_refused(self, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        monkeypatch.setenv("LAB_ID", value)
        with pytest.raises(LabError, match="from 1 to 254") as error:
            Lab.from_environment()
        assert error.value.code == EXIT_USAGE


class TestAddresses:
    def test_lowest_free_is_taken(self) -> None:
        assert network.next_octet([]) == 11
        assert network.next_octet([11, 12, 14]) == 13

    def test_a_full_lab_says_so(self) -> None:
        assert network.next_octet(range(11, 254)) == 254
        with pytest.raises(LabError, match="second LAB_ID"):
            network.next_octet(range(11, 255))


class TestTexts:
    def test_inventory_is_what_ansible_needs(self) -> None:
        text = render.inventory([host(), host("kylin01", 12, python="3.7")], "/with space/ssh_config")
        tree = yaml.safe_load(text)["all"]
        assert tree["hosts"]["cpu01"] == {
            "ansible_host": "198.18.77.11",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        assert tree["hosts"]["kylin01"]["ansible_python_interpreter"] == "/usr/bin/python3.7"
        assert shlex.split(tree["vars"]["ansible_ssh_common_args"]) == ["-F", "/with space/ssh_config"]

    def test_inventory_without_hosts_is_valid(self) -> None:
        assert yaml.safe_load(render.inventory([], "/x"))["all"]["hosts"] == {}

    def test_ssh_accepts_name_and_address_and_checks_keys(self, tmp_path: Path) -> None:
        config = tmp_path / "ssh_config"
        config.write_text(render.ssh_config([host()], str(tmp_path)))
        for target in ("cpu01", "198.18.77.11"):
            command = ["ssh", "-G", "-F", str(config), target]
            shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            settings = dict(line.split(" ", 1) for line in shown.splitlines())
            assert settings["hostname"] == "198.18.77.11"
            assert settings["stricthostkeychecking"] == "true"
            assert settings["userknownhostsfile"] == f"{tmp_path}/known_hosts"

    def test_known_hosts_names_both_and_drops_the_comment(self) -> None:
        assert render.known_hosts([host()], {"cpu01": "ssh-ed25519 AAAA me@here\n"}) == (
            "cpu01,198.18.77.11 ssh-ed25519 AAAA\n"
        )

    def test_hosts_file_keeps_foreign_lines_and_is_stable(self) -> None:
        first = render.etc_hosts([host()], "198.18.77.2 vip\n")
        assert render.etc_hosts([host()], first) == first
        second = render.etc_hosts([host("cpu02", 12)], first)
        assert "198.18.77.2 vip\n" in second and "cpu01" not in second and "198.18.77.12 cpu02 # lab\n" in second


class TestControlGroups:
    def test_hybrid_machine(self) -> None:
        found = cgroup.hierarchies(HYBRID)
        assert [(str(t.mount), t.version) for t in found] == [
            ("/sys/fs/cgroup/cpuset", 1),
            ("/sys/fs/cgroup/cpu,cpuacct", 1),
            ("/sys/fs/cgroup/systemd", 1),
            ("/sys/fs/cgroup/unified", 2),
        ]
        assert [t.mount.name for t in found if "cpuset" in t.options] == ["cpuset"]

    def test_ordinary_systemd_machine(self) -> None:
        assert cgroup.hierarchies(UNIFIED) == [
            cgroup.Hierarchy(Path("/sys/fs/cgroup"), 2, frozenset({"rw", "nsdelegate", "memory_recursiveprot"}))
        ]

    @pytest.fixture
    def tree(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(cgroup, "mounted", lambda: [cgroup.Hierarchy(tmp_path, 2)])
        return tmp_path

    def test_version_2_hands_controllers_down_but_not_to_the_leaf(self, tree: Path) -> None:
        for group in ("vlab1", "vlab1/a"):
            (tree / group).mkdir()
            (tree / group / "cgroup.controllers").write_text("cpu memory pids\n")
        assert cgroup.create("vlab1", "a", "keeper") == [tree / "vlab1/a/keeper"]
        for group in ("vlab1", "vlab1/a"):
            assert (tree / group / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
        assert not (tree / "cgroup.subtree_control").exists(), "the machine's own settings are not ours to change"
        assert not (tree / "vlab1/a/keeper/cgroup.subtree_control").exists(), "a group that hands down holds no process"

    def test_processes_of_a_host_include_its_services_and_exclude_others(self, tree: Path) -> None:
        for group, ids in {"vlab1/a": "1\n", "vlab1/a/machine/system.slice": "2\n3\n", "vlab1/b": "4\n"}.items():
            (tree / group).mkdir(parents=True)
            (tree / group / "cgroup.procs").write_text(ids)
        assert cgroup.processes("vlab1", "a") == {1, 2, 3}
        assert cgroup.processes("vlab1") == {1, 2, 3, 4}
        assert cgroup.processes("vlab11") == set()


class TestOldPython:
    def test_requests(self) -> None:
        assert interpreters.parse_requests(["3.7=a", "2.7=b-1"]) == {"a": "3.7", "b-1": "2.7"}

    @pytest.mark.parametrize("value", ["3.7", "=a", "3=a", "3.7=", "latest=a"])
    def test_bad_requests(self, value: str) -> None:
        with pytest.raises(LabError, match=r"3\.7=kylin01") as error:
            interpreters.parse_requests([value])
        assert error.value.code == EXIT_USAGE

    def test_path_first_then_pyenvs_newest_and_never_a_shim(self, tmp_path: Path) -> None:
        root = tmp_path / "pyenv"
        wanted = [tmp_path / "bin", root / "versions/3.7.16/bin", root / "versions/3.7.9/bin"]
        others = [root / "shims", root / "versions/3.7-dev/bin", root / "versions/3.71.1/bin"]
        for folder in wanted + others:
            folder.mkdir(parents=True)
            (folder / "python3.7").touch(mode=0o755)
        found = interpreters.candidates("3.7", f"{root}/shims:{tmp_path}/bin:/nowhere", root)
        assert found == [folder / "python3.7" for folder in wanted]

    def test_none_has_its_own_exit_status(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(LabError, match=r"No Python 3\.7 on this machine") as error:
            interpreters.find("3.7")
        assert error.value.code == EXIT_NO_PYTHON == 3

    def test_a_python_that_does_not_start_is_passed_over(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, text in {"broken": "exit 127", "good": "echo /opt/py"}.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "python3.7").write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name / "python3.7").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/broken:{tmp_path}/good")
        assert interpreters.find("3.7").executable == tmp_path / "good/python3.7"

    def test_a_system_python_carries_only_its_own_parts(self) -> None:
        system = interpreters.Interpreter("3.7", Path("/usr/bin/python3.7"), Path("/usr"))
        assert Path("/usr") not in [outside for outside, _ in interpreters.binds(system)]
        own = interpreters.Interpreter("3.7", Path("/p/bin/python3.7"), Path("/p"))
        assert interpreters.binds(own) == [(Path("/p"), interpreters.INSIDE)]


class TestKylin:
    def test_the_first_kernel_is_the_installed_one(self) -> None:
        choice = systems.choose("kylin-v10-sp3", "", "", [])
        assert choice == systems.Choice("kylin-v10-sp3", "4.19.90-52.22.v2207.ky10", "x86_64")
        assert choice.release == "4.19.90-52.22.v2207.ky10.x86_64"
        assert systems.choose("debian-12", "", "", []) is None
        desktop = systems.choose("kylin-v10-desktop", "5.4.18-85.74", "aarch64", [])
        assert desktop and desktop.release == "5.4.18-85-generic"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("debian-12", "", "", ["podman"]), "Add --os kylin"),
            (("debian-12", "4.19", "", []), "Add --os kylin"),
            (("kylin-v10-sp3", "5.10.0-60", "", []), "There are: 4.19.90-52.22"),
            (("kylin-v10-desktop", "", "", ["redhat-release"]), "no rpm system"),
        ],
    )
    def test_what_does_not_go_together(self, words: tuple[str, str, str, list[str]], said: str) -> None:
        with pytest.raises(LabError, match=said) as error:
            systems.choose(*words)
        assert error.value.code == EXIT_USAGE

    @pytest.mark.parametrize(("system", "codename"), systems.CODENAMES.items())
    def test_service_packs_differ_by_their_code_name_only(self, system: str, codename: str) -> None:
        choice = systems.choose(system, "", "", [])
        assert choice
        files = systems.identity(choice)
        assert files["etc/kylin-release"] == f"Kylin Linux Advanced Server release V10 ({codename})\n"
        assert f'VERSION="V10 ({codename})"\nID="kylin"\nVERSION_ID="V10"\n' in files["usr/lib/os-release"]
        assert [name for name, text in files.items() if not text] == [
            "etc/redhat-release", "etc/debian_version", "etc/lsb-release",
        ]  # fmt: skip

    def test_traps_are_in_the_files(self) -> None:
        choice = systems.choose("kylin-v10-sp1", "", "", ["redhat-release", "no-tuned", "repository-unreachable"])
        assert choice and systems.identity(choice)["etc/redhat-release"] == "-> kylin-release"
        path, text = systems.sources(choice)
        assert path == "etc/yum.repos.d/kylin_x86_64.repo"
        assert "ks10-adv-addons" not in text and "http://127.0.0.1:9/os/" in text

    def test_everything_chosen_makes_another_layer(self, tmp_path: Path) -> None:
        choices = [
            systems.choose("kylin-v10-sp3", *more)
            for more in (("", "", []), ("", "", ["podman"]), ("", "aarch64", []), ("4.19.90-52.15.v2207.ky10", "", []))
        ]
        assert len({choice.digest(tmp_path) for choice in choices if choice}) == 4

    def test_scripts_of_the_tree_name_its_python(self, tmp_path: Path) -> None:
        for name, text in {"dnf-3": "#!/usr/bin/python3\nimport dnf\n", "sh": "#!/bin/sh\npython3\n"}.items():
            (tmp_path / name).write_text(text)
            systems.point_at_platform_python(tmp_path / name)
        assert (tmp_path / "dnf-3").read_text() == "#!/usr/libexec/platform-python\nimport dnf\n"
        assert (tmp_path / "sh").read_text() == "#!/bin/sh\npython3\n"

    def test_a_layer_that_fails_is_not_left_behind(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no"), systems.published(tmp_path / "layer") as staged:
            assert staged and staged.is_dir()
            raise ValueError("no")
        assert list(tmp_path.iterdir()) == []
        with systems.published(tmp_path / "layer") as staged:
            assert staged
        with systems.published(tmp_path / "layer") as staged:
            assert staged is None

    def test_ansible_uses_the_python_that_a_kylin_host_calls_its_own(self) -> None:
        assert host(python="3.7", system="kylin-v10-sp3").interpreter == "/usr/bin/python3"
        assert host(python="3.7").interpreter == "/usr/bin/python3.7"


class TestRegistry:
    def test_environment_wins_over_files(self) -> None:
        listing = ":env:.find-links='/here'\nglobal.find-links='/there'\nglobal.timeout='9'\ninstall.user='true'\n"
        assert registry.pip_settings(listing) == {"find-links": "/here", "timeout": "9"}

    def test_local_indexes_are_mounted_with_the_files_they_link_to(self, tmp_path: Path) -> None:
        for folder in ("index/simple", "with space/simple", "wheels"):
            (tmp_path / folder).mkdir(parents=True)
        settings = {
            "index-url": f"file://{tmp_path}/index/simple",
            "extra-index-url": f"file://{tmp_path}/with%20space/simple https://example.invalid/simple",
            "find-links": f"{tmp_path}/wheels {tmp_path}/absent",
            "cert": "/etc/ssl/certs/ca-certificates.crt",
        }
        assert registry.pip_paths(settings) == [tmp_path / "index", tmp_path / "with space", tmp_path / "wheels"]


class TestHousekeeping:
    def test_mounts_are_found_deepest_first_and_not_next_door(self) -> None:
        lines = [f"1 2 0:1 / {p} rw - overlay o rw" for p in ("/l/7", "/l/7/root", "/l/77", "/l/7/with\\040space")]
        assert mounts_below(Path("/l/7"), "\n".join(lines)) == ["/l/7/with space", "/l/7/root", "/l/7"]

    def test_lock_survives_its_removal_by_the_holder(self, tmp_path: Path) -> None:
        path = tmp_path / "lock"
        with locked(path):
            path.unlink()
        with locked(path):
            assert path.exists()
            busy = subprocess.run(["flock", "--nonblock", path, "true"], check=False)
            assert busy.returncode == 1

    def test_recipe_digest_follows_the_package_list(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = base.recipe_digest()
        monkeypatch.setattr(base, "PACKAGES", [*base.PACKAGES, "numactl"])
        assert base.recipe_digest() != before

    def test_the_rpm_tree_is_another_one(self) -> None:
        assert base.recipe_digest(rpm=True) != base.recipe_digest()
        assert "python3-apt" not in base.RPM_PACKAGES

    @pytest.mark.skipif(os.geteuid() != 0, reason="answers about privileges come first")
    @pytest.mark.parametrize(
        "argv", [["down"], ["down", "--all", "a"], ["up", "A_B"], ["up", "a", "--python", "3.7=b"]]
    )
    def test_wrong_use_changes_nothing(
        self, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("LAB_STORE", str(tmp_path))
        assert cli.main(argv) == EXIT_USAGE
        assert capsys.readouterr().err.startswith("lab: ")
        assert [p.name for p in tmp_path.iterdir()] in ([], ["77.lock"])
