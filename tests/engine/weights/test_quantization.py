"""Which scheme a module has: both exporters' tables, names under every root, and the two files against each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

from engine.weights.errors import CheckpointError
from engine.weights.quantization import QuantConfig, Scheme, load_quant_config

W4 = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
FP8 = {"quant_algo": "FP8"}
WHAT_TO_DO = "download (it|both) again|use a checkpoint"


def read(folder: Path, quantization: dict | None, legacy: dict | None = None) -> QuantConfig:
    config = {"quantization_config": quantization} if quantization else {}
    (folder / "config.json").write_text(json.dumps(config))
    if legacy:
        (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": legacy}))
    return load_quant_config(folder)


def mixed(layers: dict, **more: object) -> dict:
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers, **more}


@pytest.mark.parametrize("root", ["model.language_model.", "model.", "language_model.model.", ""])
def test_a_table_is_matched_by_whole_names_under_every_root(tmp_path: Path, root: str) -> None:
    quant = read(tmp_path, mixed({f"{root}layers.1.mlp.up_proj": W4, f"{root}layers.1.self_attn.q_proj": FP8}))
    assert quant.scheme("layers.1.mlp.up_proj") is Scheme.NVFP4
    assert quant.scheme("layers.1.self_attn.q_proj") is Scheme.FP8_STATIC
    assert quant.scheme("layers.11.mlp.up_proj") is Scheme.NONE
    assert quant.scheme("layers.1.mlp.up_proj_extra") is Scheme.NONE


def test_one_entry_may_stand_for_all_experts_of_a_layer(tmp_path: Path) -> None:
    quant = read(tmp_path, mixed({"model.layers.0.mlp.experts": W4}))
    assert quant.scheme("layers.0.mlp.experts.17.down_proj") is Scheme.NVFP4
    assert quant.scheme("layers.1.mlp.experts.17.down_proj") is Scheme.NONE


def test_an_ignored_module_takes_its_children_along_and_not_its_namesakes(tmp_path: Path) -> None:
    ignore = ["model.language_model.layers.1", "lm_head", "mtp*", "model.language_model.layers.*.linear_attn.in_proj_a"]
    quant = read(tmp_path, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ignore})
    assert quant.scheme("layers.1.mlp.up_proj") is Scheme.NONE
    assert quant.scheme("layers.10.mlp.up_proj") is Scheme.FP8_STATIC
    assert quant.scheme("layers.3.linear_attn.in_proj_a") is Scheme.NONE
    assert quant.scheme("layers.3.linear_attn.in_proj_z") is Scheme.FP8_STATIC
    assert quant.scheme("lm_head") is Scheme.NONE


@pytest.mark.parametrize(
    ("algorithm", "scheme"),
    [("NVFP4", Scheme.NVFP4), ("FP8", Scheme.FP8_STATIC), ("FP8_PER_CHANNEL_PER_TOKEN", Scheme.FP8_DYNAMIC)],
)
def test_one_algorithm_may_cover_every_layer(tmp_path: Path, algorithm: str, scheme: Scheme) -> None:
    quant = read(tmp_path, {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]})
    assert quant.scheme("layers.0.mlp.up_proj") is scheme


def test_the_legacy_file_alone_is_enough(tmp_path: Path) -> None:
    legacy = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    quant = read(tmp_path, None, legacy)
    assert quant.scheme("layers.0.mlp.up_proj") is Scheme.FP8_STATIC
    assert quant.scheme("lm_head") is Scheme.NONE
    assert quant.kv_cache_fp8


def test_no_quantisation_at_all(tmp_path: Path) -> None:
    quant = read(tmp_path, None)
    assert quant.method == "none"
    assert quant.scheme("layers.0.mlp.up_proj") is Scheme.NONE
    assert not quant.kv_cache_fp8


def test_config_json_wins_for_the_kv_cache_and_says_so(tmp_path: Path) -> None:
    layers = {"lm_head": W4}
    legacy = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "kv_cache_quant_algo": "FP8"}
    quant = read(tmp_path, mixed(layers, kv_cache_scheme=None), legacy)
    assert not quant.kv_cache_fp8
    assert quant.notes == (
        "KV cache: config.json asks no KV quantisation, hf_quant_config.json FP8; config.json wins, as in vLLM",
    )


def test_agreeing_files_need_no_note(tmp_path: Path) -> None:
    layers = {"model.language_model.lm_head": W4}
    scheme = {"type": "float", "num_bits": 8, "dynamic": False}
    legacy = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"lm_head": W4}, "kv_cache_quant_algo": "FP8"}
    quant = read(tmp_path, mixed(layers, kv_cache_scheme=scheme), legacy)
    assert quant.kv_cache_fp8
    assert quant.notes == ()


@pytest.mark.parametrize(
    ("quantization", "legacy", "message"),
    [
        (mixed({"lm_head": {"quant_algo": "INT4_AWQ"}}), None, "lm_head has quant_algo 'INT4_AWQ'; known are W4A16"),
        (mixed({"lm_head": {**W4, "group_size": 32}}), None, "group_size 32"),
        (mixed({"lm_head": {**W4, "group_size": "x\ny"}}), None, r"group_size 'x\\ny'; NVFP4 has 16"),
        ({**mixed({"lm_head": W4}), "ignore": "x\ny"}, None, r"ignore is 'x\\ny', expected a list of texts"),
        (mixed({}), None, "MIXED_PRECISION without quantized_layers"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, None, ": quant_algo 'W4A8'; known are"),
        ({"quant_method": "gptq"}, None, "quant_method 'gptq'; this engine reads modelopt"),
        (mixed({"lm_head": W4}, kv_cache_scheme={"type": "int", "num_bits": 8}), None, "8-bit float or null"),
        (
            mixed({"lm_head": W4}),
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"lm_head": FP8}},
            "lm_head: config.json says ModelOpt NVFP4, hf_quant_config.json says FP8",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8"},
            {"quant_algo": "NVFP4"},
            "every layer as FP8, static input scale, hf_quant_config.json as ModelOpt NVFP4",
        ),
        (mixed({"lm_head": W4}), {"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo 'NVFP4'"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, quantization: dict, legacy: dict | None, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read(tmp_path, quantization, legacy)
    assert re.search(WHAT_TO_DO, str(caught.value))


MALFORMED = [
    ("x", "quantization_config"),
    ([1], "quantization_config"),
    (mixed({}) | {"quantized_layers": [1]}, "quantized_layers"),
    (mixed({"lm_head": "FP8"}), "lm_head"),
    (mixed({"lm_head": {"quant_algo": ["FP8"]}}), "quant_algo"),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": [5]}, "ignore"),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": "lm_head"}, "ignore"),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": "fp8"}, "kv_cache_scheme"),
    ({"quant_method": "compressed-tensors", "config_groups": [1]}, "config_groups"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": "x"}}, "g is"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": 4}}}, "g.weights"),
    ({"quant_method": "compressed-tensors", "config_groups": {}, "ignore": [None]}, "ignore"),
]


@pytest.mark.parametrize(("quantization", "key"), MALFORMED, ids=lambda v: str(v)[:40])
def test_json_of_another_shape_is_named(tmp_path: Path, quantization: Any, key: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{key}") as caught:
        read(tmp_path, quantization)
    assert re.search(WHAT_TO_DO, str(caught.value))


def test_a_legacy_file_of_another_shape_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"hf_quant_config\.json: quantization is a JSON list"):
        read(tmp_path, None, cast("dict", [1]))


def test_null_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": null, "quantization_config": null}')
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": null}')
    assert load_quant_config(tmp_path) == QuantConfig()


# --- compressed-tensors ----------------------------------------------------------------------------------------------

NVFP4_WEIGHTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
FP8_WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel"}
PER_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}


def group(targets: list[str], weights: dict, inputs: dict | None) -> dict:
    return {"targets": targets, "weights": weights, "input_activations": inputs}


def compressed(*groups: dict, ignore: tuple[str, ...] = ()) -> dict:
    named = {f"group_{i}": g for i, g in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": list(ignore)}


def test_groups_by_pattern_name_and_class_in_that_order_of_precision(tmp_path: Path) -> None:
    quant = read(
        tmp_path,
        compressed(
            group(["Linear"], NVFP4_WEIGHTS, None),
            group([r"re:.*self_attn\.[qkv]_proj$"], FP8_WEIGHTS, PER_TOKEN),
            group(["model.layers.3.self_attn.k_proj"], {**FP8_WEIGHTS, "strategy": "tensor"}, {"dynamic": False}),
            ignore=(r"re:.*linear_attn\.in_proj_[ab]$", "model.language_model.layers.0.mlp.gate"),
        ),
    )
    assert quant.scheme("layers.0.mlp.down_proj") is Scheme.NVFP4_PACKED
    assert quant.scheme("layers.3.self_attn.q_proj") is Scheme.FP8_DYNAMIC
    assert quant.scheme("layers.3.self_attn.k_proj") is Scheme.FP8_STATIC
    assert quant.scheme("layers.0.linear_attn.in_proj_a") is Scheme.NONE
    assert quant.scheme("layers.0.mlp.gate") is Scheme.NONE
    assert quant.scheme("layers.0.mlp.gate_proj") is Scheme.NVFP4_PACKED


def test_a_pattern_may_be_written_against_any_root(tmp_path: Path) -> None:
    rooted = r"re:^model\.language_model\.layers\.0\.mlp\.(gate|up)_proj$"
    quant = read(tmp_path, compressed(group([rooted], NVFP4_WEIGHTS, None)))
    assert quant.scheme("layers.0.mlp.up_proj") is Scheme.NVFP4_PACKED
    assert quant.scheme("layers.0.mlp.down_proj") is Scheme.NONE


def test_four_bit_activations_are_read_as_sixteen(tmp_path: Path) -> None:
    local = {"num_bits": 4, "type": "float", "dynamic": "local"}
    quant = read(tmp_path, compressed(group(["Linear"], NVFP4_WEIGHTS, local)))
    assert quant.scheme("lm_head") is Scheme.NVFP4_PACKED


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([group(["Linear"], {"num_bits": 4, "type": "int", "strategy": "group"}, None)], "config group group_0"),
        ([group(["Linear"], {**NVFP4_WEIGHTS, "group_size": 32}, None)], "tensor_group of 16"),
        ([group(["Linear"], {**FP8_WEIGHTS, "strategy": "block"}, PER_TOKEN)], "tensor or channel"),
        ([group(["Linear"], FP8_WEIGHTS, None)], "W8A8"),
        ([group(["re:(unclosed"], NVFP4_WEIGHTS, None)], "not a regular expression"),
    ],
)
def test_a_group_that_is_not_implemented_is_refused(tmp_path: Path, groups: list[dict], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read(tmp_path, compressed(*groups))
    assert re.search(WHAT_TO_DO, str(caught.value))
