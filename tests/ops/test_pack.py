"""Repacked weights hold exactly what the checkpoint held, in another order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ops.moe import cuda as moe
from engine.ops.w4a16 import pack as w4a16
from engine.ops.w8a8 import pack as w8a8
from engine.weights.types import Nvfp4Weight, fuse


def random_nvfp4(n: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=g)
    bits = torch.randint(0, 0x7F, (n, k // 16), dtype=torch.uint8, generator=g)  # 0x7F is NaN
    return packed, bits.view(torch.float8_e4m3fn)


SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**31))


@given(SHAPES)
@settings(max_examples=20, deadline=None)
def test_w4a16_pack_keeps_every_code_and_scale(shape: tuple[int, int, int]) -> None:
    tiles, units, seed = shape
    generator = torch.Generator().manual_seed(seed)
    n, k = tiles * w4a16.UNIT_ROWS, units * w4a16.UNIT_K
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator)
    scale_bits = torch.randint(0, 0x7F, (n, k // 16), dtype=torch.uint8, generator=generator)  # 0x7F is NaN
    scale = scale_bits.view(torch.float8_e4m3fn)
    codes, scales = w4a16.unpack(w4a16.pack(packed, scale))
    assert torch.equal(scales, scale.float())
    wanted = torch.stack((packed & 15, packed >> 4), dim=-1).view(n, k).to(torch.int32)
    wanted[(scale_bits == 0).repeat_interleave(16, dim=1)] = 0
    assert torch.equal(codes, wanted)


@pytest.mark.parametrize("codes", [1, 16 * 512, 3 * 16 * 512, 2**20])
def test_w4a16_pack_is_the_same_in_any_number_of_passes(monkeypatch: pytest.MonkeyPatch, codes: int) -> None:
    packed, scale = random_nvfp4(7 * 16, 512, 1)
    whole = w4a16.pack(packed, scale)
    monkeypatch.setattr(w4a16, "_CODES_PER_PASS", codes)
    assert torch.equal(w4a16.pack(packed, scale), whole)


def test_experts_packed_together_are_each_as_packed_alone() -> None:
    """Of the stack, expert e has row tiles e · n/16 and so on, and scales e · n and so on."""

    def stack(n: int, k: int) -> list[Nvfp4Weight]:
        return [Nvfp4Weight(*random_nvfp4(n, k, n + e), torch.rand(n) + 0.1) for e in range(5)]

    gate, up, down = stack(32, 512), stack(32, 512), stack(48, 256)
    for i, (g, u, d) in enumerate(zip(gate, up, down, strict=True)):
        join = w4a16.interleave
        codes, blocks, scale = (
            join(g.packed, u.packed),
            join(g.block_scale, u.block_scale),
            join(g.row_scale, u.row_scale),
        )
        for made, n, alone, rows in (
            (moe.pack_gate_up(fuse(gate), fuse(up), 5), 64, w4a16.pack(codes, blocks), scale),
            (moe.pack(fuse(down), 5), 48, w4a16.pack(d.packed, d.block_scale), d.row_scale),
        ):
            assert made.rows == n
            assert torch.equal(made.units[i * n // 16 : (i + 1) * n // 16], alone)
            assert torch.equal(made.row_scale[i * n : (i + 1) * n], rows)


def test_experts_that_share_a_tile_are_refused() -> None:
    weight = Nvfp4Weight(*random_nvfp4(48, 256, 0), torch.ones(48))
    with pytest.raises(ValueError, match="moe: 48 rows of 2 experts; expected a multiple of 16 of each"):
        moe.pack(weight, 2)


def test_every_block_scale_value_survives() -> None:
    scale = torch.arange(0x7F, dtype=torch.uint8).repeat(3)[: 16 * 16].view(16, 16).view(torch.float8_e4m3fn)
    _, scales = w4a16.unpack(w4a16.pack(torch.full((16, 128), 0x11, dtype=torch.uint8), scale))
    assert torch.equal(scales, scale.float())


@given(SHAPES)
@settings(max_examples=20, deadline=None)
def test_w8a8_pack_is_a_permutation(shape: tuple[int, int, int]) -> None:
    tiles, units, seed = shape
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 256, (tiles * 16, units * 128), dtype=torch.uint8, generator=generator)
    assert torch.equal(w8a8.unpack(w8a8.pack(bits.view(torch.float8_e4m3fn))).view(torch.uint8), bits)


@pytest.mark.parametrize(("n", "k"), [(8, 256), (16, 128), (17, 512)])
def test_w4a16_refuses_shapes_it_cannot_tile(n: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"w4a16: shape {n}x{k}"):
        w4a16.pack(torch.zeros(n, k // 2, dtype=torch.uint8), torch.zeros(n, k // 16).to(torch.float8_e4m3fn))


def test_interleave_alternates_eight_rows_of_each_and_keeps_the_dtype() -> None:
    gate = torch.arange(16, dtype=torch.float32)
    assert w4a16.interleave(gate, gate + 100).tolist() == [
        *range(8),
        *range(100, 108),
        *range(8, 16),
        *range(108, 116),
    ]
    scale = torch.full((8, 3), 2.0).to(torch.float8_e4m3fn)
    assert w4a16.interleave(scale, scale).dtype == torch.float8_e4m3fn
    with pytest.raises(ValueError, match="rows a multiple of 8"):
        w4a16.interleave(gate[:12], gate[:12])
