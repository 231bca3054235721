"""spread: repetitions that do not agree have no median. The limit is 5 %, 15 % for tails."""

from __future__ import annotations

from typing import Any

import pytest

from gate.checks.spread import spread


def slow_leg(share: float) -> Any:
    def of(leg: Any) -> float:
        return 1 / (1 + share) if (leg.arm, leg.concurrency, leg.repetition) == ("oracle", 1, 0) else 1.0

    return of


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([100, 105, 100], 0.05),
        ([25, 43, 43], 18 / 43),
        ([5, None, 5], 0.0),
        ([5], None),
        ([None, None], None),
        ([0, 0], None),
        ([0.5, 0.75, 0.5], 0.5),
    ],
)
def test_closed_form(values: Any, expected: float | None) -> None:
    assert spread(values) == (None if expected is None else pytest.approx(expected))


def test_just_below_and_above_the_limit(build: Any, found: Any) -> None:
    axes = {f.axis for f in found(build.run(slow_leg(0.0499)), "spread")}
    assert "tpot_median_ms" not in axes
    findings = found(build.run(slow_leg(0.0501)), "spread")
    tpot = next(f for f in findings if f.axis == "tpot_median_ms")
    assert (tpot.arm, tpot.concurrency, tpot.leg_id) == ("oracle", 1, None)
    assert "spreads 5.0 % (10.5, 10, 10); expected at most 5.0 %" in tpot.message


def test_tails_have_three_times_the_room(build: Any, found: Any) -> None:
    axes = {f.axis for f in found(build.run(slow_leg(0.149)), "spread")}
    assert "ttft_median_ms" in axes
    assert "ttft_max_ms" not in axes
    assert "ttft_max_ms" in {f.axis for f in found(build.run(slow_leg(0.151)), "spread")}


def test_the_recipe_sets_the_limit(build: Any, found: Any) -> None:
    assert found(build.run(slow_leg(0.2), protocol={"max_spread": 0.25})) == []


def test_one_repetition_has_no_spread(build: Any, found: Any) -> None:
    assert found(build.run(slow_leg(0.5), protocol={"repetitions": 1})) == []


def test_exactly_the_limit_is_allowed(build: Any, found: Any) -> None:
    """12.5 ms against twice 10 ms is a spread of 0.25 to the last bit."""
    assert found(build.run(slow_leg(0.25), protocol={"max_spread": 0.25})) == []
    beyond = found(build.run(slow_leg(0.25), protocol={"max_spread": 0.125}), "spread")
    assert {f.axis: f.beyond for f in beyond}["tpot_median_ms"] == 2.0
