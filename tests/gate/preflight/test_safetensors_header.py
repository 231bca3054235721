"""The header reader: good files give their names, and no damaged file passes."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gate.errors import CheckpointError
from gate.preflight.safetensors_header import tensor_names

Shard = Callable[[dict[str, bytes]], bytes]
ONCE = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def raw(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_it_agrees_with_the_library_that_writes_them(tmp_path: Path) -> None:
    tensors = {
        "a.weight": np.ones((3, 5), np.float32),
        "b": np.zeros((), np.int64),
        "empty": np.zeros((0, 4), np.uint8),
    }
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors", {"format": "pt"})
    assert tensor_names(tmp_path / "x.safetensors") == set(tensors)


@ONCE
@given(cut=st.integers(0, 200))
def test_no_truncated_file_passes(cut: int, make_shard: Shard, tmp_path: Path) -> None:
    whole = make_shard({"x": b"12", "y": b"345"})
    path = tmp_path / "x.safetensors"
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        tensor_names(path)


@ONCE
@given(content=st.binary(max_size=200))
def test_no_noise_passes_and_no_other_error_escapes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        tensor_names(path)


def test_a_byte_too_many_is_noticed(make_shard: Shard, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(make_shard({"x": b"12"}) + b"\0")
    with pytest.raises(CheckpointError, match=r"\d+ bytes; expected \d+ by its header"):
        tensor_names(tmp_path / "x")


ENTRY = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"x": ENTRY | {"dtype": "F9"}}, "x has dtype 'F9'; expected one of BOOL, U8"),
        ({"x": ENTRY | {"dtype": ["U8"]}}, "tensor x is described by"),
        ({"x": ENTRY | {"shape": ["2"]}}, "tensor x is described by"),
        ({"x": ENTRY | {"shape": [2.0]}}, "tensor x is described by"),
        ({"x": ENTRY | {"shape": [True, 2]}}, "tensor x is described by"),
        ({"x": ENTRY | {"shape": [-1, -2]}}, "tensor x is described by"),
        ({"x": ENTRY | {"shape": "2"}}, "tensor x is described by"),
        ({"x": ENTRY | {"shape": {"2": 1}}}, "tensor x is described by"),
        ({"x": ENTRY | {"shape": [float("inf")]}}, "tensor x is described by"),
        ({"x": ENTRY | {"shape": [10**400]}}, "tensor x is described by"),
        ({"x": ENTRY | {"shape": [2**62] * 300}}, "expected more than any file holds for U8"),
        ({"x": ENTRY | {"data_offsets": [0, float("inf")]}}, "tensor x is described by"),
        ({"x": ENTRY | {"data_offsets": ["0", "2"]}}, "tensor x is described by"),
        ({"x": ENTRY | {"data_offsets": [0, 2.7]}}, "tensor x is described by"),
        ({"x" * 9000: ENTRY | {"shape": []}}, "x…"),
        ({"\ud800": ENTRY}, "its header is not JSON .*surrogates"),
        ({"x": ENTRY | {"shape": [3]}}, r"x has 2 bytes; expected 3 for U8 \[3\]"),
        ({"x": ENTRY | {"dtype": "F4", "shape": [3]}}, r"expected 1\.5 for F4"),
        ({"x": {"dtype": "U8"}}, "tensor x is described by"),
        ({"x": None}, "tensor x is described by None"),
        ({"x": ENTRY, "y": ENTRY}, "y starts at byte 0 of the data; expected 2"),
        ({"x": ENTRY | {"data_offsets": [1, 3]}}, "x starts at byte 1 of the data; expected 0"),
        (["x"], "its header is not a table of tensors"),
    ],
)
def test_a_header_that_does_not_add_up_is_refused(header: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(raw(header, b"12"))
    with pytest.raises(CheckpointError, match=message):
        tensor_names(tmp_path / "x")


def test_a_header_longer_than_the_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(CheckpointError, match="with a header length of 1152921504606846976"):
        tensor_names(tmp_path / "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"x": 1, "x": %s}', "'x' twice"),
        (b'{"x": %s, "x": %s}', "'x' twice"),
        (b'{"x": {"dtype": "F32", "dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}', "'dtype' twice"),
        ('{"x": null}'.encode("utf-16"), "its header is not JSON"),
    ],
)
def test_a_key_that_stands_twice_is_refused_and_so_is_another_encoding(
    text: bytes, message: str, tmp_path: Path
) -> None:
    """The last of two would hide what the first one says; the format asks for UTF-8."""
    header = text.replace(b"%s", json.dumps(ENTRY).encode())
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header + b"12")
    with pytest.raises(CheckpointError, match=message) as raised:
        tensor_names(tmp_path / "x")
    assert len(str(raised.value)) < 1000


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").symlink_to("nowhere")
    for name, message in (
        ("pipe", "is no file"),
        (".", "is no file"),
        ("loop", "cannot be read: Too many levels"),
        ("broken", "cannot be read: No such file"),
    ):
        with pytest.raises(CheckpointError, match=message):
            tensor_names(tmp_path / name)
