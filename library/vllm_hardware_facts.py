#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_hardware_facts
short_description: Describe the hardware of an inference host
version_added: 0.1.0
author: vllm-ansible contributors (@vllm-ansible)
description:
  - Returns what a host is (CPU topology and instruction sets, NUMA nodes, memory, file systems, network interfaces,
    listening ports, accelerators) as C(ansible_facts.vllm_hardware), the input of M(vllm_plan).
  - Facts describe and never decide. A tool or file that is missing makes a value null and adds a warning; it never
    fails the module.
  - Reads C(/proc) and C(/sys), and enriches accelerators with the vendor's own tool where that is installed. A tool is
    waited for 60 seconds at most, all of them 180 seconds; one that does not answer is not asked again.
  - Without root, the owner of a listening port and, on some driver versions, the state of NPUs stay unknown.
attributes:
  check_mode:
    support: full
    description: The module only reads.
  diff_mode:
    support: none
    description: Nothing changes.
options:
  paths:
    description:
      - Paths whose file system matters to the installation. A path need not exist, its nearest existing parent counts.
    type: list
    elements: path
    default: [/opt/vllm, /var/cache/vllm, /var/lib/vllm]
  measure_disks:
    description:
      - Read from every disk for a moment to learn its speed. At most 512 MiB or 2 seconds a disk and 30 seconds
        together, past the page cache and in one stream, beside whatever else the disk is doing.
    type: bool
    default: false
  recorded:
    description:
      - Path of a file with facts recorded earlier, on the machine the module runs on. The file is returned as it is,
        after a check of its schema, and the machine is not looked at.
      - Meant for planning without hosts, with C(delegate_to=localhost).
    type: path
  gather_subset:
    description: Accepted and ignored, so that the module can stand in C(ansible_facts_modules).
    type: list
    elements: str
    default: [all]
  gather_timeout:
    description: Accepted and ignored, as O(gather_subset).
    type: int
    default: 10
  filter:
    description: Accepted and ignored, as O(gather_subset).
    type: list
    elements: str
    default: []
  fact_path:
    description: Accepted and ignored, as O(gather_subset).
    type: path
    default: /etc/ansible/facts.d
"""

EXAMPLES = r"""
- name: Describe the host
  vllm_hardware_facts:
  become: true

- name: Plan for a host that does not exist yet
  vllm_hardware_facts:
    recorded: "{{ playbook_dir }}/machines/atlas-800i-a2/facts.json"
  delegate_to: localhost
"""

RETURN = r"""
ansible_facts:
  description: The facts, under one key. Numbers of memory are bytes.
  returned: always
  type: dict
  contains:
    vllm_hardware:
      description: The hardware facts.
      type: dict
      returned: always
      contains:
        schema:
          description: Version of this structure.
          type: int
          sample: 1
          returned: always
        architecture:
          description: Machine name of the kernel.
          type: str
          sample: aarch64
          returned: always
        os:
          description:
            - C(id), C(version_id), C(version), C(name) of os-release; C(kernel), C(glibc), C(python) (the one that ran
              the module), C(init) (name of process 1), C(systemd) (a number), C(virtualization) (null on bare metal).
          type: dict
          returned: always
        kernel:
          description:
            - Releases as C(uname -r) prints them. C(release), the one that runs; C(default_entry), the one that the
              boot loader starts next, by its own files or by grubby, null when they do not say or only root may read
              them; C(installed); C(devel) and C(headers), those there are files for to build modules with (packages
              kernel-devel and kernel-headers, or linux-headers for both); C(secure_boot), whether the firmware takes
              signed modules only, null where it does not say.
          type: dict
          returned: always
        clock:
          description:
            - C(synchronised), null when nothing says it, and C(source), the time service that runs (V(chrony), V(ntpd),
              V(systemd-timesyncd)) or null.
          type: dict
          returned: always
        cpu:
          description:
            - C(vendor), C(model); C(sockets), C(cores) and C(threads) of the whole machine, online ones only;
              C(online), C(allowed) (by the cpuset that binds system services) and C(isolated) (the kernel schedules
              nothing there unasked) as CPU lists; C(cpuset_version), 2 or 1, of the control groups with cpusets, null
              without any; C(isa), the instruction set extensions that every CPU has, by the kernel's names.
          type: dict
          returned: always
        numa:
          description:
            - C(nodes), each with C(id), C(cpus) (a CPU list, online ones), C(memory_bytes) (0 without memory) and
              C(distances) by node id. Ids may have gaps.
          type: dict
          returned: always
        memory:
          description:
            - C(total_bytes), C(available_bytes), C(swap_total_bytes), C(page_size_bytes), C(hugepages) (C(size_bytes),
              C(total), C(free) per size), C(cgroup_limit_bytes), the limit that binds system services, null if none,
              and C(modules), null without root or dmidecode (C(slots), C(populated); C(channels) and
              C(populated_channels), null where the slots do not name theirs; C(speed_mtps) of the slowest module).
          type: dict
          returned: always
        disks:
          description:
            - Mounted file systems with C(mount), C(device), C(fstype), C(size_bytes), C(available_bytes), C(kind) of
              the disk below (V(nvme), V(ssd), V(hdd), V(virtual) or null), C(raid) (level of a software array, driver
              of a RAID controller or null) and C(read_bytes_per_s), null unless O(measure_disks).
          type: list
          elements: dict
          returned: always
        paths:
          description: Per path asked for, the C(mount) it lies on and the C(available_bytes) there.
          type: dict
          returned: always
        nics:
          description:
            - Interfaces that are hardware or have an address, with C(name), C(mac), C(state), C(mtu), C(speed_mbps),
              C(driver), C(numa_node), C(addresses) (with prefix, no link-local ones), C(pci), and C(device_id) and
              C(link) as those of accelerators.
          type: list
          elements: dict
          returned: always
        default_address:
          description: IPv4 address of the interface of the default route, or null.
          type: str
          returned: always
        listeners:
          description: Listening TCP sockets with C(address), C(port) and, seen by root only, C(unit) and C(process).
          type: list
          elements: dict
          returned: always
        accelerators:
          description:
            - NPUs and GPUs, one entry per chip, in the order of their PCI addresses. A sick or lost one stays listed.
              What only the vendor's tool knows is null without it.
          type: list
          elements: dict
          returned: always
          contains:
            kind:
              description: V(npu) or V(gpu); C(vendor) is V(huawei) or V(nvidia).
              type: str
              returned: always
            pci:
              description: Address of the PCI function. The two chips of a 300I Duo share one.
              type: str
              sample: "0000:c1:00.0"
              returned: always
            device_id:
              description: PCI vendor and device; C(subsystem) likewise.
              type: str
              sample: "19e5:d802"
              returned: always
            link:
              description:
                - C(speed_gts) (giga-transfers per second) and C(width) (lanes) of the PCI link now, C(max_speed_gts)
                  and C(max_width) of the device. An idle GPU runs its link slower than it can.
              type: dict
              returned: always
            slot:
              description:
                - C(max_speed_gts) and C(max_width) of the port that the device is plugged into, null when unknown.
              type: dict
              returned: always
            numa_node:
              description: Node of the device; from its CPUs when the firmware names none.
              type: int
              returned: always
            cpus:
              description: CPUs near the device, by the vendor's tool or else the kernel; all of them means unknown.
              type: str
              sample: "144-167"
              returned: always
            index:
              description: Number that the runtime's visible-devices variable uses.
              type: int
              returned: always
            board:
              description:
                - NPU id of npu-smi (neither contiguous nor from 0 on every product) or index of the GPU; C(chip) is the
                  chip on it, C(phy_id) the N of C(/dev/davinciN).
              type: int
              returned: always
            uuid:
              description: Identity of a GPU.
              type: str
              returned: always
            model:
              description: Name that the tool prints; C(soc) the same for NPUs, null for GPUs.
              type: str
              sample: 910B3
              returned: always
            memory_bytes:
              description: Memory of the chip, HBM where it has any; C(used_bytes) of it are taken.
              type: int
              returned: always
            health:
              description:
                - V(OK), another word of npu-smi (V(Warning), V(Alarm), V(Critical), V(UNKNOWN)), V(Warning) for a GPU
                  with uncorrectable memory errors, V(Lost) for a device that its tool does not list or cannot read,
                  null where no tool or driver could say.
              type: str
              returned: always
            problems:
              description: What is wrong with the device, in sentences; empty for a healthy one.
              type: list
              elements: str
              returned: always
            driver:
              description: Driver that runs the device; C(firmware) of NPUs.
              type: str
              returned: always
            compatibility:
              description: What npu-smi says of driver and firmware of an NPU, V(OK) when they match; null otherwise.
              type: str
              returned: always
            processes:
              description:
                - Processes on an NPU by npu-smi, each with C(pid), C(name) (cut by the tool), C(memory_bytes) and the
                  systemd C(unit) it belongs to; null where no tool said it.
              type: list
              elements: dict
              returned: always
            mig:
              description: Whether a GPU is in MIG mode; null where it has none.
              type: bool
              returned: always
            ecc_uncorrected:
              description: Uncorrectable memory errors of a GPU since its driver was loaded.
              type: int
              returned: always
        accelerator_links:
          description:
            - How two accelerators reach each other, each pair once, with their indexes C(a) and C(b), C(kind), and
              C(link) by the tool's word (V(HCCS), V(HCCS_SW), V(SIO), V(NV18), V(PIX), V(SYS) and others).
          type: list
          elements: dict
          returned: always
        nvswitches:
          description: NVSwitches on the PCI bus; with any, the GPUs need the fabric manager.
          type: int
          returned: always
        hccn:
          description:
            - RoCE ports inside NPUs, with the NPU's C(index), C(device) (the number hccn_tool and C(/etc/hccn.conf)
              use), C(address), C(netmask), C(gateway), C(link) (V(UP), V(DOWN)), C(health) (only V(Success) is good),
              C(tls) and C(speed_mbps).
          type: list
          elements: dict
          returned: always
        davinci:
          description:
            - Device files of NPUs. C(devices), the C(/dev/davinciN) there are; C(access), each C(owner), C(group) and
              C(mode) that occurs among them; C(managers), with C(path), C(present) and the same; C(ascend_user),
              C(ascend_group) and C(for_all) (usable by everyone) of C(/etc/ascend_install.info); C(pci_count), the NPUs
              on the bus.
          type: dict
          returned: always
        rdma:
          description:
            - Ports of RDMA devices of the host, with C(device), C(port), C(state), C(physical_state), C(rate_gbps),
              C(link_layer), C(netdev), C(pci), C(numa_node) and C(gids), those in use, each with C(index), C(gid),
              C(type) and C(netdev).
          type: list
          elements: dict
          returned: always
        software:
          description: Versions from the vendors' own files; null or empty for what is not installed.
          type: dict
          returned: always
          contains:
            ascend:
              description:
                - C(driver) and C(firmware) as installed, and C(cann), a list with C(path), C(version) and C(kind)
                  (V(toolkit), V(nnal), V(910b-ops) and others).
              type: dict
              returned: always
            nvidia:
              description:
                - C(driver) and C(kernel_module) (V(open), V(proprietary)) as loaded, C(library) (the version of its
                  libraries), C(nouveau) (whether the kernel's own driver is loaded), C(cuda) (the newest version this
                  driver serves), C(cuda_toolkits) (a list with C(path) and C(version)) and C(fabric_manager)
                  (C(version), C(active)).
              type: dict
              returned: always
            ofed:
              description: Name and version of the OFED or DOCA driver stack; null for the distribution's own.
              type: str
              returned: always
        warnings:
          description:
            - What could not be learnt or needs a person, each with C(code) and C(message).
            - "Host: C(W_OS_RELEASE), C(W_DETECT_VIRT), C(W_CPU_TOPOLOGY), C(W_CPU_ISA), C(W_NUMA), C(W_MEMORY),
              C(W_PATH), C(W_IP_TOOL), C(W_NO_DEFAULT_ADDRESS), C(W_NOT_ROOT)."
            - "Tools: C(W_TOOL_HANGS) (did not answer in time), C(W_TIME) (the time for all tools is used up),
              C(W_DISK_SPEED) (a disk that cannot be measured)."
            - "NPUs: C(W_NPU_TOOL) (no npu-smi), C(W_NPU_DRIVER) (npu-smi cannot talk to the driver),
              C(W_NPU_NOT_ROOT) (npu-smi was asked by an ordinary user, who gets no answer), C(W_NPU_LOST) (on
              the bus and not in npu-smi), C(W_NPU_COUNT) (npu-smi contradicts itself or the bus), C(W_NPU_SICK),
              C(W_NPU_FIRMWARE) (does not match the driver), C(W_NPU_REBOOT) (another driver runs than is installed),
              C(W_HCCN_TOOL) (no hccn_tool)."
            - "GPUs: C(W_GPU_TOOL) (no nvidia-smi), C(W_GPU_DRIVER) (nvidia-smi cannot talk to the driver),
              C(W_GPU_LOST), C(W_GPU_SICK)."
          type: list
          elements: dict
          returned: always
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.hardware.facts import SCHEMA, gather_hardware
from ansible.module_utils.vllm_ansible.host import Host


def load_recorded(text, path):
    """Return the facts in a recorded file.

    Raises:
        ValueError: the text is no facts of this schema; the message says what to do.
    """
    try:
        facts = json.loads(text or "")
    except ValueError as error:
        raise ValueError(f"{path} is no readable JSON file ({error}). Record it again or correct the path.") from error
    schema = facts.get("schema") if isinstance(facts, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path} has hardware facts schema {schema!r}, this version reads {SCHEMA}. Record it again.")
    return facts


def main():
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": ["/opt/vllm", "/var/cache/vllm", "/var/lib/vllm"]},
            "measure_disks": {"type": "bool", "default": False},
            "recorded": {"type": "path"},
            "gather_subset": {"type": "list", "elements": "str", "default": ["all"]},
            "gather_timeout": {"type": "int", "default": 10},
            "filter": {"type": "list", "elements": "str", "default": []},
            "fact_path": {"type": "path", "default": "/etc/ansible/facts.d"},
        },
        supports_check_mode=True,
    )
    host = Host(module.run_command)
    recorded = module.params["recorded"]
    if recorded:
        try:
            facts = load_recorded(host.read(recorded), recorded)
        except ValueError as error:
            module.fail_json(msg=str(error))
    else:
        facts = gather_hardware(host, module.params["paths"], module.params["measure_disks"])
    module.exit_json(changed=False, ansible_facts={"vllm_hardware": facts})


if __name__ == "__main__":
    main()
