#!/usr/bin/env python3
"""Do the projections that an engine fuses share their scales, bit for bit? From safetensors headers and scale bytes.

    tools/probe_scales.py CHECKPOINT              input scales of q/k/v, gate/up, in_proj_qkv/z
    tools/probe_scales.py CHECKPOINT --weights    their per-tensor weight scales too

vLLM fuses these projections and gives the product one scale, the largest: where they differ it computes something else
than the checkpoint says. No torch and no weight is needed, hence one file of the standard library: it runs where a
checkpoint is. Scales of several numbers (per channel, per block) survive fusing and are not compared.

Exit codes: 0 equal everywhere, 1 some group differs, 2 no group has such a scale, 64 usage, 69 unreadable.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("in_proj_qkv", "in_proj_z"))
"""Projections of one input, in the order in which they are joined."""
INPUT = ("input_scale", "input_global_scale")
"""ModelOpt's name and compressed-tensors'."""
WEIGHT = ("weight_scale", "weight_scale_2", "weight_global_scale")
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
EQUAL, DIFFERENT, NOTHING, USAGE, UNREADABLE = 0, 1, 2, 64, 69


class ProbeError(Exception):
    """One line: what was found, what was expected."""


@dataclass(frozen=True)
class Scale:
    dtype: str
    bits: bytes
    """Little-endian, as stored; empty where it is more than one number."""
    count: int = 1

    def __str__(self) -> str:
        """Most significant byte first, as a number is written."""
        if self.count != 1:
            return f"{self.count} numbers"
        text = f"0x{self.bits[::-1].hex()}"
        if self.dtype == "F32" and len(self.bits) == 4:
            return f"{text} ({struct.unpack('<f', self.bits)[0]:.9g})"
        return f"{text} ({self.dtype})"


@dataclass(frozen=True)
class Group:
    """One scale of one fused product: projection -> scale, None where it has none."""

    parent: str
    field: str
    scales: dict[str, Scale | None]

    @property
    def differs(self) -> bool:
        return len(set(self.scales.values())) > 1

    @property
    def kind(self) -> str:
        """The group without its layer: layers.*.self_attn q_proj/k_proj/v_proj input_scale."""
        parent = ".".join("*" if part.isdigit() else part for part in self.parent.split("."))
        return f"{parent} {'/'.join(self.scales)} {self.field}"

    def line(self) -> str:
        shown = (f"{leaf} {'none' if scale is None else scale}" for leaf, scale in self.scales.items())
        return f"{self.parent} {self.field}: {', '.join(shown)}"


# --- 1 files -> tensors ----------------------------------------------------------------------------------------------


def shards(folder: Path) -> list[Path]:
    """The index's files, else every *.safetensors. Raises ProbeError."""
    if not folder.is_dir():
        raise ProbeError(f"no folder {folder}; expected a checkpoint")
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted({str(name) for name in json.loads(index.read_bytes())["weight_map"].values()})
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ProbeError(f"{index} has no weight_map; download it again") from error
        if outside := [name for name in names if Path(name).name != name]:
            raise ProbeError(f"{index} names a shard {outside[0]!r}; expected file names in that folder")
        return [folder / name for name in names]
    if found := sorted(folder.glob("*.safetensors")):
        return found
    raise ProbeError(f"{folder} has no *.safetensors; expected a checkpoint")


def tensors(path: Path) -> Iterator[tuple[str, str, tuple[int, ...], int, int]]:
    """(name, dtype, shape, first byte in the file, byte after the last). Raises ProbeError for what is no such file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise ProbeError(f"{path}: {size} bytes with a header length of {length}; expected a safetensors file")
            header: dict[str, Any] = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                start, stop = (8 + length + int(offset) for offset in entry["data_offsets"])
                if not 8 + length <= start <= stop <= size:
                    raise ProbeError(f"{path}: {name} ends at byte {stop} of {size}; download it again")
                yield name, str(entry["dtype"]), tuple(map(int, entry["shape"])), start, stop
    except OSError as error:
        raise ProbeError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProbeError(f"{path}: its header is not one of safetensors ({type(error).__name__})") from error


# --- 2 tensors -> groups ---------------------------------------------------------------------------------------------


def groups(folder: Path, fields: Iterable[str]) -> list[Group]:
    """Every fused group in which a projection has such a scale of one number, layer by layer. Raises ProbeError."""
    wanted = frozenset(fields)
    members = {leaf for group in GROUPS for leaf in group}
    modules: set[str] = set()
    scales: dict[tuple[str, str], Scale] = {}
    for path in shards(folder):
        found = list(tensors(path))
        with path.open("rb") as file:
            for name, dtype, shape, start, stop in found:
                module, _, field = name.rpartition(".")
                if module.rpartition(".")[2] not in members:
                    continue
                modules.add(module)
                if field in wanted:
                    count = math.prod(shape)
                    file.seek(start)
                    scales[module, field] = Scale(dtype, file.read(stop - start) if count == 1 else b"", count)
    return sorted(_grouped(modules, scales), key=lambda one: _order(one.parent))


def _grouped(modules: set[str], scales: dict[tuple[str, str], Scale]) -> Iterator[Group]:
    for parent in {module.rpartition(".")[0] for module in modules}:
        for leaves in GROUPS:
            there = [leaf for leaf in leaves if f"{parent}.{leaf}" in modules]
            for field in (*INPUT, *WEIGHT):
                held = {leaf: scales.get((f"{parent}.{leaf}", field)) for leaf in there}
                if len(there) > 1 and any(one is not None and one.count == 1 for one in held.values()):
                    yield Group(parent, field, held)


def _order(parent: str) -> list[tuple[int, int, str]]:
    """Layer 2 before layer 10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parent.split(".")]


# --- 3 command line --------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder with *.safetensors")
    parser.add_argument("--weights", action="store_true", help="compare per-tensor weight scales too")
    try:
        args = parser.parse_args(argv)
    except SystemExit as end:
        return USAGE if end.code else EQUAL
    try:
        found = groups(args.checkpoint, (*INPUT, *WEIGHT) if args.weights else INPUT)
    except ProbeError as error:
        print(f"probe_scales: {error}", file=sys.stderr)
        return UNREADABLE
    if not found:
        print(f"{args.checkpoint}: no fused group has a scale to compare")
        return NOTHING
    kinds: dict[str, list[Group]] = defaultdict(list)
    for group in found:
        kinds[group.kind].append(group)
        if group.differs:
            print(group.line())
    for kind, same in kinds.items():
        print(f"{kind}: {sum(one.differs for one in same)} of {len(same)} differ")
    return DIFFERENT if any(group.differs for group in found) else EQUAL


if __name__ == "__main__":
    sys.exit(main())
