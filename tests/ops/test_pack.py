"""Repacked weights hold exactly what the checkpoint held, in another order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ops.w4a16 import pack as w4a16
from engine.ops.w8a8 import pack as w8a8

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
