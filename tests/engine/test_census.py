"""The census sees what is resident: nothing wider than shipped, in every layout, and a widened module is caught."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import make_checkpoint
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.census import Census, CensusRow, take_census
from engine.models.config import load_text_config
from engine.models.layers import Source
from engine.models.qwen3_5 import Qwen3_5ForCausalLM
from engine.models.qwen3_5_moe import Qwen3_5MoeForCausalLM
from engine.ops.linear import Budget, Operand
from engine.weights.loader import ModelWeights, load_weights
from engine.weights.types import DenseWeight

torch.set_num_threads(1)

LAYOUTS = [
    ("--shape", "tiny", "--layout", "modelopt"),
    ("--shape", "tiny-moe", "--layout", "modelopt"),
    ("--shape", "tiny", "--layout", "compressed-tensors"),
    ("--shape", "tiny-moe", "--layout", "compressed-tensors"),
    ("--shape", "tiny", "--layout", "bf16"),
    ("--shape", "tiny-moe", "--layout", "bf16"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Path]:
    root = tmp_path_factory.mktemp("census")
    made = {options: root / str(i) for i, options in enumerate(LAYOUTS)}
    for options, folder in made.items():
        make_checkpoint.main(["--layers", "4", "--device", "cpu", "--with-mtp", *options, str(folder)])
    return made


def build(folder: Path, cache_bytes: int = 0) -> tuple[Qwen3_5ForCausalLM, ModelWeights]:
    config = load_text_config(folder)
    weights = load_weights(folder, config, "cpu")
    kind = Qwen3_5MoeForCausalLM if config.is_moe else Qwen3_5ForCausalLM
    return kind(Source(weights, config, torch.bfloat16, Budget(cache_bytes)), 64), weights


def text_only(folder: Path, out: Path) -> Path:
    """The same checkpoint with text-only tensor names."""
    out.mkdir()
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    tensors = {n: t for shard in sorted(out.glob("*.safetensors")) for n, t in load_file(shard).items()}
    for shard in out.glob("*.safetensors"):
        shard.unlink()
    (out / "model.safetensors.index.json").unlink()
    save_file({n.replace("model.language_model.", "model."): t for n, t in tensors.items()}, out / "model.safetensors")
    return out


def row(census: Census, module: str) -> SimpleNamespace:
    found = next(r for r in census.rows if r.module == module)
    return SimpleNamespace(shipped=found.shipped, resident=found.resident, widened=found.is_widened)


@pytest.mark.parametrize("naming", ["wrapped", "text-only"])
@pytest.mark.parametrize("options", LAYOUTS, ids=" ".join)
def test_no_module_is_resident_in_a_wider_dtype_than_shipped(
    folders: dict[tuple[str, ...], Path], tmp_path: Path, options: tuple[str, ...], naming: str
) -> None:
    folder = folders[options]
    if naming == "text-only":
        folder = text_only(folder, tmp_path / "text-only")
    model, weights = build(folder)
    census = take_census(model, weights)
    assert census.absent == ()
    assert census.widened == ()
    assert census.copy_bytes == 0
    assert census.shipped_bytes == weights.checkpoint.text_bytes


def test_packed_stays_packed_and_fp8_stays_fp8(folders: dict[tuple[str, ...], Path]) -> None:
    census = take_census(*build(folders[LAYOUTS[0]]))
    for module in ("lm_head", "layers.0.mlp.gate_up_proj", "layers.3.mlp.down_proj"):
        assert row(census, module).resident["U8"] == row(census, module).shipped["U8"] > 0
        assert row(census, module).resident["F8_E4M3"] == row(census, module).shipped["F8_E4M3"] > 0
        assert "BF16" not in row(census, module).resident
    for module in ("layers.0.linear_attn.in_proj_qkvz", "layers.3.self_attn.qkv_proj", "layers.3.self_attn.o_proj"):
        assert row(census, module).resident["F8_E4M3"] == row(census, module).shipped["F8_E4M3"] > 0
        assert "BF16" not in row(census, module).resident


def test_experts_are_counted_on_both_sides(folders: dict[tuple[str, ...], Path]) -> None:
    census = take_census(*build(folders[LAYOUTS[1]]))
    experts = row(census, "layers.2.mlp.gate_up_proj")
    assert experts.resident["U8"] == experts.shipped["U8"] == (8 + 1) * 2 * 64 * 128  # the shared one among them


def test_declared_copies_are_counted_apart(folders: dict[tuple[str, ...], Path]) -> None:
    model, weights = build(folders[LAYOUTS[0]], cache_bytes=10**9)
    census = take_census(model, weights)
    assert census.widened == ()
    assert census.copy_bytes > census.shipped_bytes
    assert census.resident_bytes == take_census(*build(folders[LAYOUTS[0]])).resident_bytes


PROJECTIONS = {
    "tiny": [
        "layers.3.self_attn.qkv_proj",
        "layers.3.self_attn.o_proj",
        "layers.0.linear_attn.in_proj_qkvz",
        "layers.0.linear_attn.in_proj_ba",
        "layers.0.linear_attn.out_proj",
        "layers.0.mlp.gate_up_proj",
        "layers.3.mlp.down_proj",
        "lm_head",
    ],
    "tiny-moe": [
        "layers.3.self_attn.qkv_proj",
        "layers.3.self_attn.o_proj",
        "layers.1.linear_attn.in_proj_qkvz",
        "layers.1.linear_attn.in_proj_ba",
        "layers.1.linear_attn.out_proj",
        "layers.0.mlp.router",
        "layers.0.mlp.gate_up_proj",
        "layers.0.mlp.down_proj",
        "layers.0.mlp.shared_expert.gate_up_proj",
        "layers.0.mlp.shared_expert.down_proj",
        "lm_head",
    ],
}
"""Every linear attribute that a model has."""


@pytest.mark.parametrize("shape", PROJECTIONS)
def test_every_projection_type_is_among_them(folders: dict[tuple[str, ...], Path], shape: str) -> None:
    census = take_census(*build(folders["--shape", shape, "--layout", "modelopt"]))
    kinds = {row.module.rpartition(".")[2] for row in census.rows if row.is_linear}
    assert kinds == {module.rpartition(".")[2] for module in PROJECTIONS[shape]}


def widen(operand: Operand) -> Operand:
    """The next wider dtype: bfloat16 for what is quantised, fp32 for bfloat16."""
    dtype = torch.float32 if isinstance(operand.weight, DenseWeight) else torch.bfloat16
    return replace(operand, weight=DenseWeight(operand.weight.dequantize(dtype)))


def widen_module(model: object, path: str) -> None:
    """Of experts only the fourth."""
    *parents, leaf = path.split(".")
    owner = model
    for part in parents:
        owner = owner[int(part)] if part.isdecimal() else getattr(owner, part)
    linear = getattr(owner, leaf)
    if isinstance(linear, Operand):
        setattr(owner, leaf, widen(linear))
    elif isinstance(linear, list):
        linear[3] = widen(linear[3])
    else:
        linear.operands = tuple(widen(operand) for operand in linear.operands)


@pytest.mark.parametrize("layout", ["modelopt", "compressed-tensors"])
@pytest.mark.parametrize("naming", ["wrapped", "text-only"])
@pytest.mark.parametrize("shape", PROJECTIONS)
def test_a_widened_module_is_caught(
    folders: dict[tuple[str, ...], Path], tmp_path: Path, shape: str, naming: str, layout: str
) -> None:
    folder = folders["--shape", shape, "--layout", layout]
    if naming == "text-only":
        folder = text_only(folder, tmp_path / "text-only")
    for module in PROJECTIONS[shape]:
        model, weights = build(folder)
        widen_module(model, module)
        assert take_census(model, weights).widened == (module.replace(".shared_expert", ""),)


def test_one_expert_of_256_in_bfloat16_is_caught() -> None:
    """The 35B's down_proj: 257 experts of 2048 rows and 512 columns, two scalars each in the file, a scale per row
    here.
    """
    n, k, experts = 2048, 512, 257
    shipped = {"U8": experts * n * k // 2, "F8_E4M3": experts * n * k // 16, "F32": 2 * 4 * experts}
    whole = {"U8": shipped["U8"], "F8_E4M3": shipped["F8_E4M3"], "F32": 4 * experts * n}
    one = {"U8": n * k // 2, "F8_E4M3": n * k // 16, "F32": 4 * n}
    widened = {name: whole[name] - one[name] for name in whole} | {"BF16": 2 * n * k}
    assert not CensusRow("down_proj", True, experts * n, shipped, whole, 0).is_widened
    assert CensusRow("down_proj", True, experts * n, shipped, widened, 0).is_widened


def test_a_second_copy_of_a_weight_is_caught(folders: dict[tuple[str, ...], Path]) -> None:
    model, weights = build(folders[LAYOUTS[0]])
    model.layers[0].mlp.down_proj.spare = model.layers[0].mlp.down_proj.operands[0].weight.packed.clone()
    assert take_census(model, weights).widened == ("layers.0.mlp.down_proj",)


def test_a_module_the_walk_cannot_see_is_reported(folders: dict[tuple[str, ...], Path]) -> None:
    model, weights = build(folders[LAYOUTS[0]])
    del model.layers[1].mlp.down_proj
    assert take_census(model, weights).absent == ("layers.1.mlp.down_proj",)


def test_the_table_names_every_kind_of_module_and_the_total(folders: dict[tuple[str, ...], Path]) -> None:
    model, weights = build(folders[LAYOUTS[0]])
    lines = take_census(model, weights).lines()
    assert lines[0].split()[:3] == ["module", "count", "shipped"]
    assert any(line.startswith("layers.*.mlp.gate_up_proj ") and line.split()[1] == "4" for line in lines)
    assert lines[-2].startswith("total")
    assert not any("WIDER" in line for line in lines)


def test_the_table_says_what_is_wider_and_why_it_may_be(folders: dict[tuple[str, ...], Path]) -> None:
    model, weights = build(folders[LAYOUTS[0]])
    census = take_census(model, weights)
    names = [n for n in weights.checkpoint.tensors if n not in weights.linears and "proj" not in n]
    small = [n for n in names if not n.startswith(("lm_head", "embed_tokens"))]
    sixteen_bits = sum(info.nbytes for n in small if (info := weights.checkpoint.tensors[n]).dtype == "BF16")
    assert sixteen_bits > 0
    *_, last = lines = census.lines()
    line = next(line for line in lines if line.startswith("layers.*.small "))
    assert re.search(r"  BF16 [\d.]+.* -> F32 [\d.]+  wider, allowed: norm weights, A_log, dt_bias and conv taps", line)
    assert next(line for line in lines if line.startswith("norm ")).endswith("takes in fp32")
    assert census.allowed_bytes == sixteen_bits
    assert last.startswith(f"wider than shipped where that is allowed: {sixteen_bits} bytes, ")
    projections = [line for line in lines if "_proj" in line]
    assert projections
    assert not any("wider" in line for line in projections)


@pytest.mark.parametrize(
    ("module", "shipped", "resident", "widened"),
    [
        ("layers.0.small", {"BF16": 100}, {"F32": 200}, False),
        ("layers.0.small", {"BF16": 100}, {"F32": 200, "BF16": 100}, True),  # and its shipped copy
        ("layers.0.small", {"F32": 100}, {"F64": 201}, True),
        ("norm", {"BF16": 100}, {"F32": 204}, True),
        ("embed_tokens", {"BF16": 100}, {"F32": 200}, False),
        ("embed_tokens", {"BF16": 100}, {"F32": 201}, True),
        ("visual", {"BF16": 100}, {"F32": 104}, True),  # no row that may be
        ("space", {}, {"BF16": 100}, False),  # nothing of it is shipped
    ],
)
def test_what_is_not_linear_is_fp32_at_most(module, shipped, resident, widened) -> None:
    row = CensusRow(module, False, 0, shipped, resident, 0)
    assert row.is_widened is widened
    assert ("WIDER THAN SHIPPED" in "".join(Census((row,)).lines())) is widened


def test_a_second_copy_of_a_norm_weight_is_caught(folders: dict[tuple[str, ...], Path]) -> None:
    model, weights = build(folders[LAYOUTS[0]])
    model.layers[2].spare = model.layers[2].input_layernorm.scale.repeat(100)
    assert take_census(model, weights).widened == ("layers.2.small",)
