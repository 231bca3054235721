"""2 A checkpoint folder -> its configuration and every tensor's dtype and shape. No torch, and no weight is read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gate.errors import CheckpointError
from gate.preflight.checkpoint import INDEX
from gate.preflight.safetensors_header import DTYPE_BITS
from gate.preflight.safetensors_header import tensors as in_file

Part = Literal["text", "vision", "mtp"]
"""What a text server loads, and the two that it leaves alone: vision tower, multi-token prediction."""
AGAIN = "download or copy the checkpoint again"
NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
"""model-00001-of-00003.safetensors: says itself how many there are."""
ROOTS: tuple[tuple[str, str], ...] = (
    ("model.language_model.", ""),
    ("language_model.model.", ""),
    ("language_model.", ""),
    ("model.visual.", "visual."),
    ("model.mtp.", "mtp."),
    ("model.", ""),
)
"""The spellings of one root that published files use; the first that fits is replaced."""


@dataclass(frozen=True, slots=True)
class Tensor:
    dtype: str
    """safetensors' name: U8, F8_E4M3, BF16, F32 …"""
    shape: tuple[int, ...]
    shard: str
    """Name of the file that holds it."""

    @property
    def nbytes(self) -> int:
        return DTYPE_BITS[self.dtype] * math.prod(self.shape) // 8


@dataclass(frozen=True, slots=True)
class Headers:
    folder: Path
    config: Mapping[str, Any]
    """config.json."""
    tensors: Mapping[str, Tensor]
    """By the name in the file."""
    legacy: Mapping[str, Any] = field(default_factory=dict)
    """The table `quantization` of hf_quant_config.json; empty where there is none."""
    shards: Mapping[str, int] = field(default_factory=dict)
    """File name -> bytes of the file, header included."""

    @property
    def text(self) -> Mapping[str, Any]:
        """The language model's part of config.json."""
        return table(self.config.get("text_config")) or self.config

    @property
    def quantization(self) -> Mapping[str, Any]:
        """config.json's word, else the legacy file's, as both engines resolve it; empty: nothing is quantised."""
        return self.declared or self.legacy

    @property
    def declared(self) -> Mapping[str, Any]:
        """config.json's word alone."""
        return table(self.config.get("quantization_config")) or table(self.text.get("quantization_config"))


def canonical(name: str) -> str:
    """`model.language_model.layers.0.mlp.up_proj` -> `layers.0.mlp.up_proj`: one name whatever the root's spelling."""
    for root, short in ROOTS:
        if name.startswith(root):
            return short + name.removeprefix(root)
    return name


def collapsed(name: str) -> str:
    """`layers.0.mlp.up_proj` -> `layers.*.mlp.up_proj`, and experts alike."""
    return ".".join("*" if is_number(part) else part for part in name.split("."))


def is_number(part: str) -> bool:
    """Of a layer or an expert: ² is a digit for Python, and a number of 5,000 digits is none of a layer."""
    return part.isascii() and part.isdigit() and len(part) < 10


def part_of(name: str) -> Part:
    """Of a canonical name."""
    return "vision" if name.startswith("visual.") else "mtp" if name.startswith("mtp.") else "text"


def read(folder: Path) -> Headers:
    """Raises CheckpointError: no configuration, no shards, missing or damaged ones, a tensor not once in its place."""
    config = _json(folder / "config.json")
    if config is None:
        raise CheckpointError(f"{folder} has no config.json", hint=AGAIN)
    legacy = _json(folder / "hf_quant_config.json") or {}
    tensors: dict[str, Tensor] = {}
    shards: dict[str, int] = {}
    weight_map = _weight_map(folder)
    for path in _shards(folder, weight_map):
        for name, tensor in read_shard(path).items():
            if name in tensors:
                raise CheckpointError(
                    f"{name} is in {tensors[name].shard} and in {path.name} of {folder}",
                    expected="every tensor once",
                    hint="the files are of different downloads: get them again",
                )
            tensors[name] = tensor
        shards[path.name] = path.stat().st_size
    if not tensors:
        raise CheckpointError(f"{folder} has no tensor in {', '.join(sorted(shards))}", hint=AGAIN)
    _as_indexed(folder, tensors, weight_map)
    return Headers(folder, config, tensors, table(legacy.get("quantization")), shards)


def read_shard(path: Path) -> dict[str, Tensor]:
    """The tensors of one file. Raises CheckpointError for one that is truncated, corrupt or none at all."""
    return {name: Tensor(dtype, shape, path.name) for name, (dtype, shape) in in_file(path).items()}


def _weight_map(folder: Path) -> Mapping[str, str] | None:
    """Tensor -> file, by the index; None where there is no index."""
    index = _json(folder / INDEX)
    if index is None:
        return None
    found = table(index.get("weight_map"))
    if not found:
        raise CheckpointError(f"{folder / INDEX} has no weight_map", hint="download or copy this file again")
    for shard in found.values():
        if not isinstance(shard, str) or shard in ("", "..") or Path(shard).name != shard:
            raise CheckpointError(f"{folder / INDEX} names a shard {shard!r}", expected="file names in that folder")
    return found


def _shards(folder: Path, weight_map: Mapping[str, str] | None) -> list[Path]:
    if weight_map is not None:
        names = sorted(set(weight_map.values()))
    elif names := sorted(path.name for path in folder.iterdir() if path.name.endswith(".safetensors")):
        # Not glob, which is silent about a folder that it may not list.
        names = sorted({*names, *_siblings(names)})
    else:
        raise CheckpointError(f"{folder} has no *.safetensors", hint=AGAIN)
    if missing := [name for name in names if not _is_file(folder / name)]:
        raise CheckpointError(f"{folder} lacks {len(missing)} of {len(names)} shards, first {missing[0]}", hint=AGAIN)
    return [folder / name for name in names]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long to be one
        return False


def _siblings(names: list[str]) -> Iterator[str]:
    """Without an index, the shards that the name of another one promises."""
    for stem, count in {(m[1], m[3]) for m in map(NUMBERED.fullmatch, names) if m is not None}:
        # As many as a folder may hold: the name is not to be trusted with a loop of 99,999.
        for number in range(1, min(int(count), len(names) + 1) + 1):
            yield f"{stem}-{number:05d}-of-{count}.safetensors"


def _as_indexed(folder: Path, tensors: Mapping[str, Tensor], weight_map: Mapping[str, str] | None) -> None:
    """Raises CheckpointError where a tensor of the index is not in its file, or one of a file not in the index."""
    if weight_map is None:
        return
    held = {name: tensor.shard for name, tensor in tensors.items()}
    if strays := sorted(name for name, _ in held.items() ^ weight_map.items()):
        there, listed = held.get(strays[0], "no shard"), weight_map.get(strays[0], "no shard")
        raise CheckpointError(
            f"{strays[0]} is in {there} of {folder}",
            expected=f"in {listed}, as {INDEX} says",
            hint="the files are of different downloads: get them again",
        )


def _json(path: Path) -> dict[str, Any] | None:
    """None where the file is missing. Raises CheckpointError where it is no JSON table."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for without end
            raise CheckpointError(f"{path} is no file", expected="a JSON table", hint=AGAIN)
        content = json.loads(path.read_bytes())
        # Half of a character, which JSON can write and nothing can print.
        json.dumps(content, ensure_ascii=False).encode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{path} cannot be read: {reason}", hint="download or copy this file again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is a JSON {type(content).__name__}", expected="a table", hint="get it again")
    return content


def table(value: object) -> Mapping[str, Any]:
    """A JSON table, empty where the file has something else in its place."""
    return value if isinstance(value, dict) else {}
