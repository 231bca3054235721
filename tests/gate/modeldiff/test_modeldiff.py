"""`gate model diff`: layouts of two publishers, one module requantised, parts that are missing; and equal ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate import cli, interrupt
from gate.headers.read import Headers, Tensor, read
from gate.modeldiff.compare import compare
from gate.modeldiff.record import ModelDiff, ModuleDiff
from gate.modeldiff.text import ranges, render
from tests.gate.headers.sparse import recorded, synthetic, write

NAMES = ("a", "b")
WORD = ("BF16", [1])


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def nvidia(places: Path) -> Headers:
    """The 27B as nvidia publishes it, full size."""
    return read(synthetic(places / "nvidia", "27b", vision=True, mtp=True))


@pytest.fixture(scope="module")
def unsloth(places: Path) -> Headers:
    """The 27B in unsloth's mixed layout: the MLPs of the last eighth of the layers, and lm_head, in FP8."""
    return read(synthetic(places / "unsloth", "27b", "compressed-tensors", vision=True))


def differing(made: ModelDiff) -> dict[str, tuple[str | None, str | None, int, int]]:
    return {f"{one.name}/{one.layers[:1]}": (one.first, one.second, one.modules, one.of) for one in made.modules}


def test_the_two_publishers_of_the_27b(nvidia: Headers, unsloth: Headers) -> None:
    made = compare(nvidia, unsloth, NAMES)
    static, channel = "FP8 W8A8 per tensor, static", "FP8 W8A8 per channel, dynamic"
    found = differing(made)
    assert found["layers.*.mlp.gate_proj/(56,)"] == ("NVFP4 W4A16 group 16", channel, 8, 64)
    assert found["layers.*.linear_attn.in_proj_qkv/(0,)"] == (static, channel, 48, 48)
    assert found["lm_head/()"] == ("NVFP4 W4A16 group 16", channel, 1, 1)
    assert found["layers.*.self_attn.k_proj.k_scale/(3,)"] == ("F32", None, 16, 16)
    assert made.equal_modules["layers.*.linear_attn.in_proj_a"] == "BF16"
    assert "mtp" in made.first.bytes_by_part
    assert "mtp" not in made.second.bytes_by_part
    assert made.exit_code == 1
    assert {one.name: (one.first, one.second) for one in made.settings}.items() >= {
        "KV cache, as auto": ("fp8", "bfloat16"),
        "quantisation": ("modelopt", "compressed-tensors"),
        "KV cache scheme": ("dynamic False, num_bits 8, type float", None),
    }.items()
    assert "visual*" in made.ignored_by_first
    assert "layers.*.linear_attn.conv1d" in made.ignored_by_first
    assert r"re:^mtp\..*" in made.ignored_by_second


def test_bytes_add_up_to_every_tensor(nvidia: Headers, unsloth: Headers) -> None:
    made = compare(nvidia, unsloth, NAMES)
    for side, headers in ((made.first, nvidia), (made.second, unsloth)):
        assert sum(side.bytes_by_part.values()) == sum(one.nbytes for one in headers.tensors.values())
        assert sum(side.bytes_by_scheme.values()) == side.bytes_by_part["text"]
        assert side.file_bytes > sum(side.bytes_by_part.values())
        assert side.shards == 2
        assert side.contradictions == {}


def test_the_same_twice_is_alike(nvidia: Headers) -> None:
    made = compare(nvidia, nvidia, NAMES)
    assert made.exit_code == 0
    assert (made.modules, made.settings, made.ignored_by_first, made.ignored_by_second) == ((), (), (), ())
    assert len(made.equal_modules) > 20


@pytest.mark.parametrize("name", ["modelopt_mixed_dense", "modelopt_mixed_moe"])
def test_a_recorded_layout_is_like_itself(name: str, tmp_path: Path) -> None:
    headers = read(recorded(tmp_path / "c", name))
    assert compare(headers, headers, NAMES).exit_code == 0


def test_a_recorded_layout_under_another_root_is_alike(tmp_path: Path) -> None:
    headers = read(recorded(tmp_path / "c", "modelopt_mixed_dense"))
    moved = {name.replace("model.language_model.", "language_model.model."): t for name, t in headers.tensors.items()}
    other = Headers(headers.folder, headers.config, moved, headers.legacy, headers.shards)
    assert compare(headers, other, NAMES).modules == ()


def test_the_w4a4_variant_differs_in_its_activations_alone(tmp_path: Path) -> None:
    base, fast = (
        read(synthetic(tmp_path / name, "tiny", "compressed-tensors", w4a4=name == "fast")) for name in ("base", "fast")
    )
    made = compare(base, fast, NAMES)
    assert {(one.first, one.second) for one in made.modules} == {("NVFP4 W4A16 group 16", "NVFP4 W4A4 group 16")}
    assert {one.name for one in made.modules} == {f"layers.*.mlp.{p}_proj" for p in ("gate", "up", "down")}
    assert {one.layers for one in made.modules} == {tuple(range(7))}


def changed(headers: Headers, name: str, tensor: Tensor | None) -> Headers:
    tensors = {k: v for k, v in headers.tensors.items() if k != name} | ({} if tensor is None else {name: tensor})
    return Headers(headers.folder, headers.config, tensors, headers.legacy, headers.shards)


def test_one_layer_that_was_requantised_is_named_and_contradicts_its_configuration(nvidia: Headers) -> None:
    root = "model.language_model.layers.7.mlp.up_proj"
    wide = changed(nvidia, f"{root}.weight", Tensor("BF16", (17408, 5120), "x"))
    made = compare(nvidia, wide, NAMES)
    (only,) = made.modules
    assert (only.name, only.first, only.second) == ("layers.*.mlp.up_proj", "NVFP4 W4A16 group 16", "BF16")
    assert (only.layers, only.of_layers) == ((7,), 64)
    assert made.second.contradictions == {"layers.*.mlp.up_proj: configuration says NVFP4, headers hold BF16": 1}
    out = render(made)
    assert "  layers.*.mlp.up_proj: NVFP4 W4A16 group 16 | BF16, 1 of 64 layers: 7\n" in out
    assert "second: layers.*.mlp.up_proj: configuration says NVFP4, headers hold BF16, 1 module\n" in out


def test_another_shape_and_a_missing_module_differ(nvidia: Headers) -> None:
    short = changed(nvidia, "model.language_model.embed_tokens.weight", Tensor("BF16", (100, 5120), "x"))
    short = changed(short, "model.language_model.norm.weight", None)
    found = differing(compare(nvidia, short, NAMES))
    assert found["embed_tokens/()"] == ("BF16 [248320, 5120]", "BF16 [100, 5120]", 1, 1)
    assert found["norm/()"] == ("BF16", None, 1, 1)


def test_a_part_that_is_missing_is_told_by_its_bytes_and_is_a_difference(places: Path, nvidia: Headers) -> None:
    bare = read(synthetic(places / "bare", "27b"))
    made = compare(nvidia, bare, NAMES)
    assert [one.name for one in made.modules if one.name.startswith(("visual", "mtp"))] == []
    assert made.exit_code == 1
    out = render(made)
    assert "  vision, all of it: 0.92" in out
    assert "  mtp, all of it: 0.8" in out


def test_equal_settings_and_a_missing_tower_are_a_difference(nvidia: Headers) -> None:
    text = {name: tensor for name, tensor in nvidia.tensors.items() if "visual" not in name}
    made = compare(nvidia, Headers(nvidia.folder, nvidia.config, text, nvidia.legacy, nvidia.shards), NAMES)
    assert (made.modules, made.settings, made.exit_code) == ((), (), 1)


def test_settings_are_found_at_any_depth(nvidia: Headers) -> None:
    text = {**nvidia.text, "rope_parameters": {**nvidia.text["rope_parameters"], "rope_theta": 5}}
    other = Headers(nvidia.folder, {**nvidia.config, "text_config": text}, nvidia.tensors, nvidia.legacy)
    (only,) = compare(nvidia, other, NAMES).settings
    assert (only.name, only.first, only.second) == ("text_config.rope_parameters.rope_theta", "10000000", "5")


@given(st.sets(st.integers(0, 100)))
def test_ranges_read_back(numbers: set[int]) -> None:
    spans = [span.split("-") for span in ranges(tuple(sorted(numbers))).split(", ") if span]
    assert [n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)] == sorted(numbers)


def test_experts_are_counted_beside_their_layers(tmp_path: Path) -> None:
    headers = read(recorded(tmp_path / "c", "modelopt_mixed_moe"))
    experts = {name for name in headers.tensors if ".layers.1.mlp.experts.0.up_proj." in name}
    without = {name: tensor for name, tensor in headers.tensors.items() if name not in experts}
    made = compare(headers, Headers(headers.folder, headers.config, without, headers.legacy, headers.shards), NAMES)
    (only,) = made.modules
    assert isinstance(only, ModuleDiff)
    assert (only.layers, only.modules, only.of) == ((1,), 1, 4 * headers.text["num_experts"])


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    monkeypatch.setattr(interrupt, "install", lambda: None)

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["gate", "model", "diff", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out + printed.err

    return run


def test_the_command_line(gate: Any, nvidia: Headers, unsloth: Headers) -> None:
    code, out = gate(nvidia.folder, unsloth.folder)
    assert code == 1
    assert (
        "  layers.*.mlp.gate_proj: NVFP4 W4A16 group 16 | FP8 W8A8 per channel, dynamic, 8 of 64 layers: 56-63\n" in out
    )
    assert "  layers.*.linear_attn.in_proj_a: BF16\n" not in out
    code, out = gate(nvidia.folder, nvidia.folder, "--all")
    assert code == 0
    assert "  layers.*.linear_attn.in_proj_a: BF16\n" in out
    code, out = gate(nvidia.folder, unsloth.folder, "--json")
    assert ModelDiff.model_validate(json.loads(out)).exit_code == code == 1
    code, out = gate(nvidia.folder, "nowhere")
    assert (code, out.count("\n")) == (64, 1)


def test_names_and_values_of_any_kind_stay_in_their_line(gate: Any, tmp_path: Path) -> None:
    names = ("layers.².w", "layers." + "9" * 5000 + ".w", "layers.零.w", "\x1b[31m\nred.w", "", ".w", "..")
    first = write(tmp_path / "a", {"config.json": {"note": "\x1b[31m\nred", "\u2028": 1}}, dict.fromkeys(names, WORD))
    second = write(tmp_path / "b", {"config.json": {}}, {"layers.3.w": WORD})
    code, out = gate(first, second)
    assert code == 1
    assert all(line.isprintable() for line in out.split("\n"))
    assert len([line for line in out.split("\n") if line.endswith(": BF16 | none")]) == len(names)
    assert len([line for line in out.split("\n") if line.startswith("  note: ")]) == 1
    code, out = gate(first, second, "--json")
    assert len(json.loads(out)["modules"]) == len(names) + 1


@pytest.mark.parametrize("depth", [10, 200, 900, 990, 5000])
def test_a_configuration_of_any_depth_is_an_answer_or_one_line(depth: int, gate: Any, tmp_path: Path) -> None:
    first = write(tmp_path / "a", {"config.json": {}}, {"x": WORD})
    second = write(tmp_path / "b", {}, {"x": WORD})
    (second / "config.json").write_text('{"a":' * depth + "1" + "}" * depth)
    code, out = gate(first, second)
    assert code == 1 or (code, out.count("\n")) == (69, 1)
