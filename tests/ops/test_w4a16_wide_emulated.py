"""ops/w4a16/wide.cu in the emulator: products of many tokens by warpgroups, held against float64."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional as F

from engine.kernels import library
from engine.kernels.build import ENGINE
from engine.kernels.library import KernelError
from engine.kernels.skinny import Epilogue, Machine
from engine.ops.linear import cuda as linear
from engine.ops.w4a16 import wide
from tests.ops import emulator
from tests.ops.edges import beside_edge, exit_code
from tests.ops.emulator import BLACKWELL, HOPPER
from tests.ops.moe_products import matrix, normal, stack
from tests.ops.poison import product_error, relative_error

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

PRODUCT_ERROR = 1e-6
"""Codes times block scales are exact in bf16, and the emulator adds in float64: what is left is fp32's."""
ELEMENT_ERROR = 3e-6
"""Of one element, against the size its operands give it."""
BF16_ERROR = 2**-8 + 1e-5
SWIGLU_ERROR = 6e-3
TOKENS = [1, 17, 32, 33, 50, 64, 65, 100, 128, 129, 200, 300]
"""One to sixteen groups of eight, an odd number of them, squares of unequal sizes."""


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setattr(wide, "WIDE", True)
    monkeypatch.setattr(library, "arch_of", lambda _: "90a")
    monkeypatch.setattr(library, "call", emulator.build("w4a16", "wide"))
    monkeypatch.setattr(wide, "machine", lambda _: Machine(3, HOPPER))


def weight(n, k, generator):
    return stack(0, n, k, generator)[0]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.usefixtures("poison")
def test_planes_add_up_to_the_product(tokens, generator):
    made, x = weight(256, 768, generator), normal(tokens, 768, generator)
    planes = (
        linear.planes(x, linear.pack_w4a16(made), linear.Scratch(0, x.device))
        if wide.FROM_TOKENS <= tokens <= wide.TO_TOKENS
        else None
    )
    for parts in (1, 2, 3):
        out = wide.partial(x, *units(made), parts)
        assert out.shape == (parts, tokens, 256)
        assert relative_error(out.sum(0), x.double() @ matrix(made).T) < PRODUCT_ERROR
        if planes is not None and planes.shape == out.shape:
            assert torch.equal(planes, out)


def units(made):
    packed = linear.pack_w4a16(made)
    return packed.units, packed.row_scale


@pytest.mark.parametrize(("tokens", "n", "k"), [(20, 256, 512), (33, 256, 256), (140, 512, 512), (256, 768, 256)])
@pytest.mark.usefixtures("poison")
def test_a_product_in_bf16(tokens, n, k, generator):
    made, x = weight(n, k, generator), normal(tokens, k, generator)
    out = linear.project(x, linear.pack_w4a16(made), linear.Scratch(0, x.device))
    assert relative_error(out, x.double() @ matrix(made).T) < BF16_ERROR


@pytest.mark.parametrize(("tokens", "n", "k"), [(32, 256, 256), (33, 128, 256), (140, 256, 512), (256, 128, 768)])
@pytest.mark.usefixtures("poison")
def test_gate_and_up(tokens, n, k, generator):
    gate, up, x = weight(n, k, generator), weight(n, k, generator), normal(tokens, k, generator)
    out = linear.swiglu(x, linear.pack_gate_up(gate, up), linear.Scratch(0, x.device))
    expected = F.silu(x.double() @ matrix(gate).T) * (x.double() @ matrix(up).T)
    assert relative_error(out, expected) < SWIGLU_ERROR


@pytest.mark.parametrize("tokens", [20, 50, 140])
@pytest.mark.usefixtures("poison")
def test_gate_and_up_are_rounded_as_elsewhere(tokens, generator):
    """To the bit: each to bf16, then silu, then the product, as of a product in bf16 and ops/linear's own SwiGLU."""
    gate, up, x = weight(128, 256, generator), weight(128, 256, generator), normal(tokens, 256, generator)
    packed, none = linear.pack_gate_up(gate, up), linear.Scratch(0, x.device)
    expected = torch.zeros(tokens, 128, dtype=torch.bfloat16)
    emulator.build("linear")("engine_swiglu", x.device, linear.project(x, packed, none), expected, tokens, 128)
    assert torch.equal(linear.swiglu(x, packed, none), expected)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("tokens", [32, 64, 200])
def test_any_number_of_blocks_leaves_the_same_bits(monkeypatch, tokens, generator):
    made, x = weight(512, 512, generator), normal(tokens, 512, generator)
    outs = []
    for blocks in (1, 4, 50):
        monkeypatch.setattr(wide, "machine", lambda _, blocks=blocks: Machine(blocks, HOPPER))
        outs.append(wide.partial(x, *units(made), 2))
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


@pytest.mark.parametrize(
    ("tokens", "n", "k", "parts", "blocks"),
    [
        (17, 256, 256, 1, 1),
        (32, 512, 2304, 8, 2),
        (64, 256, 1280, 4, 50),
        (65, 768, 1280, 3, 4),
        (129, 256, 2304, 8, 132),
        (400, 512, 1280, 2, 7),
    ],
)
@pytest.mark.usefixtures("poison")
def test_a_part_has_its_own_columns_and_every_token(monkeypatch, tokens, n, k, parts, blocks, generator):
    """Fewer columns than are in flight, parts of unequal columns, blocks of several tasks and of none."""
    monkeypatch.setattr(wide, "machine", lambda _: Machine(blocks, HOPPER))
    made, x = weight(n, k, generator), normal(tokens, k, generator)
    planes, exact = wide.partial(x, *units(made), parts), matrix(made)
    each, more = divmod(k // 256, parts)
    columns = [256 * (each + (part < more)) for part in range(parts)]
    for plane, of_x, of_weight in zip(planes, x.double().split(columns, 1), exact.split(columns, 1), strict=True):
        assert product_error(plane, of_x, of_weight) < ELEMENT_ERROR


@pytest.mark.parametrize("tokens", [20, 50, 140])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.usefixtures("poison")
def test_what_is_not_finite_stays_in_its_token_and_in_its_row(tokens, value, generator):
    made, x = weight(256, 512, generator), normal(tokens, 512, generator)
    packed, row_scale = units(made)
    good, wrong = wide.partial(x, packed, row_scale, 2), x.clone()
    wrong[tokens // 2, 300], wrong[-1, 5] = value, value
    out = wide.partial(wrong, packed, row_scale, 2)
    touched = torch.zeros(2, tokens, dtype=torch.bool)
    touched[1, tokens // 2], touched[0, -1] = True, True
    assert torch.equal(out[~touched], good[~touched])
    assert not out[touched].isfinite().all(-1).any()
    row_scale[77] = value
    out, others = wide.partial(x, packed, row_scale, 2), torch.arange(256) != 77
    assert torch.equal(out[..., others], good[..., others])
    assert not out[..., 77].isfinite().any()


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize(("tokens", "epilogue"), [(19, Epilogue.PARTIAL), (45, Epilogue.SWIGLU), (131, Epilogue.BF16)])
def test_nothing_outside_of_its_tensors_is_touched(tokens, epilogue, end, generator):
    n, k, parts = 256, 512, 2 if epilogue == Epilogue.PARTIAL else 1
    width = n // 2 if epilogue == Epilogue.SWIGLU else n
    out = torch.empty(parts, tokens, width, dtype=torch.float32 if parts == 2 else torch.bfloat16)
    given = (*units(weight(n, k, generator)), normal(tokens, k, generator), out)
    tensors = [beside_edge(t, end=end) for t in given]
    call = emulator.build("w4a16", "wide")
    for blocks in (1, 7):
        sizes = (tokens, n, k, parts, int(epilogue), blocks, 1)
        assert exit_code(lambda sizes=sizes: call("engine_w4a16_wide", out.device, *tensors, *sizes)) == 0


@pytest.mark.parametrize("change", ["columns", "rows", "part"])
def test_what_is_out_of_place_is_seen(change, generator):
    """The comparison is not blind: two columns or two tokens exchanged, the second part left out."""
    made, x = weight(256, 512, generator), normal(40, 512, generator)
    wrong = x.clone()
    if change == "columns":
        wrong[:, [0, 1]] = x[:, [1, 0]]
    elif change == "rows":
        wrong[[0, 1]] = x[[1, 0]]
    out = wide.partial(wrong, *units(made), 2)
    total = out[0] if change == "part" else out.sum(0)
    assert relative_error(total, x.double() @ matrix(made).T) > 1e-2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"m": 0}, 1),
        ({"n": 0}, 1),
        ({"n": 272}, 1),
        ({"n": 384}, 1),
        ({"k": 128}, 1),
        ({"k": 384}, 1),
        ({"parts": 0}, 1),
        ({"parts": 3}, 1),
        ({"parts": 2, "epilogue": int(Epilogue.BF16)}, 1),
        ({"epilogue": int(Epilogue.ARGMAX)}, 1),
        ({"m": 1 << 21}, 1),
        ({"blocks": 0}, 1),
    ],
)
def test_shapes_outside_the_contract_are_refused(change, code):
    sizes = {"m": 33, "n": 256, "k": 512, "parts": 1, "epilogue": 0, "blocks": 3, "dependent": 1} | change
    with pytest.raises(KernelError, match=f"CUDA error {code}"):
        emulator.build("w4a16", "wide")("engine_w4a16_wide", torch.device("cpu"), *[None] * 4, *sizes.values())


@pytest.mark.parametrize(
    "change", [torch.Tensor.float, lambda x: x[:, :256].contiguous(), lambda x: x.T.contiguous().T]
)
def test_other_activations_are_refused(change, generator):
    with pytest.raises(ValueError, match="w4a16: found x torch"):
        wide.product(change(normal(40, 512, generator)), *units(weight(256, 512, generator)))


@pytest.mark.parametrize("tokens", [17, 33, 65])
def test_a_smaller_device_refuses(tokens):
    call = emulator.build("w4a16", "wide", max_shared_bytes=BLACKWELL)
    with pytest.raises(KernelError, match="CUDA error 9"):
        call("engine_w4a16_wide", torch.device("cpu"), *[None] * 4, tokens, 256, 256, 1, 0, 3, 1)


@pytest.mark.parametrize(
    ("on", "arch", "n", "taken"),
    [(True, "90a", 512, True), (True, "90a", 384, False), (True, "121a", 512, False), (False, "90a", 512, False)],
)
def test_where_it_is_taken(monkeypatch, on, arch, n, taken):
    monkeypatch.setattr(wide, "WIDE", on)
    monkeypatch.setattr(library, "arch_of", lambda _: arch)
    assert wide.takes(33, n, torch.device("cpu")) is taken


@pytest.mark.parametrize(
    ("tokens", "taken"),
    [
        (1, False),
        (wide.FROM_TOKENS - 1, False),
        (wide.FROM_TOKENS, True),
        (wide.TO_TOKENS, True),
        (wide.TO_TOKENS + 1, False),
    ],
)
def test_few_tokens_are_streamed(tokens, taken, generator):
    assert linear._wide(normal(tokens, 256, generator), linear.pack_w4a16(weight(256, 256, generator))) is taken


def test_squares_are_those_of_the_kernel():
    source = (ENGINE / "ops" / "w4a16" / "wide.cu").read_text()
    cuts = sorted((int(tokens), 128 * int(tiles)) for tokens, tiles in re.findall(r"= Wide<(\d+), (\d),", source))
    assert len(cuts) == 3
    for m in range(1, 300):
        tokens, rows = next((cut for cut in cuts if m <= cut[0]), cuts[-1])
        assert wide.square(m) == (rows, tokens)


@pytest.mark.parametrize(
    ("m", "n", "k", "parts"),
    [
        (1024, 5120, 17408, range(2, 6)),
        (1024, 34816, 5120, range(1, 2)),
        (32, 5120, 17408, range(3, 4)),
        (33, 256, 256, [1]),
    ],
)
def test_parts_of_k_fill_the_device_and_no_more(m, n, k, parts):
    assert wide.parts_for(m, n, k, 132) in parts
