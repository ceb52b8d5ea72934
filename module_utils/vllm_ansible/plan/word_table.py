# SPDX-License-Identifier: Apache-2.0
"""The words of the source articles and what became of them. Read by plan/words.py; evidence in docs/planning.md."""

from typing import Dict, List, NamedTuple, Optional, Tuple


class Refusal(NamedTuple):
    """Values (a pattern, searched in small letters, and how they look) that cannot be had: why, and what can."""

    pattern: str
    like: str
    note: str
    instead: str


class Word(NamedTuple):
    """One article key.

    With `to`, the value moves there (through `values`, if given; None there means the plan decides anyway). With
    `instead`, what has no meaning is refused and this is what works. Otherwise it is left out.
    """

    note: str
    to: Optional[str] = None
    values: Optional[Dict[str, Optional[str]]] = None
    instead: str = ""
    refused: Tuple[Refusal, ...] = ()


# fmt: off
_DTYPES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "float": "float32"}
_DTYPES.update({name: name for name in ("float16", "bfloat16", "float32", "auto")})
_BACKENDS = {"npu": "ascend", "gpu": "cuda", "nvidia": "cuda", "huawei": "ascend"}
_BACKENDS.update({name: name for name in ("ascend", "cuda", "cpu")})
_CARDS = {
    "nvidia-a100": "cuda", "nvidia-a100-sxm4-80gb": "cuda", "a100": "cuda", "h100": "cuda", "h200": "cuda",
    "910b": "ascend", "ascend-910b": "ascend", "ascend910b": "ascend", "310p": "ascend", "310p3": "ascend",
    "kunpeng": "cpu", "kunpeng-920": "cpu",
}
_CARDS.update(("ascend-910b" + str(n), "ascend") for n in range(1, 5))
_CARDS.update(("atlas-" + name, "ascend") for name in ("300i-pro", "300i-duo", "800i-a2", "800t-a2", "800i-a3"))
_MIXED = Refusal("mix|fp16.*bf16|bf16.*fp16", "mixed fp16 and bf16",
                 "float16 and bfloat16 take two bytes each: mixing them saves nothing, and a model has one dtype",
                 "dtype: bfloat16; memory is saved by quantised weights, for example model: deepseek-r1-w8a8")
_OTHER_KERNELS = Refusal("sycl|oneapi|fastertransformer|tensorrt|trt", "fastertransformer, sycl",
                         "the engine has no such backend (FasterTransformer is archived; its successors,"
                         " FlashAttention,"
                         " FlashInfer and Triton kernels, are the engine's own choice; SYCL has none for these"
                         " machines)",
                         "backend: ascend, cuda or cpu, or leave it out")
_ROW = "version: the engine's, that of a row of the catalogue, which brings its own set; or leave it to the plan"

TABLE: List[Tuple[str, str, Word]] = [
    # topic, names, meaning
    ("batching", "max_num_batches",
     Word("the engine has no such option; the number of requests it runs at once is meant", to="max_num_seqs")),
    ("batching", "max_batch_size batch_size static_batch static_batch_size",
     Word("the engine batches continuously; the number of requests it runs at once is meant", to="max_num_seqs")),
    ("batching", "dynamic_batching batching continuous_batching",
     Word("always on: the engine batches continuously")),
    ("batching", "prefetch_buffer", Word("the engine has no such option")),
    ("batching", "max_seq_len max_sequence_length max_seq_length context_length",
     Word("the context length is meant", to="max_model_len")),
    ("batching", "input_shape", Word("a language model takes token ids of any length; max_model_len bounds them")),
    ("memory", "block_size",
     Word("tokens per KV block: the engine chooses (16 or 128); thousands would waste nearly all of the"
          " cache. To force one: extra_args: {block-size: 32}")),
    ("memory", "swap_space", Word("removed from the engine: a preempted request is computed again")),
    ("memory", "paged_attention page_attention",
     Word("always on, by blocks of 16 or 128 tokens, not by token")),
    ("layout", "tensor_parallel tp tp_size", Word("the engine's name for it is longer", to="tensor_parallel_size")),
    ("layout", "pipeline_parallel pp pp_size", Word("the engine's name for it is longer", to="pipeline_parallel_size")),
    ("layout", "data_parallel dp dp_size", Word("the engine's name for it is longer", to="data_parallel_size")),
    ("layout", "numactl numa numa_binding cpunodebind membind",
     Word("every worker is bound to the CPUs and the memory near its device, from the host's own topology; one node for"
          " all of them would be slower. To force it: cpus")),
    ("layout", "gpus npus cards num_gpus num_npus gpu_count npu_count card_count num_devices",
     Word("how many devices an engine gets follows from its model and its host",
          instead="leave it out, or tensor_parallel_size for the devices one copy of the weights is divided among")),
    ("layout", "replicas replica_count min_replicas max_replicas autoscaling hpa vpa",
     Word("how many engines a pool has follows from its hosts", instead="more hosts in the pool, or"
                                                                        " replicas_per_host")),
    ("device", "device",
     Word("there is no --device for a plugin platform; the backend decides the build",
          to="backend", values=dict(_BACKENDS, auto=None), instead="backend: ascend, cuda or cpu")),
    ("device", "backend",
     Word("the backend has this name", to="backend", values=dict(_BACKENDS), refused=(_OTHER_KERNELS,),
          instead="backend: ascend, cuda or cpu")),
    ("device", "accelerator card chip gpu npu npu_type gpu_type",
     Word("what a card is, is read from its host; the backend is what a request can ask for", to="backend",
          values=dict(_CARDS, **_BACKENDS), instead="backend: ascend, cuda or cpu, and hosts with that card in"
                                                    " the pool",
          refused=(Refusal("(300i|2280).*910|910.*(300i|2280)", "Atlas 300I Pro (910B)",
                           "an Atlas 300I Pro carries a 310P3 with 24 GB and a TaiShan 2280 takes PCIe cards: the 910B"
                           " comes in Atlas 800T/800I A2 and 900 A2 only",
                           "no card: the plan takes what it finds; for 910B, hosts of type Atlas 800T/800I A2"),))),
    ("device", "server chassis machine hardware",
     Word("what a host is, is read from the host. To plan one that is not there yet: engine_machine, a host variable",
          refused=(Refusal("(300i|2280).*910|910.*(300i|2280)", "Atlas 300I Pro (910B)", "no such machine: the"
                                                                                         " 910B comes in Atlas"
                                                                                         " 800T/800I A2"
                           " and 900 A2 only", "engine_machine: atlas-800t-a2"),))),
    ("device", "tflops compute_tflops", Word("nothing is planned from it; a measured rate is in the benchmark")),
    ("device", "npu_bandwidth npu_link_bandwidth link_bandwidth network_bandwidth nic_speed roce rdma",
     Word("links are read from the hosts: HCCS or NVLink between devices, PCIe width and speed, ports and their rate. A"
          " 310P card has no RDMA port of its own; a 25G port carries 25 Gb/s each way")),
    ("device", "roce_latency roce_latency_us network_latency_us",
     Word("a bound for small messages on RDMA hardware, for the acceptance run of the fabric; a plan measures"
          " nothing")),
    ("device", "memory_latency memory_latency_ns numa_latency_ns",
     Word("measured on a host, not set: local memory of a Kunpeng answers in about 100 ns, 35 ns is a cache")),
    ("precision", "precision mixed_precision",
     Word("a precision is a dtype", to="dtype", values=dict(_DTYPES, false=None),
          instead="dtype: bfloat16, float16 or float32", refused=(_MIXED._replace(pattern=_MIXED.pattern + "|true"),))),
    ("precision", "dtype",
     Word("the data type has a longer name", to="dtype", values=dict(_DTYPES), refused=(_MIXED,),
          instead="dtype: bfloat16, float16 or float32")),
    ("precision", "quantization quantisation",
     Word("fp16 and bf16 are data types, not quantisations", to="dtype", values=dict(_DTYPES, none=None),
          instead="a model whose weights are already quantised that way; this request key only ever meant a dtype",
          refused=(
              Refusal("bitsandbytes|bnb|nf4", "bitsandbytes",
                      "the engine loads no bitsandbytes weights (it loads awq, gptq, fp8, compressed-tensors);"
                      " 75 % less"
                      " is true of the weights alone, counted from 16 bit",
                      "model: one whose weights are AWQ, GPTQ or FP8, described in engine_models"),
              Refusal("w8a8|w4a8|w4a16|awq|gptq|fp8|ascend", "w8a8, fp8, awq",
                      "weights are quantised before they are served, and the plan sets the engine's flag from"
                      " the model",
                      "model: one whose weights are quantised that way, for example deepseek-r1-w8a8"),))),
    ("precision", "load_in_4bit load_in_8bit bitsandbytes",
     Word("the engine loads no bitsandbytes weights; 75 % less is true of the weights alone, counted from 16 bit",
          instead="model: one whose weights are AWQ, GPTQ or FP8, described in engine_models")),
    ("model", "model",
     Word("", refused=(
         Refusal(r"\.om\Z", "model.om", "an OM file holds a fixed graph; the engine loads Hugging Face weights"
                                        " and compiles itself",
                 "model: the name of the model the file was made from"),
         Refusal(r"deepseek.*(?<![0-9])67b", "deepseek-r1-67b", "DeepSeek-R1 has 671 billion parameters, 37"
                                                                " billion of them active; 67B is"
                 " the older DeepSeek-LLM", "model: deepseek-r1-w8a8, or a distilled deepseek-r1-distill-llama-70b"),
         Refusal(r"deepseek.*(?<![0-9.])1b", "deepseek-1b", "there is no DeepSeek of one billion parameters",
                 "model: deepseek-r1-distill-qwen-1.5b, the smallest"),
     ))),
    ("model", "model_path output_path checkpoint_path weights_path",
     Word("a model has a name; where its files lie is the business of role model_store",
          instead="model: <name>, and for a model of your own an entry in engine_models with its source")),
    ("model", "model_format om_model atc atc_options framework converter",
     Word("nothing is converted to OM: a language model has no fixed shape, and the engine loads its weights as"
          " they are."
          " ATC is itself that converter, for fixed graphs such as embedding models")),
    ("model", "op_fusion operator_fusion fusion graph_fusion",
     Word("the engine fuses what a transformer has (attention, normalisation with quantisation, expert dispatch); there"
          " is no convolution in it")),
    ("model", "parameters model_size",
     Word("counted from the model's configuration",
          refused=(Refusal("(?<![0-9])67b", "67B", "DeepSeek-R1 has 671 billion parameters; 67B is the older"
                                                   " DeepSeek-LLM",
                           "model: deepseek-r1-w8a8, or deepseek-r1-distill-llama-70b"),))),
    ("model", "speculative_model speculative_decoding draft_model",
     Word("the engine takes a draft method, and the gain depends on the text: measure it",
          instead="extra_args: {speculative-config: {method: ngram, num_speculative_tokens: 3}}")),
    ("model", "evaluation eval eval_script perplexity",
     Word("no script of the engine evaluates a model", instead="lm-evaluation-harness or vllm bench against the"
                                                               " endpoint")),
    ("versions", ("torch torch_version torch_npu pytorch cann cann_version cuda cuda_version cudnn nccl nnal"
                  " vllm_ascend triton_ascend transformers"),
     Word("versions go together as a row, which is installed whole; one of them alone cannot be pinned", instead=_ROW)),
    ("versions", "version",
     Word("", refused=(Refusal(r"\A[=v]*([78]|9[.][01]|[0-9]{2,})([.]|\Z)", "8.3.RC2",
                               "this is a version of CANN, CUDA or a driver; `version` is the engine's", _ROW),
                       Refusal(r"\+(cu|cpu)", "1.13.1+cu117", "this is a version of torch; `version` is the"
                                                              " engine's", _ROW)))),
    ("versions", "python python_version conda conda_env virtualenv",
     Word("the release brings its own Python, that of its row; the system's is never touched")),
    ("versions", "image container_image image_tag tag",
     Word("engines are releases that are built once and installed by digest, not container images", instead=_ROW)),
    ("versions", "driver npu_driver gpu_driver nvidia_driver driver_version firmware firmware_version",
     Word("the row says which drivers it takes, and one of those is kept or installed; firmware belongs to it. First"
          " the driver, then the firmware; the other way round in an upgrade. To name one: engine_driver, a host"
          " variable",
          refused=(Refusal(r"tar\.gz|driver_install", "Ascend-driver.tar.gz", "there is no such archive and no"
                                                                              " such script: the packages are"
                           " Ascend-hdk-<chip>-npu-driver_<version>_linux-<arch>.run",
                           "nothing here: the row names the driver"),))),
    ("versions", "kernel kernel_version kernel_package",
     Word("a driver supports named kernels only: the one a host runs is kept, or changed to the newest of them. To"
          " name one: engine_kernel, a host variable",
          refused=(Refusal("hwe|linux-image.*kylin|apt", "linux-image-5.10.0-60-generic-hwe-kylin", "there is"
                                                                                                    " no such"
                                                                                                    " package:"
                                                                                                    " the Kylin"
                                                                                                    " server takes rpm"
                                                         " packages,"
                           " and 5.10.0-60 is openEuler's kernel", "nothing here: keep the kernel the system"
                                                                   " came with"),))),
    ("versions", "os operating_system distribution",
     Word("the operating system is read from the host",
          refused=(Refusal(r"centos.*7|el7|rhel.*7", "CentOS 7.9", "its C library (2.17) is too old for every"
                                                                   " engine of the"
                                                     " catalogue,"
                           " and it is out of support since June 2024", "hosts with Rocky, Alma or RHEL 8-9, Ubuntu"
                           " 22.04/24.04, Debian 12 or Kylin V10"),))),
    ("versions", "cuda_check validate nvidia_smi nvcc",
     Word("driver and toolkits are read from the vendor's files; the CUDA version nvidia-smi prints is the highest one"
          " the driver can run")),
    ("building", "build_command setup_py make build compiler cc cross_compile cross_compiler target_arch",
     Word("the engine is built by the project, on a build host of the architecture it is for: neither setup.py"
          " build_ext"
          " nor a Makefile exists, and a wheel is no cross compilation (gcc-arm-linux-gnueabihf would make"
          " 32-bit code)",
          instead="a host of that architecture in the group build; patches in engine_overrides/")),
    ("building", "kunpeng_scanner scanner porting_check",
     Word("there is no kunpeng-scanner: the tool is DevKit (devkit porting src-mig), and only compiled code needs it")),
    ("building", "hpc_toolkit hpckit", Word("the engine needs nothing of it; Huawei's is called Kunpeng HPCKit")),
    ("building", "packages apt apt_packages",
     Word("what a host needs is installed by its role; a Kylin server takes rpm packages, apt is for its desktop")),
    ("building", "mpi openmpi mpirun",
     Word("the engine starts its own workers; MPI only runs the acceptance tests of a fabric")),
    ("serving", "command launch launch_command start_command entrypoint",
     Word("the plan writes the command, and there is no launch.py: the engine is `vllm serve` under systemd",
          instead="the keys of engine_request, and extra_args for further flags")),
    ("serving", "health_path health_check healthz readiness_probe liveness_probe",
     Word("/healthz is answered by our patch, with progress and latencies, /health by the engine, empty")),
    ("serving", ("api_version kind crd kubernetes kubernetes_version k8s k8s_version docker docker_version"
                 " container_runtime runtime nvidia_docker"),
     Word("engines run under systemd, without containers; there is no VLLMCluster in any registry (LeaderWorkerSet,"
          " KubeRay and the production stack exist), Kubernetes 1.23 is out of support, and nvidia-docker is now"
          " nvidia-container-toolkit", instead="hosts in a pool_ group")),
    ("serving", "node_selector resources tolerations",
     Word("the hosts of a pool are what a selector would find; in Kubernetes, resources belong to a container and the"
          " label is nvidia.com/gpu.product")),
    ("serving", "vip virtual_ip keepalived load_balancer", Word("belongs to the gateway, not to an engine")),
    ("serving", "preprocessing api_servers", Word("a pool of its own: its hosts may be of another architecture")),
    ("serving", "gds gpudirect_storage",
     Word("the engine's loader does not use it; the fast ones are extra_args: {load-format: fastsafetensors} or"
          " sharded_state")),
    ("serving", "kernels attention_kernels kernel_backend",
     Word("the engine picks its kernels", refused=(_OTHER_KERNELS,))),
    ("serving", "programming_model", Word("decided by the backend", refused=(_OTHER_KERNELS,))),
    ("serving", "pre_stop lifecycle fallback cpu_fallback",
     Word("a stopping engine cannot move its work. A pool of CPU hosts serves a model that fits them, beside this one;"
          " no CPU host serves 671 billion parameters")),
    ("serving", "migrate_to migration", Word("the same model in a pool of those hosts; weights quantised for the other"
                                             " device are made anew")),
    ("keeping", ("checkpoint_interval checkpoint snapshot snapshot_interval optimizer_snapshot optimizer_state"
                 " save_checkpoint load_checkpoint"),
     Word("an engine that only answers changes no weights and has no optimiser: it comes back from the release and the"
          " model on its own disk. Weights already split: extra_args: {load-format: sharded_state}")),
    ("keeping", "failure_detection failure_detection_seconds",
     Word("an engine that makes no progress for stall_after_seconds of its row (5) is started again")),
    ("keeping", ("recovery_time recovery_seconds first_token_ms ttft_ms first_token_latency latency_ms p99_ms p99 qps"
                 " target_qps throughput"),
     Word("a figure to measure, not to order: loading takes as long as the weights are large, and what these devices"
          " reach is in the benchmark")),
    ("watching", "metrics alerts metric alert", Word("the names in the articles are not those of the exporters")),
]
WORDS = {name: word for _topic, names, word in TABLE for name in names.split()}
# Words that are also written as flags and as environment variables.
FLAGS = ("device", "swap_space", "max_num_batches", "prefetch_buffer", "input_shape", "model_format")
_BUILD = WORDS["build_command"]
ENVIRONMENT = {
    "USE_ASCEND": Word("no engine reads it; the backend decides", refused=()),
    "USE_CUDA": Word("a switch of torch's own build, which no engine reads; the backend decides"),
    "VLLM_TARGET_DEVICE": Word("read when the engine is built, and set there from the backend"),
    "CC": _BUILD, "CXX": _BUILD, "CROSS_COMPILE": _BUILD,
}
# Passed on, because they exist, with what they do not do.
KEPT = {"NCCL_DEBUG": "a log level: it shows errors and detects none (Xid events and the watchdog do)"}
METRICS = {
    "ascend_npu_utilization": "npu_chip_info_utilization",
    "ascend_npu_wait_time": "nothing an exporter has; vllm:request_queue_time_seconds is the nearest",
    "vllm_kv_cache_hit_ratio": "vllm:prefix_cache_hits_total / vllm:prefix_cache_queries_total, as rates",
    "tensor_parallel_efficiency": "nothing live; the benchmark compares layouts",
    "vllm_inference_latency_seconds": "vllm:e2e_request_latency_seconds",
    "nvidia_gpu_utilization_percentage": "DCGM_FI_DEV_GPU_UTIL, a gauge: avg_over_time, never rate; in a rule file of"
    " Prometheus, not in Alertmanager",
    "npu_sm_utilization": "npu_chip_info_cube_utilization and _vector_utilization: these chips have AI cores",
}
# Mappings whose keys are read as if they stood in the request.
LIFTED = ("engine", "vllm", "engine_config", "config")
# fmt: on
