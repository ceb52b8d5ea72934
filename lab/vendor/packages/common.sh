# SPDX-License-Identifier: Apache-2.0
# STAND-IN for the vendor's install scripts: what driver, firmware and CANN packages have in common.
# Everything lies below $STAND_IN_ROOT (empty on a lab host). The machine it pretends to run on is described in
# /etc/ascend-stand-in.conf; ../README.md lists its keys.
root=${STAND_IN_ROOT:-}
seclog=/var/log/ascend_seclog
run_state=$root/run/ascend-stand-in
install_info=$root/etc/ascend_install.info

. ./package.conf

# The pretended machine.
uid=$(id -u)
machine=$(uname -m)
kernel=$(uname -r)
pci_ids=
chips=8
dkms=yes
dkms_fails=
sources_missing=
hot_reset=failed
holders=
free_mb=
missing_tools=
crl_mode=
power_cut=
hang=
installer_running=
[ -f "$root/etc/ascend-stand-in.conf" ] && . "$root/etc/ascend-stand-in.conf"

red='\033[31m' green='\033[32m' plain='\033[0m'

now() { date +"%Y-%m-%d %H:%M:%S"; }
# To the log only, as the vendor's scripts do with details.
log() { echo "[$title] [$(now)] $1" >>"$log_file"; }
say() { echo -e "[$title] [$(now)] $1"; }
both() { log "$1"; say "$1"; }
finish() {
    rm -f "$run_state/installing"
    both "[INFO]End time: $(now)"
    exit "$1"
}
refuse() {
    both "$1"
    finish 1
}

open_log() {
    log_file=$root$seclog/$1
    mkdir -p "$root$seclog" "$run_state"
    touch "$log_file"
}

# A power cut leaves no chance to clean up.
cut_power_at() { [ "$power_cut" = "$1" ] && kill -9 $$; return 0; }
hang_at() { [ "$hang" = "$1" ] && sleep 600; return 0; }

value_of() { sed -n "s/^$2=//p" "$1" 2>/dev/null | tail -n 1; }

free_megabytes() {
    [ -n "$free_mb" ] && { echo "$free_mb"; return; }
    df -BM "$root/usr/local" 2>/dev/null | awk '/[0-9]%/ {sub("M", "", $(NF-2)); print $(NF-2)}'
}

needs_reboot() { mkdir -p "$run_state" && echo "$1" >>"$run_state/reboot-needed"; }
