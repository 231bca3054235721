"""The decision rule at its limits exactly, one step to either side of them, and the sentences it gives as reasons."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate import verdict
from gate.observe.rows import Verdict
from gate.report.model import Divergence, Interval, Noise
from gate.stats.apart import Apart
from gate.stats.band import assumed
from gate.stats.interval import moderated
from gate.tokens.compare import NOT_ASKED, Comparison, compare


def decide(monkeypatch: pytest.MonkeyPatch, ratio: float, band: float, **interval: float) -> verdict.Decision:
    """A cell whose interval is given, so that a limit can be met to the last bit."""
    made = moderated((0.0,) * 3, assumed(0.01))
    assert made is not None
    monkeypatch.setattr(verdict, "moderated", lambda *_: dataclasses.replace(made, **interval))
    share = dataclasses.replace(assumed(0.01), share=band)
    return verdict.cell((0.0,) * 3, ratio, planned_pairs=3, floor=1.0, band=share, findings=())


def test_an_interval_that_begins_at_the_limit_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decide(monkeypatch, 1.0, 0.0, mean=0.0, low=0.0, high=0.1).verdict is Verdict.PASS


def test_an_interval_that_ends_at_the_floor_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decide(monkeypatch, 0.9, 0.0, mean=-0.1, low=-0.2, high=0.0).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("mean", "code"), [(0.24, "interval-straddles"), (0.25, "interval-straddles"), (0.26, "estimates-disagree")]
)
def test_estimates_disagree_from_half_a_band_on(monkeypatch: pytest.MonkeyPatch, mean: float, code: str) -> None:
    (reason,) = decide(monkeypatch, 1.0, 0.5, mean=mean, low=-2.0, high=2.0).reasons
    assert reason.code == code


@pytest.mark.parametrize(
    ("p", "expected"), [(0.0245, Verdict.FAIL), (0.025, Verdict.FAIL), (0.0255, Verdict.INCONCLUSIVE)]
)
def test_a_fail_needs_its_adjusted_p(monkeypatch: pytest.MonkeyPatch, p: float, expected: Verdict) -> None:
    failed = decide(monkeypatch, 0.9, 0.01, mean=-0.1, low=-0.11, high=-0.09)
    monkeypatch.setattr(verdict, "adjusted", lambda _p_values: (p,))
    (decision,) = verdict.family([failed], 1.0)
    assert decision.verdict is expected


def test_a_reason_keeps_its_leg_and_how_far_beyond(build: Any) -> None:
    found = [build.finding(leg_id="leg-1", beyond=1.5), build.finding(leg_id="leg-2", beyond=2.5)]
    reasons = verdict.reasons_of([*found, *found])
    assert [(reason.leg_id, reason.beyond) for reason in reasons] == [("leg-1", 1.5), ("leg-2", 2.5)]


def tokens(finished: bool = True, **fields: Any) -> tuple[str, str]:
    made: Comparison = dataclasses.replace(compare((), (), 0.25), sequences=4, exact=3, **fields)
    (reason,) = verdict.tokens(made, planned=4, findings=(), finished=finished).reasons
    return reason.message, reason.hint


@pytest.mark.parametrize(("wrong_nats", "limit"), [(None, "its top 20"), (0.5, "0.5 nats")])
def test_what_a_divergence_is_beyond(wrong_nats: float | None, limit: str) -> None:
    message, hint = tokens(diverged=1, wrong_nats=wrong_nats)
    assert message == f"1 of 4 sequences differ where the oracle was decided (> {limit})"
    assert hint == "see divergences in report.json"


def test_another_requests_ids_are_named() -> None:
    one = Divergence(
        concurrency=1,
        repetition=0,
        index=0,
        position=1,
        candidate_id=1,
        oracle_id=2,
        margin_nats=None,
    )
    foreign = one.model_copy(update={"foreign_index": 3})
    message, hint = tokens(diverged=3, divergences=(one, one, foreign))
    assert message.endswith("; 1 go on with another request's ids")
    assert hint == "requests share state: look at slots and blocks"


def noise(value: float, low: float, high: float, tail: float = 1.0) -> Noise:
    return Noise(
        candidate_sequences=4,
        own_sequences=59,
        bulk=Interval(value=value, low=low, high=high),
        tail=Interval(value=tail, low=tail, high=tail),
    )


def judged(*, planned: int = 4, **fields: Any) -> verdict.Decision:
    made: Comparison = dataclasses.replace(compare((), (), 0.25), sequences=4, exact=3, **fields)
    return verdict.tokens(made, planned=planned, findings=(), finished=True)


def test_sequences_beyond_the_bound_are_judged_by_the_noise() -> None:
    quiet = judged(undecided=1, noise=noise(1.1, 1.0, 1.3))
    assert (quiet.verdict, quiet.reasons) == (Verdict.PASS, ())
    between = judged(undecided=1, noise=noise(1.3, 1.1, 1.6))
    assert (between.verdict, between.reasons[0].code) == (Verdict.INCONCLUSIVE, "oracle-undecided")
    assert between.reasons[0].message == (
        "1 of 4 sequences differ by more than the bound of their prompt (at most 0.25 nats), and all by their mean gap "
        "are 1.300 (1.100 to 1.600) times as noisy as the oracle's own 59"
    )
    assert "up to 1.41 is another correct rounding" in between.reasons[0].hint
    loud = judged(undecided=1, noise=noise(1.1, 1.0, 1.3, tail=2.5))
    assert (loud.verdict, loud.reasons[0].code) == (Verdict.FAIL, "tokens-noisy")
    assert "all by their largest gap are 2.500" in loud.reasons[0].message


def test_the_measure_that_decides_is_the_one_told() -> None:
    """Where the intervals cross, the higher low end shows a fault, and the higher high end leaves it open."""

    def crossing(bulk: Interval, tail: Interval) -> str:
        made = noise(1.0, 1.0, 1.0)
        return judged(undecided=1, noise=made.model_copy(update={"bulk": bulk, "tail": tail})).reasons[0].message

    faulty = crossing(Interval(value=2.5, low=2.2, high=2.6), Interval(value=2.4, low=2.1, high=3.0))
    assert "by their mean gap are 2.500" in faulty
    open_ = crossing(Interval(value=1.5, low=1.3, high=1.6), Interval(value=1.4, low=1.0, high=1.9))
    assert "by their largest gap are 1.400" in open_


def test_a_quiet_run_speaks_for_a_level_of_few_sequences() -> None:
    wide = noise(1.1, 0.8, 1.6)
    assert judged(undecided=1, noise=wide).verdict is Verdict.INCONCLUSIVE
    assert judged(undecided=1, noise=wide, run_noise=noise(1.1, 1.0, 1.2)).verdict is Verdict.PASS


def test_quiet_sequences_do_not_excuse_those_that_are_missing() -> None:
    found = judged(undecided=1, noise=noise(1.1, 1.0, 1.3), planned=5)
    assert (found.verdict, found.reasons[0].code) == (Verdict.INCONCLUSIVE, "tokens-unread")


def test_noise_fails_before_unjudged_sequences_leave_it_open() -> None:
    assert judged(undecided=1, unjudged=1, noise=noise(3.0, 2.5, 3.5)).verdict is Verdict.FAIL
    assert judged(undecided=1, unjudged=1, noise=noise(1.3, 1.1, 1.6)).reasons[0].code == "tokens-unjudged"


@pytest.mark.parametrize(
    ("wrong_nats", "said"),
    [(0.5, "too few of the oracle's own have gaps"), (None, "some of the oracle's own ids are outside its own top 20")],
)
def test_without_a_comparison_nothing_beyond_the_bound_is_decided(wrong_nats: float | None, said: str) -> None:
    made = judged(undecided=1, wrong_nats=wrong_nats)
    assert made.verdict is Verdict.INCONCLUSIVE
    assert said in made.reasons[0].message


def test_who_was_not_asked_for_want_of_time_is_told_to_give_more() -> None:
    message, hint = tokens(unjudged=1, unjudged_why=NOT_ASKED)
    assert message.endswith("it was not asked: second_look_s was over")
    assert hint == "give protocol.second_look_s more time"


@pytest.mark.parametrize(
    ("finished", "why", "said"),
    [
        (True, None, "1 of 4 sequences differ and the oracle has no opinion"),
        (True, "it was asked in vain", "1 of 4 sequences differ and the oracle has no opinion: it was asked in vain"),
        (False, None, "1 of 4 sequences differ and the run ended before the oracle was asked"),
    ],
)
def test_why_nobody_judged(finished: bool, why: str | None, said: str) -> None:
    assert tokens(finished, unjudged=1, unjudged_why=why)[0] == said


def test_a_bound_is_held_against_the_floor_itself_where_equal_repetitions_may_not_differ(build: Any) -> None:
    for least, expected in ((1.0, Verdict.PASS), (0.999, Verdict.VOID)):
        made = verdict.cell(
            (),
            None,
            planned_pairs=3,
            floor=1.0,
            band=assumed(0.01),
            findings=[build.finding()],
            apart=Apart(least, 0.0),
        )
        assert made.verdict is expected
