"""safetensors headers and indexes written to deceive: each is one error before any weight is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.weights.checkpoint import INDEX, SINGLE, Checkpoint
from engine.weights.errors import CheckpointError

A, B = "model.norm.weight", "model.other"


def write(folder: Path, header: str | dict[str, Any], data: bytes = bytes(16)) -> Path:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    (folder / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


def entry(start: object, end: object, shape: object = (2,), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_the_honest_form_of_these_is_read(tmp_path: Path) -> None:
    tensors = Checkpoint(write(tmp_path, {B: entry(8, 16), A: entry(0, 8), "__metadata__": {"format": "pt"}})).tensors
    assert {name: info.nbytes for name, info in tensors.items()} == {"norm.weight": 8, "other": 8}


LIES: list[tuple[str | dict[str, Any], str]] = [
    ({A: entry(0, 16, [4]), B: entry(8, 16)}, "neither overlap nor leave holes"),
    ({A: entry(0, 8), B: entry(0, 8), "c": entry(8, 16)}, "neither overlap nor leave holes"),
    ({A: entry(4, 8, [1]), B: entry(8, 16)}, "starts at byte 4 .* expected 0"),
    ({A: entry(0, 4, [1]), B: entry(8, 16)}, "starts at byte 8 .* expected 4"),
    ({A: entry(0, 16, [2.0, 2.0])}, "no integer"),
    ({A: entry(0, 16, [4.5])}, "no integer"),
    ({A: entry(0, 16, [True, 4])}, "no integer"),
    ({A: entry(0, 16, "4")}, "no integer"),
    ({A: entry("0", "16", [4])}, "no integer"),
    ({A: {"dtype": "F32", "shape": [4], "data_offsets": "06"}}, "no integer"),
    ({A: entry(-16, 0, [4])}, "offsets -16"),
    ({A: entry(16, 0, [4])}, "offsets 16"),
    ({A: entry(0, 16, [-4])}, "shape"),
    ({A: entry(0, 10**30, [4])}, "found .* bytes, expected"),
    ('{"a": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 16]}}', "no integer"),
    ('{"a": {"dtype": "F32", "shape": null, "data_offsets": [0, 16]}}', "not safetensors"),
    ("[" * 100_000, "not safetensors"),
    ("[]", "not safetensors"),
    ('"text"', "not safetensors"),
    (f'{{"a": {json.dumps(entry(0, 16, [4]))}, "a": {json.dumps(entry(0, 16, [4]))}}}', "a occurs twice"),
]


@pytest.mark.parametrize(("header", "message"), LIES, ids=lambda v: str(v)[:50])
def test_a_header_that_lies(tmp_path: Path, header: str | dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(write(tmp_path, header))


def test_a_header_length_beyond_the_file(tmp_path: Path) -> None:
    (tmp_path / SINGLE).write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(CheckpointError, match="its header alone needs 18446744073709551623"):
        Checkpoint(tmp_path)


SHARDS = [5, ["x"], {}, None, "", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b", "a\nb", ".hidden", "a" * 5000]


@pytest.mark.parametrize("shard", SHARDS, ids=lambda v: repr(v)[:20])
def test_a_shard_that_is_no_plain_file_name(tmp_path: Path, shard: object) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {A: "model.safetensors", B: shard}}))
    with pytest.raises(CheckpointError, match="is not a plain file name; refused") as caught:
        Checkpoint(tmp_path)
    assert len(str(caught.value)) < 400


def directory(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [directory, loop])
def test_a_shard_that_cannot_be_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {A: "x.safetensors"}}))
    make(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"x\.safetensors: cannot be read"):
        Checkpoint(tmp_path)
