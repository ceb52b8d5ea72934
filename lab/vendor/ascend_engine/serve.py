# SPDX-License-Identifier: Apache-2.0
"""STAND-IN of `vllm serve` on Ascend: checks the host and every flag as the real one would, then serves with CPUs.

The argument parser is the real one of the vLLM version that is pretended; the engine behind it is the CPU release
that this stand-in is laid over.
"""

import importlib.metadata
import json
import os
import sys

from . import host

HERE = os.path.dirname(os.path.abspath(__file__))
# Set for the CPU engine and its processes: the .pth file then leaves the module path alone.
MARK = "STAND_IN_ASCEND_SERVES"
# Handed on as they are; a device has no part in them.
KEPT = (
    "api_key_file", "chat_template", "disable_access_log_for_endpoints", "generation_config", "host",
    "max_model_len", "max_num_batched_tokens", "max_num_seqs", "port", "seed", "served_model_name",
    "trust_remote_code",
)  # fmt: skip
CPU_FLAGS = ["--dtype=float32", "--enforce-eager"]
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def make_parser():
    """The parser of the pretended version's `vllm`, with its command serve, as vllm/entrypoints/cli builds it."""
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(description="vLLM CLI")
    parser.add_argument("-v", "--version", action="version", version=importlib.metadata.version("vllm"))
    commands = parser.add_subparsers(required=True, dest="subparser")
    make_arg_parser(commands.add_parser("serve", usage="vllm serve [model_tag] [options]"))
    return parser


def parse(words):
    """The parsed arguments; ends with status 2 and the parser's own words when it refuses them."""
    from vllm.entrypoints.openai.cli_args import validate_parsed_serve_args

    parser = make_parser()
    arguments = parser.parse_args(words)
    try:
        validate_parsed_serve_args(arguments)
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    return arguments


def cpu_arguments(arguments):
    """The CPU engine's command line: what does not depend on the device, and what CPUs need instead of the rest."""
    words = [arguments.model_tag or arguments.model]
    for name in KEPT:
        value = getattr(arguments, name, None)
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        elif value is not None and value is not False:
            words.append(f"{flag}={value}")
    return words + CPU_FLAGS


def layout_problems(arguments, visible):
    """What is wrong with the parallel sizes on this host. visible: number of devices the engine is given."""
    if arguments.headless:
        return ["--headless: this stand-in serves on one host only"]
    copies = arguments.data_parallel_size_local or arguments.data_parallel_size
    ranks = arguments.tensor_parallel_size * arguments.pipeline_parallel_size * copies
    if ranks > visible:
        return [f"{ranks} ranks on this host, and ASCEND_RT_VISIBLE_DEVICES names {visible} device(s)"]
    return []


def main():
    """Entry point of `python -m vllm.entrypoints.cli.main`."""
    with open(os.path.join(HERE, "row.json"), encoding="utf-8") as file:
        wanted = json.load(file)
    print(f"STAND-IN of {wanted['row']}: no NPU is used, CPUs serve", flush=True)
    found = host.problems(wanted, os.environ)
    arguments = None
    if not found:
        arguments = parse(sys.argv[1:])
        found = layout_problems(arguments, len(host.visible_devices(os.environ["ASCEND_RT_VISIBLE_DEVICES"])))
    for problem in found:
        print(f"ERROR STAND-IN {wanted['row']}: {problem}", file=sys.stderr, flush=True)
    if found:
        sys.exit(1)
    # What CANN adds to the search paths is not for the CPU engine; all else of the unit's environment is.
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    command = [sys.executable, "-I", "-m", "vllm.entrypoints.cli.main", "serve", *cpu_arguments(arguments)]
    sys.stdout.flush()
    os.execve(sys.executable, command, {**environment, **CPU_ENVIRONMENT, MARK: "1"})
