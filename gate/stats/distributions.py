"""6 Student's t and Fisher's F, by scipy.special: importing scipy.stats takes as long as all else that judges a run."""

from __future__ import annotations

from scipy import special


def t_cdf(x: float, df: float) -> float:
    """Probability of at most x under t of `df` degrees of freedom, above 0."""
    return float(special.stdtr(df, x))


def t_quantile(p: float, df: float) -> float:
    """The x with t_cdf(x, df) = p, 0 < p < 1."""
    return float(special.stdtrit(df, p))


def f_tail(ratio: float, above: float, below: float) -> float:
    """Probability of at least `ratio`, of two mean squares with `above` and `below` degrees of freedom."""
    return float(special.fdtrc(above, below, ratio))
