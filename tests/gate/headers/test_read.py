"""The reader of headers: what is there comes back, and what is damaged or doubled is one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gate.errors import CheckpointError
from gate.headers.read import ROOTS, Tensor, canonical, collapsed, part_of, read, read_shard
from gate.preflight.safetensors_header import DTYPE_BITS
from tests.gate.headers.sparse import write, write_shard

ONCE = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
WHOLE_BYTES = [name for name, bits in DTYPE_BITS.items() if bits % 8 == 0]
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
TENSORS = st.tuples(st.sampled_from(WHOLE_BYTES), st.lists(st.integers(0, 5), max_size=3))


@ONCE
@given(specs=st.dictionaries(NAMES, TENSORS, min_size=1, max_size=6))
def test_every_tensor_comes_back_with_its_dtype_shape_and_bytes(
    specs: dict[str, tuple[str, list[int]]], tmp_path: Path
) -> None:
    path = tmp_path / "x.safetensors"
    write_shard(path, specs)
    found = read_shard(path)
    assert {name: (one.dtype, list(one.shape)) for name, one in found.items()} == specs
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert sum(one.nbytes for one in found.values()) == path.stat().st_size - 8 - header


@ONCE
@given(content=st.binary(max_size=200))
def test_noise_is_refused_and_no_other_error_escapes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        read_shard(path)


def test_it_agrees_with_the_library_that_writes_the_files(tmp_path: Path) -> None:
    tensors = {"a.weight": np.ones((3, 5), np.float32), "b": np.zeros((), np.int64)}
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors", {"format": "pt"})
    assert read_shard(tmp_path / "x.safetensors") == {
        "a.weight": Tensor("F32", (3, 5), "x.safetensors"),
        "b": Tensor("I64", (), "x.safetensors"),
    }


def test_shards_of_the_index_are_read_and_no_others(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", {"config.json": {}}, {"x": ("U8", [2]), "y": ("U8", [3])}, shards=2)
    write_shard(folder / "consolidated.safetensors", {"x": ("U8", [2])})
    found = read(folder)
    assert {name: one.shard[6:11] for name, one in found.tensors.items()} == {"x": "00001", "y": "00002"}
    assert len(found.shards) == 2


INDEX, FIRST = "model.safetensors.index.json", "model-00001-of-00002.safetensors"


def _index(folder: Path, content: object) -> None:
    (folder / INDEX).write_text(json.dumps(content))


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text("[1]"), "is a JSON list; expected a table"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "model-00002-of-00002.safetensors").unlink(), "lacks 1 of 2 shards, first model-00002"),
        (lambda f: write_shard(f / "model-00002-of-00002.safetensors", {"x": ("U8", [2])}), "x is in model-00001"),
        (lambda f: (f / "model-00001-of-00002.safetensors").write_bytes(b"12345678"), "truncated or corrupt"),
        (lambda f: (f / "config.json").write_text('{"x": "\\ud800"}'), "cannot be read"),
        (lambda f: (f / "config.json").write_text('{"x":' * 9000), "cannot be read"),
        (lambda f: (f / "config.json").write_text('{"x": 1' + "0" * 5000 + "}"), "cannot be read"),
        (lambda f: _pipe(f / "config.json"), "config.json is no file"),
        (lambda f: _pipe(f / "hf_quant_config.json"), "hf_quant_config.json is no file"),
        (lambda f: _pipe(f / "model-00001-of-00002.safetensors"), "lacks 1 of 2 shards"),
        (lambda f: _link(f / "model-00001-of-00002.safetensors"), "lacks 1 of 2 shards"),
        (lambda f: (f / INDEX).unlink() or (f / "model-00001-of-00002.safetensors").unlink(), "lacks 1 of 2 shards"),
        (lambda f: _index(f, None), "is a JSON NoneType"),
        (lambda f: _index(f, {}), "has no weight_map"),
        (lambda f: _index(f, {"weight_map": {}}), "has no weight_map"),
        (lambda f: _index(f, {"weight_map": ["x"]}), "has no weight_map"),
        (lambda f: _index(f, {"weight_map": {"x": 5}}), "names a shard 5"),
        (lambda f: _index(f, {"weight_map": {"x": None}}), "names a shard None"),
        (lambda f: _index(f, {"weight_map": {"x": ""}}), "names a shard ''"),
        (lambda f: _index(f, {"weight_map": {"x": ".."}}), r"names a shard '\.\.'"),
        (lambda f: _index(f, {"weight_map": {"x": "y" * 300}}), "lacks 1 of 1 shards"),
        (lambda f: _index(f, {"weight_map": {"x": FIRST}}), None),
        (lambda f: _index(f, {"weight_map": {"z": FIRST}}), "x is in model-00001.*expected in no shard"),
        (
            lambda f: _index(f, {"weight_map": {"x": FIRST, "z": FIRST}}),
            "z is in no shard of .*expected in model-00001",
        ),
        (lambda f: _index(f, {"weight_map": {"x": FIRST.replace("1-of", "2-of"), "y": FIRST}}), "x is in model-00001"),
        (
            lambda f: (f / INDEX).unlink() or [write_shard(one, {}) for one in f.glob("*.s*")],
            "has no tensor in model-0",
        ),
    ],
)
def test_a_damaged_folder_is_one_line(change: object, message: str | None, tmp_path: Path) -> None:
    folder = write(tmp_path / "c", {"config.json": {}}, {"x": ("U8", [2]), "y": ("U8", [3])}, shards=2)
    change(folder)  # type: ignore[operator]
    if message is None:
        assert set(read(folder).tensors) == {"x"}
        return
    with pytest.raises(CheckpointError, match=message) as refused:
        read(folder)
    assert "\n" not in str(refused.value)


def test_an_index_may_not_name_files_elsewhere(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", {"config.json": {}}, {"x": ("U8", [2]), "y": ("U8", [3])}, shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"names a shard '\.\./x\.safetensors'"):
        read(folder)


def test_a_folder_without_weights_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has no \*\.safetensors"):
        read(tmp_path)


def test_the_configuration_wins_over_the_legacy_file_and_the_text_part_may_hold_it(tmp_path: Path) -> None:
    legacy = {"quantization": {"quant_algo": "FP8"}}
    for number, (config, expected) in enumerate(
        [
            ({}, "FP8"),
            ({"quantization_config": {"quant_algo": "NVFP4"}}, "NVFP4"),
            ({"text_config": {"quantization_config": {"quant_algo": "NVFP4"}}}, "NVFP4"),
        ]
    ):
        files = {"config.json": config, "hf_quant_config.json": legacy}
        found = read(write(tmp_path / str(number), files, {"x": ("U8", [2])}))
        assert found.quantization["quant_algo"] == expected


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("model.language_model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"),
        ("language_model.model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"),
        ("model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"),
        ("language_model.lm_head", "lm_head"),
        ("model.visual.blocks.0.attn.qkv", "visual.blocks.0.attn.qkv"),
        ("mtp.fc", "mtp.fc"),
    ],
)
def test_one_name_whatever_the_root(name: str, short: str) -> None:
    assert canonical(name) == short


@given(st.sampled_from([root for root, _ in ROOTS]), st.sampled_from(["layers.3.x", "lm_head", "norm"]))
def test_a_short_name_stays_as_it_is(root: str, rest: str) -> None:
    assert canonical(canonical(root + rest)) == canonical(root + rest)


def test_layers_and_experts_collapse() -> None:
    assert collapsed("layers.12.mlp.experts.7.up_proj") == "layers.*.mlp.experts.*.up_proj"
    assert [part_of(name) for name in ("visual.x", "mtp.x", "layers.0.x")] == ["vision", "mtp", "text"]
