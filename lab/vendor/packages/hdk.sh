#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# STAND-IN for the install script of an Ascend driver or firmware package. Texts and codes are those the vendor's
# installer is documented to print; a line marked "invented" has no published original.
cd "$(dirname "$0")" || exit 1
. ./common.sh
devices_unit=/etc/systemd/system/ascend-stand-in-devices.service
devices_wants=/etc/systemd/system/sysinit.target.wants/ascend-stand-in-devices.service
case $component in driver) title=Driver occupy=300 ;; *) title=Firmware occupy=32 ;; esac
open_log ascend_install.log
run_file=${1#--}
run_file=${run_file##*/}
shift 2

mode= quiet= force= all=no path= username= usergroup= alone=0 count=0
bad() { refuse "[ERROR]ERR_NO:0x0004;ERR_DES:$1"; }
[ $# -gt 0 ] || bad "Unrecognized parameters. Try './xxx.run --help' for more information."
say "[INFO]Start time: $(now)"
say "[INFO]LogFile: $seclog/ascend_install.log"
say "[INFO]OperationLogFile: $seclog/operation.log"
log "[INFO]UserCommand: $run_file $*"
[ "$uid" = 0 ] || { say "[ERROR]ERR_NO:0x0093;ERR_DES:do not have root permission, operation failed, please use root permission!"; exit 1; }
for word; do
    count=$((count + 1))
    case $word in
    --full | --run | --devel | --docker | --upgrade)
        [ -z "$mode" ] || bad "only support one type: full/debug/run/docker/devel, operation failed!"
        mode=${word#--} ;;
    --uninstall | --version | --check) alone=1 mode=${word#--} ;;
    --quiet) quiet=y ;;
    --force) force=y ;;
    --install-for-all) all=yes ;;
    --install-path=) refuse "[ERROR]ERR_NO:0x0003;ERR_DES:install path is null, install failed" ;;
    --install-path=*) path=${word#*=} ;;
    --install-username=*) username=${word#*=} ;;
    --install-usergroup=*) usergroup=${word#*=} ;;
    *) bad "Unrecognized parameters: $word. Try './xxx.run --help' for more information." ;;
    esac
done
if [ $alone = 1 ] && [ $count -gt 1 ]; then
    [ $mode = uninstall ] || bad "version/check can't use with other parameters."
    { [ $count = 2 ] && [ -n "$force" ]; } || bad "uninstall can't use with other parameters except force."
fi
[ -n "$mode" ] || bad "The parameter needs to be used with full/debug/run/docker/upgrade/devel."
if [ "$mode" = upgrade ]; then
    [ $all = no ] || bad "install-for-all param need used with full/debug/run/devel."
    [ -z "$path" ] || bad "install-path param need used with full/debug/run/docker/devel."
    [ -z "$username$usergroup" ] || bad "install-username and install-usergroup params need used with full/debug/run/docker/devel."
fi
{ [ -z "$username" ] || [ -n "$usergroup" ]; } && { [ -z "$usergroup" ] || [ -n "$username" ]; } ||
    bad "Username and usergroup are not specified at the same time."

case $mode in
version) echo "$version"; exit 0 ;;
check) say "[INFO]Start checking the run package"; say "[INFO]check success"; finish 0 ;;
esac

recorded=$(value_of "$install_info" ${title}_Install_Path_Param)
path=${path:-${recorded:-/usr/local/Ascend}}
home=$root$path/$component

# The records of this component in /etc/ascend_install.info; the file goes with the last of them.
forget() {
    [ -f "$install_info" ] || return 0
    sed -i "/^${title}_Install_/d" "$install_info"
    grep -q Install_Path_Param "$install_info" || rm -f "$install_info"
}
operation() {
    echo "$1 SUGGESTION root $(now) 127.0.0.1 $run_file $2 install_type=$mode; cmdlist=${words}." >>"$root$seclog/operation.log"
}
words=$*

busy_check() {
    [ -n "$holders" ] && [ -z "$force" ] || return 0
    log "[WARNING]/dev/davinci_manager has used by ${holders}"
    refuse "[ERROR]${red}The davinci nodes are occupied by some processes, please stop processes and install or uninstall again, details in : $seclog/ascend_install.log $plain"
}

if [ "$mode" = uninstall ]; then
    [ "$component" = driver ] && busy_check
    rm -rf "$home"
    [ "$component" = driver ] && rm -f "$root/usr/local/bin/npu-smi" "$root$devices_unit" "$root$devices_wants"
    forget
    operation Uninstall success
    needs_reboot "$component"
    say "[INFO]${green}$title package uninstalled successfully! $plain${red}Reboot needed for uninstallation to take effect! $plain"
    finish 0
fi

case " $pci_ids " in
*" $pci "* | "  ") ;;
*) say "[ERROR]The current installation package and environment is not match, please check."; exit 1 ;;
esac
[ "$component" = firmware ] || [ "$machine" = "$arch" ] ||
    refuse "[ERROR]${red}Arch mismatch, src package is $arch, cur os is $machine $plain"
[ -z "$installer_running" ] ||
    refuse "[ERROR]ERR_NO:0x0094;ERR_DES:There is already a process being executed,please do not execute multiple tasks at the same time"

owner=$(value_of "$install_info" UserName)
[ -z "$username" ] || [ -z "$owner" ] || [ "$username" = "$owner" ] ||
    refuse "[ERROR]ERR_NO:0x0095;ERR_DES:The user and group are not same with last installation,do not support overwriting installation"
username=${username:-${owner:-HwHiAiUser}} usergroup=${usergroup:-HwHiAiUser}
grep -q "^$username:" "$root/etc/passwd" || refuse "[ERROR]ERR_NO:0x0091;ERR_DES:$username not exists! Please add $username"
group_id=$(awk -F: -v n="$usergroup" '$1 == n {print $3}' "$root/etc/group")
[ -n "$group_id" ] || refuse "[ERROR]ERR_NO:0x0091;ERR_DES:$usergroup group not exists! Please add $usergroup group"
awk -F: -v n="$username" '$1 == n {print $4}' "$root/etc/passwd" | grep -qx "$group_id" ||
    awk -F: -v n="$usergroup" '$1 == n {print "," $4 ","}' "$root/etc/group" | grep -q ",$username," ||
    refuse "[ERROR]ERR_NO:0x0096;ERR_DES:$usergroup not right! Please check the relatianship of $username and $usergroup"
say "[INFO]set username and usergroup, $username:$usergroup"

if [ "$path" != /usr/local/Ascend ] && [ ! -d "$root$(dirname "$path")" ]; then
    refuse "[ERROR]ERR_NO:0x0003;ERR_DES:install path $(dirname "$path") not exists,runpackage only support create one level of directory,need create $(dirname "$path")."
fi
free=$(free_megabytes)
if [ -n "$free" ] && [ "$free" -le $occupy ]; then
    refuse "[ERROR]free space only ${free}M, cannot install driver package (greater than ${occupy}M), please make sure enough space under the installation path"
fi
[ -z "$missing_tools" ] || refuse "[ERROR]The list of missing tools: $missing_tools"

if [ "$component" = firmware ]; then
    # Invented: no published log shows this failure.
    [ -x "$root/usr/local/Ascend/driver/tools/upgrade-tool" ] || refuse "[ERROR]The driver is not installed, the firmware cannot be upgraded, details in : $seclog/ascend_install.log"
    say "[WARNING]Do not power off or restart the system during the installation/upgrade"
    mkdir -p "$home/script"
    rm -f "$home/version.info"
    forget
    [ -f "$install_info" ] || printf 'UserName=%s\nUserGroup=%s\n' "$username" "$usergroup" >"$install_info"
    printf 'Firmware_Install_Type=full\nFirmware_Install_Path_Param=%s\n' "$path" >>"$install_info"
    say "[INFO]upgradePercentage: 0%"
    cut_power_at files
    hang_at files
    say "[INFO]upgradePercentage: 100%"
    say "[INFO]The firmware of [$chips] chips are successfully upgraded."
    printf '#!/bin/bash\ncd "%s/script" && exec bash ./install.sh --uninstall.sh --. --uninstall\n' "$home" >"$home/script/uninstall.sh"
    cp install.sh common.sh package.conf "$home/script/"
    chmod 755 "$home/script/uninstall.sh"
    printf 'Version=%s\nfirmware_version=1.0\npackage_version=%s\ncompatible_version_drv=%s\n' \
        "$version" "$package_version" "$compatible" >"$home/version.info"
    needs_reboot firmware
    operation Install success
    say "[INFO]Firmware package installed successfully! Reboot now or after driver installation for the installation/upgrade to take effect."
    finish "${firmware_exit:-0}"
fi

say "[WARNING]Do not power off or restart the system during the installation/upgrade"
busy_check
if [ -n "$crl_mode" ]; then
    log "[ERROR]new device crl check failed, stop upgrade"
    refuse "[ERROR]${red}The software signature verification failed because the signature mode used by the software is inconsistent with the current configuration. Currently configured is [$crl_mode], details in : $seclog/ascend_install.log $plain"
fi

# As in the vendor's script, the old driver is gone before the kernel is looked at.
rm -f "$home/version.info"
forget
[ -f "$install_info" ] || printf 'UserName=%s\nUserGroup=%s\n' "$username" "$usergroup" >"$install_info"
printf 'Driver_Install_Type=full\nDriver_Install_Path_Param=%s\nDriver_Install_For_All=%s\nDriver_Install_Mode=normal\n' \
    "$path" "$all" >>"$install_info"
log "[INFO]dkms environment check..."
sources=
# As the vendor's script, which asks rpm for headers and devel package of exactly the running kernel.
if [ -z "$root" ] && command -v rpm >/dev/null && rpm -q kylin-release >/dev/null 2>&1; then
    rpm -q dkms >/dev/null || dkms=no
    rpm -q "kernel-headers-$kernel" "kernel-devel-$kernel" >/dev/null || sources_missing=yes
fi
for folder in "$root/usr/src/kernels/$kernel" "$root/usr/src/linux-headers-$kernel"; do [ -d "$folder" ] && sources=$folder; done
[ -z "$sources_missing" ] || sources=
if [ "$dkms" = yes ] && [ -n "$sources" ]; then
    kind=DKMS
    if [ -n "$dkms_fails" ]; then
        log "[ERROR]dkms install files check failed"
        say "[ERROR]${red}Dkms install failed, details in : var/log/ascend_seclog/ascend_install.log $plain"
        refuse "[ERROR]${red}Driver_ko_install failed, details in : $seclog/ascend_install.log $plain"
    fi
else
    kind=Direct
    [ "$dkms" = yes ] || log "[WARNING]The program 'dkms' is currently not installed."
    [ -n "$sources" ] || log "[WARNING]linux headers is currently not installed."
    log "[INFO]not detect driver dkms dependence "
    if [ "${kernel%%[-+]*}" != "${prebuilt_kernel%%[-+]*}" ]; then
        log "[ERROR]current kernel primary version($kernel) is different from the driver($prebuilt_kernel)."
        log "[ERROR]driver vermagic check failed."
        refuse "[ERROR]${red}Drv_dkms_env_check failed, details in : $seclog/ascend_install.log $plain"
    fi
fi
say "[INFO]driver install type: $kind"
mkdir -p "$home"
printf 'kernel=%s\ntype=%s\n' "$kernel" "$kind" >"$home/module.info" # invented: where the module is for the stand-ins
say "[INFO]upgradePercentage:10%"
mkdir -p "$home/lib64/common" "$home/lib64/driver" "$home/tools" "$home/script" "$root/usr/local/bin"
cut_power_at files
say "[INFO]upgradePercentage:40%"
printf '#!/bin/bash\necho "boot status:16"\n' >"$home/tools/upgrade-tool"
printf '#!/bin/bash\ncd "%s/script" && exec bash ./install.sh --uninstall.sh --. --uninstall\n' "$home" >"$home/script/uninstall.sh"
cp install.sh common.sh package.conf "$home/script/"
cp npu-smi "$root/usr/local/bin/npu-smi"
cp hccn_tool devices.sh "$home/tools/"
chmod 755 "$home/tools/"* "$home/script/uninstall.sh" "$root/usr/local/bin/npu-smi"
[ -e "$root/etc/hccn.conf" ] || install -m 640 /dev/null "$root/etc/hccn.conf"
# The real driver's modules make the device nodes when they are loaded, which is at the next start.
mkdir -p "$(dirname "$root$devices_wants")"
cat >"$root$devices_unit" <<END
[Unit]
Description=STAND-IN: device nodes of the Ascend driver
DefaultDependencies=no
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/bash $path/driver/tools/devices.sh
END
ln -sf "$devices_unit" "$root$devices_wants"
say "[INFO]upgradePercentage:90%"
say "[INFO]Waiting for device startup..."
hang_at startup
say "[INFO]Device startup success"
{
    printf 'Version=%s\nascendhal_version=7.35.23\naicpu_version=1.0\ntdt_version=1.0\nlog_version=1.0\n' "$version"
    printf 'prof_version=2.0\ndvppkernels_version=1.1\ntsfw_version=1.0\nInnerversion=V100R001C23SPC002B212\n'
    printf 'compatible_version_fw=%s\npackage_version=%s\n' "$compatible" "$package_version"
} >"$home/version.info"
say "[INFO]upgradePercentage:100%"
operation Install success
echo "Driver_Install_Status=complete" >>"$install_info"
word=install; [ "$mode" = upgrade ] && word=upgrad
if [ "$hot_reset" = success ]; then
    bash "$home/tools/devices.sh"
    say "[INFO]${green}Driver package ${word}ed successfully! The new version takes effect immediately. $plain"
    finish 0
fi
needs_reboot driver
say "[INFO]${green}Driver package ${word}ed successfully! $plain${red}Reboot needed for installation/upgrade to take effect! $plain"
finish 2
