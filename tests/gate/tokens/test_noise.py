"""The candidate's noise beside the oracle's own: the figures, their intervals, what they decide, how often wrongly."""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path

import pytest

from gate.report.model import Interval, Noise
from gate.tokens.noise import ALLOWED, FAULT, Loud, loud, noise, of_figures, ratio
from tests.gate.tokens import simulate_noise as simulate
from tests.gate.tokens.making import ORACLE, forced

DOC = (Path(__file__).parents[3] / "docs" / "verdict.md").read_text(encoding="utf-8")


def told(*gaps: float | None, arm: str = "candidate") -> object:
    return forced(ORACLE, dict(enumerate(gaps)), arm=arm)  # type: ignore[arg-type]


def test_the_mean_grows_with_the_variance_and_the_largest_with_the_deviation() -> None:
    """Twice the noise: gaps twice as large at twice as many positions."""
    found = noise([told(0.2, 0.2), told(0.2, 0.2)], [told(0.1, arm="oracle"), told(0.1, arm="oracle")])  # type: ignore[list-item]
    assert found is not None
    assert (found.bulk.value, found.tail.value) == (pytest.approx(2.0), pytest.approx(2.0))
    assert (found.candidate_sequences, found.own_sequences) == (2, 2)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([], [(0.1, 0.1)] * 5),
        ([(0.1, 0.1)] * 5, []),
        ([(0.1, 0.1)], [(0.1, 0.1)]),
        ([(0.1, 0.1)] * 5, [(0.0, 0.0)] * 5),
        ([(0.0, 0.0)] * 5, [(0.1, 0.1)] * 5),
    ],
    ids=["no candidate", "no own", "one of each", "own all 0", "candidate all 0"],
)
def test_without_gaps_on_both_sides_there_is_no_ratio(ours: list[simulate.Figures], theirs: object) -> None:
    assert of_figures(ours, theirs) is None  # type: ignore[arg-type]


def test_a_position_outside_the_top_has_no_figure_and_so_has_no_noise() -> None:
    good = [told(0.1), told(0.2), told(0.1)]
    assert noise(good, good) is not None  # type: ignore[arg-type]
    assert noise([*good, told(None)], good) is None  # type: ignore[arg-type, list-item]


def test_three_sequences_are_enough_and_their_interval_has_an_end() -> None:
    """One degree of freedom: t(0.975; 1) is 12.7, which the logarithm of a ratio is not to be taken by."""
    found = ratio([2e-9, 2.0], [1.0])
    assert found is not None
    assert math.log(found.high / found.value) == pytest.approx(10.0)
    assert math.log(found.value / found.low) == pytest.approx(10.0)


def test_a_sequence_without_ids_has_no_gaps() -> None:
    good = [told(0.1), told(0.2)]
    assert noise([*good, forced(())], good) == noise([*good, told(0.0)], good)  # type: ignore[arg-type, list-item]


def test_the_interval_is_the_pooled_t_on_the_logarithm() -> None:
    ours, theirs = [1.0, 2.0, 3.0], [1.0, 3.0]
    squares = 0.5**2 + 0.5**2 + 0.5**2 + 0.5**2
    half = 3.182446 * math.sqrt(squares / 3 * (1 / 3 + 1 / 2))  # t(0.975; 3)
    found = ratio(ours, theirs)
    assert found is not None
    assert found.value == pytest.approx(1.0)
    assert (found.low, found.high) == (pytest.approx(math.exp(-half)), pytest.approx(math.exp(half)))


def test_fewer_own_sequences_only_widen_it() -> None:
    many = ratio([0.1, 0.3] * 20, [0.1, 0.3] * 20)
    few = ratio([0.1, 0.3] * 20, [0.1, 0.3])
    assert many is not None
    assert few is not None
    assert few.value == pytest.approx(many.value)
    assert few.low < many.low < many.high < few.high


def of(value: float, low: float, high: float, *, tail: Interval | None = None) -> Noise:
    bulk = Interval(value=value, low=low, high=high)
    return Noise(candidate_sequences=9, own_sequences=9, bulk=bulk, tail=tail or bulk)


QUIET, WIDE, LOUD = of(1.1, 1.0, 1.3), of(1.3, 1.0, 1.8), of(3.0, 2.1, 4.0)


@pytest.mark.parametrize(
    ("level", "run", "expected"),
    [
        (QUIET, None, Loud.NO),
        (of(1.1, 1.0, ALLOWED), None, Loud.NO),
        (of(1.1, 1.0, math.nextafter(ALLOWED, 2)), None, Loud.UNKNOWN),
        (of(1.1, 1.0, 1.3, tail=WIDE.tail), None, Loud.UNKNOWN),
        (of(1.3, 1.0, 1.8, tail=QUIET.tail), None, Loud.UNKNOWN),
        (WIDE, QUIET, Loud.NO),
        (WIDE, of(1.1, 1.0, ALLOWED), Loud.NO),
        (of(1.3, 1.1, 1.8), QUIET, Loud.NO),
        (of(1.3, 1.11, 1.8), QUIET, Loud.UNKNOWN),
        (WIDE, WIDE, Loud.UNKNOWN),
        (LOUD, QUIET, Loud.YES),
        (of(1.1, 1.0, 1.3, tail=LOUD.tail), QUIET, Loud.YES),
        (of(3.0, FAULT, 4.0), QUIET, Loud.UNKNOWN),
    ],
    ids=[
        "quiet", "at the edge", "beyond it", "its tail is wide", "its bulk is wide", "few sequences in a quiet run",
        "few in a run at the edge", "as loud as the run at its low end", "louder than the run",
        "few sequences in an unknown run", "loud", "a loud tail", "not quite loud",
    ],
)  # fmt: skip
def test_what_decides(level: Noise, run: Noise | None, expected: Loud) -> None:
    assert loud(level, run) is expected


def test_the_oracles_own_gaps_are_alike_at_all_concurrencies() -> None:
    """Why they are taken together: the levels' means lie no farther apart than chance puts them."""
    rng = random.Random(0)
    levels = [len(words.split()) for words in simulate.RECORD["oracle"].values()]
    values = [sum(gaps) for gaps in simulate.OWN]

    def between(shuffled: list[float]) -> float:
        cut, found = 0, 0.0
        for count in levels:
            found += count * (statistics.fmean(shuffled[cut : cut + count]) - statistics.fmean(shuffled)) ** 2
            cut += count
        return found

    seen = between(values)
    by_chance = [between(rng.sample(values, len(values))) for _ in range(400)]
    assert sum(one >= seen for one in by_chance) > 0.05 * 400


RUNS = 40


@pytest.mark.parametrize("own", [378, 59, 15])
def test_an_engine_as_noisy_as_the_oracle_passes(own: int) -> None:
    cells, _ = simulate.rates(simulate.louder(1.0), own, RUNS)
    assert cells["PASS"] > 0.95 * cells.total()
    assert cells["FAIL"] == 0


@pytest.mark.parametrize("own", [378, 59, 15])
def test_a_correct_other_rounding_never_fails(own: int) -> None:
    assert simulate.rates(simulate.louder(1.2), own, RUNS)[1]["FAIL"] == 0
    assert simulate.rates(simulate.louder(1.4), own, RUNS)[1]["FAIL"] == 0
    assert simulate.rates(simulate.recorded, own, RUNS)[1]["FAIL"] == 0


@pytest.mark.parametrize("own", [378, 59, 15])
def test_noise_in_between_never_passes(own: int) -> None:
    for times in (1.7, 2.0, 2.5):
        assert simulate.rates(simulate.louder(times), own, RUNS)[1]["PASS"] == 0


@pytest.mark.parametrize("own", [378, 59, 15])
@pytest.mark.parametrize(
    "engine",
    [simulate.louder(3.0), simulate.with_fault(3.0, 0.05), simulate.with_fault(0.5, 1.0)],
    ids=["three times the noise", "one wrong id in a sequence of twenty", "half a nat in each"],
)
def test_a_fault_fails_the_run(engine: simulate.Engine, own: int) -> None:
    assert simulate.rates(engine, own, RUNS)[1] == {"FAIL": RUNS}


def test_few_own_sequences_do_not_make_it_easier_to_pass() -> None:
    """What the rule was changed for: of 15 own sequences a pass is rarer than of 378, never more frequent."""
    passed = [simulate.rates(simulate.louder(1.2), own, RUNS)[0]["PASS"] for own in (378, 59, 15)]
    assert passed == sorted(passed, reverse=True)


def quoted() -> list[tuple[str, int, float, float]]:
    """Rows of docs/verdict.md: engine, own sequences, shares of runs that PASS and FAIL."""
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in DOC.splitlines() if line.startswith("| ")]
    share = [row for row in rows if row[0] in simulate.ENGINES and len(row) == 5]
    return [(row[0], int(row[1]), *(float(one.removesuffix(" %")) / 100 for one in row[2:4])) for row in share]  # type: ignore[misc]


@pytest.mark.parametrize(("name", "own", "passed", "failed"), quoted())
def test_the_quoted_rates_are_those_of_the_rule(name: str, own: int, passed: float, failed: float) -> None:
    """Within three standard errors of the shares of fewer runs, and of the quoted 500."""
    _, whole = simulate.rates(simulate.ENGINES[name], own, RUNS, seed=1)
    for verdict, share in (("PASS", passed), ("FAIL", failed)):
        slack = 3 * math.sqrt(max(share * (1 - share), 0.01) / RUNS)
        assert whole[verdict] / RUNS == pytest.approx(share, abs=slack)


def test_the_page_quotes_rates() -> None:
    assert len(quoted()) == 19


@pytest.mark.parametrize("own", [378, 15])
def test_a_level_that_is_faulty_alone_is_found_although_the_run_is_quiet(own: int) -> None:
    """Thrice the noise at c2 alone: twelve of 378 sequences."""
    rng = random.Random(1)
    theirs = [rng.choice(simulate.OWN) for _ in range(own)]
    quiet = [rng.choice(simulate.OWN) for _ in range(366)]
    broken = [simulate.louder(3.0)(rng) for _ in range(12)]
    assert simulate.verdict(broken, theirs, [*quiet, *broken]) == "FAIL"
