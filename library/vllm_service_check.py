#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
---
module: vllm_service_check
short_description: Check that an engine instance serves, by generating tokens
version_added: 0.1.0
description:
  - Asks the engine of this host through its API, and retries until it is healthy or the time is up.
  - Healthy means that C(/healthz) answers 200, the model is served under the expected name, a wrong and a missing key
    are refused with 401, and a streamed answer of at least one token comes back.
  - It also requires that systemd says the unit is active, and can require a sandbox no weaker than O(exposure_limit).
options:
  instance:
    description: Name of the instance; its unit is C(vllm-INSTANCE.service).
    type: str
    required: true
  address:
    description: Address of the API; a wildcard address means the host itself.
    type: str
    required: true
  port:
    description: TCP port of the API.
    type: int
    required: true
  model:
    description: Name under which the model must be served.
    type: str
    required: true
  api_key:
    description: The API key.
    type: str
    required: true
  exposure_limit:
    description: Highest accepted figure of C(systemd-analyze security); without it the sandbox is not looked at.
    type: float
  prompt:
    description: What the model is asked.
    type: str
    default: Name three colours.
  max_tokens:
    description: Longest answer in tokens.
    type: int
    default: 32
  timeout_seconds:
    description: Time in seconds after which an engine that is not healthy is a failure.
    type: int
    default: 60
attributes:
  check_mode:
    description:
      - Checks a running instance as always. One whose unit is not active is reported by RV(running=false) and does not
        fail, because in check mode nothing was started.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
author:
  - vllm-ansible contributors (@vllm-ansible)
"""

EXAMPLES = r"""
- name: Require that the instance generates tokens
  vllm_service_check:
    instance: smollm2
    address: 10.20.0.11
    port: 8000
    model: smollm2-135m-instruct
    api_key: "{{ vault_engine_api_key }}"
    exposure_limit: 1.5
"""

RETURN = r"""
running:
  description: Whether the instance runs; only ever V(false) in check mode.
  type: bool
  returned: success
check:
  description: What was found.
  type: dict
  returned: when RV(running=true)
  contains:
    instance:
      description: Name of the instance.
      type: str
      returned: always
    model:
      description: Name of the served model.
      type: str
      returned: always
    endpoint:
      description: Base URL of the API.
      type: str
      returned: always
      sample: http://10.20.0.11:8000/v1
    answer:
      description: What the model answered.
      type: str
      returned: always
    completion_tokens:
      description: Tokens of the answer.
      type: int
      returned: always
    first_token_seconds:
      description: Seconds from the request to the first token.
      type: float
      returned: always
    tokens_per_second:
      description: Speed after the first token; null when the answer has one token.
      type: float
      returned: always
    restarts:
      description: How often systemd started the unit again by itself (C(NRestarts)).
      type: int
      returned: always
    exposure:
      description: Figure of C(systemd-analyze security); null without O(exposure_limit).
      type: float
      returned: always
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.vllm_ansible.units import probe, state

C_LOCALE = {"LC_ALL": "C", "LANG": "C"}
SHORT_TIMEOUT_SECONDS = 10
RETRY_SECONDS = 1


def check_once(endpoint, params, remaining):
    """Return the figures of one answer; raises probe.Unhealthy or probe.Insecure."""
    endpoint.require_health(SHORT_TIMEOUT_SECONDS)
    endpoint.require_refusal(SHORT_TIMEOUT_SECONDS)
    endpoint.require_model(params["model"], SHORT_TIMEOUT_SECONDS)
    return endpoint.complete(params["model"], params["prompt"], params["max_tokens"], max(1, remaining))


def show(module, unit):
    """Return ActiveState, StatusText and NRestarts of the unit."""
    _rc, out, _err = module.run_command(
        ["systemctl", "show", "--property=ActiveState,StatusText,NRestarts", unit], environ_update=C_LOCALE
    )
    return state.parse_show(out)


def require_sandbox(module, unit, limit):
    """Return the exposure figure; fail when it is above the limit."""
    _rc, out, _err = module.run_command(["systemd-analyze", "--no-pager", "security", unit], environ_update=C_LOCALE)
    figure = probe.exposure(out)
    if figure is not None and figure > limit:
        module.fail_json(
            msg="{0}: systemd-analyze security says {1}, allowed is {2}; a drop-in weakens the sandbox, see "
            "systemctl cat {0}".format(unit, figure, limit)
        )
    return figure


def main():
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "model": {"type": "str", "required": True},
            "api_key": {"type": "str", "required": True, "no_log": True},
            "exposure_limit": {"type": "float"},
            "prompt": {"type": "str", "default": "Name three colours."},
            "max_tokens": {"type": "int", "default": 32, "no_log": False},
            "timeout_seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    params = module.params
    unit = "vllm-{}.service".format(params["instance"])
    endpoint = probe.Endpoint(params["address"], params["port"], params["api_key"])
    url = "http://{}:{}/v1".format(endpoint.address, endpoint.port)
    deadline = time.monotonic() + params["timeout_seconds"]
    while True:
        properties = show(module, unit)
        active = properties.get("ActiveState")
        if module.check_mode and active != "active":
            module.exit_json(changed=False, running=False, msg="{} is not running yet".format(unit))
        try:
            if active != "active":
                status = properties.get("StatusText") or "no status"
                raise probe.Unhealthy("{} is {}: {}".format(unit, active, status))
            figures = check_once(endpoint, params, deadline - time.monotonic())
            break
        except probe.Insecure as problem:
            module.fail_json(msg="{}: {}; stop the service and read journalctl -u {}".format(url, problem, unit))
        except probe.Unhealthy as problem:
            if time.monotonic() + RETRY_SECONDS > deadline:
                module.fail_json(
                    msg="{} is not healthy after {} s: {}; read journalctl -u {}".format(
                        url, params["timeout_seconds"], problem, unit
                    )
                )
            time.sleep(RETRY_SECONDS)
    check = {
        "instance": params["instance"],
        "model": params["model"],
        "endpoint": url,
        "restarts": int(properties.get("NRestarts") or 0),
        "exposure": None,
    }
    check.update(figures)
    if params["exposure_limit"] is not None:
        check["exposure"] = require_sandbox(module, unit, params["exposure_limit"])
    module.exit_json(changed=False, running=True, check=check)


if __name__ == "__main__":
    main()
