"""Checkpoint: the tensors of a safetensors folder by canonical name, read one at a time.

Headers of all shards are read and checked first, so a half-downloaded or inconsistent folder fails before the first
weight is loaded. Tensors are read with plain reads into their own memory: a mapping was rejected because its pages
count as resident beside the copy, and because a file cut short under a mapping ends the process with SIGBUS.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from engine.models.config import read_json
from engine.weights.errors import CheckpointError
from engine.weights.names import canonical, is_skipped
from engine.weights.staging import Direct, Sink, Staged, fill

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit

SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
"""No separator, no leading dot, nothing a file system could refuse: an index from outside names files in its folder."""

DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as its shard's header describes it."""

    stored_name: str
    shard: Path
    dtype: str
    """safetensors' name: F32, BF16, F8_E4M3, U8, …"""
    shape: tuple[int, ...]
    offset: int
    """Of its first byte, from the start of the file."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """A contiguous piece of a stored tensor: all of it, or one expert's of a stack."""

    name: str
    """Canonical."""
    first_element: int
    shape: tuple[int, ...]


class Checkpoint:
    """`tensors` has the text model only; vision and MTP tensors are counted in `skipped_bytes`."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError naming the shard or tensor that is missing, cut short, doubled or malformed."""
        self.path = path
        self.tensors: dict[str, TensorInfo] = {}
        self.skipped_bytes = 0
        self._sinks: dict[torch.device, Sink] = {}
        listed = _listed(path)
        found: dict[str, str] = {}
        for shard in sorted(set(listed.values())) if listed else [SINGLE]:
            for info in _headers(path / shard):
                self._add(info, shard, listed, found)
        for name, shard in listed.items():
            if name not in found:
                raise CheckpointError(f"{name}: {INDEX} puts it in {shard}, which lacks it; download both again")

    def _add(self, info: TensorInfo, shard: str, listed: Mapping[str, str], found: dict[str, str]) -> None:
        name = info.stored_name
        if name in found:
            raise CheckpointError(
                f"{name}: found in {found[name]} and in {shard}, expected one; remove the stale shard"
            )
        found[name] = shard
        if listed and listed.get(name) != shard:
            where = listed.get(name, "nowhere")
            raise CheckpointError(f"{name}: found in {shard}, {INDEX} puts it {where}; download both again")
        if is_skipped(name):
            self.skipped_bytes += info.nbytes
            return
        key = canonical(name)
        if key in self.tensors:
            raise CheckpointError(
                f"{name}: the same tensor as {self.tensors[key].stored_name}; expected one of them, download the "
                "checkpoint again"
            )
        self.tensors[key] = info

    @property
    def text_bytes(self) -> int:
        return sum(info.nbytes for info in self.tensors.values())

    def read(self, name: str, device: torch.device) -> Tensor:
        """The whole tensor on `device`."""
        return self.read_stack([Part(name, 0, self.tensors[name].shape)], device)[0]

    def read_stack(self, parts: Sequence[Part], device: torch.device) -> Tensor:
        """Pieces of one dtype and shape, read into one tensor [parts, *shape] on `device`.

        Raises CheckpointError for a dtype that is not read, and where a file ends early.
        """
        infos = [self.tensors[part.name] for part in parts]
        dtypes = {info.dtype for info in infos}
        if len(dtypes) > 1 or len({part.shape for part in parts}) > 1:
            raise ValueError(f"{parts[0].name}: cannot be stacked with tensors of other dtypes or shapes")
        if infos[0].dtype not in DTYPES:
            raise CheckpointError(
                f"{infos[0].stored_name}: dtype {infos[0].dtype}; this engine reads {', '.join(DTYPES)}, "
                "use a checkpoint that is stored so"
            )
        dtype, shape = DTYPES[infos[0].dtype], parts[0].shape
        nbytes = math.prod(shape) * dtype.itemsize
        out = torch.empty(len(parts) * nbytes, dtype=torch.uint8, device=device)
        pieces = (
            (info.shard, info.offset + part.first_element * dtype.itemsize, nbytes)
            for info, part in zip(infos, parts, strict=True)
        )
        short = fill(self._sink(device), out, pieces)
        if short is not None:
            raise CheckpointError(f"{infos[short].shard}: ends inside {infos[short].stored_name}; download it again")
        return out.view(dtype).reshape(len(parts), *shape)

    def _sink(self, device: torch.device) -> Sink:
        if device not in self._sinks:
            self._sinks[device] = Direct() if device.type == "cpu" else Staged(device)
        return self._sinks[device]


def _listed(path: Path) -> dict[str, str]:
    """Stored name -> file name of its shard, from the index; empty for a folder with the one file and no index."""
    index = path / INDEX
    if not index.is_file():
        if not (path / SINGLE).is_file():
            raise CheckpointError(f"{path}: found neither {INDEX} nor {SINGLE}; download the checkpoint")
        return {}
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: found no weight_map; download it again")
    for file in weight_map.values():
        if not isinstance(file, str):
            raise CheckpointError(
                f"{index}: shard {str(file)[:80]!r} is not a plain file name; refused, download it again"
            )
    for file in set(weight_map.values()):
        if not SHARD_NAME.fullmatch(file):
            raise CheckpointError(f"{index}: shard {file[:80]!r} is not a plain file name; refused, download it again")
    return weight_map


def _headers(shard: Path) -> Iterator[TensorInfo]:
    """The tensors of one file. Format: u64 header length, JSON header, data."""
    try:
        size = shard.stat().st_size
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(min(length, MAX_HEADER_BYTES))
    except FileNotFoundError:
        raise CheckpointError(f"{shard}: listed in the index and not there; finish the download") from None
    except OSError as error:
        raise CheckpointError(
            f"{shard}: cannot be read ({error.strerror}); expected a safetensors file, download it again"
        ) from None
    if size < 8 or len(text) < length:
        raise CheckpointError(
            f"{shard}: found {size} bytes, its header alone needs {8 + length}; cut short or not safetensors, "
            "download it again"
        )
    try:
        header = json.loads(text, object_pairs_hook=_unique)
        header.pop("__metadata__", None)
        infos = sorted((_Entry.parse(name, entry) for name, entry in header.items()), key=lambda e: (e.start, e.end))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{shard}: its header is not safetensors ({error}); download it again") from None
    end = max((8 + length + e.end for e in infos), default=8 + length)
    if size != end:
        raise CheckpointError(f"{shard}: found {size} bytes, expected {end}; finish the download or get it again")
    expected = 0
    for e in infos:
        if e.start != expected:
            raise CheckpointError(
                f"{e.name}: starts at byte {e.start} of the data of {shard.name}, expected {expected}; tensors neither "
                "overlap nor leave holes: download it again"
            )
        expected = e.end
        itemsize = DTYPES[e.dtype].itemsize if e.dtype in DTYPES else None
        if itemsize is not None and e.end - e.start != math.prod(e.shape) * itemsize:
            raise CheckpointError(
                f"{e.name}: {e.dtype} {list(e.shape)} in {e.end - e.start} bytes of {shard.name}; download it again"
            )
        yield TensorInfo(e.name, shard, e.dtype, e.shape, 8 + length + e.start, e.end - e.start)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys occur once: json itself would take the last of two tensors under one name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} occurs twice")
    return found


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @classmethod
    def parse(cls, name: str, entry: dict[str, Any]) -> Self:
        start, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if any(type(n) is not int for n in (start, end, *shape)):
            raise ValueError(f"{name} has a shape or offset that is no integer")
        if not 0 <= start <= end or any(n < 0 for n in shape):
            raise ValueError(f"{name} has offsets {start}..{end} and shape {list(shape)}")
        return cls(name, str(entry["dtype"]), shape, start, end)
