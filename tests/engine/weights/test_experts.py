"""Experts of a mixture: single or stacked, quantised or not, the same numbers; what is mixed up is refused by name."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.census import take_census
from engine.models.config import load_text_config
from engine.models.layers import Source
from engine.models.qwen3_5_moe import Qwen3_5MoeForCausalLM
from engine.ops.linear import Budget
from engine.weights.errors import CheckpointError
from engine.weights.loader import ModelWeights, load_weights
from engine.weights.quantization import Scheme
from engine.weights.types import Fp8Weight, Nvfp4Weight, WeightError, fuse
from tests.engine.weights.stored import Make

torch.set_num_threads(1)

EXPERTS, LAYERS = 8, 4
QUANTISED = ["modelopt", "compressed-tensors"]
ROOT = "model.language_model.layers.{}.mlp.experts"
Edit = Callable[[Path, Callable[[dict[str, Tensor]], object]], None]


@pytest.fixture
def copy(make: Make, tmp_path: Path) -> Callable[[str], Path]:
    return lambda layout: Path(
        shutil.copytree(make("--shape", "tiny-moe", "--layout", layout), tmp_path / f"copy-{layout}")
    )


def load(folder: Path) -> ModelWeights:
    return load_weights(folder, load_text_config(folder), "cpu")


def values(weights: ModelWeights) -> dict[str, Tensor]:
    return {name: weights.linear(name).dequantize(torch.float32) for name in weights.linears if ".experts." in name}


def stack_layer(tensors: dict[str, Tensor], layer: int, scale_shape: tuple[int, ...] = (EXPERTS,)) -> None:
    """experts.{e}.gate_proj.X and up_proj.X -> experts.gate_up_proj.X, gate's rows first; down_proj likewise.

    Scales per expert become one tensor: gate and up of one expert share theirs in these files.
    """
    root = ROOT.format(layer)
    for leaf, shards in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
        for part in [n.rpartition(".")[2] for n in tensors if n.startswith(f"{root}.0.{shards[0]}.")]:
            each = [[tensors.pop(f"{root}.{e}.{shard}.{part}") for shard in shards] for e in range(EXPERTS)]
            raw = [[t.view(torch.uint8) if t.dtype == torch.float8_e4m3fn else t for t in ts] for ts in each]
            if each[0][0].numel() == 1:
                assert all(torch.equal(t, ts[0]) for ts in each for t in ts)
                stacked = torch.stack([ts[0].reshape(()) for ts in each]).reshape(scale_shape)
            else:
                stacked = torch.stack([torch.cat(ts) for ts in raw]).view(each[0][0].dtype)
            tensors[f"{root}.{leaf}.{part}"] = stacked


def stack_all(tensors: dict[str, Tensor]) -> None:
    for layer in range(LAYERS):
        stack_layer(tensors, layer, [(EXPERTS,), (EXPERTS, 1), (EXPERTS, 1, 1), (EXPERTS,)][layer])


@pytest.mark.parametrize("layout", QUANTISED)
def test_stacked_experts_have_the_numbers_of_single_ones(copy: Callable, edit: Edit, layout: str) -> None:
    folder = copy(layout)
    before = load(folder)
    expected = values(before)
    edit(folder, stack_all)
    after = load(folder)
    assert len(after.checkpoint.tensors) < len(before.checkpoint.tensors)
    assert after.schemes == before.schemes
    for name, matrix in values(after).items():
        assert torch.equal(matrix, expected[name]), name


@pytest.mark.parametrize("layout", QUANTISED)
def test_layers_may_differ_in_how_they_store_experts(copy: Callable, edit: Edit, layout: str) -> None:
    folder = copy(layout)
    expected = values(load(folder))
    edit(folder, lambda tensors: stack_layer(tensors, 2))
    assert all(torch.equal(matrix, expected[name]) for name, matrix in values(load(folder)).items())


def test_one_scale_for_a_whole_stack(copy: Callable, edit: Edit) -> None:
    folder = copy("modelopt")

    def change(tensors: dict[str, Tensor]) -> None:
        stack_all(tensors)
        tensors[f"{ROOT.format(0)}.down_proj.weight_scale_2"] = torch.tensor(0.25)

    edit(folder, change)
    weights = load(folder)
    for e in range(EXPERTS):
        weight = weights.linear(f"layers.0.mlp.experts.{e}.down_proj")
        assert isinstance(weight, Nvfp4Weight)
        assert weight.row_scale.unique().tolist() == [0.25]


def test_a_table_may_name_the_stack(copy: Callable, edit: Edit, edit_json: Callable) -> None:
    folder = copy("modelopt")
    expected = values(load(folder))

    def change(config: dict) -> None:
        table = config["quantization_config"]["quantized_layers"]
        config["quantization_config"]["quantized_layers"] = {
            re.sub(
                r"experts\.\d+\.(?:gate|up)_proj",
                "experts.gate_up_proj",
                re.sub(r"experts\.\d+\.down", "experts.down", name),
            ): v
            for name, v in table.items()
        }

    edit(folder, stack_all)
    edit_json(folder / "config.json", change)
    (folder / "hf_quant_config.json").unlink()
    assert all(torch.equal(matrix, expected[name]) for name, matrix in values(load(folder)).items())


@pytest.mark.parametrize("layout", QUANTISED)
def test_the_census_of_stacks_finds_nothing_widened(copy: Callable, edit: Edit, layout: str) -> None:
    folder = copy(layout)
    edit(folder, stack_all)
    weights = load(folder)
    model = Qwen3_5MoeForCausalLM(Source(weights, weights.config, torch.bfloat16, Budget(0)), 64)
    census = take_census(model, weights)
    assert census.absent == ()
    assert census.widened == ()
    assert census.shipped_bytes == weights.checkpoint.text_bytes
    rows = {row.module: row for row in census.rows}
    assert sum(rows["layers.2.mlp.down_proj"].shipped.values()) > EXPERTS * 256 * 64 // 2


# --- a layer's experts as one matrix ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", QUANTISED)
@pytest.mark.parametrize("form", ["single", "stacks"])
def test_read_together_they_are_what_they_are_alone(copy: Callable, edit: Edit, layout: str, form: str) -> None:
    folder = copy(layout)
    if form == "stacks":
        edit(folder, stack_all)
    weights = load(folder)
    owners = [*(f"layers.1.mlp.experts.{e}" for e in range(EXPERTS)), "layers.1.mlp.shared_expert"]
    for leaf in ("gate_proj", "up_proj", "down_proj"):
        names = [f"{owner}.{leaf}" for owner in owners]
        together, alone = weights.stacked(names), fuse([weights.linear(name) for name in names])
        assert isinstance(alone, Nvfp4Weight)
        for part in ("packed", "block_scale", "row_scale"):
            one, other = getattr(together, part), getattr(alone, part)
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), (leaf, part)


def test_fp8_experts_read_together_are_what_they_are_alone(copy: Callable) -> None:
    """The last layer's, by unsloth's layout; a scale per row, in bfloat16 in the files."""
    weights = load(copy("compressed-tensors"))
    owners = [*(f"layers.3.mlp.experts.{e}" for e in range(EXPERTS)), "layers.3.mlp.shared_expert"]
    for leaf in ("gate_proj", "up_proj", "down_proj"):
        names = [f"{owner}.{leaf}" for owner in owners]
        together, alone = weights.stacked(names), fuse([weights.linear(name) for name in names])
        assert isinstance(together, Fp8Weight)
        assert isinstance(alone, Fp8Weight)
        assert together.input_scale is alone.input_scale is None
        assert torch.equal(together.weight.view(torch.uint8), alone.weight.view(torch.uint8))
        assert torch.equal(together.row_scale, alone.row_scale)


def test_static_input_scales_of_a_stack_become_the_largest(moe: Path, edit: Edit) -> None:
    names = [f"layers.{i}.linear_attn.out_proj" for i in range(3)]
    stored = [f"model.language_model.{name}.input_scale" for name in names]
    edit(
        moe, lambda tensors: tensors.update({s: torch.tensor(v) for s, v in zip(stored, (0.5, 2.0, 1.0), strict=True)})
    )
    weights = load(moe)
    together = weights.stacked(names)
    assert isinstance(together, Fp8Weight)
    assert (together.input_scale.shape, float(together.input_scale)) == ((), 2.0)
    alone = [weights.linear(name) for name in names]
    assert torch.equal(together.row_scale, torch.cat([w.row_scale for w in alone]))


def test_a_code_that_is_no_number_is_named_by_its_expert(copy: Callable, edit: Edit) -> None:
    folder, name = copy("compressed-tensors"), f"{ROOT.format(3)}.5.up_proj.weight"

    def spoil(tensors: dict[str, Tensor]) -> None:
        codes = tensors[name].view(torch.uint8).clone()
        codes[3, 2] = 0xFF
        tensors[name] = codes.view(torch.float8_e4m3fn)

    edit(folder, spoil)
    weights = load(folder)
    with pytest.raises(CheckpointError, match=r"layers\.3\.mlp\.experts\.5\.up_proj\.weight: (?i:found nan)"):
        weights.stacked([f"layers.3.mlp.experts.{e}.up_proj" for e in range(EXPERTS)])


def test_scales_of_several_shapes_and_dtypes_may_stand_together(copy: Callable, edit: Edit) -> None:
    folder, name = copy("modelopt"), f"{ROOT.format(0)}.3.down_proj.weight_scale_2"
    edit(folder, lambda tensors: tensors.update({name: tensors[name].expand(256, 1)}))
    weights = load(folder)
    names = [f"layers.0.mlp.experts.{e}.down_proj" for e in range(EXPERTS)]
    assert torch.equal(
        weights.stacked(names).dequantize(torch.float32),
        torch.cat([weights.linear(name).dequantize(torch.float32) for name in names]),
    )


def test_layers_of_other_schemes_or_shapes_are_not_stacked(make: Make) -> None:
    weights = load(make("--shape", "tiny-moe"))
    for names in (
        ["layers.0.mlp.experts.0.gate_proj", "layers.0.mlp.experts.0.down_proj"],
        ["layers.0.mlp.experts.0.gate_proj", "layers.0.mlp.gate"],
        ["layers.0.mlp.gate"],
    ):
        with pytest.raises(WeightError, match=rf"{names[0]} and others: found .*, expected NVFP4 or FP8 of one shape"):
            weights.stacked(names)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    ("layout", "part"), [("modelopt", "weight_scale_2"), ("compressed-tensors", "weight_global_scale")]
)
def test_a_scale_that_cannot_be_is_named_by_its_expert(
    copy: Callable, edit: Edit, layout: str, part: str, value: float
) -> None:
    folder, name = copy(layout), f"{ROOT.format(1)}.5.up_proj.{part}"
    edit(folder, lambda tensors: tensors.update({name: torch.full_like(tensors[name], value)}))
    weights = load(folder)
    with pytest.raises(CheckpointError, match=rf"layers\.1\.mlp\.experts\.5\.up_proj\.{part}: found {value}, expected"):
        weights.stacked([f"layers.1.mlp.experts.{e}.up_proj" for e in range(EXPERTS)])


@pytest.mark.parametrize(("byte", "kind"), [(0x7F, "NaN"), (0x81, "a negative value")])
def test_a_block_scale_that_cannot_be_is_named_by_its_expert(copy: Callable, edit: Edit, byte: int, kind: str) -> None:
    folder, name = copy("modelopt"), f"{ROOT.format(1)}.5.up_proj.weight_scale"

    def spoil(tensors: dict[str, Tensor]) -> None:
        blocks = tensors[name].view(torch.uint8).clone()
        blocks[3, 2] = byte
        tensors[name] = blocks.view(torch.float8_e4m3fn)

    edit(folder, spoil)
    weights = load(folder)
    with pytest.raises(CheckpointError, match=rf"layers\.1\.mlp\.experts\.5\.up_proj\.weight_scale: found {kind}"):
        weights.stacked([f"layers.1.mlp.experts.{e}.up_proj" for e in range(EXPERTS)])


def test_a_divisor_without_a_reciprocal(copy: Callable, edit: Edit) -> None:
    folder, name = copy("compressed-tensors"), f"{ROOT.format(0)}.0.up_proj.weight_global_scale"
    edit(folder, lambda tensors: tensors.update({name: torch.tensor([1e-40])}))
    with pytest.raises(CheckpointError, match=r"weight_global_scale: found .*e-4\d, expected a positive finite scale"):
        load(folder).linear("layers.0.mlp.experts.0.up_proj")


# --- mixed up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaf", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize("part", ["", ".weight"])
def test_stacked_under_one_name_and_single_under_another(moe: Path, edit: Edit, leaf: str, part: str) -> None:
    edit(moe, lambda tensors: tensors.update({f"{ROOT.format(1)}.{leaf}{part}": torch.zeros(8, 4, 4).bfloat16()}))
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.experts: found both stacked and single experts \(.*\)"):
        load(moe)


def test_one_projection_stacked_and_the_other_single(moe: Path, edit: Edit) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        single = {n: t for n, t in tensors.items() if n.startswith(ROOT.format(1)) and ".down_proj." in n}
        stack_layer(tensors, 1)
        for name in [n for n in tensors if n.startswith(f"{ROOT.format(1)}.down_proj")]:
            del tensors[name]
        tensors.update(single)

    edit(moe, change)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.experts: found both stacked and single experts"):
        load(moe)


def test_a_stack_that_is_missing(moe: Path, edit: Edit) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        stack_layer(tensors, 1)
        del tensors[f"{ROOT.format(1)}.down_proj.weight"]

    edit(moe, change)
    with pytest.raises(
        CheckpointError, match=r"layers\.1\.mlp\.experts\.down_proj\.weight: missing, expected U8 \[8, "
    ):
        load(moe)


def test_a_stack_of_another_number_of_experts(moe: Path, edit: Edit) -> None:
    name = f"{ROOT.format(1)}.down_proj.weight"

    def change(tensors: dict[str, Tensor]) -> None:
        stack_layer(tensors, 1)
        tensors[name] = tensors[name][:7].clone()

    edit(moe, change)
    with pytest.raises(CheckpointError, match=rf"{name}: found U8 \[7, 256, 32\], expected U8 \[8, 256, 32\]"):
        load(moe)


@pytest.mark.parametrize("leaf", ["gate_proj", "up_proj", "down_proj"])
def test_an_expert_that_is_missing(moe: Path, edit: Edit, leaf: str) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in [n for n in tensors if n.startswith(f"{ROOT.format(2)}.7.{leaf}.")]:
            del tensors[name]

    edit(moe, change)
    with pytest.raises(CheckpointError, match=rf"layers\.2\.mlp\.experts\.7\.{leaf}\.weight: missing, expected U8"):
        load(moe)


def test_an_expert_of_another_shape(moe: Path, edit: Edit) -> None:
    name = f"{ROOT.format(2)}.7.up_proj.weight"
    edit(moe, lambda tensors: tensors.update({name: tensors[name][:32].clone()}))
    with pytest.raises(CheckpointError, match=rf"{name}: found U8 \[32, 128\], expected U8 \[64, 128\]"):
        load(moe)


def test_an_expert_stored_in_another_scheme_than_the_table_says(moe: Path, edit: Edit) -> None:
    name = f"{ROOT.format(2)}.7.up_proj.weight"
    edit(moe, lambda tensors: tensors.update({name: torch.zeros(64, 256).to(torch.float8_e4m3fn)}))
    with pytest.raises(CheckpointError, match=rf"{name}: found F8_E4M3 \[64, 256\], expected U8 \[64, 128\]"):
        load(moe)


def as_fp8(tensors: dict[str, Tensor], module: str, n: int, k: int) -> None:
    for name in [n_ for n_ in tensors if n_.startswith(f"{module}.")]:
        del tensors[name]
    tensors[f"{module}.weight"] = torch.ones(n, k).to(torch.float8_e4m3fn)
    tensors[f"{module}.weight_scale"] = torch.tensor(0.5)
    tensors[f"{module}.input_scale"] = torch.tensor(0.5)


def list_fp8(folder: Path, edit_json: Callable, modules: list[str]) -> None:
    (folder / "hf_quant_config.json").unlink()

    def change(config: dict) -> None:
        config["quantization_config"]["quantized_layers"].update({m: {"quant_algo": "FP8"} for m in modules})

    edit_json(folder / "config.json", change)


@pytest.mark.parametrize(("expert", "leaf", "n", "k"), [(3, "up_proj", 64, 256), (7, "down_proj", 256, 64)])
def test_an_expert_that_the_table_gives_another_scheme(
    moe: Path, edit: Edit, edit_json: Callable, expert: int, leaf: str, n: int, k: int
) -> None:
    """Consistent in itself, and still not what a kernel for a layer's experts takes."""
    module = f"{ROOT.format(2)}.{expert}.{leaf}"
    edit(moe, lambda tensors: as_fp8(tensors, module, n, k))
    list_fp8(moe, edit_json, [module])
    with pytest.raises(
        CheckpointError, match=rf"experts\.{expert}\.{leaf}: is FP8, .* is ModelOpt NVFP4; expected one"
    ):
        load(moe)


def test_layers_may_differ_in_scheme(moe: Path, edit: Edit, edit_json: Callable) -> None:
    """As the -Fast variants mix them: one layer's experts in FP8, the others in NVFP4."""
    shapes = {"gate_proj": (64, 256), "up_proj": (64, 256), "down_proj": (256, 64)}
    modules = [(f"{ROOT.format(2)}.{e}.{leaf}", *shape) for e in range(EXPERTS) for leaf, shape in shapes.items()]

    def change(tensors: dict[str, Tensor]) -> None:
        for module in modules:
            as_fp8(tensors, *module)

    edit(moe, change)
    list_fp8(moe, edit_json, [m[0] for m in modules])
    weights = load(moe)
    assert isinstance(weights.linear("layers.2.mlp.experts.0.up_proj"), Fp8Weight)
    assert isinstance(weights.linear("layers.1.mlp.experts.0.up_proj"), Nvfp4Weight)
    assert weights.schemes["layers.2.mlp.shared_expert.up_proj"] is Scheme.NVFP4
    model = Qwen3_5MoeForCausalLM(Source(weights, weights.config, torch.bfloat16, Budget(0)), 64)
    assert take_census(model, weights).widened == ()
