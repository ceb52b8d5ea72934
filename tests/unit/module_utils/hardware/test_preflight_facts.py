# SPDX-License-Identifier: Apache-2.0
"""What the preflight compares: kernels and boot entries, device files, the clock, disks, slots, memory, processes."""

import pytest
from ansible.module_utils.vllm_ansible.hardware import clock, davinci, kernel, memory, npu_smi, storage
from ansible.module_utils.vllm_ansible.hardware.facts import gather_hardware

from tools.hardware_machines import MACHINES, ReplayHost, load_machine

OLD, NEW = "4.19.90-52.22.v2207.ky10.aarch64", "4.19.90-89.11.v2401.ky10.aarch64"
SYSTEM = {"machine": "aarch64", "kernel": OLD, "page_size": 65536, "glibc": "2.28", "python": "3.7.9", "euid": 0}
MENU = """\
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
else
   set default="${saved_entry}"
fi
function load_video {
  insmod all_video
}
menuentry 'Kylin (NEW) V10' --class kylin --unrestricted $menuentry_id_option 'gnulinux-NEW-advanced' {
\tload_video
\tlinux\t/vmlinuz-NEW root=/dev/mapper/klas-root ro
\tinitrd /initramfs-NEW.img
}
menuentry 'Kylin (OLD) V10' --class kylin --unrestricted $menuentry_id_option 'gnulinux-OLD-advanced' {
\tlinuxefi /vmlinuz-OLD root=/dev/mapper/klas-root ro
}
menuentry 'Kylin (0-rescue-abc) V10' {
\tlinux /vmlinuz-0-rescue-abc root=/dev/mapper/klas-root ro
}
""".replace("NEW", NEW).replace("OLD", OLD)
DEBIAN = """\
set default="0"
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple' {
\tlinux\t/boot/vmlinuz-6.1.0-41-amd64 root=UUID=1 ro quiet
}
submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced' {
\tmenuentry 'Debian, with Linux 6.1.0-41-amd64' --class debian $menuentry_id_option 'gnulinux-41' {
\t\tlinux\t/boot/vmlinuz-6.1.0-41-amd64 root=UUID=1 ro quiet
\t}
\tmenuentry 'Debian, with Linux 6.1.0-40-amd64' --class debian $menuentry_id_option 'gnulinux-40' {
\t\tlinux\t/boot/vmlinuz-6.1.0-40-amd64 root=UUID=1 ro quiet
\t}
}
"""
ENTRY = "title Rocky Linux ({0}) 8.5\nversion {0}\nlinux /vmlinuz-{0}\noptions $kernelopts\ngrub_class kernel\n"


def replay(files, existing=(), commands=None, **machine):
    return ReplayHost({"system": SYSTEM, "existing": list(existing), **machine}, files, {}, commands)


@pytest.mark.parametrize(
    ("saved", "release"),
    [
        (f"saved_entry=Kylin ({OLD}) V10", OLD),
        (f"saved_entry=gnulinux-{NEW}-advanced", NEW),
        ("saved_entry=1", OLD),
        ("saved_entry=0", NEW),
        ("saved_entry=", NEW),
        ("saved_entry=no such entry", NEW),
        (f"saved_entry=Kylin ({OLD}) V10\nnext_entry=0", NEW),
        ("saved_entry=2", None),
        ("", NEW),
    ],
)
@pytest.mark.parametrize("directory", ["/boot/grub2", "/boot/efi/EFI/kylin"])
def test_the_saved_entry_of_a_menu_is_what_starts_next(saved, release, directory):
    environment = f"# GRUB Environment Block\n{saved}\n####"
    host = replay({f"{directory}/grub.cfg": MENU, f"{directory}/grubenv": environment})
    assert kernel.default_entry(host) == release


@pytest.mark.parametrize(
    ("default", "release"),
    [
        ("0", "6.1.0-41-amd64"),
        ("1", "6.1.0-41-amd64"),
        ("1>1", "6.1.0-40-amd64"),
        ("gnulinux-advanced>gnulinux-40", "6.1.0-40-amd64"),
        ("Advanced options>Debian, with Linux 6.1.0-40-amd64", "6.1.0-40-amd64"),
        ("1>7", None),
    ],
)
def test_entries_of_a_submenu_are_named_by_both(default, release):
    menu = DEBIAN.replace('default="0"', f'default="{default}"')
    assert kernel.default_entry(replay({"/boot/grub/grub.cfg": menu})) == release


def test_entries_of_the_boot_loader_specification_are_read_where_the_menu_asks_for_them():
    files = {f"/boot/loader/entries/abc-{release}.conf": ENTRY.format(release) for release in (OLD, NEW)}
    files["/boot/efi/EFI/rocky/grub.cfg"] = "search --fs-uuid 1\nconfigfile $prefix/grub.cfg\n"
    files["/boot/grub2/grub.cfg"] = 'set default="${saved_entry}"\ninsmod blscfg\nblscfg\n'
    host = replay(files)
    assert kernel.default_entry(host) == NEW, "the newest without a choice"
    host.files["/boot/grub2/grubenv"] = f"saved_entry=abc-{OLD}\n"
    assert kernel.default_entry(host) == OLD
    del host.files["/boot/grub2/grub.cfg"]
    assert kernel.default_entry(host) == OLD, "the menu is for root only"


def test_grubby_is_asked_when_no_file_says_it():
    host = replay({}, commands={"grubby --default-kernel": (0, f"/boot/vmlinuz-{OLD}\n", "")})
    assert kernel.default_entry(host) == OLD
    assert kernel.default_entry(replay({})) is None


def test_kernels_of_an_rpm_system():
    query = "rpm -q --queryformat %{VERSION}-%{RELEASE}.%{ARCH}\\n kernel-headers"
    host = replay(
        {f"/boot/vmlinuz-{OLD}": "", f"/boot/vmlinuz-{NEW}": "", "/boot/vmlinuz-0-rescue-abc": "",
         f"/lib/modules/{OLD}/modules.dep": "", f"/usr/src/kernels/{NEW}/Makefile": ""},
        [f"/lib/modules/{OLD}/build", "/var/lib/rpm"],
        {query: (0, NEW + "\n", "")},
    )  # fmt: skip
    assert kernel.gather_kernel(host) == {
        "release": OLD, "default_entry": None, "devel": [OLD, NEW], "headers": [NEW], "installed": [OLD, NEW],
        "secure_boot": None,
    }  # fmt: skip
    host.commands[query] = (1, "package kernel-headers is not installed\n", "")
    assert kernel.gather_kernel(host)["headers"] == []


@pytest.mark.parametrize(("value", "on"), [("\x01", True), ("\x00", False), ("", None), ("x", None)])
def test_secure_boot_is_an_efi_variable_after_its_attributes(value, on):
    host = replay({kernel.SECURE_BOOT: "\x06\x00\x00\x00" + value})
    assert kernel.gather_kernel(host)["secure_boot"] is on


def test_kernels_of_a_deb_system():
    host = replay({
        "/usr/src/linux-headers-6.1.0-40-amd64/Makefile": "", "/usr/src/linux-headers-6.1.0-40-common/Makefile": "",
        "/lib/modules/6.1.0-9-amd64/modules.dep": "", "/lib/modules/6.1.0-40-amd64/modules.dep": "",
    })  # fmt: skip
    found = kernel.gather_kernel(host)
    assert found["installed"] == ["6.1.0-9-amd64", "6.1.0-40-amd64"]
    assert found["devel"] == found["headers"] == ["6.1.0-40-amd64"]


@pytest.mark.parametrize(
    ("commands", "existing", "found"),
    [
        ({"timedatectl show --property=NTPSynchronized": (0, "NTPSynchronized=yes\n", "")}, (), (True, None)),
        ({"timedatectl show --property=NTPSynchronized": (0, "NTPSynchronized=no\n", "")},
         ["/run/chrony/chronyd.pid"], (False, "chrony")),
        ({"timedatectl show --property=NTPSynchronized": (1, "", "Unknown operation show"),
          "timedatectl": (0, "      Local time: x\n NTP synchronized: yes\n", "")}, ["/run/ntpd.pid"], (True, "ntpd")),
        ({"timedatectl show --property=NTPSynchronized": (1, "", "Failed to connect to bus"),
          "timedatectl": (1, "", "Failed to connect to bus")}, (), (None, None)),
        ({}, ["/run/systemd/timesync", "/run/systemd/timesync/synchronized"], (True, "systemd-timesyncd")),
        ({}, (), (None, None)),
    ],
)  # fmt: skip
def test_the_clock(commands, existing, found):
    facts = clock.gather_clock(replay({}, existing, commands))
    assert (facts["synchronised"], facts["source"]) == found


def test_device_files_and_whom_they_are_for():
    group = {"owner": "HwHiAiUser", "group": "HwHiAiUser", "mode": "0660"}
    other = {"owner": "root", "group": "root", "mode": "0600"}
    paths = {"/dev/davinci10": group, "/dev/davinci2": other, "/dev/davinci_manager": group}
    info = "UserName=HwHiAiUser\nUserGroup=HwHiAiUser\nDriver_Install_For_All=no\n"
    host = replay({"/etc/ascend_install.info": info}, access=paths)
    npus = [{"kind": "npu", "pci": "0000:01:00.0"}, {"kind": "npu", "pci": "0000:01:00.0"}, {"kind": "gpu", "pci": "x"}]
    facts = davinci.gather_davinci(host, npus)
    assert facts["devices"] == ["/dev/davinci2", "/dev/davinci10"]
    assert facts["access"] == [other, group]
    assert [entry["present"] for entry in facts["managers"]] == [True, False, False]
    assert facts["managers"][0] == {"path": "/dev/davinci_manager", "present": True, **group}
    assert (facts["ascend_user"], facts["ascend_group"], facts["for_all"]) == ("HwHiAiUser", "HwHiAiUser", False)
    assert facts["pci_count"] == 1


BLOCK = "/sys/class/block/"


@pytest.mark.parametrize(
    ("device", "files", "links", "found"),
    [
        ("/dev/nvme0n1p2", {"nvme0n1p2/partition": "2"}, {"nvme0n1p2": "../nvme/nvme0/nvme0n1/nvme0n1p2"},
         ("nvme", None)),
        ("/dev/sda3", {"sda3/partition": "3", "sda/queue/rotational": "1\n"},
         {"sda3": "../host0/target0:2:0/0:2:0:0/block/sda/sda3", "sda": "../pci/host0/target0:2:0/0:2:0:0/block/sda"},
         ("hdd", "megaraid_sas")),
        ("/dev/sdb", {"sdb/queue/rotational": "0\n"}, {"sdb": "../ata1/host7/target7/block/sdb"}, ("ssd", None)),
        ("/dev/md0", {"md0/md/level": "raid1\n", "md0/slaves/nvme0n1": "", "md0/slaves/sdb": "",
                      "sdb/queue/rotational": "0\n"}, {}, ("ssd", "raid1")),
        ("/dev/vda", {"vda/queue/rotational": "1\n"}, {}, ("virtual", None)),
        ("/dev/loop0", {"loop0/slaves/loop0": ""}, {}, (None, None)),
        ("overlay", {}, {}, (None, None)),
    ],
)  # fmt: skip
def test_the_kind_of_a_disk_and_its_array(device, files, links, found):
    host = replay({BLOCK + name: text for name, text in files.items()})
    host.files["/sys/class/scsi_host/host0/proc_name"] = "megaraid_sas\n"
    host.files["/sys/class/scsi_host/host7/proc_name"] = "ahci\n"
    host.links = {BLOCK + name: link for name, link in links.items()}
    kind = storage.gather_kind(host, device)
    assert (kind["kind"], kind["raid"]) == found


# The form of a published capture of a TaiShan server.
SLOT = (
    "Handle 0x0009, DMI type 17, 40 bytes\nMemory Device\n\tArray Handle: 0x0007\n\tSize: {}\n\tLocator: DIMM000 J5\n"
    "\tBank Locator: {}\n\tSpeed: 2933 MT/s\n\tConfigured Memory Speed: {} MT/s\n\n"
)


def test_memory_modules_and_their_channels():
    empty = SLOT.format("No Module Installed", "SOCKET 1 CHANNEL 1 DIMM 0", "Unknown")
    text = SLOT.format("32 GB", "SOCKET 0 CHANNEL 0 DIMM 0", 2933) + SLOT.format(
        "32 GB", "SOCKET 0 CHANNEL 1 DIMM 0", 2666
    )
    text += SLOT.format("32 GB", "SOCKET 1 CHANNEL 0 DIMM 0", 2933) + empty
    text += SLOT.format("32 GB", "SOCKET 1 CHANNEL 0 DIMM 1", 2933)
    found = {"slots": 5, "populated": 4, "channels": 4, "populated_channels": 3, "speed_mtps": 2666}
    assert memory.parse_modules("# dmidecode 3.2\n" + text) == found
    other = SLOT.format("16 GB", "_Node0_Channel0_Dimm0", 1867) + SLOT.format("16 GB", "_Node1_Channel0_Dimm0", 1867)
    assert memory.parse_modules(other)["populated_channels"] == 2
    nameless = memory.parse_modules(SLOT.format("16 GB", "Not Specified", 2400))
    assert (nameless["populated"], nameless["channels"], nameless["populated_channels"]) == (1, None, None)
    assert memory.parse_modules("# No SMBIOS nor DMI entry point found, sorry.\n") is None


def test_memory_modules_are_read_by_root_only():
    host = load_machine(MACHINES / "taishan-2280-v2")
    host.commands["dmidecode -t 17"] = (0, SLOT.format("32 GB", "SOCKET 0 CHANNEL 0 DIMM 0", 2933), "")
    assert gather_hardware(host)["memory"]["modules"]["populated"] == 1
    host.machine["system"] = {**host.machine["system"], "euid": 1000}
    assert gather_hardware(host)["memory"]["modules"] is None


def test_the_slot_of_a_card_may_be_narrower_than_the_card():
    host = load_machine(MACHINES / "atlas-300i-pro")
    (npu,) = gather_hardware(host)["accelerators"]
    assert npu["slot"] == {"max_speed_gts": 16.0, "max_width": 16}
    host.files["/sys/bus/pci/devices/0000:83:1f.0/max_link_width"] = "8\n"
    (npu,) = gather_hardware(host)["accelerators"]
    assert npu["slot"] == {"max_speed_gts": 16.0, "max_width": 8}
    del host.links["/sys/bus/pci/devices/0000:84:00.0"]
    (npu,) = gather_hardware(host)["accelerators"]
    assert npu["slot"] is None


BUSY = "| 0       0                 | 139667        | python                   | 30780                   |"


def test_processes_on_npus_are_told_with_their_unit():
    host = load_machine(MACHINES / "atlas-800t-a2")
    code, output, error = host.commands["npu-smi info"]
    idle = "| No running processes found in NPU 0                                                            |"
    assert idle in output
    host.commands["npu-smi info"] = (code, output.replace(idle, BUSY), error)
    host.files["/proc/139667/cgroup"] = "0::/system.slice/vllm-deepseek.service\n"
    npus = {npu["index"]: npu for npu in gather_hardware(host)["accelerators"]}
    assert npus[0]["processes"] == [
        {"pid": 139667, "name": "python", "memory_bytes": 30780 * 2**20, "unit": "vllm-deepseek.service"}
    ]
    assert npus[1]["processes"] == []


def test_a_tool_without_a_table_of_processes_says_nothing_of_them():
    assert npu_smi.parse_processes("| NPU   Name | Health |\n") is None
    header = "| NPU     Chip  | Process id | Process name | Process memory(MB) |\n"
    assert npu_smi.parse_processes(header) == []
    assert npu_smi.parse_processes(header + "| 0 | no | x | y |\n| 1 0 | 7 |  | NA |\n") == [
        {"npu": 1, "chip": 0, "pid": 7, "name": None, "memory_bytes": None}
    ]


def test_an_ordinary_user_is_not_told_that_the_driver_is_broken():
    host = load_machine(MACHINES / "atlas-800t-a2")
    host.machine["system"] = {**host.machine["system"], "euid": 1000}
    host.commands["npu-smi info"] = (255, (MACHINES / "captures/npu-smi-no-driver.txt").read_text(), "")
    facts = gather_hardware(host)
    codes = [entry["code"] for entry in facts["warnings"]]
    assert "W_NPU_NOT_ROOT" in codes
    assert "W_NPU_DRIVER" not in codes
    assert facts["software"]["ascend"]["driver"] == "25.5.0"
    assert len(facts["accelerators"]) == 8
