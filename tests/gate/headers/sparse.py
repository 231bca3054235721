"""Checkpoints of any size that take no disk: real headers, and data that was never written (a sparse file)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from make_checkpoint import side_files
from synthetic_weights import SHAPES, Recipe, tensors

from gate.preflight.safetensors_header import DTYPE_BITS

FIXTURES = Path(__file__).with_name("fixtures")
Specs = Mapping[str, Sequence[Any]]
"""Tensor name -> (dtype, shape)."""


def write_shard(path: Path, specs: Specs) -> None:
    header, end = {}, 0
    for name, (dtype, shape) in specs.items():
        start, end = end, end + DTYPE_BITS[dtype] * math.prod(shape) // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def write(folder: Path, files: Mapping[str, Any], specs: Specs, shards: int = 1) -> Path:
    """Side files as JSON, tensors in turns over the shards, an index where there are several."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    if shards == 1:
        write_shard(folder / "model.safetensors", specs)
        return folder
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        mine = dict(list(specs.items())[number::shards])
        write_shard(folder / name, mine)
        weight_map |= dict.fromkeys(mine, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def recorded(folder: Path, name: str) -> Path:
    """A layout that vLLM has loaded: fixtures/NAME.json."""
    content = json.loads((FIXTURES / f"{name}.json").read_bytes())
    return write(folder, {"config.json": content["config.json"]}, content["tensors"])


def synthetic(folder: Path, shape: str, layout: str = "modelopt", layers: int | None = None, **options: bool) -> Path:
    """What tools/make_checkpoint.py would make, full size included. options: vision, mtp, w4a4 …"""
    sizes = SHAPES[shape] if layers is None else replace(SHAPES[shape], layers=layers)
    made = Recipe(shape=sizes, layout=layout, seed=0, **options)
    # A tokenizer of the whole vocabulary takes seconds to make, and nobody here reads it.
    files = side_files(replace(made, shape=replace(sizes, vocab=500)))
    files["config.json"]["text_config"]["vocab_size"] = sizes.vocab
    return write(folder, files, {e.name: (e.dtype, e.shape) for e in tensors(made)}, shards=2)
