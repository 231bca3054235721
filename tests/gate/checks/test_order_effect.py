"""order-effect: the ratio must not depend on who ran first."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gate.checks.evidence import Evidence
from gate.checks.order_effect import by_first, effect, noise
from gate.metrics import AXES
from gate.stats.band import assumed

FOUR = {"protocol": {"repetitions": 4}}


def first_slower(factor: float, repetitions_of: str = "all") -> Any:
    """The leg that opens a repetition is slower, whoever's it is. The coin is the candidate's."""

    def speed(leg: Any) -> float:
        opens = (leg.arm == "candidate") == (leg.repetition % 2 == 0)
        return factor if opens and repetitions_of in ("all", leg.arm) else 1.0

    return speed


def axes(findings: Any) -> set[str]:
    return {f.axis for f in findings if f.code == "order-effect"}


def test_an_order_effect_voids_the_axis_though_every_arm_is_within_its_spread(build: Any, found: Any) -> None:
    findings = found(build.run(first_slower(0.97), **FOUR))
    assert {f.code for f in findings} == {"order-effect"}
    assert {"output_throughput", "ttft_median_ms", "tpot_median_ms"} <= axes(findings)
    assert {f.concurrency for f in findings} == {1, 2}
    assert "running first moves the candidate by -3.0 %; expected at most" in findings[0].message
    allowed = max(0.01, noise([0.0, 0.0], [0.0, 0.0], assumed(0.01)))
    assert findings[0].beyond == pytest.approx(-math.log(0.97) / allowed, rel=1e-3)


@pytest.mark.parametrize(("factor", "void"), [(0.991, False), (0.985, True), (1.0151, True)])
def test_the_band_is_the_limit(build: Any, found: Any, factor: float, void: bool) -> None:
    assert bool(axes(found(build.run(first_slower(factor), **FOUR)))) == void


def test_a_wider_band_allows_more(build: Any, found: Any) -> None:
    wide = {"protocol": {"repetitions": 4, "band": 0.05}}
    assert axes(found(build.run(first_slower(0.97), **wide))) == set()


def test_a_faster_arm_is_no_order_effect(build: Any, found: Any) -> None:
    assert found(build.run(lambda leg: 1.2 if leg.arm == "candidate" else 1.0, **FOUR)) == []


def test_with_three_repetitions_one_odd_leg_looks_the_same(build: Any, found: Any) -> None:
    assert axes(found(build.run(first_slower(0.97)))) == set()
    assert axes(found(build.run(first_slower(0.97), protocol={"repetitions": 3}, coin="oracle"))) == set()


def test_scatter_widens_what_is_allowed(build: Any, found: Any) -> None:
    """Running first costs 2 % on average, but the repetitions scatter by ± 2 % of their own."""

    def speed(leg: Any) -> float:
        own = 1.02 if leg.repetition >= 2 else 0.98
        return float(first_slower(0.98)(leg) * (own if leg.arm == "candidate" else 1.0))

    assert axes(found(build.run(speed, **FOUR))) == set()


def test_tails_are_left_out(build: Any, found: Any) -> None:
    run = build.run(first_slower(0.97), protocol={"repetitions": 4}, workload={"requests_per_stream": 100})
    assert axes(found(run))
    assert not [axis for axis in axes(found(run)) if "p9" in axis or "max" in axis]


def test_effect_is_half_the_difference() -> None:
    assert effect([0.04, 0.02], [-0.01, 0.01]) == pytest.approx(0.015)
    assert effect([0.04], [0.0, 0.0]) is None
    assert effect([0.0, 0.0], [0.04]) is None


def test_noise_is_a_moderated_t() -> None:
    """Two and two pairs, each ± 0.01 around its mean: 4·(0.005)² + 4·(0.01)² over 6 degrees of freedom."""
    from scipy import stats

    spread = math.sqrt((4 * 0.005**2 + 4 * 0.01**2) / 6)
    expected = stats.t.ppf(0.995, 6) * spread * math.sqrt(1 / 2 + 1 / 2) / 2
    assert noise([0.01, -0.01], [0.03, 0.01], assumed(0.01)) == pytest.approx(expected)
    three = stats.t.ppf(0.995, 7) * math.sqrt((4 * 0.005**2 + 4 * 0.01**2) / 7) * math.sqrt(1 / 2 + 1 / 3) / 2
    assert noise([0.01, -0.01], [0.03, 0.01, 0.02], assumed(0.01)) == pytest.approx(three)


def test_equal_legs_and_no_band_have_no_effect(build: Any, found: Any) -> None:
    assert axes(found(build.run(protocol={"repetitions": 4, "band": 0.0}))) == set()


def test_without_a_band_only_the_last_bits_are_allowed(build: Any, found: Any) -> None:
    """The legs of either order are equal, so that nothing scatters: 1e-9 is left."""
    findings = found(build.run(first_slower(0.97), protocol={"repetitions": 4, "band": 0.0}))
    tpot = next(f for f in findings if (f.axis, f.concurrency) == ("tpot_median_ms", 1))
    assert tpot.beyond == pytest.approx(-math.log(0.97) / 1e-9, rel=1e-3)


def test_exactly_the_band_is_allowed(build: Any, found: Any) -> None:
    """Equal legs scatter by less than the band, which then is the limit."""
    run = build.run(first_slower(0.97), **FOUR)
    (tpot,) = (axis for axis in AXES if axis.name == "tpot_median_ms")
    sides = by_first(Evidence.of(run), 1, tpot)
    band = abs(effect(sides["candidate"], sides["oracle"]) or 0.0)
    for share, void in ((1.0, False), (1 - 1e-9, True)):
        tables = {"protocol": {"repetitions": 4, "band": band * share}}
        findings = found(build.run(first_slower(0.97), **tables))
        assert (("tpot_median_ms", 1) in {(f.axis, f.concurrency) for f in findings}) is void
