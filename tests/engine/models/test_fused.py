"""engine/models/fused: what the kernels refuse, by name, before anything is read; the scratch they need."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from engine.models.config import TextConfig, load_text_config
from engine.models.fused import _scratch_bytes, obstacle
from engine.ops.linear.cuda import W4A16, W8A8, Scratch
from engine.weights.loader import load_weights
from engine.weights.quantization import Scheme
from engine.weights.specs import linear_shapes

SIZES = {
    "vocab_size": 248320,
    "hidden_size": 5120,
    "num_hidden_layers": 4,
    "layer_types": ("linear_attention", "linear_attention", "linear_attention", "full_attention"),
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "intermediate_size": 17408,
}


def scheme(name):
    if ".mlp." in name or name == "lm_head":
        return Scheme.NVFP4
    return Scheme.NONE if name.endswith(("in_proj_b", "in_proj_a")) else Scheme.FP8_STATIC


def weights(config, **changed):
    schemes = {name: scheme(name) for name in linear_shapes(config)}
    schemes |= {name: found for name, found in changed.items() if name in schemes}
    stored = {f"{n}.weight": SimpleNamespace(dtype=changed.get("unquantised", "BF16")) for n in schemes}
    return SimpleNamespace(schemes=schemes, linears=linear_shapes(config), checkpoint=SimpleNamespace(tensors=stored))


def refused(dtype=torch.bfloat16, changed=None, **sizes):
    config = TextConfig(**{**SIZES, **sizes})
    return obstacle(weights(config, **(changed or {})), config, dtype)


def test_the_27b_is_taken():
    assert refused() is None


def test_compressed_tensors_is_taken():
    """Packed NVFP4, FP8 with a scale per token for the towers, lm_head and the MLP of some layers."""
    config = TextConfig(**SIZES)
    stored = weights(config)
    for name, found in stored.schemes.items():
        if found is Scheme.FP8_STATIC or name == "lm_head" or name.startswith("layers.3.mlp"):
            stored.schemes[name] = Scheme.FP8_DYNAMIC
        elif found is Scheme.NVFP4:
            stored.schemes[name] = Scheme.NVFP4_PACKED
    assert obstacle(stored, config, torch.bfloat16) is None


@pytest.mark.parametrize(
    "module",
    [
        "lm_head",
        "layers.0.mlp.up_proj",
        "layers.1.mlp.down_proj",
        "layers.3.self_attn.k_proj",
        "layers.3.self_attn.o_proj",
        "layers.1.linear_attn.in_proj_z",
        "layers.2.linear_attn.out_proj",
    ],
)
@pytest.mark.parametrize("found", list(Scheme), ids=lambda scheme: scheme.name)
def test_one_module_in_any_scheme_is_taken(module, found):
    assert refused(changed={module: found}) is None


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"hidden_size": 5136}, "hidden_size = 5136"),
        ({"hidden_size": 6144}, "hidden_size = 6144"),
        ({"intermediate_size": 1000}, "intermediate_size = 1000"),
        ({"head_dim": 128}, "head_dim = 128"),
        ({"partial_rotary_factor": 0.5}, "rotary dimension = 128"),
        ({"num_key_value_heads": 2}, "query heads per KV head = 12"),
        ({"linear_key_head_dim": 64}, "linear_key_head_dim = 64"),
        ({"linear_value_head_dim": 64}, "linear_value_head_dim = 64"),
        ({"vocab_size": 1000}, "vocab_size = 1000"),
        ({"tie_word_embeddings": True}, "an lm_head that is the embedding (one of its own is)"),
    ],
)
def test_sizes_are_refused_by_name(sizes, reason):
    assert refused(**sizes) == reason


MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
           "shared_expert_intermediate_size": 256}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "found", "sizes", "reason"),
    [
        ("layers.2.linear_attn.in_proj_b", Scheme.FP8_STATIC, {}, "in FP8_STATIC (NONE is)"),
        ("layers.1.mlp.gate", Scheme.NVFP4, MIXTURE, "in NVFP4 (NONE is)"),
        (
            "layers.1.mlp.experts.0.up_proj",
            Scheme.FP8_DYNAMIC,
            MIXTURE,
            "in FP8_DYNAMIC (NVFP4, as layers.1.mlp.experts.0.gate_proj, is)",
        ),
        (
            "layers.1.mlp.shared_expert.up_proj",
            Scheme.NONE,
            MIXTURE,
            "in NONE (NVFP4 or NVFP4_PACKED or FP8_STATIC or FP8_DYNAMIC is)",
        ),
        (
            "layers.0.linear_attn.out_proj",
            Scheme.NVFP4,
            {"linear_num_value_heads": 3, "linear_num_key_heads": 3},
            "in NVFP4 with 384 columns (a multiple of 256 is)",
        ),
    ],
)
def test_schemes_are_refused_by_module(module, found, sizes, reason):
    changed = {f"layers.{i}.mlp.{gate}": Scheme.NONE for i in range(4) for gate in ("gate", "shared_expert_gate")}
    changed = changed if sizes is MIXTURE else {}
    assert refused(changed={**changed, module: found}, **sizes) == f"{module} {reason}"


def test_other_activations_and_dtypes_are_refused():
    assert refused(torch.float32) == "float32 activations (bfloat16 is)"
    assert refused(changed={"unquantised": "F16"}) == "layers.0.linear_attn.in_proj_b in F16 (BF16 is)"


def test_the_tiny_checkpoint_is_refused(tiny_checkpoint):
    config = load_text_config(tiny_checkpoint)
    assert obstacle(load_weights(tiny_checkpoint, config, "cpu"), config, torch.bfloat16) == "vocab_size = 2003"


def test_scratch_is_sized_for_the_wider_form():
    four = W4A16(torch.empty(3, 2, 2304, dtype=torch.uint8), torch.empty(48))
    eight = W8A8(torch.empty(3, 5, 2048, dtype=torch.uint8), torch.empty(48), torch.tensor(1.0))
    assert (four.shape, four.scratch_bytes) == ((48, 512), 48 * 512 * 2)
    assert (eight.shape, eight.scratch_bytes) == ((48, 640), 48 * 640)
    with pytest.raises(ValueError, match="scratch: found 10 bytes for 48x512; expected at least 49152"):
        Scratch(10, torch.device("cpu")).rows(four)


@pytest.mark.parametrize(("rows", "needed"), [((16, 32), 256 * 640), ((256, 272), 2 * 272 * 512)])
def test_scratch_is_for_the_largest_of_a_layer(rows, needed):
    four = [W4A16(torch.empty(n // 16, 2, 2304, dtype=torch.uint8), torch.empty(n)) for n in rows]
    eight = W8A8(torch.empty(16, 5, 2048, dtype=torch.uint8), torch.empty(256), torch.tensor(1.0))
    layer = SimpleNamespace(mlp=SimpleNamespace(packed=four), self_attn=SimpleNamespace(qkv_proj=eight, o_proj=eight))
    assert _scratch_bytes(layer) == needed
