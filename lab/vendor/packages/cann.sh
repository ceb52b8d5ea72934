#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# STAND-IN for the install script of a CANN toolkit, operator (ops, kernels) or NNAL package. Texts are those of
# published logs; a line marked "invented" has no published original.
cd "$(dirname "$0")" || exit 1
. ./common.sh
case $component in toolkit) title=Toolkit ;; ops) title=ops_$chip ;; *) title=Nnal ;; esac
open_log "ascend_${component}_install.log"
run_file=${1#--}
run_file=${run_file##*/}
shift 2

say() { echo "[$title] [$(date +%Y%m%d-%H:%M:%S)] $1"; }
log() { echo "[$title] [$(date +%Y%m%d-%H:%M:%S)] $1" >>"$log_file"; }
finish() { exit "$1"; }
mode= quiet= all= path=/usr/local/Ascend
for word; do
    case $word in
    --install | --full | --devel | --upgrade | --uninstall | --check | --version)
        [ -z "$mode" ] || refuse "[ERROR] only one of install, full, devel, upgrade and uninstall is supported" # invented
        mode=${word#--} ;;
    --quiet) quiet=y ;;
    --install-for-all) all=y ;;
    --install-path=*) path=${word#*=} ;;
    --force | --whitelist=* | --chip=* | --type=*) ;;
    *) refuse "[ERROR] Unrecognized parameters: $word" ;; # invented
    esac
done
[ -n "$mode" ] || refuse "[ERROR] Unrecognized parameters" # invented
[ "$mode" != version ] || { echo "$version"; exit 0; }
[ "$mode" != check ] || { both "[INFO] check success"; exit 0; }
[ "$component" = toolkit ] || [ "$mode" != full ] || refuse "[ERROR] Unrecognized parameters: --full" # invented

both "[INFO] LogFile:$seclog/ascend_${component}_install.log"
ascend=$root$path
# Since 8.5 a version has a directory of its own; before, it lies in ascend-toolkit.
if [ "$layout" = new ]; then cann=$ascend/cann-$version link=$ascend/cann; else cann=$ascend/ascend-toolkit/$version link=$ascend/ascend-toolkit/latest; fi
record=$cann/$arch-linux/ascend_${component}_install.info
label=Toolkit name=Ascend-cann-toolkit
[ "$component" = nnal ] && name=Ascend-cann-nnal label=NNAL
if [ "$component" = ops ]; then
    label=ops_$chip
    if [ "$layout" = new ]; then name=Ascend-cann-$chip-ops; else name=Ascend-cann-kernels-$chip; fi
fi
atb=$ascend/nnal/atb

if [ "$mode" = uninstall ]; then
    case $component in
    toolkit)
        rm -rf "$cann"
        for path in "$ascend/cann" "$ascend/ascend-toolkit/latest"; do [ -e "$path" ] || rm -f "$path"; done ;;
    ops) rm -rf "$record" "$cann/opp_kernel" "$cann/$arch-linux/script/ops_uninstall.sh" ;;
    nnal)
        rm -rf "${atb:?}/$version" "$ascend/nnal/nnal_uninstall.sh"
        [ -e "$atb/latest" ] || rm -f "$atb/latest" ;;
    esac
    both "[INFO] ${name} uninstall success" # invented
    exit 0
fi

both "[INFO] install start"
if [ -z "$quiet" ]; then
    read -r -t 5 -p "Do you accept the EULA to install CANN?[Y/N]" answer
    case $answer in [Yy]) ;; *) exit 1 ;; esac
fi
both "[INFO] The installation path is $path."
if [ "$machine" != "$arch" ]; then
    both "[INFO] The current OS is $machine"
    refuse "[ERROR] No packages to install !"
fi
case $component in
ops) [ -f "$cann/$arch-linux/ascend_toolkit_install.info" ] ||
    refuse "[ERROR] The toolkit of version $version is not installed in $path" ;; # invented
nnal) [ -n "${ASCEND_HOME_PATH:-}" ] ||
    refuse "[ERROR] ASCEND_HOME_PATH is not set, please source set_env.sh of the toolkit first" ;; # invented
esac
free=$(free_megabytes)
[ -z "$free" ] || [ "$free" -gt 1000 ] || refuse "[ERROR] The disk space under $path is not enough" # invented

both "[INFO] install package $name-$version start"
write_record() {
    mkdir -p "$(dirname "$1")"
    printf 'package_name=%s\nversion=%s\ninnerversion=V100R001C23SPC002B210\ncompatible_version=[V100R001C15]\narch=%s\nos=linux\npath=%s\n' \
        "$name" "$version" "$arch" "${cann#"$root"}/$arch-linux" >"$1"
}
# The uninstaller asks, as some of the vendor's do.
uninstaller() {
    mkdir -p "$(dirname "$1")/.$component"
    cp install.sh common.sh package.conf "$(dirname "$1")/.$component/"
    cat >"$1" <<END
#!/bin/bash
read -r -p "Uninstall? [Y/N]" answer
[ "\$answer" = Y ] || exit 1
cd "$(dirname "$1")/.$component" && exec bash ./install.sh --uninstall.sh --. --uninstall "--install-path=$path"
END
    chmod 755 "$1"
}
hang_at files
case $component in
toolkit)
    mkdir -p "$cann/$arch-linux/lib64" "$cann/bin" "$cann/opp" "$cann/python/site-packages"
    ln -sfn "$arch-linux/lib64" "$cann/lib64"
    cut_power_at files
    rm -f "$link"
    ln -s "$(basename "$cann")" "$link"
    if [ "$layout" = new ]; then mkdir -p "$ascend/ascend-toolkit"; ln -sfn "../cann-$version" "$ascend/ascend-toolkit/latest"; fi
    home=${link#"$root"}
    for file in "$ascend/ascend-toolkit/set_env.sh" "$link/set_env.sh"; do
        cat >"$file" <<END
export LD_LIBRARY_PATH=$path/driver/lib64:$path/driver/lib64/common:$path/driver/lib64/driver:\$LD_LIBRARY_PATH
export ASCEND_TOOLKIT_HOME=$home
export LD_LIBRARY_PATH=\${ASCEND_TOOLKIT_HOME}/lib64:\$LD_LIBRARY_PATH
export PYTHONPATH=\${ASCEND_TOOLKIT_HOME}/python/site-packages:\$PYTHONPATH
export PATH=\${ASCEND_TOOLKIT_HOME}/bin:\$PATH
export ASCEND_AICPU_PATH=\${ASCEND_TOOLKIT_HOME}
export ASCEND_OPP_PATH=\${ASCEND_TOOLKIT_HOME}/opp
export TOOLCHAIN_HOME=\${ASCEND_TOOLKIT_HOME}/toolkit
export ASCEND_HOME_PATH=\${ASCEND_TOOLKIT_HOME}
END
    done
    printf '# version: 1.0\ntoolkit_running_version=[%s:CANN-%s]\n' "$version" "$version" >"$cann/version.cfg"
    mkdir -p "$root/etc/Ascend"
    echo "Toolkit_InstallPath=$path" >"$root/etc/Ascend/ascend_cann_install.info"
    uninstaller "$cann/$arch-linux/script/uninstall.sh"
    write_record "$record" ;;
ops)
    cut_power_at files
    if [ "$layout" = new ]; then
        uninstaller "$cann/$arch-linux/script/ops_uninstall.sh"
        write_record "$record"
    else
        uninstaller "$cann/opp_kernel/script/uninstall.sh"
        printf 'Version=8.3.T5.0.B028\nversion_dir=%s\ntimestamp=20250807_092944934\n' "$version" >"$cann/opp_kernel/version.info"
    fi ;;
nnal)
    for abi in 0 1; do
        mkdir -p "$atb/$version/atb/cxx_abi_$abi/lib"
        touch "$atb/$version/atb/cxx_abi_$abi/lib/libatb.so"
    done
    cut_power_at files
    ln -sfn "$version" "$atb/latest"
    if [ "$layout" = new ]; then uninstaller "$ascend/nnal/nnal_uninstall.sh"; else uninstaller "$atb/$version/scripts/uninstall.sh"; fi
    cat >"$atb/set_env.sh" <<END
abi=0
while [ \$# -gt 0 ]; do case \$1 in --cxx_abi=*) abi=\${1#*=} ;; esac; shift; done
export ATB_CXX_ABI=\$abi
export ATB_HOME_PATH=$path/nnal/atb/latest/atb/cxx_abi_\$abi
export LD_LIBRARY_PATH=\$ATB_HOME_PATH/lib:\$LD_LIBRARY_PATH
END
    printf '    Ascend-cann-atb : %s\n    Ascend-cann-atb Version : %s.B120\n    Platform : %s\n' "$version" "$version" "$arch" >"$atb/$version/version.info" ;;
esac
both "[INFO] $name-$version --full --quiet --nox11${all:+ --install-for-all} install success"
driver="Not installed."
[ -f "$root/usr/local/Ascend/driver/version.info" ] && driver="Installed in /usr/local/Ascend/driver."
cat <<END

===========
= Summary =
===========

Driver:   $driver
$label:  ${run_file%.run} install success, installed in $path.

Please make sure that the environment variables have been configured.
END
exit 0
