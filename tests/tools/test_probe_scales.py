"""Scales of fused projections: equal ones pass, one bit of difference is found and named, nothing is not equal."""

from __future__ import annotations

import ast
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import make_checkpoint
import probe_scales
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ONCE = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
ROOT = "model.language_model.layers"
Probe = Callable[..., tuple[int, str]]
Tensors = dict[str, tuple[str, list[int], bytes]]


@pytest.fixture
def probe(capsys: pytest.CaptureFixture[str]) -> Probe:
    def run(*arguments: object) -> tuple[int, str]:
        code = probe_scales.main([str(word) for word in arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def shard(path: Path, tensors: Tensors) -> None:
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def f32(value: float) -> tuple[str, list[int], bytes]:
    return "F32", [], struct.pack("<f", value)


def attention(layer: int, q: float, k: float, v: float) -> Tensors:
    names = zip("qkv", (q, k, v), strict=True)
    return {f"{ROOT}.{layer}.self_attn.{one}_proj.input_scale": f32(value) for one, value in names}


def test_it_needs_no_package() -> None:
    """It is copied to wherever a checkpoint is."""
    tree = ast.parse(Path(probe_scales.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ((), {"self_attn q_proj/k_proj/v_proj": 1, "linear_attn in_proj_qkv/in_proj_z": 3, "mlp gate_proj/up_proj": 4}),
        (("--shape", "tiny-moe"), {"mlp.experts.* gate_proj/up_proj": 32, "mlp.shared_expert gate_proj/up_proj": 4}),
    ],
)
def test_shared_and_distinct_scales_of_made_checkpoints(
    options: tuple[str, ...], kinds: dict[str, int], probe: Probe, tmp_path: Path
) -> None:
    for name, more, code in (("shared", (), 0), ("distinct", ("--distinct-shard-scales",), 1)):
        make_checkpoint.main(["--device", "cpu", "--layers", "4", *options, *more, str(tmp_path / name)])
        ended, out = probe(tmp_path / name)
        assert ended == code
        for kind, count in kinds.items():
            assert f"{ROOT}.*.{kind} input_scale: {count if code else 0} of {count} differ\n" in out


def test_the_w4a4_layout_has_another_name_for_it(probe: Probe, tmp_path: Path) -> None:
    options = ("--device", "cpu", "--layers", "8", "--layout", "compressed-tensors")
    make_checkpoint.main([*options, "--w4a4", str(tmp_path / "w4a4")])
    ended, out = probe(tmp_path / "w4a4")
    assert ended == 0
    assert "q_proj" not in out
    assert "gate_proj/up_proj input_global_scale: 0 of 7 differ" in out
    make_checkpoint.main([*options, str(tmp_path / "w4a16")])
    ended, out = probe(tmp_path / "w4a16")
    assert (ended, "no fused group has a scale to compare" in out) == (2, True)
    ended, out = probe(tmp_path / "w4a16", "--weights")
    assert (ended, "weight_global_scale: 0 of 7 differ" in out, "weight_scale:" in out) == (0, True, False)


def test_the_group_that_differs_is_printed_in_bits(probe: Probe, tmp_path: Path) -> None:
    shard(tmp_path / "a.safetensors", attention(3, 1.0, 1.0, 1.0) | attention(10, 1.0, 0.5, 1.0))
    code, out = probe(tmp_path)
    assert code == 1
    assert out.splitlines() == [
        f"{ROOT}.10.self_attn input_scale: q_proj 0x3f800000 (1), k_proj 0x3f000000 (0.5), v_proj 0x3f800000 (1)",
        f"{ROOT}.*.self_attn q_proj/k_proj/v_proj input_scale: 1 of 2 differ",
    ]


@ONCE
@given(bit=st.integers(0, 31), value=st.integers(0, 2**32 - 1), which=st.sampled_from("qkv"))
def test_any_single_bit_counts_even_of_zeros_and_nans(bit: int, value: int, which: str, tmp_path: Path) -> None:
    tensors = {f"{ROOT}.0.self_attn.{one}_proj.input_scale": ("F32", [], struct.pack("<I", value)) for one in "qkv"}
    shard(tmp_path / "a.safetensors", tensors)
    assert probe_scales.main([str(tmp_path)]) == 0
    flipped = struct.pack("<I", value ^ 1 << bit)
    shard(tmp_path / "a.safetensors", tensors | {f"{ROOT}.0.self_attn.{which}_proj.input_scale": ("F32", [], flipped)})
    assert probe_scales.main([str(tmp_path)]) == 1


def test_a_scale_that_one_projection_lacks_or_that_has_another_form_differs(probe: Probe, tmp_path: Path) -> None:
    tensors = attention(0, 1.0, 1.0, 1.0)
    del tensors[f"{ROOT}.0.self_attn.v_proj.input_scale"]
    tensors[f"{ROOT}.0.self_attn.v_proj.weight"] = ("U8", [1], b"0")
    shard(tmp_path / "a.safetensors", tensors)
    code, out = probe(tmp_path)
    assert (code, "v_proj none" in out) == (1, True)
    shard(
        tmp_path / "a.safetensors",
        attention(0, 1.0, 1.0, 1.0) | {f"{ROOT}.0.self_attn.k_proj.input_scale": ("F32", [2], bytes(8))},
    )
    code, out = probe(tmp_path)
    assert (code, "k_proj 2 numbers" in out) == (1, True)
    same_bytes = ("I32", [], struct.pack("<f", 1.0))
    shard(
        tmp_path / "a.safetensors", attention(0, 1.0, 1.0, 1.0) | {f"{ROOT}.0.self_attn.k_proj.input_scale": same_bytes}
    )
    code, out = probe(tmp_path)
    assert (code, "k_proj 0x3f800000 (I32)" in out) == (1, True)


def test_a_group_may_lie_in_two_shards_and_the_index_says_which(probe: Probe, tmp_path: Path) -> None:
    tensors = attention(0, 1.0, 0.5, 1.0)
    first, *rest = tensors
    shard(tmp_path / "a.safetensors", {first: tensors[first]})
    shard(tmp_path / "b.safetensors", {name: tensors[name] for name in rest})
    assert probe(tmp_path)[0] == 1
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {first: "a.safetensors"}}))
    assert probe(tmp_path)[0] == 2


@ONCE
@given(content=st.binary(max_size=120))
def test_noise_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    assert probe_scales.main([str(tmp_path)]) == 69


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("[]", "holds no JSON table but a list"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"x": 5}}', "names a shard 5"),
        ('{"weight_map": {"x": ""}}', "names a shard ''"),
        ('{"weight_map": {"x": "\\ud800"}}', "cannot read"),
        ('{"weight_map": {"x": "a", "x": "b"}}', "a key stands twice"),
        ('{"a":' * 9000, "holds no JSON table"),
        ('{"weight_map": {"x": "../a"}}', "names a shard '../a'"),
        ('{"weight_map": {"x": "a"}}', "cannot read"),
    ],
)
def test_a_wrong_index_is_one_line(index: str, message: str, probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    code, out = probe(tmp_path)
    assert (code, out.count("\n")) == (69, 1)
    assert message in out


def test_a_truncated_file_and_a_missing_folder_are_one_line(probe: Probe, tmp_path: Path) -> None:
    shard(tmp_path / "a.safetensors", attention(0, 1.0, 1.0, 1.0))
    whole = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(whole[:-1])
    assert "download it again" in probe(tmp_path)[1]
    assert probe(tmp_path / "none") == (69, f"probe_scales: no folder {tmp_path / 'none'}; expected a checkpoint\n")
    (tmp_path / "a.safetensors").unlink()
    assert "has no *.safetensors" in probe(tmp_path)[1]
    assert probe()[0] == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": ["F32"]}, "its header is not one of safetensors"),
        ({"shape": ["1"]}, "its header is not one of safetensors"),
        ({"shape": [float("inf")]}, "its header is not one of safetensors"),
        ({"shape": [-1]}, "its header is not one of safetensors"),
        ({"shape": [2**62] * 300}, "expected more than a file holds"),
        ({"data_offsets": [0, float("inf")]}, "its header is not one of safetensors"),
        ({"data_offsets": [0, 999]}, "ends at byte"),
        ({"data_offsets": [0, 64]}, "has 64 bytes; expected 4"),
        ({"dtype": "F99", "data_offsets": [0, 64]}, "one number of 64 bytes"),
        ({"data_offsets": [0, 4]}, "by its header"),
    ],
)
def test_a_header_that_lies_is_one_line(change: dict[str, object], message: str, probe: Probe, tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [], "data_offsets": [0, 4]} | change
    text = json.dumps({f"{ROOT}.0.self_attn.q_proj.input_scale": entry}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    code, out = probe(tmp_path)
    assert (code, out.count("\n")) == (69, 1)
    assert message in out


def test_a_tensor_that_is_not_once_in_its_place_is_one_line(probe: Probe, tmp_path: Path) -> None:
    tensors = attention(0, 1.0, 1.0, 1.0)
    shard(tmp_path / "model-00001-of-00002.safetensors", tensors)
    assert "cannot read" in probe(tmp_path)[1]
    shard(tmp_path / "model-00002-of-00002.safetensors", tensors)
    assert "expected it once" in probe(tmp_path)[1]
    index = {"weight_map": {"x": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    code, out = probe(tmp_path)
    assert (code, "is not where model.safetensors.index.json says" in out) == (69, True)


def test_names_may_be_anything(probe: Probe, tmp_path: Path) -> None:
    numbers = ("10", "2", "²", "9" * 5000, "零", "\x1b[31m\n", "\ud800")
    parents = [f"layers.{number}.self_attn" for number in numbers]
    shard(tmp_path / "a.safetensors", {f"{p}.{one}_proj.input_scale": f32(ord(one)) for p in parents for one in "qk"})
    code, out = probe(tmp_path)
    lines = out.splitlines()
    assert code == 1
    assert [line.split(".")[1] for line in lines[:2]] == ["2", "10"]
    assert len(lines) == len(numbers) + len(numbers) - 1, "one a group, one a kind"
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("words", [(), ("a", "b"), ("--nothing",), ("x" * 300,), ("a\0b",)])
def test_a_wrong_command_line_is_one_line(words: tuple[str, ...], probe: Probe) -> None:
    code, out = probe(*words)
    assert code in (64, 69)
    assert out.count("\n") == 1


def test_a_folder_that_may_not_be_listed_is_not_empty(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    assert probe(tmp_path) == (69, f"probe_scales: cannot read {tmp_path}: Permission denied\n")


def test_what_is_no_file_is_not_waited_for(probe: Probe, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.safetensors")
    assert "is no file" in probe(tmp_path)[1]
    os.mkfifo(tmp_path / "model.safetensors.index.json")
    assert "index.json is no file" in probe(tmp_path)[1]


def test_a_reader_that_has_gone_and_ctrl_c_leave_a_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard(tmp_path / "a.safetensors", attention(0, 1.0, 0.5, 1.0))
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, probe_scales.__file__, str(tmp_path)]
    ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (1, b"")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(probe_scales, "groups", interrupted)
    assert probe_scales.main([str(tmp_path)]) == 130
