"""config.json of both wrappers and both kinds; what is missing, impossible or not implemented is named."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
import synthetic_configs
from synthetic_weights import SHAPES, Recipe

from engine.models.config import TextConfig, load_text_config
from engine.weights.errors import CheckpointError


def config_json(shape: str = "tiny") -> dict:
    return copy.deepcopy(synthetic_configs.side_files(Recipe(SHAPES[shape], "bf16", 0))["config.json"])


def load(folder: Path, config: dict, generation: dict | None = None) -> TextConfig:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return load_text_config(folder)


def test_the_dense_model_of_27b(tmp_path: Path) -> None:
    config = load(tmp_path, config_json("27b"))
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (5120, 64, 248320)
    assert config.layer_types.count("full_attention") == 16
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"][:2] == [3, 7]
    assert (config.key_dim, config.value_dim, config.conv_dim) == (2048, 6144, 10240)
    assert (config.rotary_dim, config.rope_theta) == (64, 1e7)
    assert not config.is_moe


def test_the_moe_model_of_35b(tmp_path: Path) -> None:
    config = load(tmp_path, config_json("35b"))
    assert config.is_moe
    assert (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size) == (256, 8, 512)
    assert (config.value_dim, config.conv_dim) == (4096, 8192)


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
def test_text_only_and_wrapped_are_the_same_model(tmp_path: Path, shape: str) -> None:
    wrapped = config_json(shape)
    name = wrapped["architectures"][0].replace("ForConditionalGeneration", "ForCausalLM")
    text_only = {**wrapped["text_config"], "architectures": [name]}
    assert load(tmp_path, wrapped) == load(tmp_path, text_only)


def test_rope_settings_in_their_older_places(tmp_path: Path) -> None:
    today = config_json()
    older = config_json()
    rope = older["text_config"].pop("rope_parameters")
    older["text_config"] |= {"rope_theta": rope["rope_theta"], "partial_rotary_factor": rope["partial_rotary_factor"]}
    older["text_config"]["rope_scaling"] = {"type": "default", "mrope_section": rope["mrope_section"]}
    assert load(tmp_path, older) == load(tmp_path, today)


def test_layer_types_follow_the_interval_where_they_are_not_listed(tmp_path: Path) -> None:
    config = config_json()
    del config["text_config"]["layer_types"]
    assert load(tmp_path, config) == load(tmp_path, config_json())


@pytest.mark.parametrize(
    ("own", "generation", "expected"),
    [(2, None, (2,)), (2, {"eos_token_id": [2, 4]}, (2, 4)), (None, {"eos_token_id": 7}, (7,)), ([2, 3], {}, (2, 3))],
)
def test_both_files_name_ends_of_sequence(
    tmp_path: Path, own: object, generation: dict | None, expected: tuple[int, ...]
) -> None:
    config = config_json()
    config["text_config"]["eos_token_id"] = own
    assert load(tmp_path, config, generation).eos_token_ids == expected


ONE_LINE = re.compile(
    r"/(generation_)?config\.json: (found|not found)\b.*[,;] expected .*[,;] (download|use|make) [^\n]*\Z"
)
"""What was found, what was expected, what to do."""


def refused(folder: Path, config: dict, said: str, generation: dict | None = None) -> None:
    with pytest.raises(CheckpointError, match=said) as caught:
        load(folder, config, generation)
    assert ONE_LINE.search(str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(folder)) + 400


REFUSED = [
    (
        {"hidden_act": "gelu"},
        "hidden_act = 'gelu', expected 'silu'; this engine has no other, use a checkpoint that has",
    ),
    ({"attention_bias": True}, "attention_bias = True, expected False; this engine has no other"),
    ({"attn_output_gate": False}, "attn_output_gate = False"),
    ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype = 'bfloat16'"),
    ({"linear_conv_kernel_dim": 3}, "linear_conv_kernel_dim = 3"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}}, "rope_type = 'yarn'"),
    ({"hidden_size": 0}, "found hidden_size = 0, expected a number greater than 0; download it again"),
    ({"hidden_size": "256"}, "found hidden_size = '256', expected a valid integer; download it again"),
    ({"hidden_size": 10**400}, "hidden_size = 1000*…, expected a number less than 2147483648"),
    ({"hidden_act": "x" * 100_000}, "hidden_act = 'x*…, expected 'silu'"),
    ({"rms_norm_eps": -1e-6}, "rms_norm_eps = -1e-06"),
    ({"layer_types": ["full_attention"]}, "found 1 layer_types, expected num_hidden_layers = 8 of them"),
    ({"layer_types": ["sliding_attention"] * 8}, "layer_types.0 = 'sliding_attention'"),
    ({"num_attention_heads": 3}, "num_attention_heads = 3, expected a multiple of num_key_value_heads = 2"),
    ({"linear_num_value_heads": 3}, "linear_num_value_heads = 3, expected a multiple of linear_num_key_heads = 2"),
    ({"intermediate_size": 0}, "found intermediate_size = 0, expected more than 0"),
    ({"head_dim": 128}, r"mrope_section = \[3, 3, 2\], expected a sum of 16, half of the dimensions that rotate"),
    (
        {"head_dim": 2},
        "found head_dim = 2 and partial_rotary_factor = 0.25, of which 0 dimensions rotate, expected an even",
    ),
    ({"eos_token_id": "two"}, "eos_token_id.* = 'two'"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[m[:40] for _, m in REFUSED])
def test_a_value_that_is_impossible_or_not_implemented(tmp_path: Path, change: dict, message: str) -> None:
    config = config_json()
    config["text_config"] |= change
    refused(tmp_path, config, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": 0}, "Qwen3_5MoeForConditionalGeneration without num_experts, expected more than 0"),
        ({"num_experts_per_tok": 9}, "found num_experts_per_tok = 9, expected 1 to num_experts = 8"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size = 0, expected more than 0"),
        ({"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size = 0, expected more than 0"),
        ({"norm_topk_prob": False}, "norm_topk_prob = False"),
    ],
)
def test_a_moe_value_that_is_impossible(tmp_path: Path, change: dict, message: str) -> None:
    config = config_json("tiny-moe")
    config["text_config"] |= change
    refused(tmp_path, config, message)


@pytest.mark.parametrize(
    ("shape", "key", "expected"),
    [
        ("tiny", "head_dim", "one"),
        ("tiny", "intermediate_size", "more than 0"),
        ("tiny-moe", "moe_intermediate_size", "more than 0"),
        ("tiny-moe", "shared_expert_intermediate_size", "more than 0"),
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, shape: str, key: str, expected: str) -> None:
    config = config_json(shape)
    del config["text_config"][key]
    refused(tmp_path, config, rf"config\.json: found no {key}, expected {expected}; download it again$")


def test_another_architecture(tmp_path: Path) -> None:
    said = r"found architectures = \['LlamaForCausalLM'\], expected Qwen3_5For.*; use a checkpoint of one of these$"
    refused(tmp_path, {**config_json(), "architectures": ["LlamaForCausalLM"]}, said)


def test_a_text_model_that_is_no_object(tmp_path: Path) -> None:
    refused(tmp_path, {**config_json(), "text_config": [1]}, r"found text_config = \[1\], expected an object")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "found what is not JSON"),
        ('{"a": ' + "1" * 5000 + "}", "found what is not JSON"),  # Python reads numbers of 4,300 digits
        ("[]", "found a JSON list, expected an object"),
        ('{"architectures": []}', r"architectures = \[\], expected"),
        ("{}", "architectures = None, expected"),
    ],
    ids=["half", "digits", "list", "none", "empty"],
)
def test_a_file_that_is_not_a_configuration(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_text_config(tmp_path)
    assert ONE_LINE.search(str(caught.value)), str(caught.value)


def test_no_file_at_all(tmp_path: Path) -> None:
    said = r"config\.json: not found; expected a Hugging Face checkpoint folder, download one$"
    with pytest.raises(CheckpointError, match=said):
        load_text_config(tmp_path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"what cannot be read \(Is a directory\), expected") as caught:
        load_text_config(tmp_path)
    assert ONE_LINE.search(str(caught.value))


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("architectures", 5, "architectures = 5"),
        ("architectures", [["x"]], "architectures = "),
        ("architectures", [], "architectures = "),
    ],
)
def test_an_absurd_architecture_is_one_line(tmp_path: Path, key: str, value: object, named: str) -> None:
    refused(tmp_path, {**config_json(), key: value}, named)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_parameters", "x"),
        ("rope_parameters", [1]),
        ("num_hidden_layers", "8"),
        ("num_hidden_layers", 100_000_000),
        ("num_hidden_layers", True),
        ("full_attention_interval", 0),
        ("full_attention_interval", "4"),
        ("eos_token_id", -1),
        ("eos_token_id", 10**30),
    ],
)
def test_an_absurd_value_is_one_line_that_names_its_key(tmp_path: Path, key: str, value: object) -> None:
    config = config_json()
    config["text_config"].pop("layer_types")
    config["text_config"][key] = value
    refused(tmp_path, config, key)


def test_an_older_key_is_named_as_it_stands(tmp_path: Path) -> None:
    config = config_json()
    del config["text_config"]["rope_parameters"]
    config["text_config"]["rope_scaling"] = "linear"
    refused(tmp_path, config, "found rope_scaling = 'linear', expected an object")


def test_an_absurd_end_of_sequence_in_the_other_file(tmp_path: Path) -> None:
    refused(
        tmp_path, config_json(), r"generation_config\.json: found eos_token_id = \[-1\], expected", {"eos_token_id": -1}
    )


def test_json_nested_beyond_reason_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(CheckpointError, match="not JSON"):
        load_text_config(tmp_path)
