# SPDX-License-Identifier: Apache-2.0
"""The tensors a model of a given config.json must have, by the names and shapes of its Hugging Face checkpoint."""

from ansible.module_utils.vllm_ansible.convert import ModelError


def _feed_forward(prefix, hidden, inner):
    return {
        f"{prefix}.gate_proj.weight": (inner, hidden),
        f"{prefix}.up_proj.weight": (inner, hidden),
        f"{prefix}.down_proj.weight": (hidden, inner),
    }


def _frame(config):
    """Embedding, final norm, head and the two norms of each layer: the same in all decoders here."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"model.layers.{layer}.post_attention_layernorm.weight"] = (hidden,)
    return shapes


def _llama(config):
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    shapes = _frame(config)
    for layer in range(config["num_hidden_layers"]):
        attention = f"model.layers.{layer}.self_attn"
        shapes[f"{attention}.q_proj.weight"] = (heads * head_dim, hidden)
        shapes[f"{attention}.k_proj.weight"] = (config["num_key_value_heads"] * head_dim, hidden)
        shapes[f"{attention}.v_proj.weight"] = (config["num_key_value_heads"] * head_dim, hidden)
        shapes[f"{attention}.o_proj.weight"] = (hidden, heads * head_dim)
        shapes.update(_feed_forward(f"model.layers.{layer}.mlp", hidden, config["intermediate_size"]))
    return shapes


def _deepseek_v3(config):
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    query, key_value = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    experts, expert_inner = config["n_routed_experts"], config["moe_intermediate_size"]
    shapes = _frame(config)
    for layer in range(config["num_hidden_layers"]):
        attention, feed_forward = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        shapes[f"{attention}.q_a_proj.weight"] = (query, hidden)
        shapes[f"{attention}.q_a_layernorm.weight"] = (query,)
        shapes[f"{attention}.q_b_proj.weight"] = (heads * (nope + rope), query)
        shapes[f"{attention}.kv_a_proj_with_mqa.weight"] = (key_value + rope, hidden)
        shapes[f"{attention}.kv_a_layernorm.weight"] = (key_value,)
        shapes[f"{attention}.kv_b_proj.weight"] = (heads * (nope + value), key_value)
        shapes[f"{attention}.o_proj.weight"] = (hidden, heads * value)
        if layer < config["first_k_dense_replace"]:
            shapes.update(_feed_forward(feed_forward, hidden, config["intermediate_size"]))
            continue
        shapes[f"{feed_forward}.gate.weight"] = (experts, hidden)
        shapes[f"{feed_forward}.gate.e_score_correction_bias"] = (experts,)
        for expert in range(experts):
            shapes.update(_feed_forward(f"{feed_forward}.experts.{expert}", hidden, expert_inner))
        shared = expert_inner * config["n_shared_experts"]
        shapes.update(_feed_forward(f"{feed_forward}.shared_experts", hidden, shared))
    return shapes


_SHAPES = {"LlamaForCausalLM": _llama, "DeepseekV3ForCausalLM": _deepseek_v3}


def architecture_of(config):
    """The one architecture a config.json names.

    Raises:
        ModelError: it names none or several.
    """
    names = config.get("architectures") or []
    if len(names) != 1:
        raise ModelError(f"config.json must name one architecture in `architectures`, seen: {names}")
    return names[0]


def tensor_shapes(config):
    """Every tensor of the model: dict of name to shape.

    None where they are not known: an architecture this table does not hold, quantised weights, biased projections.

    Raises:
        ModelError: a key the shapes depend on is missing.
    """
    shapes = _SHAPES.get(architecture_of(config))
    if shapes is None or any(config.get(key) for key in ("quantization_config", "attention_bias", "mlp_bias")):
        return None
    try:
        return shapes(config)
    except KeyError as error:
        raise ModelError(f"config.json of {architecture_of(config)} lacks {error.args[0]}") from error
