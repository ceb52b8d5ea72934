# SPDX-License-Identifier: Apache-2.0
"""Code shared by the modules of vllm-ansible.

Imported as ``ansible.module_utils.vllm_ansible``. Everything here runs on the hosts: Python 3.6 syntax, standard
library only.
"""
