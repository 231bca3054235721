"""How a skinny product (kernels/skinny.cuh) is cut: slices of K, blocks of row tiles, passes of a block."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import IntEnum

import torch

from engine.kernels.build import TARGETS
from engine.kernels.library import arch_of

MAX_TOKENS = 32
TILE_ROWS = 16
MAX_SLICES = 8

SLICE_COST = 0.02
"""Of the whole, per further slice: its plane's writes and reads."""
RING_DEPTH = 2
"""Units in flight per warp that a cut must leave room for; the launch takes more where they fit."""
CHANGE_OVER = 1.0
"""Rounds that a change of phase or window costs: three barriers."""
X_BYTES_PER_ROUND = 65536
"""What a block loads of x in the time of a round; measured with every block loading the same rows."""


class Epilogue(IntEnum):
    """What happens to finished sums; the values are skinny.cuh's."""

    PARTIAL = 0
    """fp32 [slices, m, n]: the next kernel adds the slices."""
    BF16 = 1
    """bf16 [m, n]."""
    SWIGLU = 2
    """Rows g and g + 8 of a tile are gate and up: bf16 [m, n / 2]."""
    ARGMAX = 3
    """BF16, and the row of each token's largest value: int64 [m]."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The piece of a repacked weight that one warp multiplies at a time: 16 rows × k columns."""

    k: int
    nbytes: int
    x_itemsize: int
    """Bytes per activation."""
    x_padding: int
    """Bytes after a token's row in shared memory."""


@dataclass(frozen=True, slots=True)
class Machine:
    multiprocessors: int
    max_shared_bytes: int
    """Per block."""

    def warps(self, m: int) -> int:
        """Per block, as skinny.cuh decides."""
        return 8 if m > 8 or self.max_shared_bytes < 128 * 1024 else 16


@dataclass(frozen=True, slots=True)
class Plan:
    """How one product is cut; numbers as engine_*_skinny takes them."""

    slices: int
    """Parts of K that different blocks sum; each writes a plane."""
    blocks: int
    """Per slice."""
    phases: int = 1
    """Parts of a slice that a block takes one after the other, because all its tokens' columns do not fit."""
    windows: int = 1
    """Parts of a block's row tiles that go through the phases together, because all their sums do not fit."""


@functools.cache
def machine(device: torch.device) -> Machine:
    properties = torch.cuda.get_device_properties(device)
    return Machine(properties.multi_processor_count, TARGETS[arch_of(device)].max_shared_bytes)


@functools.cache
def plan(unit: Unit, n: int, k: int, m: int, epilogue: Epilogue, where: Machine) -> Plan:
    """The cut for out[m, n] = x[m, k] · w[n, k]ᵀ. Raises ValueError for a shape no kernel takes."""
    if n % TILE_ROWS or k % unit.k or not 1 <= m <= MAX_TOKENS:
        raise ValueError(
            f"found m {m}, n {n}, k {k}; expected m in 1..{MAX_TOKENS}, n a multiple of {TILE_ROWS}, k of {unit.k}"
        )
    units_k, tiles = k // unit.k, n // TILE_ROWS
    most_slices = min(units_k, MAX_SLICES, where.multiprocessors) if epilogue is Epilogue.PARTIAL else 1
    best: tuple[float, Plan] | None = None
    for slices in range(1, most_slices + 1):
        blocks = min(tiles, where.multiprocessors // slices)
        most = (-(-tiles // blocks), -(-units_k // slices))
        cut = _passes(unit, *most, (tiles // blocks, units_k // slices), m, where)
        if cut is None:
            continue
        phases, windows, rounds = cut
        # A further slice is a further plane to write and read: it must earn its keep.
        cost = rounds * (1 + SLICE_COST * (slices - 1))
        if best is None or cost < best[0]:
            best = (cost, Plan(slices, blocks, phases, windows))
    if best is None:
        raise ValueError(f"found m {m}, n {n}, k {k}; one unit of x and the ring exceed {where.max_shared_bytes} B")
    return best[1]


def _passes(
    unit: Unit, tiles: int, units: int, least: tuple[int, int], m: int, where: Machine
) -> tuple[int, int, float] | None:
    """(phases, windows, rounds) of the busiest block: a round is 16 units; None when nothing fits.

    tiles, units: of the busiest block; least: of the idlest, which must have one of each for every pass.
    """
    best: tuple[float, int, int] | None = None
    warps = where.warps(m)
    for windows in range(1, least[0] + 1):
        for phases in range(1, least[1] + 1):
            window_tiles, phase_units, passes = -(-tiles // windows), -(-units // phases), phases * windows
            if (
                shared_bytes(unit, window_tiles if phases > 1 else 0, phase_units, m, RING_DEPTH, where)
                > where.max_shared_bytes
            ):
                continue
            x_bytes = m * phase_units * unit.k * unit.x_itemsize
            rounds = passes * (-(-window_tiles * phase_units // warps) * warps / 16 + x_bytes / X_BYTES_PER_ROUND)
            rounds += CHANGE_OVER * (passes - 1)
            if best is None or rounds < best[0]:
                best = (rounds, phases, windows)
        if best is not None and windows >= 8:
            break
    return None if best is None else (best[1], best[2], best[0])


def shared_bytes(unit: Unit, waiting_tiles: int, phase_units: int, m: int, depth: int, where: Machine) -> int:
    """The least shared memory of a block, as SkinnyShared in skinny.cuh lays it out."""
    token_tiles = 1 if m <= 8 else 2 if m <= 16 else 4
    tile_bytes = token_tiles * 32 * 4 * 4
    x = m * (phase_units * unit.k * unit.x_itemsize + unit.x_padding)
    warps = where.warps(m)
    ring = warps * depth * (unit.nbytes + 8) + 16
    return ring + waiting_tiles * tile_bytes + max(x, 2 * warps * tile_bytes)
