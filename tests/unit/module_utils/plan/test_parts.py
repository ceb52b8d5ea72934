# SPDX-License-Identifier: Apache-2.0
"""The planner's small parts, each by a table."""

import pytest
from ansible.module_utils.vllm_ansible.plan import canonical, facts, settings, topology
from ansible.module_utils.vllm_ansible.plan.findings import Findings
from ansible.module_utils.vllm_ansible.plan.fleet import plan_fleet
from ansible.module_utils.vllm_ansible.plan.models import Shape, read_shape
from ansible.module_utils.vllm_ansible.plan.reader import Reader
from ansible.module_utils.vllm_ansible.plan.requests import nearest, normalise

from tools import golden

WHERE = {"host": "cpu01", "also": 0}


def shape(name: str) -> Shape:
    def complain(field: str, seen: object, wanted: str) -> None:
        raise AssertionError(f"{field}: {seen} is not {wanted}")

    return read_shape(Reader(golden.catalogue()["models"][name]["config"], name, complain))


@pytest.mark.parametrize(
    ("model", "parameters", "kv_bytes_per_token"),
    [
        # counted in the converted and the generated safetensors file; the router's 2 x 8 bias values are not modelled
        ("smollm2-135m-instruct", 134515008, 30 * 2 * 3 * 64 * 2),
        ("deepseek-v3-tiny-random", 5398064, 3 * (512 + 64) * 2),
    ],
)
def test_model_arithmetic(model, parameters, kv_bytes_per_token):
    assert shape(model).parameters() == pytest.approx(parameters, rel=0.0005)
    assert shape(model).kv_bytes_per_token(2) == kv_bytes_per_token


def test_deepseek_v3_has_671_billion_parameters():
    full = Shape(
        hidden=7168, layers=61, heads=128, kv_heads=128, head_dim=56, intermediate=18432, vocabulary=129280, tied=False,
        positions=163840, kv_lora_rank=512, q_lora_rank=1536, rope_dim=64, nope_dim=128, v_dim=128, experts=256,
        experts_per_token=8, shared_experts=1, moe_intermediate=2048, dense_layers=3,
    )  # fmt: skip
    assert full.parameters() == pytest.approx(671e9, rel=0.002)
    assert full.kv_bytes_per_token(2) == 61 * 576 * 2


def node(number: int, *cpus: int) -> facts.Node:
    return facts.Node(number, cpus, 2**34)


@pytest.mark.parametrize(
    ("nodes", "taken", "ranks", "expected"),
    [
        ([node(0, 0, 1)], set(), 1, [[0, 1]]),
        ([node(0, 0, 1)], set(), 2, [[0], [1]]),
        ([node(0, 0, 1)], set(), 3, [[], [0], [1]]),
        ([node(0, 0, 1), node(1, 2, 3)], set(), 1, [[0, 1]]),
        ([node(0, 0, 1), node(1, 2, 3)], {0}, 1, [[2, 3]]),
        ([node(0, 0, 1), node(1, 2, 3)], set(), 2, [[0, 1], [2, 3]]),
        ([node(0, 0, 1, 2, 3), node(1, 4, 5, 6, 7)], set(), 3, [[0, 1], [2, 3], [4, 5, 6, 7]]),
        ([node(0, 0, 1), node(1, 2, 3)], {0, 1}, 2, [[2], [3]]),
        ([node(0, 0)], {0}, 2, [[], []]),
        ([node(0, 0, 1, 2, 3), node(1, 4, 5, 6, 7)], {1, 2, 3}, 3, [[4], [5], [6, 7]]),
    ],
)
def test_cpus_are_divided_by_node(nodes, taken, ranks, expected):
    assert topology.divide(nodes, taken, ranks) == expected


def test_only_large_nodes_give_a_cpu_to_the_system():
    assert topology.reserved_cpus([node(0, *range(8)), node(1, 8, 9)]) == (0,)
    assert topology.nodes_of([node(0, 0, 1), node(1, 2, 3)], [3, 1]) == [0, 1]


@pytest.mark.parametrize(
    ("value", "flag", "wanted"),
    [
        (1, {"type": "int"}, ""),
        ("12", {"type": "int"}, ""),
        ("1.5", {"type": "int"}, "a whole number"),
        (True, {"type": "int"}, "a number"),
        (0.9, {"type": "float"}, ""),
        ("4k", {"type": "human-int"}, ""),
        ("4x", {"type": "human-int"}, "a whole number, also as 4k or 1M"),
        (False, {"type": "bool", "negatable": True}, ""),
        (False, {"type": "bool", "negatable": False}, "true, or left out: it cannot be negated"),
        ("yes", {"type": "bool"}, "true or false"),
        ("b", {"type": "str", "choices": ["a", "b"]}, ""),
        ("c", {"type": "str", "choices": ["a", "b"]}, "one of a, b"),
        ({"a": 1}, {"type": "json"}, ""),
        ('{"a": 1}', {"type": "json"}, ""),
        ("{a: 1}", {"type": "json"}, "a mapping, a list or JSON text"),
        (["a"], {"type": "str"}, "a text"),
        (["a", 1], {"type": "list"}, ""),
        ("a", {"type": "list"}, "a list"),
        ({"x": "anything"}, {"type": "any"}, ""),
    ],
)
def test_flag_values(value, flag, wanted):
    assert settings._wrong_value(value, flag) == wanted


@pytest.mark.parametrize(
    "key",
    [
        "HF_TOKEN",
        "engine_request.api_key",
        "engine_request.extra_args.api-key",
        "AWS_SECRET_ACCESS_KEY",
        "PASSWORD",
        "my_api_key",
        "X_CREDENTIALS",
    ],
)
def test_secret_names_are_recognised(key):
    assert canonical.SECRET_NAME.search(key)


@pytest.mark.parametrize(
    "key",
    ["VLLM_LOGGING_LEVEL", "engine_request.max_num_batched_tokens", "TOKENIZERS_PARALLELISM", "MONKEY", "KEYBOARD"],
)
def test_ordinary_names_are_not_secrets(key):
    assert not canonical.SECRET_NAME.search(key)


@pytest.mark.parametrize(
    ("names", "ordered"),
    [(["npu10", "npu2", "npu1"], ["npu1", "npu2", "npu10"]), (["b", "a10c", "a9c", "7"], ["7", "a9c", "a10c", "b"])],
)
def test_hosts_sort_as_people_count(names, ordered):
    assert sorted(names, key=canonical.natural_key) == ordered


def test_units_and_names():
    assert canonical.gib(3 * 2**30) == "3.0 GiB"
    assert canonical.gib(5 * 2**20) == "5 MiB"
    assert canonical.slug("pool_SmolLM2 135M") == "pool-smollm2-135m"
    assert canonical.slug("模型") == "engine"
    assert canonical.show({"a": "x" * 300}, 20) == '{"a": "xxxxxxxxxxxx…'
    assert canonical.version_key("2.36") > canonical.version_key("2.9")
    assert canonical.digest({"b": 1, "a": "ü"}) == canonical.digest({"a": "ü", "b": 1})


def test_nearest_names_one_word_or_all():
    assert nearest("modle", ["model", "port"]) == "model"
    assert nearest("zzz", ["b", "a"]) == "one of a, b"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"model": "m", "version": "=0.32.0"}, {"version": "0.32.0"}),
        ({"model": "m", "max_model_len": "1024"}, {"max_model_len": 1024}),
        ({"model": "m", "cpus": 3}, {"cpus": "3"}),
        ({"model": "m", "device": "npu"}, {"backend": "ascend"}),
        ({"model": "m", "device": "auto", "quantization": "none"}, {"backend": None, "dtype": None}),
        ({"model": "m", "quantization": "FP16"}, {"dtype": "float16"}),
        ({"model": "m", "max_num_batches": 8, "max_num_seqs": 8}, {"max_num_seqs": 8}),
        ({"model": "m", "port": None}, {"port": None, "nodes": None}),
    ],
)
def test_requests_are_normalised(request_, expected):
    findings = Findings()
    request = normalise(request_, findings, WHERE)
    assert findings.problems == []
    assert {key: getattr(request, key) for key in expected} == expected


def test_the_same_mistake_on_many_hosts_is_one_problem():
    findings = Findings()
    findings.problem("E_DISK", "Full", "free some", host="cpu01", also=98)
    findings.problem("E_DISK", "Full", "free some", host="cpu01", also=98)
    assert [p["message"] for p in findings.problems] == ["Full (the same on 98 more hosts)"]


@pytest.mark.parametrize(
    ("path", "mount"), [("/opt/vllm/releases", "/opt"), ("/var/lib/vllm", "/data"), ("/srv", "/"), ("/optional", "/")]
)
def test_a_path_is_found_on_its_mount(path, mount):
    machine = golden.inputs({"hosts": {"a": {"machine": "epyc-virtual"}}}).hosts["a"]["hardware"]
    machine.update(disks=[{"mount": m, "available_bytes": 1} for m in ("/", "/opt", "/data")], paths={})
    machine["paths"] = {"/var/lib/vllm": {"mount": "/data", "available_bytes": 1}}
    findings = Findings()
    hardware = facts.read_hardware(machine, "a", findings)
    assert findings.problems == []
    assert facts.mount_of(hardware, path) == mount


@pytest.mark.parametrize(
    ("isa", "asked", "dtype", "rule", "kv_bytes"),
    [
        (["avx2"], None, "float32", "R_DTYPE_FLOAT32", 46080),
        (["avx2", "avx512f"], "auto", "float32", "R_DTYPE_FLOAT32", 46080),
        (["avx2"], "bfloat16", "bfloat16", "R_DTYPE_PINNED", 23040),
        (["avx2", "avx512_bf16"], None, "bfloat16", "R_DTYPE_NATIVE", 23040),
        (["avx2", "amx_bf16"], "float32", "float32", "R_DTYPE_PINNED", 46080),
    ],
)
def test_bfloat16_weights_are_computed_in_float32_where_the_cpu_lacks_bfloat16(isa, asked, dtype, rule, kv_bytes):
    request = {"model": "smollm2-135m-instruct", **({"dtype": asked} if asked else {})}
    machine = {"machine": "epyc-virtual", "facts": {"cpu": {"isa": isa}}}
    hosts = {"a": {**machine, "groups": ["engines", "pool_a"], "request": request}}
    planned = plan_fleet(golden.inputs({"hosts": {**hosts, "b": {"machine": "epyc-virtual", "groups": ["build"]}}}))
    decided = {d["key"]: d for d in planned["decisions"] if d["group"]}
    assert (planned["groups"][0]["dtype"], decided["engine.dtype"]["rule"]) == (dtype, rule)
    assert f" at {kv_bytes} bytes each" in decided["engine.kv_cache_gib"]["because"]
    assert planned["models"][0]["size_bytes"] == 269060552
