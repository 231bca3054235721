"""2 A checkpoint folder -> its configuration and every tensor's dtype and shape. No torch, and no weight is read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gate.errors import CheckpointError
from gate.preflight.checkpoint import INDEX
from gate.preflight.safetensors_header import DTYPE_BITS, tensor_names

Part = Literal["text", "vision", "mtp"]
"""What a text server loads, and the two that it leaves alone: vision tower, multi-token prediction."""
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
        return _table(self.config.get("text_config")) or self.config

    @property
    def quantization(self) -> Mapping[str, Any]:
        """config.json's word, else the legacy file's, as both engines resolve it; empty: nothing is quantised."""
        return self.declared or self.legacy

    @property
    def declared(self) -> Mapping[str, Any]:
        """config.json's word alone."""
        return _table(self.config.get("quantization_config")) or _table(self.text.get("quantization_config"))


def canonical(name: str) -> str:
    """`model.language_model.layers.0.mlp.up_proj` -> `layers.0.mlp.up_proj`: one name whatever the root's spelling."""
    for root, short in ROOTS:
        if name.startswith(root):
            return short + name.removeprefix(root)
    return name


def collapsed(name: str) -> str:
    """`layers.0.mlp.up_proj` -> `layers.*.mlp.up_proj`, and experts alike."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def part_of(name: str) -> Part:
    """Of a canonical name."""
    return "vision" if name.startswith("visual.") else "mtp" if name.startswith("mtp.") else "text"


def read(folder: Path) -> Headers:
    """Raises CheckpointError: no configuration, no or missing or damaged shards, one tensor in two of them."""
    config = _json(folder / "config.json")
    if config is None:
        raise CheckpointError(f"{folder} has no config.json", hint="download or copy the checkpoint again")
    legacy = _json(folder / "hf_quant_config.json") or {}
    tensors: dict[str, Tensor] = {}
    shards: dict[str, int] = {}
    for path in _shards(folder):
        for name, tensor in read_shard(path).items():
            if name in tensors:
                raise CheckpointError(
                    f"{name} is in {tensors[name].shard} and in {path.name} of {folder}",
                    expected="every tensor once",
                    hint="the files are of different downloads: get them again",
                )
            tensors[name] = tensor
        shards[path.name] = path.stat().st_size
    return Headers(folder, config, tensors, _table(legacy.get("quantization")), shards)


def read_shard(path: Path) -> dict[str, Tensor]:
    """The tensors of one file. Raises CheckpointError for one that is truncated, corrupt or none at all.

    The header is parsed a second time here: what makes a file whole is decided in one place, tensor_names.
    """
    tensor_names(path)
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return {name: Tensor(one["dtype"], tuple(one["shape"]), path.name) for name, one in header.items()}


def _shards(folder: Path) -> list[Path]:
    index = _json(folder / INDEX)
    if index is None:
        if found := sorted(folder.glob("*.safetensors")):
            return found
        raise CheckpointError(f"{folder} has no *.safetensors", hint="download or copy the checkpoint again")
    names = sorted({str(shard) for shard in _table(index.get("weight_map")).values()})
    if outside := [name for name in names if Path(name).name != name]:
        raise CheckpointError(f"{folder / INDEX} names a shard {outside[0]!r}", expected="file names in that folder")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(names)} shards, first {missing[0]}",
            hint="download or copy the checkpoint again",
        )
    return [folder / name for name in names]


def _json(path: Path) -> dict[str, Any] | None:
    """None where the file is missing. Raises CheckpointError where it is no JSON table."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", hint="download or copy this file again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is a JSON {type(content).__name__}", expected="a table", hint="get it again")
    return content


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
