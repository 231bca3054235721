"""Cuts of a skinny product: every one fits its machine, covers the product, and keeps the multiprocessors busy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.build import TARGETS
from engine.kernels.skinny import Epilogue, Machine, plan, shared_bytes
from engine.ops.w4a16 import cuda as w4a16
from engine.ops.w8a8 import cuda as w8a8

H200 = Machine(132, TARGETS["90a"].max_shared_bytes)
GB10 = Machine(48, TARGETS["121a"].max_shared_bytes)
UNITS = {"w4a16": w4a16.UNIT, "w8a8": w8a8.UNIT}


@pytest.mark.parametrize("where", [H200, GB10], ids=["h200", "gb10"])
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
@given(
    tiles=st.integers(1, 16000), columns=st.integers(1, 150), m=st.integers(1, 32), epilogue=st.sampled_from(Epilogue)
)
@settings(max_examples=30, deadline=None)
def test_every_cut_fits_and_is_inside_the_contract(unit, where, tiles, columns, m, epilogue):
    cut = plan(unit, tiles * 16, columns * unit.k, m, epilogue, where)
    assert cut.slices == 1 or epilogue is Epilogue.PARTIAL
    assert cut.slices * cut.blocks <= where.multiprocessors
    block_tiles, slice_units = -(-tiles // cut.blocks), -(-columns // cut.slices)
    assert cut.windows <= tiles // cut.blocks
    assert cut.phases <= columns // cut.slices
    waiting = -(-block_tiles // cut.windows) if cut.phases > 1 else 0
    assert shared_bytes(unit, waiting, -(-slice_units // cut.phases), m, 2, where) <= where.max_shared_bytes


@pytest.mark.parametrize(
    ("unit", "n", "k", "epilogue"),
    [
        ("w4a16", 34816, 5120, Epilogue.SWIGLU),
        ("w4a16", 5120, 17408, Epilogue.PARTIAL),
        ("w8a8", 16384, 5120, Epilogue.BF16),
        ("w8a8", 5120, 6144, Epilogue.PARTIAL),
    ],
)
@pytest.mark.parametrize("m", [1, 8])
def test_one_block_per_multiprocessor_for_the_27b(unit, n, k, epilogue, m):
    cut = plan(UNITS[unit], n, k, m, epilogue, H200)
    assert cut.slices * cut.blocks == 132
    assert cut.phases == cut.windows == 1


@pytest.mark.parametrize(("m", "n", "k"), [(0, 16, 256), (33, 16, 256), (1, 24, 256), (1, 16, 128)])
def test_shapes_no_kernel_takes_are_named(m, n, k):
    with pytest.raises(ValueError, match=f"found m {m}, n {n}, k {k}"):
        plan(w4a16.UNIT, n, k, m, Epilogue.BF16, H200)
