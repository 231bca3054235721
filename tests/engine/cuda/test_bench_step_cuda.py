"""`engine bench step` on a GPU: one batch size after another, each with every launch of a step in its table."""

from __future__ import annotations

import pytest

from engine.bench_step import StepBench

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_batch_sizes_one_after_another(runner):
    bench = StepBench(runner)
    for batch in (1, 3):
        measured = bench.decode(batch, 40, 4)
        assert sum(f.launches for f in measured.families) == pytest.approx(
            round(sum(f.launches for f in measured.families))
        )
        assert {"W4A16 product", "W8A8 product", "GDN step", "attention"} <= {f.name for f in measured.families}
    assert bench.prefill(50, 2).families
