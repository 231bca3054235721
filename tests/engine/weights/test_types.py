"""Resident weights: packing is lossless, dequantisation is the published formula, fusing changes no element."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.weights.types import (
    E2M1_VALUES,
    DenseWeight,
    Fp8Weight,
    Nvfp4Weight,
    WeightError,
    fuse,
    pack_e2m1,
    unpack_e2m1,
)

torch.set_num_threads(1)

sizes = st.tuples(st.integers(1, 5), st.integers(1, 4).map(lambda b: 16 * b))


def nvfp4(rows: int, columns: int, seed: int, scale: float = 0.01) -> Nvfp4Weight:
    g = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=g)
    blocks = torch.randint(0, 0x7F, (rows, columns // 16), dtype=torch.uint8, generator=g).view(torch.float8_e4m3fn)
    return Nvfp4Weight(packed, blocks, torch.full((rows,), scale) * (1 + torch.rand(rows, generator=g)))


def fp8(rows: int, columns: int, seed: int, input_scale: float | None = 0.02) -> Fp8Weight:
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=g).to(torch.float8_e4m3fn)
    scale = None if input_scale is None else torch.tensor(input_scale)
    return Fp8Weight(weight, torch.rand(rows, generator=g) + 0.5, scale)


@settings(max_examples=30, deadline=None)
@given(sizes, st.integers(0, 2**31))
def test_packing_undoes_unpacking(size: tuple[int, int], seed: int) -> None:
    packed = nvfp4(*size, seed).packed
    codes = unpack_e2m1(packed)
    assert codes.shape == size
    assert int(codes.max()) < 16
    assert torch.equal(pack_e2m1(codes), packed)


def test_the_low_nibble_is_the_even_element() -> None:
    assert unpack_e2m1(torch.tensor([[0x2F, 0x71]], dtype=torch.uint8)).tolist() == [[15, 2, 1, 7]]


def test_e2m1_codes_follow_the_format_field_by_field() -> None:
    for code, value in enumerate(E2M1_VALUES):
        exponent, mantissa = code >> 1 & 3, code & 1
        magnitude = mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)
        assert value == (-magnitude if code & 8 else magnitude)


def test_nvfp4_dequantises_element_by_element() -> None:
    weight = nvfp4(3, 32, 7)
    expected = torch.empty(3, 32, dtype=torch.float64)
    for n in range(3):
        for k in range(32):
            byte = int(weight.packed[n, k // 2])
            value = E2M1_VALUES[byte >> 4 if k % 2 else byte & 15] * float(weight.block_scale[n, k // 16])
            expected[n, k] = value * float(weight.row_scale[n])
    assert torch.equal(weight.dequantize(torch.float32), expected.float())


@settings(max_examples=20, deadline=None)
@given(sizes, st.integers(0, 2**31))
def test_code_times_block_scale_is_exact_in_bfloat16(size: tuple[int, int], seed: int) -> None:
    weight = nvfp4(*size, seed)
    ones = Nvfp4Weight(weight.packed, weight.block_scale, torch.ones(size[0]))
    assert torch.equal(ones.dequantize(torch.bfloat16).float(), ones.dequantize(torch.float32))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from(["nvfp4", "fp8", "dense"]), st.integers(0, 99)
)
def test_a_fused_row_is_its_shards_row_bit_for_bit(rows: list[int], kind: str, seed: int) -> None:
    make = {
        "nvfp4": lambda n, s: nvfp4(n, 32, s, scale=0.01 * (s + 1)),
        "fp8": lambda n, s: fp8(n, 32, s),
        "dense": lambda n, s: DenseWeight(torch.randn(n, 32, generator=torch.Generator().manual_seed(s)).bfloat16()),
    }[kind]
    shards = [make(n, seed + i) for i, n in enumerate(rows)]
    fused = fuse(shards)
    assert fused.shape == (sum(rows), 32)
    assert torch.equal(fused.dequantize(torch.float32), torch.cat([s.dequantize(torch.float32) for s in shards]))
    assert fused.nbytes == sum(s.nbytes for s in shards) - (4 * (len(rows) - 1) if kind == "fp8" else 0)


def test_fused_fp8_shards_share_the_largest_input_scale() -> None:
    fused = fuse([fp8(2, 16, 0, 0.01), fp8(3, 16, 1, 0.04), fp8(1, 16, 2, 0.02)])
    assert isinstance(fused, Fp8Weight)
    assert fused.input_scale is not None
    assert fused.input_scale.item() == pytest.approx(0.04)


def test_dynamic_fp8_shards_stay_dynamic() -> None:
    fused = fuse([fp8(2, 16, 0, None), fp8(3, 16, 1, None)])
    assert isinstance(fused, Fp8Weight)
    assert fused.input_scale is None


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([], "no shards"),
        ([nvfp4(2, 16, 0), fp8(2, 16, 0)], r"Fp8Weight.*Nvfp4Weight"),
        ([fp8(2, 16, 0), fp8(2, 32, 0)], r"K \[16, 32\]"),
        ([fp8(2, 16, 0), fp8(2, 16, 0, None)], "some are dynamic"),
        ([DenseWeight(torch.ones(1, 4)), DenseWeight(torch.ones(1, 4).bfloat16())], "one dtype"),
    ],
)
def test_what_cannot_be_fused_exactly_is_refused(shards: list, message: str) -> None:
    with pytest.raises(WeightError, match=message):
        fuse(shards)


def test_a_container_refuses_a_wrong_dtype_or_shape() -> None:
    good = nvfp4(2, 32, 0)
    with pytest.raises(WeightError, match=r"block_scale.*expected torch.float8_e4m3fn \[2, 2\]"):
        Nvfp4Weight(good.packed, good.block_scale[:, :1], good.row_scale)
    with pytest.raises(WeightError, match="row_scale"):
        Nvfp4Weight(good.packed, good.block_scale, good.row_scale[0])
    with pytest.raises(WeightError, match="multiple of 16"):
        Nvfp4Weight(good.packed[:, :4], good.block_scale, good.row_scale)
    with pytest.raises(WeightError, match="input_scale"):
        Fp8Weight(fp8(2, 16, 0).weight, torch.ones(2), torch.ones(1))
    with pytest.raises(WeightError, match="bf16, f16 or f32"):
        DenseWeight(torch.ones(2, 2, dtype=torch.int32))
    with pytest.raises(WeightError, match="even number"):
        pack_e2m1(torch.zeros(1, 3, dtype=torch.uint8))
