# SPDX-License-Identifier: Apache-2.0
"""The words of the two source articles: every one of their claims about this system has an answer.

CLAIMS goes through both articles, row by row, in our own words: what is claimed, how it is written in a request, and
what becomes of it. S1 is the article about Ascend, S2 the one about NVIDIA.
"""

import json
import re

import pytest
from ansible.module_utils.vllm_ansible.plan import word_table, words
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.fleet import plan_fleet
from ansible.module_utils.vllm_ansible.plan.requests import CHECKS, normalise
from hypothesis import given
from hypothesis import strategies as st

from tools import docs, golden

WHERE = {"host": "cpu01", "also": 0}
OUT, KEPT = "left out", "kept"


def taken(key: str, value: object) -> tuple[str, str, object]:
    return ("taken", key, value)


def refused(instead: str) -> tuple[str, str]:
    return ("refused", instead)


CLAIMS = [
    # S1, hardware
    ("S1", "a 300I Pro carries 910B chips", {"accelerator": "Atlas 300I Pro (910B)"}, refused("Atlas 800T/800I A2")),
    ("S1", "a TaiShan 2280 V2 holds 910B", {"server": "TaiShan 2280 V2 + 910B"}, refused("atlas-800t-a2")),
    ("S1", "a 910B computes 256 TFLOPS", {"tflops": 256}, OUT),
    ("S1", "DeepSeek-R1 has 67B parameters", {"model": "DeepSeek-R1-67B"}, refused("deepseek-r1-w8a8")),
    ("S1", "70B on two cards of 24 GB, four ranks", {"tensor_parallel": 4}, taken("tensor_parallel_size", 4)),
    ("S1", "NPUs need 32 GB/s between them", {"npu_bandwidth": "32GB/s"}, OUT),
    ("S1", "RoCE on a 300I Pro", {"roce": True}, OUT),
    # S1, software
    ("S1", "a Kylin kernel package with an Ubuntu name", {"kernel": "linux-image-5.10-hwe-kylin"}, refused("keep")),
    ("S1", "a driver archive with an installer", {"driver": "Ascend-driver-23.tar.gz"}, refused("the row names")),
    ("S1", "no word about firmware", {"firmware": "7.1"}, OUT),
    ("S1", "conda with Python 3.9", {"conda_env": "python=3.9"}, OUT),
    ("S1", "torch-npu 1.15 as CANN", {"torch_npu": "1.15.0.post1"}, refused("row of the catalogue")),
    ("S1", "a switch for Ascend", {"extra_env": {"USE_ASCEND": "1"}}, OUT),
    ("S1", "a converter class", {"converter": "AscendConverter"}, OUT),
    ("S1", "a language model as OM file", {"model": "deepseek.om"}, refused("the file was made from")),
    ("S1", "a fixed input shape", {"input_shape": [1, 32, 2048]}, OUT),
    ("S1", "fp16 as a quantisation", {"quantization": "fp16"}, taken("dtype", "float16")),
    ("S1", "fused convolutions", {"op_fusion": "conv+bn+relu"}, OUT),
    ("S1", "ATC after the conversion", {"atc": "--framework=5"}, OUT),
    ("S1", "max_num_batches", {"max_num_batches": 32}, taken("max_num_seqs", 32)),
    ("S1", "blocks of 4096 tokens", {"block_size": 4096}, OUT),
    ("S1", "swap space", {"swap_space": 16}, OUT),
    ("S1", "a nested configuration file", {"engine": {"max_num_batches": 4}}, taken("max_num_seqs", 4)),
    ("S1", "SM utilisation of an NPU", {"metrics": "npu_sm_utilization"}, OUT),
    ("S1", "fp16 and bf16 mixed", {"precision": "mixed fp16/bf16"}, refused("dtype: bfloat16")),
    ("S1", "one numactl for all ranks", {"numactl": "--cpunodebind=0 --membind=0"}, OUT),
    ("S1", "launch.py", {"command": "python launch.py --model x.om"}, refused("extra_args")),
    ("S1", "--device ascend", {"extra_args": {"device": "ascend"}}, taken("backend", "ascend")),
    ("S1", "remote memory in 35 ns", {"memory_latency_ns": 35}, OUT),
    ("S1", "paged attention by token", {"paged_attention": "token"}, OUT),
    ("S1", "metric names", {"metrics": ["ascend_npu_utilization", "ascend_npu_wait_time"]}, OUT),
    ("S1", "a VLLMCluster resource", {"apiVersion": "vllm.deepseek.io/v1"}, refused("pool_ group")),
    ("S1", "/healthz", {"health_path": "/healthz"}, OUT),
    ("S1", "a checkpoint every 15 minutes", {"checkpoint_interval": "15m"}, OUT),
    ("S1", "a failure found within 5 s", {"failure_detection": 5}, OUT),
    ("S1", "recovered within 45 s", {"recovery_time": 45}, OUT),
    ("S1", "first token of 70B after 40 ms", {"first_token_ms": 40}, OUT),
    ("S1", "P99 of 89 ms", {"p99_ms": 89}, OUT),
    ("S1", "800 requests a second", {"qps": 800}, OUT),
    # S2
    ("S2", "apt on a Kylin server", {"packages": "apt install kunpeng-scanner"}, OUT),
    ("S2", "kunpeng-scanner", {"kunpeng_scanner": "check --path /opt/vllm"}, OUT),
    ("S2", "a 32-bit cross compiler", {"compiler": "gcc-arm-linux-gnueabihf"}, refused("in the group build")),
    ("S2", "CC for a wheel", {"extra_env": {"CC": "aarch64-linux-gnu-gcc"}}, refused("in the group build")),
    ("S2", "the HPC Toolkit", {"hpc_toolkit": True}, OUT),
    ("S2", "CentOS 7.9", {"os": "CentOS 7.9"}, refused("Rocky")),
    ("S2", "CUDA 11.8", {"cuda": 11.8}, refused("row of the catalogue")),
    ("S2", "cuDNN 8.6", {"cudnn": "8.6"}, refused("row of the catalogue")),
    ("S2", "NCCL 2.14", {"nccl": "2.14"}, refused("row of the catalogue")),
    ("S2", "Kubernetes 1.23", {"kubernetes": "1.23"}, refused("pool_ group")),
    ("S2", "nvidia-docker", {"container_runtime": "nvidia-docker"}, refused("pool_ group")),
    ("S2", "an image with a tag", {"image": "vllm/vllm-openai:v0.2.0"}, refused("row of the catalogue")),
    ("S2", "CUDA's version from nvidia-smi", {"cuda_check": "nvidia-smi -q"}, OUT),
    ("S2", "OpenMPI for engines", {"mpi": "4.1.2"}, OUT),
    ("S2", "GPUDirect storage", {"gds": True}, OUT),
    ("S2", "RoCE within 5 us", {"roce_latency_us": 5}, OUT),
    ("S2", "25 Gb/s ports and 100 Gb/s", {"network_bandwidth": "25Gbps"}, OUT),
    ("S2", "preprocessing on Kunpeng", {"preprocessing": "kunpeng"}, OUT),
    ("S2", "torch 1.13.1 for CUDA 11.7", {"torch": "1.13.1+cu117"}, refused("row of the catalogue")),
    ("S2", "torch as version of the engine", {"version": "1.13.1+cpu"}, refused("row of the catalogue")),
    ("S2", "setup.py build_ext", {"build_command": "python setup.py build_ext"}, refused("engine_overrides/")),
    ("S2", "USE_CUDA and make", {"extra_env": {"USE_CUDA": 1}}, OUT),
    ("S2", "four bits with bitsandbytes", {"quantization": "bitsandbytes-4bit"}, refused("AWQ, GPTQ or FP8")),
    ("S2", "load in four bits", {"load_in_4bit": True}, refused("AWQ, GPTQ or FP8")),
    ("S2", "a Perl script that evaluates", {"evaluation": "perl eval_model.pl"}, refused("vllm bench")),
    ("S2", "a static batch of 128", {"static_batch": 128}, taken("max_num_seqs", 128)),
    ("S2", "a prefetch buffer", {"prefetch_buffer": 4}, OUT),
    ("S2", "four ranks on Kunpeng", {"tensor-parallel": 4}, taken("tensor_parallel_size", 4)),
    ("S2", "limits beside a selector", {"resources": {"limits": {"nvidia.com/gpu": 4}}}, OUT),
    ("S2", "a selector", {"nodeSelector": {"accelerator": "nvidia-a100"}}, OUT),
    ("S2", "the label of an A100", {"accelerator": "nvidia-a100"}, taken("backend", "cuda")),
    ("S2", "/healthz with latencies", {"livenessProbe": "/healthz"}, OUT),
    ("S2", "the name of the latency", {"alerts": {"expr": "vllm_inference_latency_seconds > 1"}}, OUT),
    ("S2", "rate of a gauge", {"alerts": "avg(rate(nvidia_gpu_utilization_percentage[1m])) > 90"}, OUT),
    ("S2", "snapshots of the optimiser", {"optimizer_snapshot": "1h"}, OUT),
    ("S2", "save_checkpoint", {"save_checkpoint": True}, OUT),
    ("S2", "NCCL_DEBUG finds errors", {"extra_env": {"NCCL_DEBUG": "INFO"}}, KEPT),
    ("S2", "a preStop hook moves work to CPUs", {"preStop": "fallback.sh"}, OUT),
    ("S2", "a virtual address", {"vip": "10.0.0.100"}, OUT),
    ("S2", "a DeepSeek of 1B", {"model": "deepseek-r1-1B"}, refused("deepseek-r1-distill-qwen-1.5b")),
    ("S2", "speculative decoding", {"speculative_decoding": True}, refused("speculative-config")),
    ("S2", "FasterTransformer kernels", {"kernels": "FasterTransformer"}, refused("leave it out")),
    ("S2", "SYCL for both", {"backend": "sycl"}, refused("ascend, cuda or cpu")),
    ("S2", "moving to 910B", {"migrate_to": "910B"}, OUT),
    ("S2", "engines come and go with the load", {"autoscaling": {"minReplicas": 2}}, refused("replicas_per_host")),
    # said in both
    ("S1", "two cards", {"npus": 2}, refused("tensor_parallel_size")),
    ("S1", "a card by its name", {"card": "Atlas 300I Pro"}, taken("backend", "ascend")),
    ("S1", "a chip by its name", {"accelerator": "Ascend 910B"}, taken("backend", "ascend")),
    ("S2", "a driver's version", {"nvidia_driver": "520.61.05"}, OUT),
    ("S2", "other kernels by another name", {"kernel_backend": "FasterTransformer"}, refused("leave it out")),
    ("S1", "CANN as version of the engine", {"version": 8.3}, refused("row of the catalogue")),
    ("S1", "a release candidate of CANN", {"version": "8.3.RC2"}, refused("row of the catalogue")),
    ("S2", "a path as model", {"model_path": "/models/deepseek"}, refused("engine_models")),
    ("S2", "the short name of a device", {"backend": "gpu"}, taken("backend", "cuda")),
    ("S1", "the short name of a data type", {"dtype": "bf16"}, taken("dtype", "bfloat16")),
]


def read(**request):
    findings = Findings()
    result = normalise({"model": "smollm2-135m-instruct", **request}, findings, WHERE)
    return result, findings


@pytest.mark.parametrize(("source", "claim", "request_", "answer"), CLAIMS, ids=[claim[1] for claim in CLAIMS])
def test_every_claim_of_the_articles_has_an_answer(source, claim, request_, answer):
    before = json.dumps(request_)
    result, findings = read(**request_)
    codes = [warning["code"] for warning in findings.warnings]
    if answer == OUT:
        assert codes == ["W_WORD_LEFT_OUT"], findings.problems
        assert result == read()[0]
    elif answer == KEPT:
        assert codes == ["W_WORD_KEPT"]
        assert result == read()[0]._replace(**request_)
    elif answer[0] == "taken":
        assert set(codes) == {"W_WORD_TRANSLATED"}
        assert result == read()[0]._replace(**{answer[1]: answer[2]})
    else:
        assert [problem["code"] for problem in findings.problems] == ["E_WORD_REFUSED"]
        assert answer[1] in findings.problems[0]["set"]
        assert findings.problems[0]["field"].startswith("engine_request.")
        assert result == (None if "model" in request_ else read()[0]), "the rest of the request is read all the same"
    assert json.dumps(request_) == before, "the caller's request was changed"


def test_both_articles_are_gone_through():
    assert sum(source == "S1" for source, *_ in CLAIMS) >= 7 + 25
    assert sum(source == "S2" for source, *_ in CLAIMS) >= 37


def test_a_model_larger_than_its_cards_is_refused_by_the_plan():
    """70B in four ranks on two cards of 24 GB: there are not four devices, and it would not fit on them either."""
    llama = {
        "architecture": "LlamaForCausalLM", "weights": "real", "license": "MIT", "dtype": "bfloat16",
        "size_bytes": 141107413000, "source": {"type": "generated", "seed": 0, "sha256": "0" * 64}, "convert": None,
        "config": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
                   "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
                   "tie_word_embeddings": False},
    }  # fmt: skip
    case = {
        "hosts": {
            "npu01": {
                "machine": "atlas-300i-pro",
                "groups": ["engines", "pool_npu"],
                "request": {"model": "llama-70b", "tensor_parallel_size": 4},
            },
            "build01": {"machine": "kylin-v10-kunpeng", "groups": ["build"]},
        },
        "models": {"llama-70b": llama},
    }
    plan = plan_fleet(golden.inputs(case))
    assert plan["ok"] is False
    assert "npu01" in {problem["host"] for problem in plan["problems"]}


def test_an_unknown_key_points_to_the_engines_own_flags_unless_it_is_nearly_a_key_of_the_request():
    assert "go into extra_args" in read(gpu_memory_utilization=0.9)[1].problems[0]["set"]
    assert read(modle="x")[1].problems[0]["set"] == "model"


def test_metrics_are_told_by_their_real_names():
    _, findings = read(metrics=sorted(word_table.METRICS))
    told = findings.warnings[0]["message"]
    for name, real in word_table.METRICS.items():
        assert f"{name} is {real}" in told
    _, findings = read(alerts="up == 0")
    assert findings.warnings[0]["message"] == "alerts: the names in the articles are not those of the exporters"


@pytest.mark.parametrize("request_", [
    {"dtype": "bfloat16"}, {"backend": "cpu"}, {"version": "=0.32.0"}, {"version": "0.18.0"}, {"dtype": "auto"},
    {"model": "deepseek-r1-distill-llama-70b"}, {"model": "deepseek-v3-tiny-random"},
    {"extra_args": {"block-size": 32}}, {"extra_env": {"OMP_NUM_THREADS": "4"}},
])  # fmt: skip
def test_real_words_pass_without_a_word(request_):
    result, findings = read(**request_)
    assert (findings.warnings, findings.problems) == ([], [])
    assert result is not None


def test_the_quantisation_a_model_already_has_is_no_mistake():
    result, findings = read(model="deepseek-r1-w8a8", quantization="w8a8")
    assert [w["code"] for w in findings.warnings] == ["W_WORD_LEFT_OUT"]
    assert result.dtype is None
    _, findings = read(model="deepseek-r1", quantization="w8a8")
    assert (
        findings.problems[0]["set"] == "model: one whose weights are quantised that way, for example deepseek-r1-w8a8"
    )


@pytest.mark.parametrize(("request_", "set_to"), [
    ({"max_num_batches": 8, "max_num_seqs": 16}, "only max_num_seqs"),
    ({"device": "ascend", "backend": "cuda"}, "only backend"),
    ({"extra_args": {"device": "npu"}, "backend": "cpu"}, "only backend"),
    ({"engine": {"max_num_batches": 8}, "max_num_seqs": 16}, "only max_num_seqs"),
])  # fmt: skip
def test_a_word_that_contradicts_the_real_key_is_a_problem(request_, set_to):
    _, findings = read(**request_)
    assert [(p["code"], p["set"]) for p in findings.problems] == [("E_REQUEST_CONTRADICTION", set_to)]


def test_a_misspelt_key_gets_a_real_one_or_a_word_that_means_one():
    def proposed(key):
        return read(**{key: 1})[1].problems[0]["set"]

    assert proposed("modle") == "model"
    assert proposed("max_num_batchs") == "max_num_batches"
    assert proposed("zzz").startswith("one of backend, cpus, data_parallel_size, device_model, dtype"), "real keys only"


def test_every_word_says_what_it_means_and_where_to_go():
    for name, word in word_table.WORDS.items():
        assert words.spell(name) == name, "it would never be found"
        assert word.to is None or word.to in CHECKS, name
        assert word.note or word.refused, name
        for refusal in word.refused:
            assert refusal.note, name
            assert refusal.instead, name
            assert re.search(refusal.pattern, refusal.like.lower()), f"{name}: the documentation shows another value"
        if word.values is not None:
            assert word.instead, f"{name}: an unknown value needs a way out"
            # what a real key has no value for is said by its own check
    topics = [topic for topic, _, _ in word_table.TABLE]
    assert topics == sorted(topics, key=topics.index), "a topic stands together"
    names = [name for _, names, _ in word_table.TABLE for name in names.split()]
    assert len(names) == len(set(names))


def test_a_key_of_the_request_is_no_article_word():
    """It would silently stop to work."""
    for name in set(CHECKS) & set(word_table.WORDS):
        word = word_table.WORDS[name]
        assert word.to == name or (word.to is None and not word.note), name


@given(
    st.dictionaries(
        st.sampled_from([*word_table.WORDS, *word_table.LIFTED, *CHECKS]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["fp16", "a100", "=8.3", "x.om"]),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=9), inner, max_size=2),
            max_leaves=4,
        ),
        max_size=6,
    )
)
def test_any_value_of_any_word_is_answered(request_):
    result, findings = read(**request_)
    assert result is not None or findings.problems
    for problem in findings.problems:
        assert problem["set"], problem


def test_the_documentation_has_every_word(project_root):
    text = (project_root / "docs" / "planning.md").read_text()
    assert docs.words_block(project_root) in text
    for name in [*word_table.WORDS, *word_table.ENVIRONMENT, *word_table.KEPT, *word_table.METRICS]:
        assert re.search(rf"`{re.escape(name)}`", text), name
