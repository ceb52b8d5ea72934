#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_run_package
short_description: Install, upgrade or remove one of Ascend's run packages
version_added: 0.2.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Owns one package of Ascend's software on a host, which the vendor ships as a self-extracting C(.run) file. What is
    installed is read from the vendor's own records, so a package that is there in the wanted version is left alone.
  - Nothing is run unless the file has the stated digest and, where one is given, the vendor's signature holds.
  - A failure names the package, the exit code, the line that tells the cause, the log to read and what to do. An
    installation that was cut off, or whose installer failed, counts as half installed until one has ended with success.
  - The installer unpacks into a folder of its own below O(work_path), which is gone afterwards; what killed runs left
    there is removed. At most one installer runs on a host, another run is waited for.
options:
  component:
    description: Which package. V(ops) is the package of compiled operators, called kernels before CANN 8.5.
    type: str
    required: true
    choices: [driver, firmware, toolkit, ops, nnal]
  version:
    description:
      - The version, for example V(25.5.0), V(7.8.0.5.201) or V(8.3.RC2). Versions are compared by what they mean.
      - Required for O(state=present). With O(state=absent) only this version is removed.
    type: str
  state:
    description: Whether the package should be there.
    type: str
    choices: [present, absent]
    default: present
  src:
    description:
      - The package on the host. May be absent when nothing has to be run.
      - A file with a name of the vendor's must be the component, version, chip and architecture that are asked for.
    type: path
  sha256:
    description: Digest of the package.
    type: str
  chip:
    description: The chip of this host as package names have it, for example V(910b), V(A3) or V(310p).
    type: str
  install_path:
    description: Where the vendor's software lies.
    type: path
    default: /usr/local/Ascend
  install_for_all:
    description: Let users outside the vendor's group use it. Firmware and an upgrade of the driver do not take this.
    type: bool
    default: true
  extra_flags:
    description: Further flags for an installation or upgrade.
    type: list
    elements: str
    default: []
  accept_eula:
    description: Whether the vendor's licence of CANN is accepted, which an installation without questions does.
    type: bool
    default: false
  signature_path:
    description: The vendor's CMS signature of the package, on the host. Checked with C(openssl).
    type: path
  ca_path:
    description: The vendor's root certificates in PEM, on the host. Required with O(signature_path).
    type: path
  crl_path:
    description: Lists of revoked certificates in PEM, on the host. With it no certificate of the chain may be revoked.
    type: path
  work_path:
    description: Folder to unpack into; a toolkit needs several GB there.
    type: path
    default: /var/tmp
  timeout_seconds:
    description:
      - Time after which an installer is ended with everything it started.
      - Without it 1800, for V(toolkit) and V(ops) 3600.
    type: int
  progress_path:
    description: File to which the module writes what it is doing.
    type: path
attributes:
  check_mode:
    description:
      - Says what would be done. The package need not be there, nor what it builds on, which earlier tasks would bring.
    support: full
  diff_mode:
    description: Shows the installed version before and after.
    support: full
notes:
  - A first installation takes the driver before the firmware, an upgrade the firmware before the driver; after either a
    reboot. The operators and NNAL need the toolkit of the same version.
  - Of several CANN versions the one that was installed last is current, and that is the one this module sees.
"""

EXAMPLES = r"""
- name: Install the driver
  vllm_run_package:
    component: driver
    version: 25.5.0
    chip: 910b
    src: /var/cache/vllm/Ascend-hdk-910b-npu-driver_25.5.0_linux-aarch64.run
    sha256: "{{ driver.sha256 }}"
    work_path: /var/cache/vllm
  register: driver_installed

- name: Remove the driver, whatever its version
  vllm_run_package:
    component: driver
    state: absent
"""

RETURN = r"""
action:
  description:
    - What was done or, in check mode, would be; V(complete) finishes a half installed package, V(replace) takes the
      place of another chip's.
  returned: success
  type: str
  sample: upgrade
component:
  description: The component.
  returned: success
  type: str
version:
  description: The version that is installed now; null for none.
  returned: success
  type: str
version_before:
  description: The version that was installed; null for none.
  returned: success
  type: str
home:
  description: Directory of the component; null when it is not there.
  returned: success
  type: str
problems:
  description: Why the package was half installed before; empty when it was not.
  returned: success
  type: list
  elements: str
leftovers:
  description: Folders of killed runs that were, or would be, removed.
  returned: success
  type: list
  elements: str
reboot_required:
  description: Whether a change of this component since the last boot takes effect only after a reboot.
  returned: success
  type: bool
log:
  description: Log of the installer.
  returned: success, and failure of an installer
  type: str
exit_code:
  description: Exit code of the installer; null when none was run.
  returned: success, and failure of an installer
  type: int
code:
  description: Name of the failure, V(unknown) when no message was recognised.
  returned: failure
  type: str
  sample: device_busy
package:
  description: The package.
  returned: failure of an installer
  type: str
seen:
  description: The line that tells the cause.
  returned: failure of an installer
  type: str
hint:
  description: What to do.
  returned: failure of an installer
  type: str
log_tail:
  description: The last lines of the installer's output and of what it added to its log.
  returned: failure of an installer
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible import locks
from ansible.module_utils.vllm_ansible.host import Host
from ansible.module_utils.vllm_ansible.progress import Progress
from ansible.module_utils.vllm_ansible.run_package.ensure import Session, Wanted, ensure
from ansible.module_utils.vllm_ansible.run_package.packages import COMPONENTS, PackageError

ARGUMENTS = {
    "component": {"type": "str", "required": True, "choices": list(COMPONENTS)},
    "version": {"type": "str"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "src": {"type": "path"},
    "sha256": {"type": "str"},
    "chip": {"type": "str"},
    "install_path": {"type": "path", "default": "/usr/local/Ascend"},
    "install_for_all": {"type": "bool", "default": True},
    "extra_flags": {"type": "list", "elements": "str", "default": []},
    "accept_eula": {"type": "bool", "default": False},
    "signature_path": {"type": "path"},
    "ca_path": {"type": "path"},
    "crl_path": {"type": "path"},
    "work_path": {"type": "path", "default": "/var/tmp"},
    "timeout_seconds": {"type": "int"},
    "progress_path": {"type": "path"},
}


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        supports_check_mode=True,
        required_if=[("state", "present", ["version"])],
        required_by={"src": ["sha256"], "signature_path": ["ca_path"]},
    )
    params = module.params
    wanted = Wanted(**{name: params[name] for name in Wanted._fields})
    progress = Progress(params["progress_path"])
    session = Session(wanted, Host(module.run_command), module.run_command, dict(os.environ), progress)
    try:
        result = ensure(session, params["state"] == "present", module.check_mode)
    except PackageError as error:
        module.fail_json(msg=str(error), **error.details)
    except locks.BusyError:
        module.fail_json(
            msg="Another task has been installing a package on this host for {0} seconds. Wait until it ends, then run "
            "again.".format(locks.WAIT_SECONDS),
            code="installer_running",
        )
    except OSError as error:
        module.fail_json(msg="{0}: {1}".format(session.package(), error), code="host")
    if module._diff:
        line = "{0}: {1}\n"
        result["diff"] = {
            "before_header": params["component"],
            "after_header": params["component"],
            "before": line.format(params["component"], result["version_before"] or "absent")
            + "".join("problem: {0}\n".format(problem) for problem in result["problems"]),
            "after": line.format(params["component"], result["version"] or "absent"),
        }
    module.exit_json(**result)


if __name__ == "__main__":
    main()
