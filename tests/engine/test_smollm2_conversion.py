# SPDX-License-Identifier: Apache-2.0
"""The real SmolLM2 through our converter, against what transformers makes of the same file.

The digest was recorded from transformers 5.24.0 (`GgufConfig(dequantize=True)`, `save_pretrained`, torch 2.13.0+cpu):
its model.safetensors and ours are the same bytes. docs/decisions/0003-model-conversion.md tells how to repeat that.
"""

import json
import sys
from pathlib import Path

import pytest
import tokenizers
import vllm_model_convert
import vllm_model_fetch
import yaml

pytestmark = pytest.mark.engine

TRANSFORMERS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
# Recorded from the same transformers' own GGUF tokenizer.
TRANSFORMERS_TOKENS = {
    "Year 2026, caf\u00e9 \U0001f642\n\tx": [19840, 216, 34, 32, 34, 38, 28, 37366, 47526, 198, 197, 104],
    "<|im_start|>user\nhi<|im_end|>\n": [1, 4093, 198, 6004, 2, 198],
}


def test_converted_smollm2_is_what_transformers_makes_of_it(run_module, project_root: Path, tmp_path: Path) -> None:
    catalogue = yaml.safe_load((project_root / "roles/deployment_plan/vars/main/models.yml").read_text())
    source = catalogue["__deployment_plan_models"]["smollm2-135m-instruct"]["source"]
    fetched = run_module(
        vllm_model_fetch,
        {"name": "smollm2", "source": source, "dest": f"{tmp_path}/source", "python": sys.executable},
    )
    assert not fetched.get("failed"), fetched
    converted = run_module(
        vllm_model_convert,
        {"source": fetched["path"], "source_sha256": fetched["sha256"], "dest": f"{tmp_path}/model"},
    )
    assert not converted.get("failed"), converted
    manifest = json.loads((tmp_path / "model/manifest.json").read_text())
    assert manifest["files"]["model.safetensors"]["sha256"] == TRANSFORMERS_SHA256
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "model/tokenizer.json"))
    assert {text: tokenizer.encode(text).ids for text in TRANSFORMERS_TOKENS} == TRANSFORMERS_TOKENS
