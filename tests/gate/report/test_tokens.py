"""The oracle by its own measure, in words and in rows."""

from __future__ import annotations

from typing import Any

import pytest

from gate.observe.rows import Verdict
from gate.report import table, tokens
from gate.report.model import Interval, Noise, OwnSpread, TokenCell


def own(**over: Any) -> OwnSpread:
    fields: dict[str, Any] = {
        "repeated": 4,
        "agreeing": 3,
        "sequences": 5,
        "positions": 40,
        "largest_nats": 0.0625,
        "outside_top": 0,
        "undecided": (1, 1, 2, 5, 9, 12, 20),
    }
    return OwnSpread.model_validate(fields | over)


def cell(spread: OwnSpread | None, concurrency: int = 1) -> TokenCell:
    return TokenCell(
        concurrency=concurrency,
        sequences=1,
        exact=1,
        near_tie=0,
        diverged=0,
        unjudged=0,
        max_margin_nats=None,
        bound_nats=0.25,
        verdict=Verdict.PASS,
        own=spread,
    )


@pytest.mark.parametrize(
    ("near", "sequences", "spread", "said"),
    [
        (None, 48, None, "0.25"),
        (0.25, 48, own(repeated=16, agreeing=16), "0.25"),
        (0.5, 48, own(repeated=16, agreeing=15), "0.25–0.5"),
        (0.5, 48, own(repeated=16, agreeing=0), "0.25–0.5"),
        (0.5, 16, own(repeated=16, agreeing=1), "0.25–0.5"),
        (0.5, 16, own(repeated=16, agreeing=0), "0.5"),
        (0.25, 0, None, "0.25"),
    ],
)
def test_every_bound_that_a_prompt_had_is_told(
    near: float | None, sequences: int, spread: OwnSpread | None, said: str
) -> None:
    made = cell(spread).model_copy(update={"near_nats": near, "sequences": sequences, "max_margin_nats": 0.375})
    assert table.token_row(made)[-1] == said
    assert table.token_text([made]).endswith(f"largest margin 0.375 nats, bound {said}")
    assert (tokens.BOUNDS_NOTE in table.footnotes((), [made])) is ("–" in said)


def test_levels_of_other_bounds_are_told_as_one_range() -> None:
    wide = cell(own(repeated=1, agreeing=0)).model_copy(update={"near_nats": 0.5, "max_margin_nats": 0.375})
    assert table.token_text([cell(None), wide]).endswith("bound 0.25–0.5")
    assert table.footnotes((), [cell(None), wide]) == ()
    assert table.footnotes((), [wide.model_copy(update={"sequences": 2, "verdict": Verdict.VOID})]) == ()


def test_a_row_has_a_column_for_each_head() -> None:
    ((row),) = tokens.own_rows([cell(own()), cell(None, 2)])
    assert len(row) == len(tokens.OWN_HEAD)
    assert row[:5] == ("c1", "3 of 4", "5", "40", "0.0625")
    assert row[5:] == ("1", "1", "2", "5", "9", "12", "20")


def test_what_was_not_asked_is_a_dash() -> None:
    row = tokens.own_row(own(repeated=0, agreeing=0, largest_nats=None, undecided=()))
    assert row == ("–", "5", "40", "–", *("–",) * 7)


def test_its_own_ids_outside_its_top_have_no_figure() -> None:
    assert tokens.own_row(own(outside_top=1))[3] == "outside its top 20"
    assert "1 outside its own top 20" in (tokens.own_text([cell(own(outside_top=1))]) or "")


def test_the_line_sums_over_concurrencies() -> None:
    assert tokens.own_text([cell(own()), cell(own(largest_nats=0.5), 2)]) == (
        "agrees with itself on 6 of 8 repeated prompts, its own ids lie up to 0.5 nats off over 80 positions, "
        "at 18 of them it leads by at most 0.25"
    )


@pytest.mark.parametrize("cells", [[], [cell(None)]])
def test_nobody_asked_is_no_line(cells: list[TokenCell]) -> None:
    assert tokens.own_text(cells) is None


def noise(sequences: int) -> Noise:
    return Noise(
        candidate_sequences=sequences,
        own_sequences=59,
        bulk=Interval(value=1.1, low=1.0, high=1.25),
        tail=Interval(value=1.2, low=1.05, high=1.375),
    )


def test_noise_is_shown_for_each_level_and_all_where_it_decides() -> None:
    figures = ("59", "1.100 (1.000 to 1.250)", "1.200 (1.050 to 1.375)")
    quiet = cell(None).model_copy(update={"noise": noise(4), "run_noise": noise(9)})
    beyond = cell(None, 2).model_copy(update={"noise": noise(5), "run_noise": noise(9), "undecided": 1})
    void = cell(None, 4).model_copy(update={"verdict": Verdict.VOID, "noise": noise(7), "undecided": 1})
    assert tokens.noise_rows([quiet, beyond, void]) == (
        ("c1", "4", *figures),
        ("c2", "5", *figures),
        ("all", "9", *figures),
    )
    assert all(len(row) == len(tokens.NOISE_HEAD) for row in tokens.noise_rows([beyond]))
    assert tokens.noise_rows([quiet, void]) == ()


def test_the_line_says_how_noisy_all_levels_are_together() -> None:
    beyond = cell(None).model_copy(update={"noise": noise(5), "run_noise": noise(9), "undecided": 1})
    assert (
        "1 undecided by themselves; by the mean gap 1.100 (1.000 to 1.250), by the largest 1.200 (1.050 to 1.375) "
        "times as noisy as the oracle's own"
    ) in table.token_text([beyond])
