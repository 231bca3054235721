"""A checkpoint's tensors as the safetensors library reads them: the reader that ours is held against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

Make = Callable[..., Path]
"""Options of tools/make_checkpoint.py -> folder, four layers; the same options give the same folder."""


def read_all(folder: Path) -> dict[str, Tensor]:
    """Every tensor by stored name."""
    tensors = {}
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    return tensors
