#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# STAND-IN for what the driver's modules do at start: device nodes with the driver's owner. They are null devices.
root=${STAND_IN_ROOT:-}
product=a2
[ -f "$root/etc/ascend-stand-in.conf" ] && . "$root/etc/ascend-stand-in.conf"
case $product in a3) count=16 ;; 310p) count=1 ;; *) count=8 ;; esac
# Without a module for the running kernel there are no devices.
running=${kernel:-$(uname -r)}
. "${0%/tools/*}/module.info"
if [ "$kernel" != "$running" ]; then
    [ "$type" = DKMS ] && [ -d "$root/usr/src/kernels/$running" -o -d "$root/usr/src/linux-headers-$running" ] || exit 0
fi
record() { sed -n "s/^$1=//p" "$root/etc/ascend_install.info"; }
owner=$(awk -F: -v n="$(record UserName)" '$1 == n {print $3}' "$root/etc/passwd")
group=$(awk -F: -v n="$(record UserGroup)" '$1 == n {print $3}' "$root/etc/group")
mkdir -p "$root/dev"
for name in davinci_manager devmm_svm hisi_hdc $(seq -f 'davinci%g' 0 $((count - 1))); do
    [ -e "$root/dev/$name" ] || mknod -m 660 "$root/dev/$name" c 1 3
    chown "$owner:$group" "$root/dev/$name"
done
