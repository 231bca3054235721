"""What the tests of padded runs share: rows of padding, bits that must be equal, routings that must be the same."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from engine.ops.moe import cuda
from engine.ops.norm.cuda import Normed, add_norm

NAN = float("nan")


def one(number: int, dtype: torch.dtype = torch.int32, device: str = "cpu") -> Tensor:
    """As a count (int32) or a slot (int64) lies on the device."""
    return torch.tensor([number], dtype=dtype, device=device)


def behind(live: Tensor, rows: int, padding: float) -> Tensor:
    """The live rows, and behind them rows of `padding`, `rows` in all."""
    return torch.cat((live, live.new_full((rows - len(live), live.shape[1]), padding)))


def same(ours: Tensor, theirs: Tensor) -> None:
    assert torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


def of_rows(made: cuda.Routing, count: int) -> cuda.Routing:
    """The routing of its first `count` tokens."""
    pairs = count * made.slots
    by_pair = {name: getattr(made, name)[:pairs] for name in ("pairs", "weights", "positions")}
    return dataclasses.replace(made, ids=made.ids[:count], **by_pair)


def check_routing(made: cuda.Routing, wanted: cuda.Routing, count: int) -> None:
    """A padded routing, into outputs full of poison, is `wanted`, that of its live rows alone."""
    used, tokens, pairs = int(wanted.count), made.tokens, count * made.slots
    assert int(made.count) == used
    same(made.entries[:used], wanted.entries[:used])
    same(made.ends, wanted.ends)
    live = of_rows(made, count)
    for name in ("pairs", "positions", "ids", "weights"):
        same(getattr(live, name), getattr(wanted, name))
    # What is written and read by the positions of all rows is written and read at each place once.
    assert sorted(made.positions.tolist()) == list(range(tokens * made.slots))
    for unwritten in (made.entries[used:], made.pairs[pairs:], made.ids[count:]):
        assert (unwritten == -1).all()
    assert made.weights[pairs:].isnan().all()


def by_launches(
    x: Tensor,
    residual: Tensor,
    logits: Tensor,
    scale: Tensor,
    gate_up: cuda.Experts,
    down: cuda.Experts,
    count: Tensor | None = None,
    *,
    dependent: bool = False,
) -> Normed:
    """A mixture of more than 32 tokens, 4 experts each, and the norm that adds it up. With dependent, no kernel but
    theirs may be between them: the norm reads its scale before they have ended.
    """
    how = cuda.routing(logits, 4, dependent=dependent, count=count)
    parts = cuda.down(cuda.swiglu(x, gate_up, how, dependent=dependent), down, how, dependent=dependent)
    return add_norm(parts, residual, scale, 1e-6, dependent=dependent)
