#!/usr/bin/env python3
r"""Make a synthetic Qwen3.6-architecture checkpoint in a published layout: full shapes, seeded weights, sane logits.

    tools/make_checkpoint.py --shape tiny --layout modelopt --seed 0 checkpoints/tiny

Layouts: modelopt is nvidia's MIXED_PRECISION. compressed-tensors is unsloth's newer 27B and its 35B (MLP and experts
NVFP4 but for the last eighth, which is FP8 as all the rest is). compressed-tensors-nvfp4 is its older 27B, with --w4a4
(MLP, self_attn and linear_attn.out_proj NVFP4, GDN's inputs and lm_head BF16). bf16 is unquantised. --store changes
single modules, as in a mixture with all its experts in NVFP4, attention in FP8, GDN and q_proj in BF16:

    --shape 35b --layout compressed-tensors --store '\.mlp\.=nvfp4' --store 'linear_attn|q_proj|lm_head=bf16'

Same seed, same bytes, on any machine (synthetic_weights.py says how). Needs torch alone, hence argparse and no rich:
it also runs on a bare CUDA host, where the random words are drawn on the GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import shutil
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import torch
from synthetic_configs import side_files
from synthetic_weights import DTYPES, SHAPES, Entry, Recipe, key_of, modules, tensors

WORDS_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 25}
LAYOUTS = ("modelopt", "compressed-tensors", "compressed-tensors-nvfp4", "bf16")

# --- 1 tensors -> shards ---------------------------------------------------------------------------------------------


def split(entries: list[Entry], shard_bytes: int) -> list[list[Entry]]:
    """Consecutive tensors, up to shard_bytes a shard; inside one, wide dtypes first, as safetensors aligns them."""
    shards: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if shards[-1] and size + entry.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.nbytes
    return [sorted(shard, key=lambda e: (-DTYPES[e.dtype].itemsize, e.name)) for shard in shards]


class Progress:
    """Bytes done, rate and time left, one rewritten line on a terminal and one line per tenth elsewhere."""

    def __init__(self, total: int, *, quiet: bool = False) -> None:
        self.total, self.done, self.shown, self.start = total, 0, 0, time.monotonic()
        self.quiet = quiet

    def add(self, nbytes: int) -> None:
        self.done += nbytes
        part = self.done * (100 if sys.stderr.isatty() else 10) // self.total
        seconds = time.monotonic() - self.start
        if part > self.shown and seconds > 1 and not self.quiet:  # a tiny checkpoint is done before anybody could read
            self.shown = part
            rate = self.done / seconds
            left = (self.total - self.done) / rate
            line = f"{self.done / 1e9:.3f} of {self.total / 1e9:.3f} GB, {rate / 1e9:.2f} GB/s, {left:.0f} s left"
            print(line, end="\r" if sys.stderr.isatty() and self.done < self.total else "\n", file=sys.stderr)


def write_tensor(file: BinaryIO, entry: Entry, seed: int, device: torch.device, progress: Progress) -> None:
    """Draw and write in pieces, so that memory stays small whatever the tensor."""
    key, total = key_of(seed, entry.name), math.prod(entry.shape)
    row = entry.shape[-1] if entry.shape else 1
    piece = max(WORDS_AT_ONCE[device.type] // (8 * row), 1) * 8 * row  # whole rows (an embedding needs them), times 8
    for start in range(0, total, piece):
        values = entry.fill(key, start, min(piece, total - start), device)
        if values.dtype != DTYPES[entry.dtype]:
            raise TypeError(f"{entry.name}: drew {values.dtype}, planned {entry.dtype}")
        data = values.contiguous().view(torch.uint8).cpu().numpy()
        file.write(memoryview(data))
        progress.add(data.nbytes)


def write_shard(path: Path, entries: list[Entry], seed: int, device: torch.device, progress: Progress) -> None:
    """One safetensors file: u64 header length, JSON header padded to 8 bytes, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for e in entries:
        header[e.name] = {"dtype": e.dtype, "shape": list(e.shape), "data_offsets": [offset, offset + e.nbytes]}
        offset += e.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for e in entries:
            write_tensor(file, e, seed, device, progress)


def write_one_of(r: Recipe, number: int, path: Path, shard_bytes: int, device: torch.device) -> int:
    """In a process of its own, which plans again: what fills a tensor cannot be sent. Returns the bytes written."""
    entries = split(list(tensors(r)), shard_bytes)[number]
    total = sum(e.nbytes for e in entries)
    write_shard(path, entries, r.seed, device, Progress(total, quiet=True))
    return total


def write_checkpoint(r: Recipe, out: Path, shard_bytes: int, device: torch.device, jobs: int = 1) -> int:
    """Write everything into `out`.partial, `jobs` shards at a time, and rename at the end.

    Returns the bytes of all tensors.
    """
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    entries = list(tensors(r))
    shards = split(entries, shard_bytes)
    total = sum(e.nbytes for e in entries)
    progress = Progress(total)
    weight_map: dict[str, str] = {}
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        weight_map |= {e.name: name for e in shard}
    if jobs == 1:
        for name, shard in zip(names, shards, strict=True):
            write_shard(partial / name, shard, r.seed, device, progress)
    else:
        # Drawing a mixture's 124,000 tensors is bound by the processor that launches it. Spawned: a CUDA context does
        # not survive a fork.
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            # No more at once than there are processes: leaving the pool waits for all that it was given, so that after
            # an error or a Ctrl-C the rest would be written before anybody is told.
            numbers = iter(range(len(shards)))
            running: set[Future[int]] = set()
            while True:
                for i in islice(numbers, jobs - len(running)):
                    running.add(pool.submit(write_one_of, r, i, partial / names[i], shard_bytes, device))
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    progress.add(one.result())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    for name, content in {**side_files(r), "model.safetensors.index.json": index}.items():
        (partial / name).write_text(json.dumps(content, indent=1) + "\n")
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)
    return total


# --- 2 command line --------------------------------------------------------------------------------------------------


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="architecture (default: tiny)")
    parser.add_argument("--layout", choices=LAYOUTS, default="modelopt",
                        help="how weights are stored, see above (default: modelopt)")  # fmt: skip
    parser.add_argument("--store", action="append", default=[], metavar="PATTERN=SCHEME",
                        help="store modules that the regular expression finds as nvfp4, fp8 or bf16")  # fmt: skip
    parser.add_argument("--layers", type=int, help="a multiple of 4: three GDN layers, then one attention layer")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same bytes (default: 0)")
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is one); the bytes are the same")
    parser.add_argument("--jobs", type=int, default=1, help="shards written at a time (default: 1)")
    parser.add_argument("--shard-bytes", type=int, help="largest shard (default: 2 MB for tiny shapes, else 5 GB)")
    parser.add_argument("--distinct-shard-scales", action="store_true",
                        help="q/k/v, gate/up, qkv/z get scales of their own (vLLM merges those inexactly)")  # fmt: skip
    parser.add_argument("--w4a4", action="store_true", help="compressed-tensors: add input_global_scale")
    parser.add_argument("--with-vision", action="store_true", help="add the vision tower's tensors")
    parser.add_argument("--with-mtp", action="store_true", help="add the multi-token-prediction tensors")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing folder")
    args = parser.parse_args(argv)
    if args.layers is not None and (args.layers < 4 or args.layers % 4):
        parser.error(f"--layers: found {args.layers}, expected a multiple of 4")
    if args.w4a4 and not args.layout.startswith("compressed-tensors"):
        parser.error(f"--w4a4: found --layout {args.layout}, expected compressed-tensors")
    args.stored = tuple(stored(parser, args.layout, option) for option in args.store)
    if args.out.exists() and not args.overwrite:
        parser.error(f"{args.out} exists; remove it or pass --overwrite")
    if args.jobs < 1:
        parser.error(f"--jobs: found {args.jobs}, expected 1 or more")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no CUDA device found; use --device cpu")
    return args


def stored(parser: argparse.ArgumentParser, layout: str, option: str) -> tuple[str, str]:
    """(pattern, scheme)."""
    pattern, _, scheme = option.rpartition("=")
    if scheme not in ("nvfp4", "fp8", "bf16") or not pattern:
        parser.error(f"--store: found {option!r}, expected PATTERN=nvfp4, PATTERN=fp8 or PATTERN=bf16")
    if layout == "bf16":
        parser.error("--store: found --layout bf16, expected a layout that names its schemes")
    try:
        re.compile(pattern)
    except re.error as error:
        parser.error(f"--store: {pattern!r} is not a regular expression ({error})")
    return pattern, scheme


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    shape = SHAPES[args.shape]
    recipe = Recipe(
        shape=shape if args.layers is None else replace(shape, layers=args.layers),
        layout=args.layout,
        seed=args.seed,
        distinct=args.distinct_shard_scales,
        w4a4=args.w4a4,
        vision=args.with_vision,
        mtp=args.with_mtp,
        stored=args.stored,
    )
    for pattern, _ in recipe.stored:
        if not any(re.search(pattern, m.name) for m in modules(recipe)):
            sys.exit(
                f"--store: {pattern!r} finds no module; expected part of such a name as {next(modules(recipe)).name}"
            )
    shard_bytes = args.shard_bytes or (2_000_000 if args.shape.startswith("tiny") else 5_000_000_000)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    start = time.monotonic()
    total = write_checkpoint(recipe, args.out, shard_bytes, device, args.jobs)
    print(f"{args.out}: {total / 1e9:.3f} GB of weights in {time.monotonic() - start:.1f} s on {device}")


if __name__ == "__main__":
    main()
