"""How modules are stored: real layouts, the two publishers' words, and headers that a configuration contradicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gate.errors import CheckpointError
from gate.fit.need import weights
from gate.headers.read import Headers, Tensor, collapsed, read
from gate.headers.schemes import Declared, Module, Rules, modules
from tests.gate.headers.sparse import recorded, synthetic

LAYER = "model.language_model.layers.0.mlp.up_proj"
NVFP4 = {f"{LAYER}.weight": ("U8", (64, 16)), f"{LAYER}.weight_scale": ("F8_E4M3", (64, 2))}
FP8 = {f"{LAYER}.weight": ("F8_E4M3", (64, 32))}
W4A16 = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {LAYER: {"quant_algo": "W4A16_NVFP4"}}}


def one(specs: dict[str, tuple[str, tuple[int, ...]]], section: dict[str, Any] | None = None) -> Module:
    held = {name: Tensor(dtype, shape, "x") for name, (dtype, shape) in specs.items()}
    (found,) = modules(Headers(Path(), {"quantization_config": section or {}}, held)).values()
    return found


def by_name(folder: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for module in modules(read(folder)).values():
        assert module.contradiction == ""
        found.setdefault(collapsed(module.name), set()).add(module.scheme)
    return found


@pytest.mark.parametrize("name", ["modelopt_mixed_dense", "modelopt_mixed_moe"])
def test_layouts_that_vllm_has_loaded(name: str, tmp_path: Path) -> None:
    found = by_name(recorded(tmp_path / "c", name))
    expert = "experts.*." if name.endswith("moe") else ""
    assert found[f"layers.*.mlp.{expert}up_proj"] == {"NVFP4 W4A16 group 16"}
    assert found["layers.*.self_attn.q_proj"] == {"FP8 W8A8 per tensor, static"}
    assert found["layers.*.linear_attn.in_proj_z"] == {"FP8 W8A8 per tensor, static"}
    assert found["lm_head"] == {"NVFP4 W4A16 group 16"}
    assert found["layers.*.linear_attn.in_proj_a"] == {"BF16"}
    assert found["layers.*.linear_attn.A_log"] == {"F32"}


def test_the_mixed_compressed_tensors_layout(tmp_path: Path) -> None:
    found = by_name(synthetic(tmp_path / "c", "tiny", "compressed-tensors", vision=True, mtp=True))
    assert found["layers.*.mlp.up_proj"] == {"NVFP4 W4A16 group 16", "FP8 W8A8 per channel, dynamic"}
    assert found["layers.*.self_attn.q_proj"] == {"FP8 W8A8 per channel, dynamic"}
    assert found["visual.blocks.*.attn.qkv"] == {"BF16"}
    assert found["mtp.fc"] == {"BF16"}


def test_the_w4a4_variant(tmp_path: Path) -> None:
    found = by_name(synthetic(tmp_path / "c", "tiny", "compressed-tensors", w4a4=True))
    assert "NVFP4 W4A4 group 16" in found["layers.*.mlp.up_proj"]


def test_shapes_are_those_of_the_product_and_bytes_hold_the_scales() -> None:
    found = one(NVFP4, W4A16)
    assert found.shape == (64, 32)
    assert found.nbytes == 64 * 16 + 64 * 2
    assert found.part == "text"


@pytest.mark.parametrize(
    ("more", "scheme"),
    [
        ({"weight_scale": ("F32", ())}, "FP8 W8A? per tensor, dynamic"),
        ({"weight_scale": ("F32", (1,)), "input_scale": ("F32", ())}, "FP8 W8A8 per tensor, static"),
        ({"weight_scale": ("BF16", (64, 1))}, "FP8 W8A? per channel, dynamic"),
        ({"weight_scale": ("F32", (64,))}, "FP8 W8A? per channel, dynamic"),
        ({"weight_scale_inv": ("F32", (4, 2))}, "FP8 W8A? per block of 16×16, dynamic"),
        ({"weight_scale": ("F32", (3,))}, "FP8 W8A? 3 scales, dynamic"),
        ({}, "FP8 W8A? without scales, dynamic"),
    ],
)
def test_fp8_by_its_scales(more: dict[str, tuple[str, tuple[int, ...]]], scheme: str) -> None:
    assert one(FP8 | {f"{LAYER}.{field}": spec for field, spec in more.items()}).scheme == scheme


def test_headers_alone_tell_w4a4_of_compressed_tensors() -> None:
    packed = {f"{LAYER}.weight_packed": ("U8", (64, 16)), f"{LAYER}.weight_scale": ("F8_E4M3", (64, 2))}
    assert one(packed).scheme == "NVFP4 W4A? group 16"
    assert one(packed | {f"{LAYER}.input_global_scale": ("F32", (1,))}).scheme == "NVFP4 W4A4 group 16"


def test_one_algorithm_for_all_says_nothing_of_vectors() -> None:
    found = one({"model.language_model.layers.0.input_layernorm.weight": ("BF16", (64,))}, {"quant_algo": "FP8"})
    assert (found.scheme, found.contradiction) == ("BF16", "")


def test_mxfp4_is_no_nvfp4() -> None:
    found = one({f"{LAYER}.weight": ("U8", (64, 16)), f"{LAYER}.weight_scale": ("F8_E8M0", (64, 1))})
    assert (found.family, found.scheme) == ("MXFP4", "MXFP4 W4A? group 32")


@pytest.mark.parametrize(
    ("section", "specs", "message"),
    [
        (W4A16, {f"{LAYER}.weight": ("BF16", (64, 32))}, "configuration says NVFP4, headers hold BF16"),
        (W4A16, FP8, "configuration says NVFP4, headers hold FP8"),
        (W4A16 | {"ignore": [LAYER]}, NVFP4, "configuration says unquantised, headers hold NVFP4"),
        (W4A16, NVFP4, ""),
        ({}, NVFP4, ""),
    ],
)
def test_a_configuration_of_other_tensors_is_noticed(section: dict[str, Any], specs: Any, message: str) -> None:
    assert one(specs, section).contradiction == message


@pytest.mark.parametrize(
    ("section", "name", "expected"),
    [
        ({}, LAYER, None),
        ({"quant_algo": "FP8"}, LAYER, Declared("FP8", 8)),
        ({"quant_algo": "FP8"}, "model.language_model.embed_tokens", Declared("")),
        ({"quant_algo": "FP8", "ignore": ["lm_head"]}, "lm_head", Declared("")),
        ({"quant_algo": "FP8", "exclude_modules": ["*.mlp.*"]}, LAYER, Declared("")),
        ({"quant_algo": "FP8", "ignore": ["model.language_model.layers.0"]}, LAYER, Declared("")),
        (
            {"quant_algo": "FP8", "ignore": ["model.language_model.layers.0"]},
            LAYER.replace(".0.", ".00."),
            Declared("FP8", 8),
        ),
        ({"quant_algo": "FP8", "ignore": ["re:x|.*up_proj$"]}, LAYER, Declared("")),
        ({"quant_algo": "W8A16_OTHER"}, LAYER, Declared("W8A16_OTHER")),
        (
            {"quantized_layers": {"model.language_model.layers.0.mlp.experts": {"quant_algo": "NVFP4"}}},
            "model.language_model.layers.0.mlp.experts.3.up_proj",
            Declared("NVFP4", 4),
        ),
        ({"quantized_layers": {"lm_head": {"quant_algo": "FP8"}}}, LAYER, Declared("")),
        ({"quant_method": "fp8"}, LAYER, Declared("FP8", 8)),
        ({"quant_method": "fp8", "modules_to_not_convert": [LAYER]}, LAYER, Declared("")),
        ({"quant_method": "awq", "bits": 4}, LAYER, None),
        (
            {"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}}},
            LAYER,
            Declared("int4", 16),
        ),
        (
            {"config_groups": {"g": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "type": "float"}}}},
            LAYER,
            Declared(""),
        ),
    ],
)
def test_the_configurations_rules(section: dict[str, Any], name: str, expected: Declared | None) -> None:
    assert Rules(section).of(name) == expected


def test_a_broken_pattern_is_one_line() -> None:
    with pytest.raises(CheckpointError, match=r"has '\(', no regular expression"):
        Rules({"ignore": ["re:("]})


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 5000 + ")" * 5000])
def test_a_pattern_that_cannot_be_compiled_is_one_short_line(pattern: str) -> None:
    with pytest.raises(CheckpointError, match="no regular expression") as refused:
        Rules({"ignore": [f"re:{pattern}"]})
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "group",
    [
        {"targets": "Linear"},
        {"targets": ["Linear"]},
        {"targets": ["Linear"], "weights": [1], "input_activations": [2]},
        {"targets": ["Linear"], "weights": "float", "input_activations": "x"},
        {"targets": ["Linear"], "weights": {"num_bits": [4]}, "input_activations": {"num_bits": {"a": 1}}},
    ],
)
def test_groups_of_any_shape_are_an_answer(group: dict[str, Any]) -> None:
    assert isinstance(one(NVFP4, {"config_groups": {"group_0": group}}), Module)


@pytest.mark.parametrize(
    ("specs", "scheme"),
    [
        ({f"{LAYER}.weight": ("F8_E4M3", ())}, "F8_E4M3"),
        ({f"{LAYER}.weight": ("U8", (2, 8)), f"{LAYER}.weight_scale": ("F8_E4M3", ())}, "U8"),
        ({f"{LAYER}.weight": ("U8", ()), f"{LAYER}.weight_scale": ("F8_E4M3", (1, 1))}, "U8"),
        ({f"{LAYER}.weight": ("U8", (2, 8)), f"{LAYER}.weight_scale": ("F32", (2, 1))}, "U8"),
        ({f"{LAYER}.weight": ("U8", (0, 0)), f"{LAYER}.weight_scale": ("F8_E4M3", (0, 0))}, "NVFP4 W4A? group 0"),
        ({f"{LAYER}.weight_scale": ("F32", ())}, "F32"),
    ],
)
def test_shapes_that_no_format_has_are_told_by_their_dtype(specs: Any, scheme: str) -> None:
    """A weight of bytes with fp32 scales is int8, not four bits: its shape would come out doubled."""
    found = one(specs)
    assert found.scheme == scheme
    assert weights({found.name: found}).shipped == found.nbytes


def test_two_spellings_of_one_module_are_refused() -> None:
    """The second would take the place of the first, and its bytes would be missing."""
    held = {f"{root}layers.0.norm.weight": Tensor("BF16", (4,), "x") for root in ("model.", "model.language_model.")}
    with pytest.raises(CheckpointError, match="expected one spelling of a model's root"):
        modules(Headers(Path(), {}, held))
