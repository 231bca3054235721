"""Synthetic checkpoints: the same bits from the same seed, the published names, numbers that make sense."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import Future, wait
from pathlib import Path
from typing import NoReturn

import make_checkpoint
import pytest
import torch
from safetensors import safe_open
from synthetic_weights import (
    DTYPES,
    SHAPES,
    Recipe,
    block_scales,
    key_of,
    modules,
    normal,
    random_bytes,
    tensors,
    words,
)

torch.set_num_threads(1)

MASK = (1 << 64) - 1
CPU = torch.device("cpu")


def make(folder: Path, *options: str) -> Path:
    make_checkpoint.main(["--device", "cpu", "--layers", "4", *options, str(folder)])
    return folder


def digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def stored(folder: Path) -> dict[str, torch.Tensor]:
    out = {}
    for name, shard in json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].items():
        with safe_open(folder / shard, framework="pt") as file:
            out[name] = file.get_tensor(name)
    return out


# --- determinism -----------------------------------------------------------------------------------------------------


def splitmix64(key: int, index: int) -> int:
    """The published generator in Python integers."""
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_words_are_splitmix64_from_any_start() -> None:
    key = key_of(3, "lm_head.weight")
    drawn = [w & MASK for w in words(key, 1000, 50, CPU).tolist()]
    assert drawn == [splitmix64(key, 1000 + i) for i in range(50)]


def test_the_first_words_of_the_published_generator() -> None:
    assert [w & MASK for w in words(1234567, 0, 3, CPU).tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ("tiny", "modelopt", "c6139a327c7e2a92310830bc1a1cc3d528cc7cdd09e69e60036aceaeaa4b045f"),
        ("tiny-moe", "compressed-tensors", "0125802204d838091b831d670fb7a715c87ccf1c773822b0f04a888b834bb89c"),
    ],
)
def test_the_bits_of_seed_0_are_these(shape: str, layout: str, expected: str) -> None:
    """Pinned: another machine, device or library version must write the same checkpoint."""
    recipe = Recipe(SHAPES[shape], layout, 0)
    total = hashlib.sha256()
    for entry in tensors(recipe):
        count = 64 * (entry.shape[-1] if entry.shape else 1)
        size = min(count, int(torch.Size(entry.shape).numel()))
        values = entry.fill(key_of(0, entry.name), 0, size, CPU)
        total.update(entry.name.encode() + values.contiguous().view(torch.uint8).numpy().tobytes())
    assert total.hexdigest() == expected


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
@pytest.mark.parametrize("layout", make_checkpoint.LAYOUTS)
def test_same_seed_same_bytes_and_another_seed_others(tmp_path: Path, shape: str, layout: str) -> None:
    options = ("--shape", shape, "--layout", layout)
    first = digest(make(tmp_path / "a", *options, "--seed", "5"))
    assert first == digest(make(tmp_path / "b", *options, "--seed", "5"))
    assert first != digest(make(tmp_path / "c", *options, "--seed", "6"))


def test_bytes_do_not_depend_on_how_much_is_drawn_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(make(tmp_path / "a", "--shape", "tiny-moe"))
    monkeypatch.setitem(make_checkpoint.WORDS_AT_ONCE, "cpu", 1 << 12)
    assert digest(make(tmp_path / "b", "--shape", "tiny-moe")) == before


def test_values_do_not_depend_on_shards(tmp_path: Path) -> None:
    one = make(tmp_path / "a", "--shard-bytes", str(10**9))
    many = make(tmp_path / "b", "--shard-bytes", "300000")
    assert len(list(one.glob("*.safetensors"))) == 1
    assert len(list(many.glob("*.safetensors"))) > 5
    left, right = stored(one), stored(many)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[n].reshape(-1).view(torch.uint8), right[n].reshape(-1).view(torch.uint8)) for n in left)


@pytest.mark.gpu
def test_a_cuda_device_draws_the_same_bits() -> None:
    cuda = torch.device("cuda")
    for recipe in (Recipe(SHAPES["tiny"], "modelopt", 0), Recipe(SHAPES["tiny-moe"], "compressed-tensors", 1)):
        for entry in tensors(recipe):
            key, count = key_of(recipe.seed, entry.name), int(torch.Size(entry.shape).numel())
            here, there = entry.fill(key, 0, count, CPU), entry.fill(key, 0, count, cuda).cpu()
            assert torch.equal(here.view(torch.uint8), there.view(torch.uint8)), entry.name


# --- names and shapes ------------------------------------------------------------------------------------------------


def expected_names(moe: bool) -> set[str]:
    """nvidia's MIXED_PRECISION with four layers, by rule."""
    nvfp4 = ("weight", "weight_scale", "weight_scale_2", "input_scale")
    fp8 = ("weight", "weight_scale", "input_scale")
    names = {f"lm_head.{t}" for t in nvfp4}
    text = "model.language_model."
    names |= {f"{text}embed_tokens.weight", f"{text}norm.weight"}
    blocks = [f"experts.{e}." for e in range(8)] + ["shared_expert."] if moe else [""]
    for i in range(4):
        layer = f"{text}layers.{i}."
        names |= {f"{layer}input_layernorm.weight", f"{layer}post_attention_layernorm.weight"}
        names |= {f"{layer}mlp.{b}{p}_proj.{t}" for b in blocks for p in ("gate", "up", "down") for t in nvfp4}
        if moe:
            names |= {f"{layer}mlp.gate.weight", f"{layer}mlp.shared_expert_gate.weight"}
        if i == 3:
            names |= {f"{layer}self_attn.{p}_proj.{t}" for p in "qkvo" for t in fp8}
            names |= {f"{layer}self_attn.{p}_norm.weight" for p in "qk"}
            names |= {f"{layer}self_attn.{p}_proj.{p}_scale" for p in "kv"}
        else:
            gdn = f"{layer}linear_attn."
            names |= {f"{gdn}{p}.{t}" for p in ("in_proj_qkv", "in_proj_z", "out_proj") for t in fp8}
            names |= {f"{gdn}{t}" for t in ("A_log", "dt_bias", "conv1d.weight", "norm.weight")}
            names |= {f"{gdn}in_proj_{p}.weight" for p in "ab"}
    return names


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
def test_names_are_nvidias(tmp_path: Path, shape: str) -> None:
    assert stored(make(tmp_path / "c", "--shape", shape)).keys() == expected_names(shape == "tiny-moe")


def test_mtp_has_15_tensors_dense_and_19_moe() -> None:
    for shape, count in (("27b", 15), ("35b", 19)):
        names = [e.name for e in tensors(Recipe(SHAPES[shape], "modelopt", 0, mtp=True)) if e.name.startswith("mtp.")]
        assert len(names) == count


def test_the_27b_has_the_published_modules_and_bytes() -> None:
    recipe = Recipe(SHAPES["27b"], "modelopt", 0, vision=True, mtp=True)
    schemes = [m.scheme for m in modules(recipe)]
    assert (schemes.count("nvfp4"), schemes.count("fp8")) == (193, 208)
    total = sum(e.nbytes for e in tensors(recipe))
    assert total == pytest.approx(21.9e9, rel=0.01)


def test_the_35b_has_the_published_bytes() -> None:
    total = sum(e.nbytes for e in tensors(Recipe(SHAPES["35b"], "modelopt", 0, vision=True, mtp=True)))
    assert total == pytest.approx(23.4e9, rel=0.01)


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
@pytest.mark.parametrize("layout", make_checkpoint.LAYOUTS)
def test_the_index_and_the_plan_agree_with_the_files(tmp_path: Path, shape: str, layout: str) -> None:
    folder = make(tmp_path / "c", "--shape", shape, "--layout", layout, "--with-vision", "--with-mtp")
    found = stored(folder)
    recipe = Recipe(make_checkpoint.replace(SHAPES[shape], layers=4), layout, 0, vision=True, mtp=True)
    plan = {e.name: e for e in tensors(recipe)}
    assert found.keys() == plan.keys()
    for name, tensor in found.items():
        assert (tensor.dtype, tuple(tensor.shape)) == (DTYPES[plan[name].dtype], plan[name].shape)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in found.values())
    assert len(set(index["weight_map"].values())) == len(list(folder.glob("*.safetensors"))) > 1


def test_the_vocabulary_is_odd_and_heads_repeat_three_times() -> None:
    tiny = SHAPES["tiny"]
    assert tiny.vocab % 2 == 1
    assert tiny.value_heads == 3 * tiny.key_heads
    assert sum(tiny.sections) == tiny.head_dim // 4 // 2


# --- side files ------------------------------------------------------------------------------------------------------


def test_both_quantisation_files_list_the_same_modules(tmp_path: Path) -> None:
    folder = make(tmp_path / "c")
    main = json.loads((folder / "config.json").read_text())["quantization_config"]
    twin = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    assert main["quantized_layers"] == twin["quantized_layers"]
    assert main["ignore"] == twin["exclude_modules"]
    assert main["kv_cache_scheme"] == {"type": "float", "num_bits": 8, "dynamic": False}
    assert twin["kv_cache_quant_algo"] == "FP8"


def test_the_moe_files_disagree_about_the_kv_cache_as_published(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", "--shape", "tiny-moe")
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["kv_cache_scheme"] is None
    assert json.loads((folder / "hf_quant_config.json").read_text())["quantization"]["kv_cache_quant_algo"] == "FP8"


@pytest.mark.parametrize(
    ("shape", "layout", "stored", "expected"),
    [
        ("tiny", "compressed-tensors-nvfp4", (), {
            "layers.3.self_attn.k_proj": "NVFP4_PACKED",
            "layers.0.linear_attn.out_proj": "NVFP4_PACKED",
            "layers.3.mlp.down_proj": "NVFP4_PACKED",
            "layers.0.linear_attn.in_proj_qkv": "NONE",
            "layers.0.linear_attn.in_proj_z": "NONE",
            "layers.0.linear_attn.in_proj_a": "NONE",
            "lm_head": "NONE",
        }),
        ("tiny", "compressed-tensors-nvfp4", ("q_proj=fp8", "lm_head=nvfp4"), {
            "layers.3.self_attn.q_proj": "FP8_DYNAMIC",
            "layers.3.self_attn.k_proj": "NVFP4_PACKED",
            "lm_head": "NVFP4_PACKED",
        }),
        ("tiny-moe", "compressed-tensors", (r"\.mlp\.=nvfp4", "linear_attn|q_proj=bf16"), {
            "layers.3.mlp.experts.7.down_proj": "NVFP4_PACKED",
            "layers.3.mlp.shared_expert.up_proj": "NVFP4_PACKED",
            "layers.3.mlp.gate": "NONE",
            "layers.0.linear_attn.out_proj": "NONE",
            "layers.3.self_attn.q_proj": "NONE",
            "layers.3.self_attn.k_proj": "FP8_DYNAMIC",
        }),
        ("tiny", "modelopt", ("self_attn=nvfp4", "v_proj|lm_head=bf16", r"3\.mlp=fp8"), {
            "layers.3.self_attn.q_proj": "NVFP4",
            "layers.3.self_attn.v_proj": "NONE",
            "lm_head": "NONE",
            "layers.3.mlp.up_proj": "FP8_STATIC",
            "layers.2.mlp.up_proj": "NVFP4",
        }),
    ],
    ids=str,
)  # fmt: skip
def test_modules_are_stored_as_asked(
    tmp_path: Path, shape: str, layout: str, stored: tuple[str, ...], expected: dict[str, str]
) -> None:
    """Both of what the files say and of what they hold: the loader compares every tensor with its scheme."""
    from engine.models.config import load_text_config
    from engine.weights.loader import load_weights

    options = [option for change in stored for option in ("--store", change)]
    folder = make(tmp_path / "c", "--shape", shape, "--layout", layout, *options)
    weights = load_weights(folder, load_text_config(folder), "cpu")
    assert {name: weights.schemes[name].name for name in expected} == expected


def test_w4a4_is_of_every_four_bit_module_of_the_older_layout(tmp_path: Path) -> None:
    names = stored(make(tmp_path / "c", "--layout", "compressed-tensors-nvfp4", "--w4a4")).keys()
    packed = {name.rpartition(".")[0] for name in names if name.endswith(".weight_packed")}
    assert packed == {name.rpartition(".")[0] for name in names if name.endswith(".input_global_scale")}
    assert len(packed) == 4 * 3 + 3 + 4


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_bell_curve_has_its_mean_and_spread() -> None:
    values = normal(0.5, 0.1)(key_of(0, "x"), 0, 100_000, CPU).double()
    assert values.mean().item() == pytest.approx(0.5, abs=2e-3)
    assert values.std().item() == pytest.approx(0.1, rel=0.02)
    assert values.max().item() <= 0.5 + 0.1 * 3.5


def test_codes_and_block_scales_cover_their_range() -> None:
    assert random_bytes(key_of(0, "x"), 0, 100_000, CPU).unique().numel() == 256
    blocks = block_scales(key_of(0, "y"), 0, 10_000, CPU)
    assert blocks.float().unique().tolist()[::15] == [96, 352]


@pytest.mark.parametrize("layout", make_checkpoint.LAYOUTS)
def test_every_linear_layer_keeps_the_scale_of_its_input(tmp_path: Path, layout: str) -> None:
    """RMS of a row ≈ gain/sqrt(K) in every scheme, so the layouts are the same kind of model."""
    from engine.models.config import load_text_config
    from engine.weights.loader import load_weights

    folder = make(tmp_path / "c", "--layout", layout)
    weights = load_weights(folder, load_text_config(folder), "cpu")
    recipe = Recipe(make_checkpoint.replace(SHAPES["tiny"], layers=4), layout, 0)
    for module in modules(recipe):
        matrix = weights.linear(module.name.removeprefix("model.language_model.")).dequantize(torch.float32)
        gain = matrix.square().mean().sqrt().item() * module.columns**0.5
        assert 0.75 * module.gain < gain < 1.25 * module.gain, module.name


def test_fused_shards_share_their_scales_unless_asked(tmp_path: Path) -> None:
    shared, distinct = stored(make(tmp_path / "a")), stored(make(tmp_path / "b", "--distinct-shard-scales"))
    layer = "model.language_model.layers."
    groups = ([f"{layer}3.self_attn.{p}_proj.{s}" for p in "qkv"] for s in ("weight_scale", "input_scale"))
    for names in (*groups, [f"{layer}0.mlp.{p}_proj.weight_scale_2" for p in ("gate", "up")],
                  [f"{layer}0.linear_attn.in_proj_{p}.weight_scale" for p in ("qkv", "z")]):  # fmt: skip
        assert len({shared[n].item() for n in names}) == 1
        assert len({distinct[n].item() for n in names}) == len(names)
    others = {shared[f"{layer}{i}.linear_attn.out_proj.weight_scale"].item() for i in range(3)}
    assert len(others) == 3


def test_each_token_names_distinct_experts(tmp_path: Path) -> None:
    """The planted directions are orthogonal: exactly top_k of them are strong in every row of the embedding."""
    found = stored(make(tmp_path / "c", "--shape", "tiny-moe"))
    embedding = found["model.language_model.embed_tokens.weight"].double()
    for i in range(4):
        router = found[f"model.language_model.layers.{i}.mlp.gate.weight"].double()
        torch.testing.assert_close(router @ router.T, torch.eye(8, dtype=torch.float64))
        logits = (embedding @ router.T).sort(-1, descending=True).values
        assert (logits[:, 1] - logits[:, 2]).min().item() > 3
        assert (logits[:, 0] - logits[:, 1]).median().item() == pytest.approx(2, abs=0.5)


def test_shards_written_side_by_side_are_the_same(tmp_path: Path) -> None:
    one, several = (make(tmp_path / jobs, "--shape", "tiny-moe", "--jobs", jobs) for jobs in ("1", "3"))
    assert len(list(one.glob("*.safetensors"))) > 1
    assert digest(several) == digest(one)


def test_ctrl_c_among_shards_starts_no_more_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, shards = tmp_path / "c", ("--shape", "tiny", "--shard-bytes", "100000", "--jobs", "2")
    folder.mkdir()
    (folder / "precious").write_text("x")

    def interrupted(futures: set[Future[int]], **how: str) -> NoReturn:
        wait(futures, **how)
        raise KeyboardInterrupt

    monkeypatch.setattr(make_checkpoint, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(folder, *shards, "--overwrite")
    assert 1 <= len(list(tmp_path.glob("c.partial/*.safetensors"))) <= 2
    assert (folder / "precious").read_text() == "x"


# --- command line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "6"], "--layers: found 6, expected a multiple of 4"),
        (["--w4a4"], "--w4a4: found --layout modelopt, expected compressed-tensors"),
        (["--shape", "70b"], "invalid choice: '70b'"),
        (["--jobs", "0"], "--jobs: found 0, expected 1 or more"),
        (["--store", "q_proj"], "--store: found 'q_proj', expected PATTERN=nvfp4, PATTERN=fp8 or PATTERN=bf16"),
        (["--store", "=bf16"], "--store: found '=bf16', expected PATTERN=nvfp4, PATTERN=fp8 or PATTERN=bf16"),
        (["--store", "(=bf16"], "--store: '(' is not a regular expression (missing )"),
        (["--layout", "bf16", "--store", "q_proj=fp8"], "--store: found --layout bf16, expected a layout that names"),
    ],
)
def test_usage_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    with pytest.raises(SystemExit):
        make_checkpoint.main([*options, str(tmp_path / "c")])
    assert message in capsys.readouterr().err


def test_a_pattern_that_finds_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--store: 'expert' finds no module; expected part of such a name as model\."):
        make(tmp_path / "c", "--store", "expert=bf16")


def test_an_existing_folder_is_kept_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "precious").write_text("x")
    with pytest.raises(SystemExit):
        make(folder)
    assert "exists; remove it or pass --overwrite" in capsys.readouterr().err
    assert (folder / "precious").exists()
    make(folder, "--overwrite")
    assert not (folder / "precious").exists()
    assert not list(tmp_path.glob("*.partial"))
