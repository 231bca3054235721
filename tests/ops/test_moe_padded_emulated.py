"""The mixture over a padded run, its count in memory, in the emulator: padding is in no expert, no index rubbish."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import library
from engine.kernels.skinny import Machine
from engine.ops.moe import cuda, cuda_prefill
from tests.ops import emulator
from tests.ops.moe_products import normal, pack, pack_gate_up, stack
from tests.ops.padded import NAN, behind, by_launches, check_routing, of_rows, one, same
from tests.ops.test_moe_grouping import check, logits_for

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

ROWS = [(33, 1), (33, 2), (33, 31), (33, 32), (33, 33), (64, 3), (64, 32), (64, 63), (150, 1), (150, 63), (150, 64)]
ROWS += [(150, 65), (150, 128), (150, 149), (150, 150)]
"""Rows, live ones: at the ends of the routing's blocks of 32 tokens, and far from them."""
SOURCES = {
    **{f"engine_moe_{name}": ("moe", "many") for name in ("route_many", "grouped_many")},
    **{f"engine_moe_{name}": ("moe", "prefill") for name in ("spread", "combine")},
    **{f"engine_{name}": ("linear",) for name in ("swiglu", "w4a16_rows")},
    "engine_moe_grouped_wide": ("moe", "wide"),
    "engine_add_norm": ("norm",),
}


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setattr(library, "call", lambda name, *rest: emulator.build(*SOURCES[name])(name, *rest))
    monkeypatch.setattr(library, "arch_of", lambda _: "90a")
    monkeypatch.setattr(cuda, "machine", lambda _: Machine(3, 227 * 1024))


@pytest.mark.parametrize("kind", ["random", "alike", "one", "ties", "never"])
@pytest.mark.parametrize("padding", [NAN, 0.0])
@pytest.mark.parametrize(("tokens", "count"), ROWS)
@pytest.mark.usefixtures("poison")
def test_padded_routing_is_the_routing(kind, padding, tokens, count):
    logits = logits_for(kind, count, 33, seed=tokens + count)
    wanted = cuda.routing_of_many(logits, 4)
    made = cuda.routing(behind(logits, tokens, padding), 4, count=one(count))
    check_routing(made, wanted, count)
    if count > cuda.MAX_ROUTED:
        check(of_rows(made, count), logits, 4)


def mixture(generator, hidden=256, inter=256, experts=8):
    gate, up = stack(experts, inter, hidden, generator), stack(experts, inter, hidden, generator)
    return pack_gate_up(gate, up), pack(stack(experts, hidden, inter, generator))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("tokens", "count"), [(34, 1), (34, 2), (66, 3), (66, 33), (130, 63), (130, 64), (130, 65)])
@pytest.mark.usefixtures("poison")
def test_the_norm_behind_a_padded_feed_forward(generator, monkeypatch, tokens, count, wide):
    """To the bit as without padding. 32 rows and fewer would go another way then: as with live rows in its place."""
    monkeypatch.setattr(cuda, "WIDE", wide)
    monkeypatch.setattr(cuda, "WIDE_TOKENS", 33)
    experts, logits = mixture(generator), logits_for("random", tokens, 8, tokens)
    x, residual, scale = normal(tokens, 256, generator), normal(tokens, 256, generator), torch.ones(256)
    plain = [t[:count] for t in (x, residual, logits)] if count > cuda.MAX_ROUTED else [x, residual, logits]
    wanted = by_launches(*plain, scale, *experts)
    made = by_launches(*(behind(t[:count], tokens, NAN) for t in (x, residual, logits)), scale, *experts, one(count))
    for name in ("residual", "out"):
        assert torch.isfinite(getattr(wanted, name)[:count].float()).all()
        same(getattr(made, name)[:count], getattr(wanted, name)[:count])


@pytest.mark.parametrize(("tokens", "count"), [(40, 33), (70, 33), (70, 64), (70, 65)])
@pytest.mark.usefixtures("poison")
def test_a_padded_feed_forward_by_a_library(generator, tokens, count):
    """Rows of padding are moved behind all groups, and back: nowhere else."""
    experts, logits = mixture(generator), logits_for("random", count, 8, tokens)
    x = normal(count, 256, generator)
    wanted = cuda_prefill.feed_forward(x, *experts, cuda.routing(logits, 4))
    how = cuda.routing(behind(logits, tokens, NAN), 4, count=one(count))
    made = cuda_prefill.feed_forward(behind(x, tokens, NAN), *experts, how)
    assert torch.isfinite(wanted).all()
    same(made[:, :count], wanted)


@pytest.mark.parametrize(
    ("tokens", "count"),
    [
        (32, one(3)),
        (40, torch.tensor([3])),
        (40, torch.tensor(3, dtype=torch.int32)),
        (40, torch.tensor([3, 3], dtype=torch.int32)),
        (40, torch.zeros(1, dtype=torch.int32, device="meta")),
    ],
)
def test_what_is_not_a_count_is_refused(tokens, count):
    said = (
        rf"moe: found a count {count.dtype} .* of {tokens} tokens on cpu; expected int32 \[1\] there, of more than 32"
    )
    for route in (cuda.routing, cuda.routing_of_many):
        with pytest.raises(ValueError, match=said):
            route(logits_for("random", tokens, 8, 1), 4, count=count)
