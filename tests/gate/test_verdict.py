"""The decision rule alone, step by step: what each condition needs, with the other one met or not."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from scipy.stats import t

from gate import verdict
from gate.judge import judge
from gate.observe.rows import Verdict
from gate.report.model import TokenCell
from gate.stats.band import assumed
from gate.tokens.compare import Comparison, compare

BAND = assumed(0.01)
EQUAL, SLOW, FAST = (0.0,) * 3, (math.log(0.95),) * 3, (math.log(1.05),) * 3


def decide(log_ratios: Any, ratio: float | None, planned: int = 3, findings: Any = ()) -> verdict.Decision:
    return verdict.cell(log_ratios, ratio, planned_pairs=planned, floor=1.0, band=BAND, findings=findings)


@pytest.mark.parametrize(
    ("log_ratios", "ratio", "expected"),
    [
        (EQUAL, 1.0, Verdict.PASS),
        (FAST, 1.05, Verdict.PASS),
        (SLOW, 0.95, Verdict.FAIL),
        (EQUAL, 0.9899, Verdict.INCONCLUSIVE),
        (EQUAL, 0.9900, Verdict.PASS),
        (SLOW, 0.9900, Verdict.INCONCLUSIVE),
        (SLOW, 0.9899, Verdict.FAIL),
        ((math.log(0.985),) * 3, 0.985, Verdict.FAIL),
        ((math.log(0.99),) * 3, 0.99, Verdict.INCONCLUSIVE),
        ((math.log(0.995),) * 3, 0.985, Verdict.INCONCLUSIVE),
    ],
    ids=[
        "equal",
        "fast",
        "slow",
        "median says no",
        "median at δ",
        "median says yes",
        "both say no",
        "below the floor, around δ",
        "below the floor, not by more than the band",
        "by more than the band, not below the floor beyond doubt",
    ],
)
def test_both_estimates_must_say_so(log_ratios: Any, ratio: float, expected: Verdict) -> None:
    assert decide(log_ratios, ratio).verdict is expected


def test_a_finding_voids_and_nothing_is_computed(build: Any) -> None:
    made = decide(FAST, 1.05, findings=[build.finding(), build.finding()])
    assert (made.verdict, made.interval) == (Verdict.VOID, None)
    assert [reason.code for reason in made.reasons] == ["made-up"]


@pytest.mark.parametrize(("log_ratios", "ratio"), [((), 1.0), (EQUAL, None), ((), None)])
def test_without_pairs_or_without_a_ratio_it_was_not_measured(log_ratios: Any, ratio: float | None) -> None:
    made = decide(log_ratios, ratio)
    assert made.verdict is Verdict.INCONCLUSIVE
    assert made.reasons[0].code == "unmeasured"


def test_stopping_early_never_decides() -> None:
    for log_ratios, ratio in ((FAST, 1.05), (SLOW, 0.95)):
        made = decide(log_ratios, ratio, planned=4)
        assert made.verdict is Verdict.INCONCLUSIVE
        assert made.reasons[0].code == "legs-missing"
        assert made.reasons[0].message.startswith("3 of 4 repetitions")
        assert made.interval is not None


@pytest.mark.parametrize(("distance", "code"), [(0.0049, "interval-straddles"), (0.0051, "estimates-disagree")])
@pytest.mark.parametrize("sign", [1, -1])
def test_half_a_band_apart_is_named(distance: float, code: str, sign: int) -> None:
    middle = math.log(0.9945)  # undecided on either side: PASS needs more, and the floor is inside the interval
    made = decide((middle,) * 3, math.exp(middle + sign * distance))
    assert [reason.code for reason in made.reasons] == [code]


def test_the_figures_are_in_the_message() -> None:
    assert decide(SLOW, 0.95).reasons[0].message == (
        "ratio 0.950, needed 0.990; the interval 0.945–0.955 lies below the floor 1.000"
    )


def test_a_marginal_fail_does_not_survive_many_looks() -> None:
    marginal = decide((math.log(0.9935),) * 3, 0.9899)
    clear = decide(SLOW, 0.95)
    passed = decide(FAST, 1.05)
    unmeasured = decide((), None)
    assert marginal.verdict is Verdict.FAIL
    assert verdict.family([marginal], 1.0)[0] == marginal
    softened = verdict.family([marginal, passed, unmeasured, clear], 1.0)
    assert [d.verdict for d in softened] == [
        Verdict.INCONCLUSIVE,
        Verdict.PASS,
        Verdict.INCONCLUSIVE,
        Verdict.FAIL,
    ]
    assert [reason.code for reason in softened[0].reasons] == ["multiplicity", "below-floor"]
    assert "over 3 primary cells" in softened[0].reasons[0].message


def test_a_first_look_has_a_part_of_alpha() -> None:
    """At 99 % the interval is wider, and p counts five times: 1 % of 5 %."""
    whole = verdict.cell(SLOW, 0.95, planned_pairs=3, floor=1.0, band=BAND, findings=())
    first = verdict.cell(SLOW, 0.95, planned_pairs=3, floor=1.0, band=BAND, findings=(), confidence=0.99)
    assert whole.interval is not None
    assert first.interval is not None
    assert first.interval.high > whole.interval.high
    marginal = verdict.cell((-0.011,) * 3, 0.98, planned_pairs=3, floor=1.0, band=BAND, findings=(), confidence=0.99)
    assert marginal.verdict is Verdict.FAIL
    assert verdict.family([marginal], 1.0)[0].verdict is Verdict.FAIL
    assert verdict.family([marginal, whole, whole], 1.0)[0].verdict is Verdict.FAIL
    assert verdict.family([marginal, *[decide(FAST, 1.05)] * 3], 1.0)[0].verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("p", "others", "kept"), [(0.0245, 0, True), (0.0120, 1, True), (0.0130, 1, False)], ids=["one", "two", "too weak"]
)
def test_the_family_shares_two_and_a_half_percent(p: float, others: int, kept: bool) -> None:
    """Without noise of its own the standard error is the prior's: 0.5 % · √(4/6) / √3, with 6 degrees of freedom."""
    mean = -float(t.isf(p, 6)) * 0.005 * math.sqrt(4 / 6) / math.sqrt(3)
    made = decide((mean,) * 3, 0.98)
    assert made.verdict is Verdict.FAIL
    judged = verdict.family([made, *[decide(FAST, 1.05)] * others], 1.0)[0]
    assert (judged.verdict is Verdict.FAIL) is kept


def test_a_family_of_none() -> None:
    assert verdict.family([], 1.0) == ()


def comparison(**counts: int) -> Comparison:
    fields = {"sequences": 4, "exact": 4, "near_tie": 0, "diverged": 0, "unjudged": 0, "uncompared": 0} | counts
    return dataclasses.replace(compare((), (), 0.25), **fields)


@pytest.mark.parametrize(
    ("counts", "planned", "expected", "code"),
    [
        ({}, 4, Verdict.PASS, None),
        ({"exact": 2, "near_tie": 2}, 4, Verdict.PASS, None),
        ({"diverged": 1, "unjudged": 1}, 4, Verdict.FAIL, "tokens-diverged"),
        ({"unjudged": 1}, 5, Verdict.INCONCLUSIVE, "tokens-unjudged"),
        ({"unjudged": 1, "undecided": 1}, 4, Verdict.INCONCLUSIVE, "tokens-unjudged"),
        ({"undecided": 1}, 5, Verdict.INCONCLUSIVE, "oracle-undecided"),
        ({"diverged": 1, "undecided": 1}, 4, Verdict.FAIL, "tokens-diverged"),
        ({}, 5, Verdict.INCONCLUSIVE, "tokens-unread"),
        ({"sequences": 0, "exact": 0}, 0, Verdict.INCONCLUSIVE, "tokens-unread"),
    ],
)
def test_tokens(counts: Any, planned: int, expected: Verdict, code: str | None) -> None:
    made = verdict.tokens(comparison(**counts), planned=planned, findings=(), finished=True)
    assert made.verdict is expected
    assert [reason.code for reason in made.reasons] == ([] if code is None else [code])


@pytest.mark.parametrize("counts", [{"unjudged": 1}, {}])
def test_an_interrupted_run_is_resumed_before_anybody_blames_the_oracle(counts: Any) -> None:
    made = verdict.tokens(comparison(**counts), planned=5, findings=(), finished=False)
    assert made.reasons[0].hint == "gate resume runs what is missing"


def test_void_tokens(build: Any) -> None:
    made = verdict.tokens(comparison(diverged=1), planned=4, findings=[build.finding()], finished=True)
    assert made.verdict is Verdict.VOID


def cells(golden: Any, *verdicts: str, primary: bool = True) -> list[Any]:
    return [golden.model_copy(update={"verdict": Verdict(v), "primary": primary}) for v in verdicts]


@pytest.fixture
def cell(build: Any) -> Any:
    return judge(build.run()).cells[0]


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("PASS", "PASS"), "PASS"),
        (("PASS", "INCONCLUSIVE"), "INCONCLUSIVE"),
        (("INCONCLUSIVE", "VOID"), "VOID"),
        (("VOID", "FAIL"), "FAIL"),
        (("FAIL", "PASS"), "FAIL"),
        ((), "INCONCLUSIVE"),
    ],
)
def test_precedence(cell: Any, verdicts: Any, expected: str) -> None:
    assert verdict.grid(cells(cell, *verdicts), []) is Verdict(expected)


def test_observations_do_not_bind(cell: Any) -> None:
    assert verdict.grid([*cells(cell, "PASS"), *cells(cell, "FAIL", primary=False)], []) is Verdict.PASS


def test_tokens_do(cell: Any) -> None:
    tokens = TokenCell(
        concurrency=1,
        sequences=1,
        exact=0,
        near_tie=0,
        diverged=1,
        unjudged=0,
        max_margin_nats=3.0,
        bound_nats=0.25,
        verdict=Verdict.FAIL,
    )
    assert verdict.grid(cells(cell, "PASS"), [tokens]) is Verdict.FAIL


def test_exit_codes() -> None:
    assert {kind.value: verdict.EXIT_CODES[kind] for kind in Verdict} == {
        "PASS": 0,
        "FAIL": 1,
        "INCONCLUSIVE": 2,
        "VOID": 3,
    }
