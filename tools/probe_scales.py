#!/usr/bin/env python3
"""Do the projections that an engine fuses share their scales, bit for bit? From safetensors headers and scale bytes.

    tools/probe_scales.py CHECKPOINT              input scales of q/k/v, gate/up, in_proj_qkv/z
    tools/probe_scales.py CHECKPOINT --weights    their per-tensor weight scales too

vLLM fuses these projections and gives the product one scale, the largest: where they differ it computes something else
than the checkpoint says. No torch and no weight is needed, hence one file of the standard library: it runs where a
checkpoint is. Scales of several numbers (per channel, per block) survive fusing and are not compared.

Exit codes: 0 equal everywhere, 1 some group differs, 2 no group has such a scale, 64 usage, 69 unreadable,
130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import struct
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeGuard

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("in_proj_qkv", "in_proj_z"))
"""Projections of one input, in the order in which they are joined."""
INPUT = ("input_scale", "input_global_scale")
"""ModelOpt's name and compressed-tensors'."""
WEIGHT = ("weight_scale", "weight_scale_2", "weight_global_scale")
INDEX = "model.safetensors.index.json"
NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
MAX_HEADER_BYTES = 100_000_000
NUMBER_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
"""Of the dtypes that scales come in; one that is not known here is taken at the file's word."""
MAX_SCALE_BYTES = 16
EQUAL, DIFFERENT, NOTHING, USAGE, UNREADABLE, INTERRUPTED = 0, 1, 2, 64, 69, 130


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
        parent = ".".join("*" if is_number(part) else part for part in self.parent.split("."))
        return f"{parent} {'/'.join(self.scales)} {self.field}"

    def line(self) -> str:
        shown = (f"{leaf} {'none' if scale is None else scale}" for leaf, scale in self.scales.items())
        return f"{self.parent} {self.field}: {', '.join(shown)}"


# --- 1 files -> tensors ----------------------------------------------------------------------------------------------


def weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor -> file by the index; None where there is none. Raises ProbeError."""
    index = folder / INDEX
    if not os.path.lexists(index):
        return None
    found = parsed(index, whole(index))
    names = found.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ProbeError(f"{index} has no weight_map; download it again")
    for name in names.values():
        if not isinstance(name, str) or name in ("", "..") or Path(name).name != name:
            raise ProbeError(f"{index} names a shard {name!r}; expected file names in that folder")
    return names


def shards(folder: Path, listed: dict[str, str] | None) -> list[Path]:
    """The index's files, else every *.safetensors. Raises ProbeError."""
    if listed is not None:
        return [folder / name for name in sorted(set(listed.values()))]
    # Not glob, which is silent about a folder that it may not list.
    names = {path.name for path in folder.iterdir() if path.name.endswith(".safetensors")}
    if not names:
        raise ProbeError(f"{folder} has no *.safetensors; expected a checkpoint")
    for numbered in map(NUMBERED.fullmatch, tuple(names)):
        if numbered is not None:  # one more than there are is enough to miss one
            promised = range(1, min(int(numbered[3]), len(names) + 1) + 1)
            names |= {f"{numbered[1]}-{number:05d}-of-{numbered[3]}.safetensors" for number in promised}
    return [folder / name for name in sorted(names)]


def whole(path: Path) -> bytes:
    """Of a file of JSON. Raises ProbeError; a pipe would be waited for without end."""
    try:
        if not path.is_file():
            raise ProbeError(f"{path} is no file; download it again")
        return path.read_bytes()
    except OSError as error:
        raise ProbeError(f"cannot read {path}: {error.strerror}") from error


def parsed(path: Path, raw: bytes) -> dict[str, Any]:
    """A JSON table, in which no key stands twice. Raises ProbeError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a key stands twice")
        return made

    try:
        found = json.loads(raw.decode(), object_pairs_hook=once)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProbeError(f"{path} holds no JSON table: {error!s:.200}; download it again") from error
    if not isinstance(found, dict):
        raise ProbeError(f"{path} holds no JSON table but a {type(found).__name__}; download it again")
    return found


def tensors(path: Path) -> Iterator[tuple[str, str, tuple[int, ...], int, int]]:
    """(name, dtype, shape, first byte in the file, byte after the last). Raises ProbeError for what is no such file."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise ProbeError(f"{path} is no file; expected a safetensors file")
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise ProbeError(f"{path}: {size} bytes with a header length of {length}; expected a safetensors file")
            raw = file.read(length)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a file"
        raise ProbeError(f"cannot read {path}: {reason}") from error
    end = 8 + length
    for name, entry in parsed(path, raw).items():
        if name == "__metadata__":
            continue
        told = entry if isinstance(entry, dict) else {}
        dtype, shape, span = told.get("dtype"), told.get("shape"), told.get("data_offsets")
        if not isinstance(dtype, str) or not counts(shape) or not counts(span) or len(span) != 2:
            raise ProbeError(f"{path}: its header is not one of safetensors: {name:.200} is {entry!s:.200}")
        start, stop = (8 + length + offset for offset in span)
        if not start <= stop <= size:
            raise ProbeError(f"{path}: {name:.200} ends at byte {stop} of {size}; download it again")
        if dtype in NUMBER_BYTES and stop - start != (held := math.prod(shape) * NUMBER_BYTES[dtype]):
            expected = held if held < 2**63 else "more than a file holds"
            raise ProbeError(f"{path}: {name:.200} has {stop - start} bytes; expected {expected}; download it again")
        end = max(end, stop)
        yield name, dtype, tuple(shape), start, stop
    if end != size:
        raise ProbeError(f"{path}: {size} bytes; expected {end} by its header; download it again")


def counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 2**63 for number in value)


# --- 2 tensors -> groups ---------------------------------------------------------------------------------------------


def groups(folder: Path, fields: Iterable[str]) -> list[Group]:
    """Every fused group in which a projection has such a scale of one number, layer by layer. Raises ProbeError."""
    wanted = frozenset(fields)
    members = {leaf for group in GROUPS for leaf in group}
    modules: set[str] = set()
    scales: dict[tuple[str, str], Scale] = {}
    where: dict[str, str] = {}
    listed = weight_map(folder)
    for path in shards(folder, listed):
        found = list(tensors(path))
        for name, dtype, shape, start, stop in found:
            if where.setdefault(name, path.name) != path.name:
                raise ProbeError(f"{name} is in {where[name]} and in {path.name} of {folder}; expected it once")
            module, _, field = name.rpartition(".")
            if module.rpartition(".")[2] not in members:
                continue
            modules.add(module)
            if field in wanted:
                count = math.prod(shape)
                scales[module, field] = Scale(dtype, read(path, start, stop) if count == 1 else b"", count)
    if listed is not None and (strays := sorted(name for name, _ in where.items() ^ listed.items())):
        raise ProbeError(f"{folder}: {strays[0]} is not where {INDEX} says; the files are of different downloads")
    return sorted(_grouped(modules, scales), key=lambda one: _order(one.parent))


def read(path: Path, start: int, stop: int) -> bytes:
    """One scale. Raises ProbeError."""
    if stop - start > MAX_SCALE_BYTES:
        raise ProbeError(f"{path}: one number of {stop - start} bytes; expected at most {MAX_SCALE_BYTES}")
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)
    except OSError as error:
        raise ProbeError(f"cannot read {path}: {error.strerror}") from error


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
    return [(0, int(part), "") if is_number(part) else (1, 0, part) for part in parent.split(".")]


def is_number(part: str) -> bool:
    """Of a layer: ² is a digit for Python, and a number of 5,000 digits is none of a layer."""
    return part.isascii() and part.isdigit() and len(part) < 10


# --- 3 command line --------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, and the exit code for it."""
        raise ProbeError(f"{message}; --help says more")


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="probe_scales.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder with *.safetensors")
    parser.add_argument("--weights", action="store_true", help="compare per-tensor weight scales too")
    code = USAGE
    try:
        args = parser.parse_args(argv)
        code = UNREADABLE
        found, lines = answer(args.checkpoint, (*INPUT, *WEIGHT) if args.weights else INPUT)
        tell("\n".join(map(shown, lines)), sys.stdout)
        code = found
    except SystemExit:  # --help
        return EQUAL
    except ProbeError as error:
        tell(f"probe_scales: {shown(str(error))}", sys.stderr)
    except KeyboardInterrupt:
        tell("probe_scales: interrupted", sys.stderr)
        return INTERRUPTED
    return code


def answer(folder: Path, fields: Iterable[str]) -> tuple[int, list[str]]:
    """(exit code, what is printed). Raises ProbeError."""
    try:
        there = folder.is_dir()
        found = groups(folder, fields) if there else []
    except OSError as error:
        raise ProbeError(f"cannot read {folder}: {error.strerror}") from error
    if not there:
        raise ProbeError(f"no folder {folder}; expected a checkpoint")
    if not found:
        return NOTHING, [f"{folder}: no fused group has a scale to compare"]
    kinds: dict[str, list[Group]] = defaultdict(list)
    for group in found:
        kinds[group.kind].append(group)
    lines = [group.line() for group in found if group.differs]
    lines += [f"{kind}: {sum(one.differs for one in same)} of {len(same)} differ" for kind, same in kinds.items()]
    return (DIFFERENT if any(group.differs for group in found) else EQUAL), lines


def shown(text: str) -> str:
    """In one line: names are the files' own words, and may hold escape codes or half of a character."""
    return "".join(c if c.isprintable() else " " for c in text)


def tell(text: str, stream: TextIO | None) -> None:
    """A reader that has gone is no reason for another exit code. Raises ProbeError where nothing can be written."""
    try:
        print(text, file=stream, flush=True)
    except UnicodeEncodeError:  # an encoding without the names' characters
        print(ascii(text), file=stream, flush=True)
    except OSError as error:
        if stream is not None:  # or Python says so again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            raise ProbeError(f"cannot write: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
