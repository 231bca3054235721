"""Closed forms, and the property everything rests on: swapping the arms gives the reciprocal."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gate import verdict
from gate.observe.rows import Verdict
from gate.report.model import Direction
from gate.stats import band, looks
from gate.stats.band import Band, assumed
from gate.stats.holm import adjusted
from gate.stats.interval import CONFIDENCE, WIDEST, moderated
from gate.stats.median import median, ratio
from gate.stats.pairs import log_ratios

VALUES = st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)), min_size=1, max_size=7)
NEAR = st.lists(st.tuples(st.floats(95.0, 105.0), st.floats(95.0, 105.0)), min_size=1, max_size=6)
DIRECTIONS = st.sampled_from(["higher", "lower"])


def test_log_ratios_are_direction_normalised() -> None:
    assert log_ratios([2.0, 4.0], [1.0, 1.0], "higher") == pytest.approx([math.log(2), math.log(4)])
    assert log_ratios([2.0], [1.0], "lower") == pytest.approx([-math.log(2)])


def test_a_half_pair_is_no_pair() -> None:
    assert log_ratios([2.0, None, 3.0], [None, 1.0, 3.0], "higher") == (0.0,)


def test_arms_of_different_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        log_ratios([1.0], [1.0, 2.0], "higher")


def test_zero_is_a_broken_stamp_not_a_perfect_engine() -> None:
    assert ratio(0.0, 1.0, "lower") is None
    assert ratio(1.0, 0.0, "higher") is None
    assert log_ratios([0.0], [1.0], "lower") == ()
    assert log_ratios([1.0], [0.0], "lower") == ()


def test_median_ignores_what_was_not_measured() -> None:
    assert median([None, 3.0, 1.0, 2.0]) == 2
    assert median([None]) is None
    assert ratio(None, 1.0, "higher") is None


@given(VALUES, DIRECTIONS)
def test_swapped_arms_give_the_reciprocal(values: list[tuple[float, float]], direction: Direction) -> None:
    a, b = [x for x, _ in values], [y for _, y in values]
    forward, backward = ratio(median(a), median(b), direction), ratio(median(b), median(a), direction)
    assert forward is not None
    assert backward is not None
    assert forward * backward == pytest.approx(1)
    known = assumed(0.01)
    ahead, behind = moderated(log_ratios(a, b, direction), known), moderated(log_ratios(b, a, direction), known)
    assert ahead is not None
    assert behind is not None
    assert (ahead.low, ahead.high) == pytest.approx((-behind.high, -behind.low))


@given(VALUES, st.floats(0.5, 2))
def test_a_change_of_unit_changes_nothing(values: list[tuple[float, float]], scale: float) -> None:
    a, b = [x for x, _ in values], [y for _, y in values]
    assert log_ratios([x * scale for x in a], [y * scale for y in b], "higher") == pytest.approx(
        log_ratios(a, b, "higher"), abs=1e-12
    )


@given(VALUES, DIRECTIONS, st.randoms())
def test_the_order_of_the_pairs_does_not_matter(
    values: list[tuple[float, float]], direction: Direction, shuffle: random.Random
) -> None:
    mixed = list(values)
    shuffle.shuffle(mixed)
    made, again = decided(values, direction), decided(mixed, direction)
    assert made.verdict is again.verdict
    assert made.interval is not None
    assert again.interval is not None
    assert (made.interval.low, made.interval.high) == pytest.approx((again.interval.low, again.interval.high))


@given(NEAR, DIRECTIONS)
def test_arms_that_pass_both_ways_are_equal_within_the_band(
    values: list[tuple[float, float]], direction: Direction
) -> None:
    ahead, behind = decided(values, direction), decided([(b, a) for a, b in values], direction)
    found = ratio(median([a for a, _ in values]), median([b for _, b in values]), direction)
    assert found is not None
    if ahead.verdict is behind.verdict is Verdict.PASS:
        assert found * (1 + 1e-12) >= 0.99
        assert found <= (1 + 1e-12) / 0.99
    assert (ahead.verdict, behind.verdict) != (Verdict.FAIL, Verdict.FAIL)


@given(NEAR, DIRECTIONS, st.floats(1.0, 1.5))
def test_a_faster_candidate_never_loses_by_it(
    values: list[tuple[float, float]], direction: Direction, gain: float
) -> None:
    """All of its legs better by one factor: PASS stays PASS, and what was not FAIL does not become it."""
    factor = gain if direction == "higher" else 1 / gain
    before, after = decided(values, direction), decided([(a * factor, b) for a, b in values], direction)
    rank = {Verdict.FAIL: 0, Verdict.INCONCLUSIVE: 1, Verdict.PASS: 2}
    assert rank[after.verdict] >= rank[before.verdict]


@given(NEAR, DIRECTIONS, st.floats(0.001, 0.02), st.floats(1.0, 5.0))
def test_a_noisier_host_decides_no_more(
    values: list[tuple[float, float]], direction: Direction, sd: float, more: float
) -> None:
    quiet = decided(values, direction, Band(0.01, sd, 4.0, "calibrated"))
    noisy = decided(values, direction, Band(0.01, sd * more, 4.0, "calibrated"))
    assert noisy.verdict in (quiet.verdict, Verdict.INCONCLUSIVE)


def decided(values: list[tuple[float, float]], direction: Direction, band: Band | None = None) -> verdict.Decision:
    ours, theirs = [a for a, _ in values], [b for _, b in values]
    return verdict.cell(
        log_ratios(ours, theirs, direction),
        ratio(median(ours), median(theirs), direction),
        planned_pairs=len(values),
        floor=1.0,
        band=band or assumed(0.01),
        findings=(),
    )


class TestPrior:
    def test_the_robust_deviation_by_hand(self) -> None:
        """Deviations of 1, 2, 3, 4, 100 ‰ from their median of 3 are 2, 1, 0, 1, 97: their median is 1 ‰."""
        prior = band.prior([[0.001, 0.002], [0.003, 0.004, 0.100]])
        assert prior is not None
        assert prior.sd == pytest.approx(0.001 * 1.4826)
        assert (prior.gates, prior.pairs, prior.robust) == (2, 5, True)
        assert prior.df == pytest.approx(0.3675 * 4)

    def test_its_weight_is_capped(self) -> None:
        rng = np.random.default_rng(1)
        prior = band.prior(rng.normal(0, 0.005, (8, 3)).tolist())
        assert prior is not None
        assert prior.df == 4

    def test_it_finds_the_deviation_of_normal_noise_and_does_not_see_rare_outliers(self) -> None:
        rng = np.random.default_rng(1)
        pairs = rng.normal(0, 0.005, (4000, 3))
        pairs[::50] += 0.03
        prior = band.prior(pairs.tolist())
        assert prior is not None
        assert prior.sd == pytest.approx(0.005, rel=0.04)

    def test_mostly_equal_pairs_have_the_plain_deviation(self) -> None:
        prior = band.prior([[0.0, 0.0, 0.0], [0.0, 0.003]])
        assert prior is not None
        assert (prior.robust, prior.sd) == (False, pytest.approx(statistics.stdev([0, 0, 0, 0, 0.003])))

    @pytest.mark.parametrize("gates", [[], [[0.01]], [[0.0, 0.0], [0.0]], [[], []]])
    def test_no_variance_no_prior(self, gates: list[list[float]]) -> None:
        assert band.prior(gates) is None

    def test_gates_that_differ_by_their_start_are_found(self) -> None:
        rng = np.random.default_rng(2)
        noise = rng.normal(0, 0.002, (200, 3))
        apart = noise + np.repeat(rng.normal(0, 0.02, (200, 1)), 3, axis=1)
        (p_alike, sd_alike), (p_apart, sd_apart) = band.between(noise.tolist()), band.between(apart.tolist())
        assert p_alike is not None
        assert p_apart is not None
        assert p_apart < 0.01 < p_alike
        assert (sd_alike, sd_apart) == (0.0, pytest.approx(0.02, rel=0.1))

    def test_the_variance_between_gates_by_hand(self) -> None:
        """Means 0 and 2 ‰·10, two pairs each, ± 1 ‰: MSB = 2·(10² + 10²) = 400, MSW = 2, τ² = (400 − 2) / 2."""
        p, sd = band.between([[-0.001, 0.001], [0.019, 0.021], []])
        assert p == pytest.approx(0.005, abs=0.0005)
        assert sd == pytest.approx(0.001 * math.sqrt(199))

    def test_a_history_that_binds_has_24_pairs_at_three_repetitions(self) -> None:
        assert 3 * band.MIN_GATES == 24

    def test_a_band_is_what_its_prior_says(self) -> None:
        prior = band.Prior(8, 24, 0.004, 4.0, True, 0.001, 0.002)
        assert band.calibrated(0.01, prior) == Band(0.01, 0.004, 4.0, "calibrated", 0.002)
        assert band.assumed(0.01) == Band(0.01, 0.005, 4.0, "assumed", 0.0)

    def test_two_pairs_are_the_fewest(self) -> None:
        prior = band.prior([[0.001], [0.003]])
        assert prior is not None
        assert (prior.pairs, prior.sd) == (2, pytest.approx(0.001 * 1.4826))

    @given(st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=4), min_size=2, max_size=5))
    def test_its_p_is_that_of_an_analysis_of_variance(self, gates: list[list[int]]) -> None:
        p, _ = band.between([[pair / 1000 for pair in gate] for gate in gates])
        if p is not None:
            wanted = float(stats.f_oneway(*gates).pvalue)
            assert p == pytest.approx(wanted if math.isfinite(wanted) else 1.0, abs=1e-6)  # equal means: 0 / x, or NaN

    @pytest.mark.parametrize(("wanted", "believed"), [(0.0097, True), (0.0103, False)])
    def test_it_is_believed_below_one_percent(self, wanted: float, believed: bool) -> None:
        """Two gates of two pairs x apart, each ± a: F = x² / (2a²), with 1 and 2 degrees of freedom."""
        a = 0.001
        x = a * math.sqrt(2 * stats.f.isf(wanted, 1, 2))
        p, sd = band.between([[-a, a], [x - a, x + a]])
        assert p == pytest.approx(wanted)
        assert (sd > 0) is believed

    def test_exactly_at_its_limit_it_is_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gates = [[-0.001, 0.001], [0.019, 0.021]]
        p, sd = band.between(gates)
        assert sd > 0
        monkeypatch.setattr(band, "BETWEEN_GATES_P", p)
        assert band.between(gates) == (p, 0.0)

    def test_unequal_gates(self) -> None:
        """n = (N − Σn²/N) / (k − 1) = 5 − 13/5 = 2.4."""
        _, sd = band.between([[-0.001, 0.001], [0.099, 0.1, 0.101]])
        above, within = (2 * 0.06**2 + 3 * 0.04**2), 4e-6 / 3
        assert sd == pytest.approx(math.sqrt((above - within) / 2.4))

    @pytest.mark.parametrize("gates", [[[0.1, 0.2], []], [[0.1], [0.2]], [[0.1, 0.1], [0.2, 0.2]], []])
    def test_where_it_cannot_be_told(self, gates: list[list[float]]) -> None:
        assert band.between(gates) == (None, 0.0)

    def test_it_widens_the_interval_and_no_number_of_pairs_narrows_it(self) -> None:
        apart = Band(0.01, 0.005, 4.0, "calibrated", between_sd=0.02)
        interval = moderated([0.0, 0.001] * 50, apart)
        assert interval is not None
        assert interval.standard_error == pytest.approx(0.02, rel=0.001)


def test_two_looks_spend_what_one_would() -> None:
    assert looks.confidence(0, 1) == CONFIDENCE
    spent = sum(1 - looks.confidence(look, 2) for look in (0, 1))
    assert spent == pytest.approx(1 - CONFIDENCE)
    assert looks.confidence(0, 2) > looks.confidence(1, 2) > CONFIDENCE


def test_without_a_prior_it_is_the_textbook_paired_t() -> None:
    """d = 1, 2, 3 %: mean 2 %, s 1 %, t(2 df) = 4.3027, half width 4.3027 · 0.01 / √3 = 2.4841 %."""
    interval = moderated([0.01, 0.02, 0.03], Band(0.01, 0.0, 0.0, "calibrated"))
    assert interval is not None
    assert interval.mean == pytest.approx(0.02)
    assert interval.high - interval.mean == pytest.approx(0.024841, abs=1e-6)
    assert interval.df == 2


def test_two_pairs_without_a_prior() -> None:
    """d = 1, 3 %: s = √2 %, t(1 df) = 12.706, half width 12.706 · √2 % / √2."""
    interval = moderated([0.01, 0.03], Band(0.01, 0.0, 0.0, "calibrated"))
    assert interval is not None
    assert interval.high - interval.mean == pytest.approx(0.12706, abs=1e-5)
    assert interval.df == 1


def test_the_prior_is_weighed_by_its_degrees_of_freedom() -> None:
    """s0 = 0.5 %, d0 = 4, s = 1 %, n = 3: s̃² = (4·0.25 + 2·1)/6 = 0.5 in (%)², standard error √(0.5/3) %."""
    interval = moderated([0.01, 0.02, 0.03], assumed(0.01))
    assert interval is not None
    assert interval.standard_error == pytest.approx(0.01 * math.sqrt(0.5 / 3))
    assert interval.df == 6


def test_one_pair_has_the_prior_alone() -> None:
    interval = moderated([0.02], assumed(0.01))
    assert interval is not None
    assert interval.standard_error == pytest.approx(0.005)
    assert interval.df == 4


def test_no_pairs_or_no_variance_no_interval() -> None:
    assert moderated([], assumed(0.01)) is None
    assert moderated([0.02], Band(0.01, 0.0, 0.0, "calibrated")) is None
    assert moderated([0.02, 0.02, 0.02], Band(0.01, 0.0, 0.0, "calibrated")) is None


def test_p_below_is_the_other_side_of_the_interval() -> None:
    interval = moderated([-0.03, -0.02, -0.025], assumed(0.01))
    assert interval is not None
    assert interval.p_below(interval.high) == pytest.approx(0.025)
    assert interval.p_below(interval.mean) == pytest.approx(0.5)


def test_holm_by_hand() -> None:
    assert adjusted([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjusted([]) == ()
    assert adjusted([0.6, 0.7]) == (1.0, 1.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_nor_reorders(p_values: list[float]) -> None:
    result = adjusted(p_values)
    assert all(a >= p for a, p in zip(result, p_values, strict=True))
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [result[i] for i in order] == sorted(result)


def test_the_ratio_is_direction_normalised() -> None:
    assert ratio(2.0, 1.0, "higher") == 2
    assert ratio(2.0, 1.0, "lower") == 0.5


def test_an_interval_of_hardly_any_degrees_of_freedom_is_wide_and_still_a_ratio() -> None:
    """One pair, and a prior of two noisy ones: t(0.975; 0.37) is in the thousands, and e^1000 is no float."""
    interval = moderated([0.1], Band(0.01, 0.84, 0.3675, "calibrated"))
    assert interval is not None
    assert (interval.low, interval.high) == (0.1 - WIDEST, 0.1 + WIDEST)
    assert WIDEST == 100.0
    assert math.exp(interval.high) > 1e40
