"""The rule on simulated runs: how often it is wrong, how often it decides. docs/verdict.md quotes these figures.

Noise of one leg (log scale): white 0.3 %, AR(1) 0.4 % with ρ = 0.7, 3 % of legs slowed by 3 %, drift 0.2 % a leg.
"""

from __future__ import annotations

import functools
import math
from collections import Counter

import numpy as np
import pytest

from gate import verdict
from gate.stats.band import assumed
from gate.stats.median import median, ratio
from gate.stats.pairs import log_ratios

GATES = 1500
BAND = assumed(0.01)
FLOOR = 1.0


def legs(order: str, effect: float, rng: np.random.Generator) -> np.ndarray:
    """Throughputs of GATES runs × the legs of `order`, A the candidate, B the oracle."""
    count, rho = len(order), 0.7
    slow = rng.normal(0, 0.004, (GATES, count))
    for k in range(1, count):
        slow[:, k] = rho * slow[:, k - 1] + math.sqrt(1 - rho**2) * slow[:, k]
    noise = slow + rng.normal(0, 0.003, slow.shape) - 0.03 * (rng.random(slow.shape) < 0.03)
    arms = np.array([letter == "A" for letter in order])
    return np.exp(noise + 0.002 * np.arange(count) + effect * arms)


@functools.cache
def rates(order: str, effect: float) -> dict[str, float]:
    """Share of each verdict on one cell."""
    found: Counter[str] = Counter()
    mine = [k for k, letter in enumerate(order) if letter == "A"]
    theirs = [k for k, letter in enumerate(order) if letter == "B"]
    for run in legs(order, effect, np.random.default_rng(20)).tolist():
        candidate, oracle = [run[k] for k in mine], [run[k] for k in theirs]
        made = verdict.cell(
            log_ratios(candidate, oracle, "higher"),
            ratio(median(candidate), median(oracle), "higher"),
            planned_pairs=len(mine),
            floor=FLOOR,
            band=BAND,
            findings=(),
        )
        found[made.verdict.value] += 1
    return {name: found[name] / GATES for name in ("PASS", "FAIL", "INCONCLUSIVE")}


def test_equal_arms_are_not_failed() -> None:
    assert rates("ABBAAB", 0.0)["FAIL"] <= 0.02


def test_a_better_candidate_passes() -> None:
    assert rates("ABBAAB", 0.01)["PASS"] >= 0.85
    assert rates("ABBAAB", 0.01)["FAIL"] <= 0.02


def test_exactly_at_the_boundary_a_pass_is_as_rare_as_its_level() -> None:
    """The hardest case: a true loss of one band. 2.5 % nominal; 1.6 % in 4,000 gates."""
    assert rates("ABBAAB", math.log(0.99))["PASS"] <= 0.03


def test_a_loss_of_one_and_a_half_percent_does_not_pass() -> None:
    assert rates("ABBAAB", -0.015)["PASS"] <= 0.01


def test_a_loss_of_three_percent_is_found() -> None:
    assert rates("ABBAAB", -0.03)["FAIL"] >= 0.85


@pytest.mark.parametrize(("blocked", "wrong"), [("BBBAAA", "PASS"), ("AAABBB", "FAIL")])
def test_blocked_order_would_be_wrong_far_more_often(blocked: str, wrong: str) -> None:
    """The reason for checks/order_not_interleaved.py: all the drift is on one arm's side, at a true loss of 1 %."""
    assert rates(blocked, -0.01)[wrong] > 5 * rates("ABBAAB", -0.01)[wrong]
    assert rates(blocked, -0.01)[wrong] > 0.25


@pytest.mark.parametrize("effect", [0.0, -0.015, -0.03])
def test_every_gate_gets_one_verdict(effect: float) -> None:
    assert sum(rates("ABBAAB", effect).values()) == pytest.approx(1)
