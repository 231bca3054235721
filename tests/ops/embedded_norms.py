"""What the tests of `add_norm` with token ids share: the comparison with rows that torch looked up."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.ops.norm.cuda import add_norm

EPS = 1e-6


def compare(
    m: int,
    n: int,
    rows: int,
    vocab: int,
    generator: torch.Generator,
    *,
    quantised: bool = False,
    ids: Sequence[int] | None = None,
) -> None:
    """Rows of the table that no token names are NaN."""
    like = {"device": generator.device, "generator": generator}
    drawn = torch.randint(0, vocab, (m,), **like) if ids is None else torch.tensor(ids, device=generator.device)
    table = torch.full((vocab, n), float("nan"), device=generator.device).bfloat16()
    table[drawn.unique()] = (torch.randn(len(drawn.unique()), n, **like) * 0.02).bfloat16()
    scale = torch.rand(n, **like) + 0.5
    small = torch.randn(rows, n, **like).bfloat16() if rows else None
    input_scale = torch.tensor(0.02, device=generator.device) if quantised else None
    wanted = {"input_scale": input_scale, "small_weight": small, "want_out": not quantised or bool(rows)}
    looked_up = torch.nn.functional.embedding(drawn, table)
    expected = add_norm(None, looked_up, scale, EPS, **wanted)
    # Every second one comes from the step before, whose rows lie in another order.
    order = torch.randperm(m, generator=generator, device=generator.device)
    fed = drawn[order].contiguous()
    rows_of_fed = order.argsort()
    given = torch.where(torch.arange(m, device=generator.device) % 2 == 1, -1 - rows_of_fed, drawn)
    made = add_norm(None, table, scale, EPS, token_ids=given, fed_ids=fed, **wanted)
    assert torch.equal(made.residual, looked_up)
    for leaf in ("out", "quantised", "small"):
        ours, theirs = getattr(made, leaf), getattr(expected, leaf)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert torch.isfinite(ours.float()).all()
            assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
