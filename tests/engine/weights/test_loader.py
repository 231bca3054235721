"""Every layout loads to the numbers its format defines; whatever does not belong is an error that names it."""

from __future__ import annotations

import collections
import gc
import json
import math
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path

import make_checkpoint
import pytest
import synthetic_configs
import torch
from synthetic_weights import SHAPES, Recipe, tensors
from torch import Tensor

from engine.census import SCALE_BYTES_PER_ROW
from engine.models.config import load_text_config
from engine.weights import layouts
from engine.weights.checkpoint import INDEX
from engine.weights.errors import CheckpointError
from engine.weights.loader import ModelWeights, load_weights
from engine.weights.quantization import Scheme
from engine.weights.types import DenseWeight, Fp8Weight, Nvfp4Weight, fuse
from tests.engine.weights.stored import Make, read_all

torch.set_num_threads(1)

LAYOUTS = [
    (),
    ("--distinct-shard-scales",),
    ("--shape", "tiny-moe"),
    ("--layout", "compressed-tensors"),
    ("--layout", "compressed-tensors", "--w4a4"),
    ("--shape", "tiny-moe", "--layout", "compressed-tensors"),
    ("--layout", "bf16"),
    ("--shape", "tiny-moe", "--layout", "bf16"),
]

UP = "model.language_model.layers.0.mlp.up_proj"
QKV = "model.language_model.layers.0.linear_attn.in_proj_qkv"


def load(folder: Path) -> ModelWeights:
    return load_weights(folder, load_text_config(folder), "cpu")


def by_hand(stored: dict[str, Tensor], module: str) -> Tensor:
    """f64 [N, K] from the stored tensors, by the formats' definitions, without the code under test."""
    root = "" if module == "lm_head" else "model.language_model."
    experts, _, expert = module.partition(".experts.")
    if f"{root}{experts}.experts.gate_up_proj" in stored and expert:
        number, leaf = expert.split(".")
        if leaf == "down_proj":
            return stored[f"{root}{experts}.experts.down_proj"][int(number)].double()
        gate, up = stored[f"{root}{experts}.experts.gate_up_proj"][int(number)].double().chunk(2)
        return gate if leaf == "gate_proj" else up
    part = {n.rpartition(".")[2]: t for n, t in stored.items() if n.rpartition(".")[0] == root + module}
    packed = part.get("weight_packed", part.get("weight"))
    if packed.dtype == torch.uint8:
        codes = torch.stack([packed % 16, packed // 16], -1).flatten(1).long()
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
        value = table[codes % 8] * torch.where(codes >= 8, -1.0, 1.0)
        value *= part["weight_scale"].double().repeat_interleave(16, 1)
        if "weight_global_scale" in part:
            return value / part["weight_global_scale"].double()
        return value * part["weight_scale_2"].double()
    scale = part.get("weight_scale", torch.ones(())).double()
    return packed.double() * (scale if scale.dim() == 2 else scale.reshape(-1, 1))


@pytest.mark.parametrize("options", LAYOUTS, ids=" ".join)
def test_every_layout_loads_to_the_formats_numbers(make: Make, options: tuple[str, ...]) -> None:
    folder = make(*options)
    weights, stored = load(folder), read_all(folder)
    for name, shape in weights.linears.items():
        weight = weights.linear(name)
        assert weight.shape == shape
        expected = by_hand(stored, name)
        torch.testing.assert_close(weight.dequantize(torch.float32).double(), expected, rtol=2**-22, atol=0)


def test_schemes_follow_nvidias_mixed_precision(make: Make) -> None:
    weights = load(make())
    kinds = {name: type(weights.linear(name)) for name in weights.linears}
    assert kinds["lm_head"] is kinds["layers.0.mlp.down_proj"] is Nvfp4Weight
    assert kinds["layers.0.linear_attn.in_proj_z"] is kinds["layers.3.self_attn.o_proj"] is Fp8Weight
    assert kinds["layers.0.linear_attn.in_proj_a"] is DenseWeight


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
@pytest.mark.parametrize("layout", ["modelopt", "compressed-tensors", "bf16"])
def test_vision_and_mtp_are_skipped_and_change_nothing(make: Make, shape: str, layout: str) -> None:
    options = ("--shape", shape, "--layout", layout)
    bare, full = load(make(*options)), load(make(*options, "--with-vision", "--with-mtp"))
    assert full.checkpoint.skipped_bytes > 0
    assert bare.checkpoint.skipped_bytes == 0
    assert bare.checkpoint.tensors.keys() == full.checkpoint.tensors.keys()


def test_fusing_shards_with_scales_of_their_own_is_exact(make: Make) -> None:
    weights = load(make("--distinct-shard-scales"))
    for names in (
        ("layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"),
        ("layers.3.self_attn.q_proj", "layers.3.self_attn.k_proj", "layers.3.self_attn.v_proj"),
        ("layers.0.linear_attn.in_proj_qkv", "layers.0.linear_attn.in_proj_z"),
    ):
        shards = [weights.linear(name) for name in names]
        assert len({s.row_scale[0].item() for s in shards}) == len(names)
        joined = torch.cat([s.dequantize(torch.float32) for s in shards])
        assert torch.equal(fuse(shards).dequantize(torch.float32), joined)


def test_text_only_names_load_the_same_weights(dense: Path, edit: Callable, edit_json: Callable) -> None:
    before = load(dense)
    expected = {name: before.linear(name).dequantize(torch.float32) for name in before.linears}

    def rename(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[name.replace("model.language_model.", "model.")] = tensors.pop(name)

    def text_only(config: dict) -> None:
        text = config.pop("text_config")
        config.update(text, architectures=["Qwen3_5ForCausalLM"])  # the table of modules keeps the wrapped spelling

    edit(dense, rename)
    edit_json(dense / "config.json", text_only)
    after = load(dense)
    for name, matrix in expected.items():
        assert torch.equal(after.linear(name).dequantize(torch.float32), matrix), name


@pytest.mark.parametrize("form", ["[]", "[1]", "[out]", "[out,1]"])
@pytest.mark.parametrize("scale", [f"{UP}.weight_scale_2", f"{QKV}.weight_scale"])
def test_scales_of_every_published_shape(dense: Path, edit: Callable, scale: str, form: str) -> None:
    module = scale.removeprefix("model.language_model.").rpartition(".")[0]
    before = load(dense).linear(module).dequantize(torch.float32)
    n = before.shape[0]
    shape = {"[]": (), "[1]": (1,), "[out]": (n,), "[out,1]": (n, 1)}[form]
    edit(dense, lambda tensors: tensors.update({scale: tensors[scale].expand(shape)}))
    assert torch.equal(load(dense).linear(module).dequantize(torch.float32), before)


def test_rows_keep_their_own_scale(dense: Path, edit: Callable) -> None:
    name = f"{QKV}.weight_scale"
    rows = torch.arange(1, 641).float() / 1000
    edit(dense, lambda tensors: tensors.update({name: rows}))
    weight = load(dense).linear("layers.0.linear_attn.in_proj_qkv")
    assert isinstance(weight, Fp8Weight)
    assert torch.equal(weight.row_scale, rows)


def test_kv_scales_are_read_where_they_are_and_one_where_not(make: Make, dense: Path) -> None:
    assert load(make("--layout", "bf16")).scalar("layers.3.self_attn.k_proj.k_scale", 1.0) == 1.0
    stored = read_all(dense)["model.language_model.layers.3.self_attn.k_proj.k_scale"].item()
    assert load(dense).scalar("layers.3.self_attn.k_proj.k_scale", 1.0) == stored != 1.0


def test_float16_and_float32_layers_keep_their_dtype(make: Make, tmp_path: Path, edit: Callable) -> None:
    folder = Path(shutil.copytree(make("--layout", "bf16"), tmp_path / "wide"))
    edit(folder, lambda tensors: tensors.update({f"{UP}.weight": tensors[f"{UP}.weight"].float()}))
    weight = load(folder).linear("layers.0.mlp.up_proj")
    assert isinstance(weight, DenseWeight)
    assert weight.weight.dtype == torch.float32


# --- bad input -------------------------------------------------------------------------------------------------------


def drop(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def put(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.update({name: tensor})


MISSING = [f"{UP}.weight", f"{UP}.weight_scale", f"{UP}.weight_scale_2", f"{QKV}.weight_scale", f"{QKV}.input_scale",
           "model.language_model.layers.1.linear_attn.A_log", "lm_head.weight_scale_2"]  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_tensor(dense: Path, edit: Callable, name: str) -> None:
    edit(dense, drop(name))
    with pytest.raises(CheckpointError, match=rf"{name.removeprefix('model.language_model.')}: missing, expected"):
        load(dense)


def test_an_unused_input_scale_may_be_missing(dense: Path, edit: Callable) -> None:
    edit(dense, drop(f"{UP}.input_scale"))
    assert isinstance(load(dense).linear("layers.0.mlp.up_proj"), Nvfp4Weight)


@pytest.mark.parametrize(
    "name", ["model.language_model.layers.4.mlp.up_proj.weight", f"{UP}.bias", f"{UP}.weight_packed", "lm_head.bias"]
)
def test_a_leftover_tensor(dense: Path, edit: Callable, name: str) -> None:
    edit(dense, put(name, torch.ones(2)))
    with pytest.raises(CheckpointError, match=rf"{name}: not part of this model as configured"):
        load(dense)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (f"{UP}.weight", torch.zeros(512, 64, dtype=torch.uint8), r"found U8 \[512, 64\], expected U8 \[512, 128\]"),
        (f"{UP}.weight", torch.zeros(512, 256).bfloat16(), r"found BF16 \[512, 256\], expected U8 \[512, 128\]"),
        (f"{UP}.weight_scale", torch.zeros(512, 16), r"found F32 \[512, 16\], expected F8_E4M3 \[512, 16\]"),
        (f"{QKV}.weight_scale", torch.ones(7), r"found F32 \[7\], expected .* \[\] or \[1\] or \[640\] or \[640, 1\]"),
        (f"{QKV}.input_scale", torch.ones(640), r"found F32 \[640\]"),
        ("model.language_model.norm.weight", torch.ones(255), r"found F32 \[255\], expected .*\[256\]"),
    ],
)
def test_a_wrong_dtype_or_shape(dense: Path, edit: Callable, name: str, tensor: Tensor, message: str) -> None:
    edit(dense, put(name, tensor))
    with pytest.raises(CheckpointError, match=rf"{name}: {message}"):
        load(dense)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", [f"{UP}.weight_scale_2", f"{QKV}.weight_scale", f"{QKV}.input_scale"])
def test_a_scale_that_cannot_be(dense: Path, edit: Callable, name: str, value: float) -> None:
    edit(dense, put(name, torch.tensor(value)))
    module = name.removeprefix("model.language_model.").rpartition(".")[0]
    with pytest.raises(CheckpointError, match=rf"{module}\..*: found {value}, expected a positive finite scale"):
        load(dense).linear(module)


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_a_kv_scale_that_cannot_be(dense: Path, edit: Callable, value: float) -> None:
    edit(dense, put("model.language_model.layers.3.self_attn.v_proj.v_scale", torch.tensor(value)))
    with pytest.raises(CheckpointError, match=r"layers\.3\.self_attn\.v_proj\.v_scale: found"):
        load(dense).scalar("layers.3.self_attn.v_proj.v_scale", 1.0)


@pytest.mark.parametrize(("byte", "kind"), [(0x7F, "NaN"), (0xFF, "NaN"), (0x80, "a negative"), (0xB0, "a negative")])
def test_a_block_scale_that_cannot_be(dense: Path, edit: Callable, byte: int, kind: str) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        blocks = tensors[f"{UP}.weight_scale"].view(torch.uint8).clone()
        blocks[5, 3] = byte
        tensors[f"{UP}.weight_scale"] = blocks.view(torch.float8_e4m3fn)

    edit(dense, spoil)
    with pytest.raises(CheckpointError, match=rf"layers\.0\.mlp\.up_proj\.weight_scale: found {kind}"):
        load(dense).linear("layers.0.mlp.up_proj")


def test_nan_in_an_fp8_matrix(dense: Path, edit: Callable) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        raw = tensors[f"{QKV}.weight"].view(torch.uint8).clone()
        raw[0, 0] = 0xFF
        tensors[f"{QKV}.weight"] = raw.view(torch.float8_e4m3fn)

    edit(dense, spoil)
    with pytest.raises(CheckpointError, match=r"in_proj_qkv\.weight: found nan, expected finite numbers"):
        load(dense).linear("layers.0.linear_attn.in_proj_qkv")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name", ["layers.1.linear_attn.A_log", "layers.0.input_layernorm.weight", "embed_tokens.weight", "norm.weight"]
)
def test_no_number_in_a_plain_tensor(dense: Path, edit: Callable, name: str, value: float) -> None:
    edit(dense, lambda tensors: tensors[f"model.language_model.{name}"].view(-1)[-1:].fill_(value))
    if name.endswith("A_log") and value == -math.inf:  # of a head that forgets nothing
        assert load(dense).tensor(name)[-1] == value
        return
    with pytest.raises(CheckpointError, match=rf"^{name}: found {value}, expected finite numbers; download the check"):
        load(dense).tensor(name)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_no_number_in_an_unquantised_layer(dense: Path, edit: Callable, dtype: torch.dtype, value: float) -> None:
    name = "layers.0.linear_attn.in_proj_a"

    def spoil(tensors: dict[str, Tensor]) -> None:
        matrix = tensors[f"model.language_model.{name}.weight"].to(dtype)
        matrix[0, 7] = value
        tensors[f"model.language_model.{name}.weight"] = matrix

    edit(dense, spoil)
    with pytest.raises(CheckpointError, match=rf"{name}\.weight: found {value}, expected"):
        load(dense).linear(name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("at", [0, 7, 8, 20])
def test_a_matrix_is_looked_through_to_its_end(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, at: int) -> None:
    monkeypatch.setattr(layouts, "CHECKED_AT_ONCE", 16)
    matrix = torch.arange(21.0).view(3, 7)
    assert layouts.numbers("w", matrix.to(dtype)).dtype == dtype
    matrix.view(-1)[at] = math.nan
    with pytest.raises(CheckpointError, match=r"^w: found nan"):
        layouts.numbers("w", matrix.to(dtype))


def test_a_module_table_that_belongs_to_another_file(dense: Path, edit_json: Callable) -> None:
    """A quantised matrix that the table does not list is refused, not read as something else."""
    name = "model.language_model.layers.0.mlp.up_proj"
    edit_json(dense / "config.json", lambda c: c["quantization_config"]["quantized_layers"].pop(name))
    (dense / "hf_quant_config.json").unlink()
    weights_of = load_text_config(dense)
    with pytest.raises(CheckpointError, match=rf"{name}.weight: found U8 .*, expected BF16 or F16 or F32 \[512, 256\]"):
        load_weights(dense, weights_of, "cpu")


IGNORED = "model.language_model.layers.1.linear_attn.out_proj"


@pytest.mark.parametrize("file", ["config.json", "hf_quant_config.json"])
def test_files_that_disagree_about_what_is_ignored(dense: Path, edit_json: Callable, file: str) -> None:
    """Both name the same schemes, but one of them excludes a layer."""

    def change(config: dict) -> None:
        section = config.get("quantization_config") or config["quantization"]
        section["ignore" if "ignore" in section else "exclude_modules"].append(IGNORED)

    edit_json(dense / file, change)
    with pytest.raises(
        CheckpointError, match=r"layers\.1\.linear_attn\.out_proj: config.json says .*, hf_quant_config"
    ):
        load(dense)


def test_files_that_spell_the_same_differently_agree(dense: Path, edit_json: Callable) -> None:
    def change(config: dict) -> None:
        section = config["quantization"]
        section["exclude_modules"] = ["mtp*", "*.in_proj_a", "*.in_proj_b", "model.visual*", "*conv1d"]
        section["quantized_layers"] = {
            name.removeprefix("model.language_model."): entry for name, entry in section["quantized_layers"].items()
        }

    edit_json(dense / "hf_quant_config.json", change)
    assert load(dense).quant.notes == ()


def test_the_published_27b_has_its_193_and_208_layers(tmp_path: Path) -> None:
    """Headers, index and configuration of the full shape; the data are holes in a sparse file."""
    weights = load(hollow(tmp_path, "27b"))
    kinds = collections.Counter(weights.schemes.values())
    assert (kinds[Scheme.NVFP4], kinds[Scheme.FP8_STATIC]) == (193, 208)
    assert weights.schemes["lm_head"] is Scheme.NVFP4
    assert weights.checkpoint.skipped_bytes > 1.7e9
    rows = sum(n for n, _ in weights.linears.values())
    assert SCALE_BYTES_PER_ROW * rows < 0.02 * weights.checkpoint.text_bytes, "what a module may have on top"


def hollow(folder: Path, shape: str) -> Path:
    recipe = Recipe(SHAPES[shape], "modelopt", 0, distinct=False, w4a4=False, vision=True, mtp=True)
    weight_map = {}
    for i, shard in enumerate(make_checkpoint.split(list(tensors(recipe)), 5_000_000_000)):
        header, end = {}, 0
        for entry in shard:
            header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [end, end + entry.nbytes]}
            end += entry.nbytes
            weight_map[entry.name] = f"{i}.safetensors"
        text = json.dumps(header).encode()
        with (folder / f"{i}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    for name, content in synthetic_configs.side_files(recipe).items():
        if name in ("config.json", "hf_quant_config.json"):
            (folder / name).write_text(json.dumps(content))
    return folder


def test_the_scheme_of_every_layer_is_kept_for_the_report(make: Make) -> None:
    schemes = load(make("--layout", "compressed-tensors")).schemes
    assert schemes["lm_head"] is Scheme.FP8_DYNAMIC
    assert schemes["layers.0.mlp.up_proj"] is Scheme.NVFP4_PACKED
    assert schemes["layers.3.mlp.up_proj"] is Scheme.FP8_DYNAMIC
    assert schemes["layers.0.linear_attn.in_proj_b"] is Scheme.NONE


def test_nothing_that_was_read_is_kept(make: Make) -> None:
    weights = load(make("--layout", "bf16"))
    read = [weakref.ref(weights.linear(name).weight) for name in weights.linears]
    gc.collect()
    assert len(read) == len(weights.linears)
    assert all(tensor() is None for tensor in read)
