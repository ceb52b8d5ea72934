# SPDX-License-Identifier: Apache-2.0
import pytest
from ansible.module_utils.vllm_ansible.kernel import entries, grub, grubby
from ansible.module_utils.vllm_ansible.kernel.entries import Entry

# The layout of displayEntry() in rhboot/grubby grubby.c 8.40, which openEuler 20.03 and Kylin V10 have; the values are
# invented.
KYLIN = """\
index=0
kernel=/boot/vmlinuz-4.19.90-52.22.v2207.ky10.aarch64
args="ro resume=/dev/mapper/klas-swap rd.lvm.lv=klas/root video=efifb:on crashkernel=1024M,high audit=0"
root=/dev/mapper/klas-root
initrd=/boot/initramfs-4.19.90-52.22.v2207.ky10.aarch64.img
title=Kylin Linux Advanced Server (4.19.90-52.22.v2207.ky10.aarch64) V10 (Lance)
index=1
kernel=/boot/vmlinuz-0-rescue-7b1f2d0c6b1e4c0f8a3d5e6f7a8b9c0d
args="ro resume=/dev/mapper/klas-swap"
root=/dev/mapper/klas-root
initrd=/boot/initramfs-0-rescue-7b1f2d0c6b1e4c0f8a3d5e6f7a8b9c0d.img
title=Kylin Linux Advanced Server (0-rescue-7b1f2d0c6b1e4c0f8a3d5e6f7a8b9c0d) V10 (Lance)
index=2
non linux entry
"""
# The layout of RHEL 8's grubby-bls: values in quotes, an id (Red Hat, "Managing, monitoring and updating the kernel").
RHEL = """\
index=0
kernel="/boot/vmlinuz-4.18.0-372.9.1.el8.x86_64"
args="ro crashkernel=auto rd.lvm.lv=rhel/root rhgb quiet $tuned_params"
root="/dev/mapper/rhel-root"
initrd="/boot/initramfs-4.18.0-372.9.1.el8.x86_64.img $tuned_initrd"
title="Red Hat Enterprise Linux (4.18.0-372.9.1.el8.x86_64) 8.6 (Ootpa)"
id="67db13ba8cdb420794ef3ee0a8313205-4.18.0-372.9.1.el8.x86_64"
"""
# The layout that Debian's grub-mkconfig writes; names and UUID are invented.
UUID = "5a5d3c1e-7a0c-4a55-9f3e-0d6a2b7c1e11"
GRUB = f"""\
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${{next_entry}}" ] ; then
   set default="${{next_entry}}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="0"
fi

function load_video {{
  insmod all_video
}}

menuentry 'Kylin V10 SP1' --class kylin --class gnu-linux --class os $menuentry_id_option 'gnulinux-simple-{UUID}' {{
	load_video
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	linux	/vmlinuz-5.4.18-85-generic root=UUID={UUID} ro  quiet splash
	initrd	/initrd.img-5.4.18-85-generic
}}
submenu 'Advanced options for Kylin V10 SP1' $menuentry_id_option 'gnulinux-advanced-{UUID}' {{
	menuentry 'Kylin V10 SP1, with Linux 5.4.18-85-generic' --class os $menuentry_id_option 'gnulinux-5.4.18-85-generic-advanced-{UUID}' {{
		linux	/vmlinuz-5.4.18-85-generic root=UUID={UUID} ro  quiet splash
		initrd	/initrd.img-5.4.18-85-generic
	}}
	menuentry 'Kylin V10 SP1, with Linux 5.4.18-85-generic (recovery mode)' --class os $menuentry_id_option 'gnulinux-5.4.18-85-generic-recovery-{UUID}' {{
		linux	/vmlinuz-5.4.18-85-generic root=UUID={UUID} ro recovery nomodeset
		initrd	/initrd.img-5.4.18-85-generic
	}}
	menuentry 'Kylin V10 SP1, with Linux 5.4.18-35-generic' --class os $menuentry_id_option 'gnulinux-5.4.18-35-generic-advanced-{UUID}' {{
		linux	/vmlinuz-5.4.18-35-generic root=UUID={UUID} ro  quiet splash
		initrd	/initrd.img-5.4.18-35-generic
	}}
}}
menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {{
	fwsetup
}}
"""  # noqa: E501 - genuine lines
OLD, NEW = "5.4.18-35-generic", "5.4.18-85-generic"


@pytest.mark.parametrize(
    ("parameters", "wanted", "there"),
    [
        ("ro quiet iommu.passthrough=1", "iommu.passthrough=1", True),
        ("ro quiet", "iommu.passthrough=1", False),
        ("iommu.passthrough=1 iommu.passthrough=0", "iommu.passthrough=1", False),
        ("iommu.passthrough=0 iommu.passthrough=1", "iommu.passthrough=1", True),
        ("console=ttyAMA0 console=tty0", "console=ttyAMA0", True),
        ("iommu.passthrough=10", "iommu.passthrough=1", False),
        ("pcie_aspm=off", "pcie-aspm=off", True),
        ("quiet", "quiet", True),
    ],
)
def test_a_parameter_counts_or_not(parameters, wanted, there):
    assert entries.holds(entries.words(parameters), wanted) is there


def test_blanks_in_quotes_part_no_words():
    assert entries.words('ro dyndbg="file a.c +p" quiet') == ["ro", 'dyndbg="file a.c +p"', "quiet"]


def test_what_a_parameter_takes_the_place_of():
    assert entries.replaced(["iommu.passthrough=0", "ro"], "iommu.passthrough=1") == "iommu.passthrough=0"
    assert entries.replaced(["console=tty0"], "console=ttyAMA0") is None


def test_grubby_of_kylin():
    found = grubby.parse_info(KYLIN)
    assert [entry.release for entry in found] == [
        "4.19.90-52.22.v2207.ky10.aarch64", "0-rescue-7b1f2d0c6b1e4c0f8a3d5e6f7a8b9c0d",
    ]  # fmt: skip
    assert found[0].initrd == "/boot/initramfs-4.19.90-52.22.v2207.ky10.aarch64.img"
    assert found[0].parameters[-1] == "audit=0"
    assert found[0].title.endswith("V10 (Lance)")


def test_grubby_of_rhel():
    (entry,) = grubby.parse_info(RHEL)
    assert entry.kernel == "/boot/vmlinuz-4.18.0-372.9.1.el8.x86_64"
    assert entry.initrd == "/boot/initramfs-4.18.0-372.9.1.el8.x86_64.img"
    assert entry.parameters == ["ro", "crashkernel=auto", "rd.lvm.lv=rhel/root", "rhgb", "quiet", "$tuned_params"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/boot/vmlinuz-4.19.90-17.ky10.aarch64\n", "/boot/vmlinuz-4.19.90-17.ky10.aarch64"),
        ("", None),
        ("rpm-sort: Invalid input\n", None),
        ("rpm-sort: Invalid input\n/boot/vmlinuz-1\n", "/boot/vmlinuz-1"),
    ],
)
def test_the_default_kernel_of_grubby(text, path):
    assert grubby.parse_default(text) == path


@pytest.mark.parametrize(
    ("default", "release"),
    [
        ("0", NEW),
        ("1>2", OLD),
        ("1", NEW),
        (f"gnulinux-advanced-{UUID}>gnulinux-{OLD}-advanced-{UUID}", OLD),
        (f"Advanced options for Kylin V10 SP1>Kylin V10 SP1, with Linux {OLD}", OLD),
        ("gone", NEW),
        ("9", NEW),
        ("uefi-firmware", None),
    ],
)
def test_what_grub_starts(default, release):
    entry = grub.resolve(grub.parse_menu(GRUB), default)
    assert (entry.release if entry else None) == release


def test_grub_cfg_is_read():
    menu = grub.parse_menu(GRUB)
    assert [item.title for item in menu.items] == [
        "Kylin V10 SP1", "Advanced options for Kylin V10 SP1", "UEFI Firmware Settings",
    ]  # fmt: skip
    assert grub.parse_default(GRUB) == "0"
    button = 'if [ "${button}" = "1" ] ; then\n   set default="5"\nelif [ "${next_entry}" ] ; then\n'
    assert grub.parse_default(button + GRUB) == "0"
    assert grub.parse_default(GRUB.replace('default="0"', 'default="${saved_entry}"')) == "${saved_entry}"
    assert grub.parse_environment("# GRUB Environment Block\nsaved_entry=1>2\n####") == {"saved_entry": "1>2"}


def test_the_entry_with_a_name_of_its_own_is_chosen():
    found = grub.entries_of(grub.parse_menu(GRUB))
    entry = entries.choose(found, NEW)
    assert entry and entry.place == f"gnulinux-advanced-{UUID}>gnulinux-{NEW}-advanced-{UUID}"
    assert entry.parameters == [f"root=UUID={UUID}", "ro", "quiet", "splash"]
    assert entries.choose(found, "6.1") is None
    simple = Entry("gnulinux-simple-1", "", "/vmlinuz-6.1", "/i", [])
    assert entries.choose([simple], "6.1") == simple


def test_titles_serve_where_there_are_no_ids():
    text = GRUB.replace("$menuentry_id_option", "--unrestricted")
    entry = entries.choose(grub.entries_of(grub.parse_menu(text)), OLD)
    assert entry and entry.place == f"Advanced options for Kylin V10 SP1>Kylin V10 SP1, with Linux {OLD}"


def test_our_file_of_grub():
    text = grub.render("a>b", ["iommu.passthrough=1", 'x="$y"'])
    assert 'GRUB_DEFAULT="a>b"\n' in text
    assert 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu.passthrough=1 x=\\"\\$y\\""\n' in text
    assert "CMDLINE" not in grub.render("a>b", [])
