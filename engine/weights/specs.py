"""What a text model needs: every linear layer with its size, and every other tensor with its shape.

Attribute names are the checkpoint's, without the root. Nothing here depends on how a layer is quantised.
"""

from __future__ import annotations

from engine.models.config import TextConfig


def linear_shapes(config: TextConfig) -> dict[str, tuple[int, int]]:
    """Module name -> (N, K), in the order of the forward pass."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, int]] = {}
    for i, kind in enumerate(config.layer_types):
        if kind == "full_attention":
            attn, q = f"layers.{i}.self_attn", config.num_attention_heads * config.head_dim
            kv = config.num_key_value_heads * config.head_dim
            shapes[f"{attn}.q_proj"] = (2 * q, hidden)  # query and output gate, alternating per head
            shapes[f"{attn}.k_proj"] = shapes[f"{attn}.v_proj"] = (kv, hidden)
            shapes[f"{attn}.o_proj"] = (hidden, q)
        else:
            gdn, heads = f"layers.{i}.linear_attn", config.linear_num_value_heads
            shapes[f"{gdn}.in_proj_qkv"] = (config.conv_dim, hidden)
            shapes[f"{gdn}.in_proj_z"] = (config.value_dim, hidden)
            shapes[f"{gdn}.in_proj_b"] = shapes[f"{gdn}.in_proj_a"] = (heads, hidden)
            shapes[f"{gdn}.out_proj"] = (hidden, config.value_dim)
        mlp = f"layers.{i}.mlp"
        if not config.is_moe:
            shapes |= _swiglu(mlp, config.intermediate_size, hidden)
            continue
        shapes[f"{mlp}.gate"] = (config.num_experts, hidden)
        for expert in range(config.num_experts):
            shapes |= _swiglu(f"{mlp}.experts.{expert}", config.moe_intermediate_size, hidden)
        shapes |= _swiglu(f"{mlp}.shared_expert", config.shared_expert_intermediate_size, hidden)
        shapes[f"{mlp}.shared_expert_gate"] = (1, hidden)
    if not config.tie_word_embeddings:
        shapes["lm_head"] = (config.vocab_size, hidden)
    return shapes


def _swiglu(name: str, inter: int, hidden: int) -> dict[str, tuple[int, int]]:
    return {
        f"{name}.gate_proj": (inter, hidden),
        f"{name}.up_proj": (inter, hidden),
        f"{name}.down_proj": (hidden, inter),
    }


def plain_shapes(config: TextConfig) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape of everything that is not a linear layer: embedding, norms, GDN's small tensors."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config.vocab_size, hidden),
        "norm.weight": (hidden,),
    }
    for i, kind in enumerate(config.layer_types):
        layer = f"layers.{i}"
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        if kind == "full_attention":
            shapes[f"{layer}.self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[f"{layer}.self_attn.k_norm.weight"] = (config.head_dim,)
        else:
            gdn, heads = f"{layer}.linear_attn", config.linear_num_value_heads
            shapes[f"{gdn}.A_log"] = shapes[f"{gdn}.dt_bias"] = (heads,)
            shapes[f"{gdn}.conv1d.weight"] = (config.conv_dim, 1, config.linear_conv_kernel_dim)
            shapes[f"{gdn}.norm.weight"] = (config.linear_value_head_dim,)
    return shapes


def optional_scalars(config: TextConfig) -> set[str]:
    """KV scales: there where the checkpoint was calibrated for an FP8 cache, read as 1 where not."""
    layers = [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"]
    return {f"layers.{i}.self_attn.{p}_proj.{p}_scale" for i in layers for p in "kv"}
