"""Simulated gates, judged by the real rule. docs/verdict.md quotes the rates.

Noise of one leg (log scale): white 0.3 %, AR(1) 0.4 % with ρ = 0.7, 3 % of legs slowed by 3 %, drift 0.2 % a leg. The
coin is tossed for each gate. Each gate has a prior of its own, estimated by gate/stats/band.py from 8 A/A gates of
the same noise.
"""

from __future__ import annotations

import functools
import math
from collections import Counter

import numpy as np

from gate import verdict
from gate.observe.rows import Verdict
from gate.stats import band as bands
from gate.stats.looks import confidence
from gate.stats.median import median, ratio
from gate.stats.pairs import log_ratios

GATES = 10_000
SHARE = 0.01
FLOOR = 1.0
SEED = 20
MAIN, EXTRA = "ABBAAB", "BAAB"
"""Three repetitions, and one block of two more."""

Legs = tuple[list[list[float]], list[list[float]]]


def legs(
    order: str, effect: float, gates: int, rng: np.random.Generator, *, toss: bool = True, start_sd: float = 0.0
) -> Legs:
    """Throughputs of the candidate's and of the oracle's legs, one list a gate; A opens, and the coin says who A is.

    start_sd: how much each start of a server changes all of its legs.
    """
    count, rho = len(order), 0.7
    slow = rng.normal(0, 0.004, (gates, count))
    for k in range(1, count):
        slow[:, k] = rho * slow[:, k - 1] + math.sqrt(1 - rho**2) * slow[:, k]
    noise = slow + rng.normal(0, 0.003, slow.shape) - 0.03 * (rng.random(slow.shape) < 0.03)
    noise += 0.002 * np.arange(count)
    opens = np.array([letter == "A" for letter in order])
    heads = rng.random((gates, 1)) < 0.5 if toss else np.ones((gates, 1), dtype=bool)
    candidate = np.where(heads, noise[:, opens], noise[:, ~opens])
    oracle = np.where(heads, noise[:, ~opens], noise[:, opens])
    if start_sd:
        candidate += rng.normal(0, start_sd, (gates, 1))
        oracle += rng.normal(0, start_sd, (gates, 1))
    return np.exp(candidate + effect).tolist(), np.exp(oracle).tolist()


@functools.cache
def histories(gates: int, start_sd: float = 0.0) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Paired log ratios of the 8 A/A gates of each simulated host."""
    n = bands.MIN_GATES
    candidate, oracle = legs(MAIN, 0.0, gates * n, np.random.default_rng(SEED + 1), start_sd=start_sd)
    pairs = [log_ratios(c, o, "higher") for c, o in zip(candidate, oracle, strict=True)]
    return tuple(tuple(pairs[n * g : n * (g + 1)]) for g in range(gates))


@functools.cache
def priors(gates: int, start_sd: float = 0.0) -> tuple[bands.Band, ...]:
    """The calibrated band of each simulated host."""
    found = [bands.prior(history) for history in histories(gates, start_sd)]
    return tuple(bands.calibrated(SHARE, prior) for prior in found if prior is not None)


def decide(candidate: list[float], oracle: list[float], band: bands.Band, level: float) -> Verdict:
    return verdict.cell(
        log_ratios(candidate, oracle, "higher"),
        ratio(median(candidate), median(oracle), "higher"),
        planned_pairs=len(candidate),
        floor=FLOOR,
        band=band,
        findings=(),
        confidence=level,
    ).verdict


@functools.cache
def rates(
    true_ratio: float,
    order: str = MAIN,
    *,
    extra: bool = False,
    calibrated: bool = True,
    toss: bool = True,
    start_sd: float = 0.0,
    gates: int = GATES,
) -> dict[str, float]:
    """Share of each verdict on one cell, and of gates that took the second look.

    extra: one pre-declared block, taken where the first look is INCONCLUSIVE.
    """
    whole = order + (EXTRA if extra else "")
    rng = np.random.default_rng(SEED)
    candidates, oracles = legs(whole, math.log(true_ratio), gates, rng, toss=toss, start_sd=start_sd)
    known = priors(gates, start_sd) if calibrated else (bands.assumed(SHARE),) * gates
    n, looks, found = len(order) // 2, 2 if extra else 1, Counter[str]()
    for candidate, oracle, band in zip(candidates, oracles, known, strict=True):
        made = decide(candidate[:n], oracle[:n], band, confidence(0, looks))
        if made is Verdict.INCONCLUSIVE and extra:
            found["second look"] += 1
            made = decide(candidate, oracle, band, confidence(1, looks))
        found[made.value] += 1
    return {name: found[name] / gates for name in ("PASS", "FAIL", "INCONCLUSIVE", "second look")}
