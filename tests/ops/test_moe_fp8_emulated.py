"""FP8 experts in the emulator: the quantising launch to the bit, the products against the codes' in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.kernels.skinny import Machine
from engine.ops.linear.cuda_quantize import quantize
from engine.ops.linear.quantize import MIN_TOKEN_SCALE, quantize_per_tensor, quantize_per_token
from engine.ops.moe import cuda
from engine.ops.w8a8 import pack as w8a8_pack
from engine.weights.types import WeightError, fuse
from tests.ops import emulator, moe_products
from tests.ops.emulator import BLACKWELL, HOPPER
from tests.ops.fp8_experts import (
    STATIC_SCALE,
    SWIGLU_ROW_ERROR,
    down_error,
    matrix,
    pack,
    pack_gate_up,
    quantised,
    stack,
    swiglu_error,
)
from tests.ops.moe_products import WEIGHTED_ERROR, normal, planes_of
from tests.ops.padded import NAN, behind, by_launches, one, same
from tests.ops.poison import relative_error
from tests.ops.test_moe_grouping import logits_for

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

SOURCES = {
    "engine_quantize": ("linear", "quantize"),
    "engine_moe_route": ("moe", "kernel"),
    "engine_moe_grouped_fp8": ("moe", "kernel"),
    "engine_moe_route_many": ("moe", "many"),
    "engine_moe_grouped_many_fp8": ("moe", "many"),
    "engine_add_norm": ("norm", "kernel"),
}
FEW = [
    ("random", 1, 16, 256),
    ("random", 1, 80, 512),
    ("ties", 3, 48, 768),
    ("one", 9, 16, 1024),
    ("alike", 17, 32, 512),
    ("random", 32, 16, 640),
]
"""Routing, tokens, n, k: warps that share tiles, that own them (K of 512 and less), entries of one to eight pairs."""
MANY = [
    ("random", 33, 16, 128),
    ("one", 65, 48, 640),
    ("ties", 75, 272, 256),
    ("alike", 64, 160, 512),
    ("random", 90, 16, 768),
]
"""Of a task part of the warps, all of them, and tasks in which most have no tile; rings that go round and not."""


def install(monkeypatch, max_shared_bytes=HOPPER, multiprocessors=3):
    def call(name, *rest):
        emulator.build(*SOURCES[name], max_shared_bytes=max_shared_bytes)(name, *rest)

    monkeypatch.setattr(library, "call", call)
    monkeypatch.setattr(cuda, "machine", lambda _: Machine(multiprocessors, max_shared_bytes))


@pytest.fixture
def emulated(monkeypatch):
    install(monkeypatch)


# --- codes -----------------------------------------------------------------------------------------------------------


def odd_rows(k: int, generator: torch.Generator) -> torch.Tensor:
    """Sizes over all of bfloat16's range but its ends, zeros, one value far ahead, less than the least scale."""
    x = torch.randn(9, k, generator=generator) * 10.0 ** torch.arange(-4, 5)[:, None]
    x[1] = 0
    x[2, 3] = 1e6
    x[3] *= 1e-9
    x[4, ::2] = 0
    return x.bfloat16()


@pytest.mark.parametrize("k", [8, 256, 264, 2048])
@pytest.mark.usefixtures("emulated", "poison")
def test_codes_are_the_torch_path_s(generator, k):
    x = odd_rows(k, generator)
    codes, scales = quantize(x, None)
    expected, scale = quantize_per_token(x)
    assert torch.equal(scales, scale[:, 0])
    assert torch.equal(codes.float(), expected)
    assert float(scales[1]) == float(torch.tensor(MIN_TOKEN_SCALE))


@pytest.mark.parametrize("given", [0.0078, 3.0, 1e-3])
@pytest.mark.usefixtures("emulated", "poison")
def test_codes_by_a_given_scale_are_the_torch_path_s(generator, given):
    x, given = odd_rows(264, generator), torch.tensor(given)
    codes, scales = quantize(x, given)
    assert torch.equal(codes.float(), quantize_per_tensor(x, given))
    assert torch.equal(scales, given.expand(9))


@pytest.mark.usefixtures("emulated")
def test_what_is_not_quantised(generator):
    for x in (normal(2, 12, generator), normal(2, 16, generator).float(), normal(16, 2, generator).t()):
        with pytest.raises(ValueError, match=r"quantize: found x .*; expected contiguous bfloat16, columns in eights"):
            quantize(x, None)
    x = torch.zeros(1, 8, dtype=torch.bfloat16)
    with pytest.raises(KernelError, match="returned CUDA error 1"):
        library.call("engine_quantize", x.device, x, None, x, x, 1, 12, 0)


# --- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [None, STATIC_SCALE])
@pytest.mark.parametrize(("kind", "tokens", "n", "k"), [*FEW, *MANY])
@pytest.mark.parametrize(("max_shared_bytes", "blocks"), [(HOPPER, 3), (BLACKWELL, 5)])
@pytest.mark.usefixtures("poison")
def test_experts(monkeypatch, generator, kind, tokens, n, k, max_shared_bytes, blocks, scale):
    install(monkeypatch, max_shared_bytes, blocks)
    assert swiglu_error(kind, tokens, 8, n, k, generator, scale) < SWIGLU_ROW_ERROR
    assert down_error(kind, tokens, 8, n, k, generator, scale) < WEIGHTED_ERROR


@pytest.mark.parametrize("tokens", range(33, 71, 3))
@pytest.mark.usefixtures("poison")
def test_down_by_pair(monkeypatch, generator, tokens):
    """Entries of every length up to 64: x comes four rows at a time, whatever their number."""
    install(monkeypatch, (HOPPER, BLACKWELL)[tokens % 2])
    assert down_error(("random", "alike", "one")[tokens % 3], tokens, 8, 16, 256, generator) < WEIGHTED_ERROR


def test_more_blocks_than_tiles(monkeypatch, generator):
    install(monkeypatch, HOPPER, 60)
    assert down_error("alike", 2, 8, 16, 256, generator) < WEIGHTED_ERROR


@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.usefixtures("emulated")
def test_an_expert_nobody_chose_is_not_read(generator, tokens):
    down = stack(8, 16, 256, generator)
    how = cuda.routing(logits_for("alike", tokens, 8, 1), 4)
    x = normal(tokens * how.slots, 256, generator)
    before = planes_of(cuda.down(x, pack(down), how), tokens)
    absent = next(e for e in range(8) if e not in how.ids[0].tolist())
    down[absent].row_scale.fill_(float("nan"))
    down[absent].weight.view(torch.uint8).fill_(0x7F)
    assert torch.equal(planes_of(cuda.down(x, pack(down), how), tokens), before)


@pytest.mark.parametrize("tokens", [5, 40])
@pytest.mark.usefixtures("emulated")
def test_errors_are_seen(generator, tokens):
    """The comparison is not blind: experts swapped, a scale 10 % off, another row's scale of x."""
    down = stack(4, 16, 256, generator)
    how = cuda.routing(logits_for("random", tokens, 4, 2), 4)
    x = normal(tokens * how.slots, 256, generator)
    first = how.ids[0].tolist().index(0)
    rows = quantised(x, None).view(tokens, how.slots, 256)[0]
    expected = rows[first] @ matrix(down[0]).T * how.weights.double()[first]

    def error(experts):
        return relative_error(planes_of(cuda.down(x, experts, how), tokens)[first, 0], expected)

    packed = pack(down)
    assert error(packed) < WEIGHTED_ERROR
    assert error(pack([down[1], down[0], *down[2:]])) > 0.5
    scale = packed.row_scale.clone()
    scale[:16] *= 1.10
    assert error(dataclasses.replace(packed, row_scale=scale)) > 20 * WEIGHTED_ERROR
    assert error(dataclasses.replace(packed, input_scale=torch.tensor(1.0))) > 5 * WEIGHTED_ERROR


@pytest.mark.parametrize(("tokens", "count"), [(34, 1), (66, 33), (130, 65)])
@pytest.mark.usefixtures("emulated", "poison")
def test_the_norm_behind_a_padded_feed_forward(generator, tokens, count):
    """To the bit as without padding. 32 rows and fewer would go another way then: as with live rows in its place."""
    gate, up, down = (stack(8, 256, 256, generator) for _ in range(3))
    experts, logits = (pack_gate_up(gate, up), pack(down)), logits_for("random", tokens, 8, tokens)
    x, residual, scale = normal(tokens, 256, generator), normal(tokens, 256, generator), torch.ones(256)
    plain = [t[:count] for t in (x, residual, logits)] if count > cuda.MAX_ROUTED else [x, residual, logits]
    wanted = by_launches(*plain, scale, *experts)
    made = by_launches(*(behind(t[:count], tokens, NAN) for t in (x, residual, logits)), scale, *experts, one(count))
    for name in ("residual", "out"):
        assert torch.isfinite(getattr(wanted, name)[:count].float()).all()
        same(getattr(made, name)[:count], getattr(wanted, name)[:count])


# --- what is resident, and what is refused ---------------------------------------------------------------------------


def test_bytes_are_those_that_were_shipped(generator):
    gate, up = stack(3, 32, 256, generator), stack(3, 32, 256, generator)
    packed = pack_gate_up(gate, up)
    assert packed.units.nbytes == sum(w.weight.nbytes for w in (*gate, *up))
    assert (packed.units.dtype, packed.shape, packed.input_scale) == (torch.uint8, (64, 256), None)
    rows = w8a8_pack.unpack(packed.units).view(4, 4, 2, 8, 256)  # expert, eights, gate or up
    for which, weights in enumerate((gate, up)):
        for e, weight in enumerate(weights):
            same(rows[e, :, which].reshape(32, 256), weight.weight)
            assert torch.equal(packed.row_scale.view(4, 4, 2, 8)[e, :, which].flatten(), weight.row_scale)


def test_a_static_scale_is_the_largest_of_all_experts(generator):
    gate, up = stack(3, 16, 256, generator, 0.5), stack(3, 16, 256, generator, 0.7)
    assert float(pack_gate_up(gate, up).input_scale) == float(torch.tensor(0.7))


def test_gate_and_up_of_two_kinds_are_refused(generator):
    gate, up = stack(3, 16, 256, generator), moe_products.stack(3, 16, 256, generator)
    with pytest.raises(WeightError, match="moe: found gate Fp8Weight, up Nvfp4Weight; expected one kind of both"):
        cuda.pack_gate_up(fuse(gate), fuse(up), 4)


@pytest.mark.parametrize("many", ["", "_many"])
@pytest.mark.parametrize(("n", "k", "output"), [(24, 256, 0), (16, 192, 0), (16, 256, 7)])
@pytest.mark.usefixtures("emulated")
def test_shapes_outside_the_contract_are_refused(many, n, k, output):
    with pytest.raises(KernelError, match="returned CUDA error 1"):
        library.call(f"engine_moe_grouped{many}_fp8", torch.device("cpu"), *([None] * 9), 2, 3, n, k, output, 3, 0)
