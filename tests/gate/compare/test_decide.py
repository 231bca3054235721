"""A change between two grids: lost, host moved, or not to be told; the ratio alone is not enough."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gate.compare import decide
from gate.compare.decide import ALPHA, EXIT_CODES, moved, overall
from gate.compare.record import Direction, Figures, Moved, Outcome
from gate.recipe import ROOT
from gate.stats.band import Band
from gate.stats.interval import Interval

SHARE = 0.02


def figures(candidate: tuple[float | None, ...], oracle: tuple[float | None, ...], **changes: Any) -> Figures:
    fields: dict[str, Any] = {"axis": "output_throughput", "concurrency": 8, "unit": "tok/s", "direction": "higher"}
    return Figures(**fields | changes, candidate=candidate, oracle=oracle)


def one(then: Figures, now: Figures, same_machine: bool = True) -> Moved:
    (cell,) = moved([(then, now, None)], SHARE, same_machine)
    return cell


THEN = figures((100.0, 101.0, 99.0), (80.0, 81.0, 79.0))


@pytest.mark.parametrize(
    ("candidate", "oracle", "expected"),
    [
        ((100.0, 101.0, 99.0), (80.0, 81.0, 79.0), "none"),
        ((110.0, 111.0, 109.0), (80.0, 81.0, 79.0), "none"),
        ((86.0, 87.0, 85.0), (80.0, 81.0, 79.0), "loss"),
        ((86.0, 87.0, 85.0), (68.0, 69.0, 67.0), "host-moved"),
        ((86.0, 87.0, 85.0), (64.0, 65.0, 63.0), "host-moved"),
        ((86.0, 120.0, 60.0), (80.0, 81.0, 79.0), "undecided"),
        ((96.5, 97.5, 95.5), (80.0, 81.0, 79.0), "undecided"),
        ((), (), "void"),
        ((100.0, None, 99.0), (80.0, 81.0, None), "none"),
        ((None, None, None), (80.0, 81.0, 79.0), "void"),
        ((100.0, 101.0, None), (None, None, 79.0), "void"),
        ((100.0, 0.0, 99.0), (80.0, 81.0, 79.0), "none"),
    ],
)
def test_verdict_of_one_cell(
    candidate: tuple[float | None, ...], oracle: tuple[float | None, ...], expected: Outcome
) -> None:
    assert one(THEN, figures(candidate, oracle)).verdict == expected


def test_a_loss_that_the_ratio_hides_is_found() -> None:
    """14 % slower, still well ahead of an oracle that hardly moved: the ratio's verdict stays PASS."""
    cell = one(figures((120.0, 121.0, 119.0), (80.0, 81.0, 79.0)), figures((103.0, 104.0, 102.0), (81.0, 82.0, 80.0)))
    assert cell.verdict == "loss"
    assert cell.ratio_now is not None
    assert cell.ratio_now > 1.2
    assert cell.candidate is not None
    assert cell.candidate.ratio == pytest.approx(0.8583, abs=1e-3)


def test_the_figures_of_both_grids_stand_beside_the_changes() -> None:
    cell = one(figures((120.0, 122.0, 118.0), (80.0,) * 3), figures((103.0, 104.0, 102.0), (81.0,) * 3))
    assert (cell.candidate_then, cell.candidate_now, cell.oracle_then, cell.oracle_now) == (120.0, 103.0, 80.0, 81.0)
    assert (cell.ratio_then, cell.ratio_now) == (pytest.approx(120 / 80), pytest.approx(103 / 81))
    changes = (cell.candidate, cell.oracle, cell.relative)
    assert [one.ratio for one in changes if one] == [
        *(pytest.approx(0.8584, abs=1e-4), pytest.approx(81 / 80), pytest.approx(0.8584 * 80 / 81, abs=1e-4)),
    ]


def test_figures_below_one_are_figures() -> None:
    slow = figures((0.5, 0.51, 0.49), (0.4, 0.41, 0.39))
    assert one(slow, slow).verdict == "none"


def test_four_legs_scatter_more_than_two() -> None:
    """Figures without any scatter: what is left of an interval is the host's noise, √2 wider for the ratio's change."""
    still = figures((100.0,) * 3, (80.0,) * 3)
    cell = one(still, still)
    assert cell.candidate is not None
    assert cell.relative is not None
    widths = [math.log(change.high / change.low) for change in (cell.candidate, cell.relative)]
    assert widths[1] / widths[0] == pytest.approx(math.sqrt(2))


def test_the_noise_is_the_host_s_where_it_is_known() -> None:
    """3.5 % slower is a loss on a quiet host, and 4 % none that can be told on a noisy one."""
    now = figures((95.9, 96.9, 94.9), (80.0, 81.0, 79.0))
    quiet = Band(SHARE, 0.001, 4.0, "calibrated")
    (known,) = moved([(THEN, figures((96.5, 97.5, 95.5), (80.0, 81.0, 79.0)), quiet)], SHARE, True)
    assert known.verdict == "loss"
    (noisy,) = moved([(THEN, now, Band(SHARE, 0.05, 4.0, "calibrated"))], SHARE, True)
    assert (one(THEN, now).verdict, noisy.verdict) == ("loss", "undecided")


@pytest.mark.parametrize("direction", ["higher", "lower"])
def test_changes_are_normalised_to_better_is_more(direction: Direction) -> None:
    then, now = (
        figures((10.0,) * 3, (10.0,) * 3, direction=direction),
        figures((8.0,) * 3, (10.0,) * 3, direction=direction),
    )
    cell = one(then, now)
    assert cell.candidate is not None
    assert (cell.candidate.ratio < 1, cell.verdict) == ((True, "loss") if direction == "higher" else (False, "none"))


def test_on_another_machine_only_the_ratio_is_judged() -> None:
    half = figures((50.0, 50.5, 49.5), (40.0, 40.5, 39.5))
    assert one(THEN, half, same_machine=False).verdict == "none"
    assert one(THEN, figures((43.0, 43.5, 42.5), (40.0, 40.5, 39.5)), same_machine=False).verdict == "loss"


@pytest.mark.parametrize(("candidate", "expected"), [(96.85, "loss"), (96.9, "undecided")])
def test_a_loss_is_one_sided_at_two_and_a_half_percent(candidate: float, expected: Outcome) -> None:
    """p is 0.0231 and 0.0269; the oracle gained, so that the ratio fell beyond doubt in both."""
    now = figures((candidate, candidate + 1, candidate - 1), (90.0, 91.0, 89.0))
    assert one(THEN, now).verdict == expected


SLACK = math.log1p(-SHARE)


@pytest.mark.parametrize(
    ("p", "candidate_low", "relative_high", "oracle_high", "expected"),
    [
        (ALPHA, -0.2, -0.1, 0.1, "loss"),
        (ALPHA, -0.2, SLACK, 0.1, "undecided"),
        (ALPHA, -0.2, SLACK, SLACK, "undecided"),
        (ALPHA, -0.2, SLACK, -0.1, "host-moved"),
        (1.0, SLACK, 0.1, 0.1, "none"),
        (1.0, -0.1, 0.1, 0.1, "undecided"),
    ],
)
def test_at_the_limits_themselves(
    monkeypatch: pytest.MonkeyPatch,
    p: float,
    candidate_low: float,
    relative_high: float,
    oracle_high: float,
    expected: Outcome,
) -> None:
    """The intervals and p are given, so that a limit can be met to the last bit."""
    ends = ((candidate_low, 0.0), (-0.3, oracle_high), (-0.3, relative_high))
    made = iter([Interval((low + high) / 2, low, high, 0.01, 6.0) for low, high in ends])
    monkeypatch.setattr(decide, "moderated", lambda *_: next(made))
    monkeypatch.setattr(decide, "adjusted", lambda _p_values: (p,))
    assert one(THEN, THEN).verdict == expected


def test_an_oracle_whose_change_has_no_interval_does_not_excuse_the_host() -> None:
    """A host without noise, and an oracle without any: nothing tells how far it could have moved."""
    then = figures((100.0,) * 6, (80.0,) * 6)
    now = figures((85.0, 86.0, 87.0, 86.0, 84.0, 99.0), (None,) * 4 + (80.0,) * 2)
    (cell,) = moved([(then, now, Band(SHARE, 0.0, 4.0, "calibrated"))], SHARE, True)
    assert (cell.oracle, cell.verdict) == (None, "undecided")
    assert cell.relative is not None
    assert cell.relative.high > 1 - SHARE


def test_many_cells_share_one_chance_of_a_false_alarm() -> None:
    """The same figures are a loss alone and not among twelve."""
    slower = figures((96.2, 97.2, 95.2), (80.0, 81.0, 79.0))
    assert one(THEN, slower).verdict == "loss"
    cells = moved([(THEN, slower, None), *[(THEN, THEN, None)] * 11], SHARE, True)
    assert cells[0].verdict == "undecided"


def test_runs_of_other_lengths_are_compared_over_the_repetitions_they_share() -> None:
    cell = one(THEN, figures((100.0, 101.0), (80.0, 81.0)))
    assert cell.candidate is not None
    assert cell.candidate.ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("none", "loss", "void"), "loss"),
        (("none", "host-moved", "undecided"), "host-moved"),
        (("none", "void"), "undecided"),
        (("none", "undecided"), "undecided"),
        (("void",), "void"),
        ((), "void"),
        (("none", "none"), "none"),
    ],
)
def test_overall(verdicts: tuple[Outcome, ...], expected: Outcome) -> None:
    cell = one(THEN, THEN)
    assert overall([cell.model_copy(update={"verdict": verdict}) for verdict in verdicts]) == expected


def test_exit_codes_are_those_of_the_page() -> None:
    assert EXIT_CODES == {"none": 0, "loss": 1, "undecided": 2, "host-moved": 2, "void": 3}
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    for line in (
        "| 0 | no loss in every primary cell |",
        "| 1 | a loss in at least one |",
        "| 2 | no loss found, and at least one cell undecided, moved with the host, or without figures |",
        "| 3 | nothing to compare: no cell has figures in both grids |",
    ):
        assert line in page
