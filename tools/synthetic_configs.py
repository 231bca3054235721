"""The small files of a synthetic checkpoint: config.json, what quantises which layer, tokenizer and preprocessor.

As nvidia's and unsloth's repositories have them; what tensors they speak of is synthetic_weights.py's.
"""

from __future__ import annotations

from typing import Any

from synthetic_tokenizer import tokenizer, tokenizer_config
from synthetic_weights import Recipe, layout_modules, modules

PRODUCER = {"name": "modelopt", "version": "0.45"}


def text_config(r: Recipe) -> dict[str, Any]:
    s = r.shape
    config: dict[str, Any] = {
        "model_type": "qwen3_5_moe_text" if s.experts else "qwen3_5_text",
        "vocab_size": s.vocab,
        "hidden_size": s.hidden,
        "intermediate_size": s.inter,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attn_output_gate": True,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": s.gdn_dim,
        "linear_value_head_dim": s.gdn_dim,
        "linear_num_key_heads": s.key_heads,
        "linear_num_value_heads": s.value_heads,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(s.layers)],
        "full_attention_interval": 4,
        "mamba_ssm_dtype": "float32",
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": list(s.sections),
        },
    }
    if s.experts:
        config |= {
            "num_experts": s.experts,
            "num_experts_per_tok": s.top_k,
            "moe_intermediate_size": s.inter,
            "shared_expert_intermediate_size": s.inter,
            "norm_topk_prob": True,
            "router_aux_loss_coef": 0.001,
        }
    if r.mtp:
        config |= {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    return config


def vision_config(r: Recipe) -> dict[str, Any]:
    depth, width, inter = r.shape.vision
    return {
        "model_type": "qwen3_5_moe" if r.shape.experts else "qwen3_5",
        "depth": depth,
        "hidden_size": width,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": inter,
        "num_heads": 4 if width < 1024 else 16,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": r.shape.hidden,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
    }


def modelopt_config(r: Recipe) -> dict[str, Any]:
    """nvidia's MIXED_PRECISION. The MoE files say FP8 KV only in the legacy twin: kv_cache_scheme is null there."""
    algorithms = {"nvfp4": {"quant_algo": "W4A16_NVFP4", "group_size": 16}, "fp8": {"quant_algo": "FP8"}}
    parts = list(modules(r))
    gdn = [f"model.language_model.layers.{i}.linear_attn." for i in range(r.shape.layers) if i % 4 != 3]
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_scheme": None if r.shape.experts else {"type": "float", "num_bits": 8, "dynamic": False},
        "ignore": [
            "model.visual*",
            "mtp*",
            *(f"{g}{p}" for g in gdn for p in ("in_proj_a", "in_proj_b", "conv1d")),
            *(m.name for m in parts if m.scheme == "bf16"),
        ],
        "quantized_layers": {m.name: algorithms[m.scheme] for m in parts if m.scheme != "bf16"},
        "producer": PRODUCER,
    }


def compressed_config(r: Recipe) -> dict[str, Any]:
    """Patterns for what the layout has, names for what --store changes: a reader asks names first, `ignore` before."""
    parts, chosen = list(layout_modules(r)), {m.name: m.scheme for m in modules(r)}
    changed = {m.name: chosen[m.name] for m in parts if chosen[m.name] != m.scheme}
    four_bit = sorted({int(m.name.split(".")[3]) for m in parts if m.scheme == "nvfp4"})
    late = sorted({int(m.name.split(".")[3]) for m in parts if m.scheme == "channel" and ".mlp." in m.name})

    def mlps(layers: list[int]) -> str:
        return rf"re:.*layers\.({'|'.join(map(str, layers))})\.mlp\..*(gate|up|down)_proj$"

    w4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
          "dynamic": False}  # fmt: skip
    w8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    a8 = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    if uniform := r.layout == "compressed-tensors-nvfp4":
        four, eight = ["Linear"], []
    else:
        four = [mlps(four_bit)]
        eight = [
            r"re:.*self_attn\.[qkvo]_proj$",
            r"re:.*linear_attn\.(in_proj_qkv|in_proj_z|out_proj)$",
            "re:.*lm_head$",
            *([mlps(late)] if late else []),
        ]
    eight += [name for name, scheme in changed.items() if scheme == "channel"]
    groups: dict[str, Any] = {
        "group_0": {
            "format": "nvfp4-pack-quantized",
            "targets": [*four, *(name for name, scheme in changed.items() if scheme == "nvfp4")],
            "weights": w4,
            "input_activations": {**w4, "dynamic": "local"} if r.w4a4 else None,
        },
        "group_1": {
            "format": "float-quantized",
            "targets": eight,
            "weights": w8,
            "input_activations": a8,
        },
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized" if uniform else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {name: group for name, group in groups.items() if group["targets"]},
        "ignore": [r"re:.*visual\..*", r"re:^mtp\..*", r"re:.*linear_attn\.in_proj_[ab]$", r"re:.*mlp\.gate$",
                   r"re:.*shared_expert_gate$", *(name for name, scheme in chosen.items() if scheme == "bf16")],
        "kv_cache_scheme": None,
    }  # fmt: skip


def side_files(r: Recipe) -> dict[str, Any]:
    """File name -> JSON content."""
    moe = bool(r.shape.experts)
    config: dict[str, Any] = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration" if moe else "Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5_moe" if moe else "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "image_token_id": 5,
        "video_token_id": 6,
        "vision_start_token_id": 7,
        "vision_end_token_id": 8,
        "text_config": text_config(r),
        "vision_config": vision_config(r),
    }
    files: dict[str, Any] = {"config.json": config}
    if r.layout == "modelopt":
        quantization = config["quantization_config"] = modelopt_config(r)
        legacy = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8",
                  "exclude_modules": quantization["ignore"],
                  "quantized_layers": quantization["quantized_layers"]}  # fmt: skip
        files["hf_quant_config.json"] = {"producer": PRODUCER, "quantization": legacy}
    elif r.layout != "bf16":
        config["quantization_config"] = compressed_config(r)
    files["generation_config.json"] = {"eos_token_id": [2, 4], "pad_token_id": 1}
    files["preprocessor_config.json"] = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    files["tokenizer.json"] = tokenizer(r.shape.vocab)
    files["tokenizer_config.json"] = tokenizer_config()
    return files
