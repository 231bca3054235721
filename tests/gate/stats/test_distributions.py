"""Student's t and Fisher's F: the very numbers of scipy.stats, which takes longer to import."""

from __future__ import annotations

import math

import pytest

from gate.stats.distributions import f_tail, t_cdf, t_quantile


@pytest.mark.parametrize("df", [0.01, 0.4, 1, 2.5, 7, 100.5, 1e8])
def test_t(df: float) -> None:
    from scipy import stats

    for p in (1e-12, 0.01, 0.3, 0.5, 0.9, 0.975, 1 - 1e-12):
        assert t_quantile(p, df) == float(stats.t.ppf(p, df))
    for x in (-math.inf, -40.0, -2.0, 0.0, 0.1, 3.0, 1e5, math.inf):
        assert t_cdf(x, df) == float(stats.t.cdf(x, df))


@pytest.mark.parametrize(("above", "below"), [(1, 1), (2, 5), (7, 100), (1, 1000)])
def test_f(above: int, below: int) -> None:
    from scipy import stats

    for ratio in (0.0, 1e-9, 0.5, 1.0, 3.0, 100.0, 1e9):
        assert f_tail(ratio, above, below) == float(stats.f.sf(ratio, above, below))
