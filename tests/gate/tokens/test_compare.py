"""Both arms' ids at one concurrency: what is paired, what each sequence is, and what it rests on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gate.observe.tokenrows import SequenceRow
from gate.tokens.compare import Comparison, compare, differs, divergence, noise_of, own_spread, pair_up
from tests.gate.tokens.making import ORACLE, forced, pair, place

FLOOR = 0.25
OTHER = (10, 11, 99, 98, 97, 96)
"""Parts from ORACLE at position 2."""


def counts(found: Comparison) -> dict[str, int]:
    names = ("exact", "near_tie", "undecided", "diverged", "unjudged")
    return {name: getattr(found, name) for name in names if getattr(found, name)}


def test_equal_ids_are_exact() -> None:
    found = compare([pair(), pair(index=1)], (), FLOOR)
    assert (found.sequences, found.uncompared, found.divergences, counts(found)) == (2, 0, (), {"exact": 2})
    assert (found.max_margin_nats, found.near_nats, found.wrong_nats) == (None, FLOOR, 2 * FLOOR)


def test_an_early_near_tie_excuses_what_follows_from_it() -> None:
    """Four ids differ, one position is charged: each of the others stands on the candidate's own prefix."""
    found = compare([pair(OTHER)], [forced(OTHER, {2: 0.1})], FLOOR)
    assert counts(found) == {"near_tie": 1}
    (split,) = found.divergences
    assert (split.position, split.candidate_id, split.oracle_id) == (2, 99, 12)
    assert (split.margin_nats, split.worst_nats, split.wrong_position, split.wrong_positions) == (0.1, 0.1, None, 0)


def test_a_wrong_id_behind_an_early_near_tie_is_seen() -> None:
    found = compare([pair(OTHER)], [forced(OTHER, {2: 0.1, 5: 3.0})], FLOOR)
    assert counts(found) == {"diverged": 1}
    (split,) = found.divergences
    assert (split.position, split.margin_nats) == (2, 0.1)
    assert (split.wrong_position, split.wrong_positions, split.worst_nats) == (5, 1, 3.0)
    assert found.max_margin_nats == 3.0


def test_a_sequence_with_two_errors_is_one_sequence() -> None:
    found = compare([pair(OTHER)], [forced(OTHER, {2: 1.0, 4: 3.0})], FLOOR)
    assert counts(found) == {"diverged": 1}
    assert (found.divergences[0].wrong_position, found.divergences[0].wrong_positions) == (2, 2)


def test_either_member_of_an_exact_tie_is_right() -> None:
    found = compare([pair(OTHER)], [forced(OTHER, {2: 0.0}, leads={2: 0.0}, best={2: 12})], 0.0)
    assert counts(found) == {"near_tie": 1}


def test_a_wrong_id_among_undecided_ones_is_wrong() -> None:
    found = compare([pair(OTHER)], [forced(OTHER, {2: 0.3, 4: 3.0})], FLOOR)
    assert counts(found) == {"diverged": 1}


def test_the_largest_gap_is_of_all_sequences_that_have_one() -> None:
    pairs = [pair(OTHER, index=index) for index in range(3)]
    found = compare(pairs, [forced(OTHER, {2: 0.1}), forced(OTHER, {3: 0.2}, index=2)], FLOOR)
    assert (counts(found), found.max_margin_nats) == ({"near_tie": 2, "unjudged": 1}, 0.2)


def test_a_sequence_is_called_by_the_name_that_reports_show() -> None:
    pairs = [pair(OTHER, index=index) for index in range(4)]
    found = compare(pairs, [forced(OTHER, {2: gap}, index=at) for at, gap in enumerate((0.1, 0.3, 3.0))], FLOOR)
    assert [split.judged for split in found.divergences] == ["near tie", "undecided", "diverged", "unjudged"]


def test_a_sequence_all_of_whose_ids_are_outside_the_top_has_no_worst_gap() -> None:
    found = compare([pair(OTHER)], [forced(OTHER, dict.fromkeys(range(6)))], FLOOR)
    assert (counts(found), found.divergences[0].worst_nats, found.max_margin_nats) == ({"diverged": 1}, None, None)


def test_an_id_outside_the_top_is_wrong_and_has_no_figure() -> None:
    found = compare([pair(OTHER)], [forced(OTHER, {2: None})], FLOOR)
    assert counts(found) == {"diverged": 1}
    assert (found.divergences[0].outside_top, found.divergences[0].margin_nats) == (True, None)
    assert found.max_margin_nats == 0.0


def test_an_outside_id_late_in_the_answer_counts_too() -> None:
    found = compare([pair(OTHER)], [forced(OTHER, {2: 0.1, 5: None})], FLOOR)
    assert (counts(found), found.divergences[0].wrong_position) == ({"diverged": 1}, 5)


def test_no_opinion_is_no_judgement() -> None:
    assert counts(compare([pair(OTHER)], (), FLOOR)) == {"unjudged": 1}
    gone = compare([pair(OTHER)], [forced(ORACLE, arm="oracle", error="later"), forced(OTHER, error="gone")], FLOOR)
    assert (counts(gone), gone.unjudged_why) == ({"unjudged": 1}, "gone")
    assert compare([pair(OTHER)], (), FLOOR).unjudged_why is None
    second = compare([pair(OTHER), pair(OTHER, index=1)], [forced(OTHER), forced(OTHER, index=1, error="gone")], FLOOR)
    assert second.unjudged_why == "gone"


@pytest.mark.parametrize("ids", [OTHER[:-1], (*OTHER, 1), (10, 11, 99, 98, 97, 0)], ids=["short", "long", "other"])
def test_an_opinion_of_other_ids_is_no_opinion(ids: tuple[int, ...]) -> None:
    assert counts(compare([pair(OTHER)], [forced(ids)], FLOOR)) == {"unjudged": 1}


@pytest.mark.parametrize("field", ["gaps_nats", "outside_top", "best_ids", "leads_nats"])
def test_an_opinion_with_a_list_too_short_is_none(field: str) -> None:
    row = forced(OTHER)
    cut = row.model_copy(update={field: getattr(row, field)[:-1]})
    assert counts(compare([pair(OTHER)], [cut], FLOOR)) == {"unjudged": 1}


def test_a_gap_without_a_figure_that_is_not_outside_is_no_opinion() -> None:
    row = forced(OTHER, {2: None}).model_copy(update={"outside_top": (False,) * 6})
    assert counts(compare([pair(OTHER)], [row], FLOOR)) == {"unjudged": 1}


def test_opinions_are_looked_up_by_arm_and_place() -> None:
    assert counts(compare([pair(OTHER)], [forced(OTHER, arm="oracle")], FLOOR)) == {"unjudged": 1}
    assert counts(compare([pair(OTHER)], [forced(OTHER, index=1)], FLOOR)) == {"unjudged": 1}


def test_equal_to_any_of_the_oracles_runs_is_exact() -> None:
    found = compare([pair(OTHER, ORACLE, OTHER)], (), FLOOR)
    assert counts(found) == {"exact": 1}
    assert (found.repeated, found.agreeing) == (1, 0)


def test_it_parts_from_the_run_that_it_follows_longest() -> None:
    split = divergence(pair((10, 11, 12, 99, 0, 0), OTHER, ORACLE))
    assert split is not None
    assert (split.position, split.candidate_id, split.oracle_id) == (3, 99, 13)


def test_of_two_runs_that_it_follows_as_long_the_first_counts() -> None:
    split = divergence(pair((10, 11, 99, 0, 0, 0), ORACLE, (10, 11, 50, 51, 52, 53)))
    assert split is not None
    assert (split.position, split.oracle_id) == (2, 12)


def test_a_difference_keeps_the_kind_of_its_prompt() -> None:
    made = pair(OTHER)
    split = divergence(replace(made, place=made.place.model_copy(update={"kind": "churn"})))
    assert split is not None
    assert split.kind == "churn"


def test_a_wider_bound_is_earned_by_the_oracles_own_disagreement_on_that_prompt() -> None:
    """Its own ids lie 0.4 nats off. Where its runs of the prompt differ, 0.3 is a near tie, elsewhere undecided."""
    third = (10, 11, 50, 51, 52, 53)
    opinions = [forced(OTHER, {2: 0.3}), forced(OTHER, {2: 0.3}, index=1), forced(third, {2: 0.4}, arm="oracle")]
    found = compare([pair(OTHER, ORACLE, third), pair(OTHER, ORACLE, ORACLE, index=1)], opinions, FLOOR)
    assert counts(found) == {"near_tie": 1, "undecided": 1}
    assert (found.repeated, found.agreeing, found.near_nats, found.wrong_nats) == (2, 1, 0.4, 0.8)


@pytest.mark.parametrize(
    ("gap", "kind"), [(0.25, "near_tie"), (0.26, "undecided"), (0.8, "undecided"), (0.81, "diverged")]
)
def test_beyond_twice_the_oracles_own_spread_it_is_wrong(gap: float, kind: str) -> None:
    opinions = [forced(OTHER, {2: gap}), forced(ORACLE, {3: 0.4}, arm="oracle")]
    assert counts(compare([pair(OTHER, ORACLE, ORACLE)], opinions, FLOOR)) == {kind: 1}


def test_an_oracle_whose_own_ids_are_outside_its_top_decides_nothing() -> None:
    opinions = [forced(OTHER, {2: None}), forced(ORACLE, {3: None}, arm="oracle")]
    found = compare([pair(OTHER)], opinions, FLOOR)
    assert (counts(found), found.wrong_nats) == ({"undecided": 1}, None)


@pytest.mark.parametrize("ids", [None, ORACLE[:3], (*ORACLE, 1)], ids=["no ids", "too few", "too many"])
def test_what_cannot_be_compared_is_counted_apart(ids: Any) -> None:
    for broken in (pair(ids), pair(ORACLE, ids)):
        found = compare([broken, pair(index=1)], (), FLOOR)
        assert (found.sequences, found.exact, found.uncompared) == (1, 1, 1)
        assert not differs(broken)
        with pytest.raises(ValueError, match="without token ids"):
            divergence(broken)


def test_a_repeat_without_ids_is_no_disagreement() -> None:
    assert pair(ORACLE, ORACLE, None).agrees is None
    assert pair(ORACLE, ORACLE, ORACLE[:2]).agrees is None
    assert pair(ORACLE, ORACLE, ORACLE).agrees is True
    assert pair(ORACLE, ORACLE, None, OTHER).agrees is False


def test_a_repeat_does_not_stand_in_for_the_timed_run() -> None:
    assert not pair(ORACLE, None, ORACLE).comparable


def test_ids_of_another_request_are_named() -> None:
    mine, theirs = tuple(range(100, 120)), tuple(range(200, 220))
    mixed = (*mine[:5], *theirs[5:])
    pairs = [pair(mixed, mine, index=0, expected=20), pair(theirs, theirs, index=1, expected=20)]
    (split,) = compare(pairs, [forced(mixed, {5: 9.0})], FLOOR).divergences
    assert (split.judged, split.foreign_index) == ("diverged", 1)
    (excused,) = compare(pairs, [forced(mixed, {5: 0.1})], FLOOR).divergences
    assert (excused.judged, excused.foreign_index) == ("near tie", None)


MINE, THEIRS = tuple(range(100, 120)), tuple(range(200, 220))


def test_ids_of_another_request_are_looked_for_where_it_went_wrong() -> None:
    mixed = (*MINE[:2], 999, *MINE[3:5], *THEIRS[5:])
    pairs = [pair(mixed, MINE, expected=20), pair(THEIRS, THEIRS, THEIRS[::-1], index=1, expected=20)]
    (split,) = compare(pairs, [forced(mixed, {2: 0.1, 5: 9.0})], FLOOR).divergences
    assert (split.position, split.wrong_position, split.foreign_index) == (2, 5, 1)


def test_another_request_is_one_of_the_same_repetition() -> None:
    mixed = (*MINE[:5], *THEIRS[5:])
    other = replace(pair(THEIRS, THEIRS, expected=20), place=place(index=1, repetition=1))
    (split,) = compare([pair(mixed, MINE, expected=20), other], [forced(mixed, {5: 9.0})], FLOOR).divergences
    assert (split.judged, split.foreign_index) == ("diverged", None)


@pytest.mark.parametrize("outside", [True, False])
def test_an_older_margin_says_whether_it_is_outside_the_top(build: Any, outside: bool) -> None:
    where = {"concurrency": 2, "repetition": 0, "index": 0, "position": 2, "candidate_id": 99, "oracle_id": 12}
    margins = [build.margin(**where, margin_nats=None if outside else 3.0, outside_top=outside)]
    (split,) = compare([pair(OTHER)], (), FLOOR, margins).divergences
    assert (split.judged, split.outside_top) == ("diverged", outside)


def test_margins_of_older_runs_still_judge(build: Any) -> None:
    where = {"concurrency": 2, "repetition": 0, "position": 2, "candidate_id": 99, "oracle_id": 12}
    for nats, kind in ((0.25, "near_tie"), (0.26, "diverged")):
        margins = [build.margin(**where, index=0, margin_nats=nats)]
        found = compare([pair(OTHER)], (), FLOOR, margins)
        assert (counts(found), found.max_margin_nats) == ({kind: 1}, nats)
    elsewhere = [margins[0].model_copy(update={"position": 1})]
    assert counts(compare([pair(OTHER)], (), FLOOR, elsewhere)) == {"unjudged": 1}


def test_an_opinion_comes_before_a_margin(build: Any) -> None:
    where = {"concurrency": 2, "repetition": 0, "position": 2, "candidate_id": 99, "oracle_id": 12}
    margins = [build.margin(**where, index=0, margin_nats=0.0)]
    assert counts(compare([pair(OTHER)], [forced(OTHER, {2: 3.0})], FLOOR, margins)) == {"diverged": 1}


def test_own_spread_is_shown_only_where_the_oracle_was_asked() -> None:
    assert own_spread(compare([pair()], (), FLOOR)) is None
    repeated = own_spread(compare([pair(ORACLE, ORACLE, ORACLE)], (), FLOOR))
    assert repeated is not None
    assert (repeated.repeated, repeated.agreeing, repeated.sequences, repeated.largest_nats) == (1, 1, 0, None)
    asked = own_spread(compare([pair()], [forced(ORACLE, {1: 0.2}, arm="oracle", leads={0: 0.0, 1: 0.25})], FLOOR))
    assert asked is not None
    assert (asked.positions, asked.largest_nats, asked.undecided) == (6, 0.2, (1, 1, 1, 1, 2, 2, 2))


@pytest.fixture
def rows(build: Any) -> Any:
    found = [r for r in build.run().requests if (r.concurrency, r.repetition) == (2, 0)]
    return [r for r in found if r.arm == "candidate"], [r for r in found if r.arm == "oracle"]


def test_only_equal_prompts_are_paired(rows: Any) -> None:
    ours, theirs = rows
    other = ours[0].model_copy(update={"prompt_sha256": "another"})
    assert len(pair_up(ours, theirs)) == 4
    assert len(pair_up([other, *ours[1:]], theirs)) == 3
    assert len(pair_up(ours, theirs[1:])) == 3
    moved = [row.model_copy(update={"concurrency": 9}) for row in theirs]
    assert pair_up(ours, moved) == ()


def test_repeats_join_their_prompt_in_order_of_take(rows: Any) -> None:
    ours, theirs = rows

    def take(number: int, sha: str) -> SequenceRow:
        return SequenceRow(
            kind="leg",
            concurrency=2,
            repetition=0,
            index=1,
            arm="oracle",
            take=number,
            prompt_sha256=sha,
            output_tokens=8,
            token_ids=(number,) * 8,
        )

    sha = theirs[1].prompt_sha256
    made = pair_up(ours, theirs, [take(2, sha), take(1, sha), take(3, "another prompt")])
    assert made[1].oracle == (theirs[1].token_ids, (1,) * 8, (2,) * 8)
    assert made[0].oracle == (theirs[0].token_ids,)


def test_the_bounds_rest_on_the_oracles_own_answers_of_all_levels() -> None:
    """Nothing of its own was asked at this level; at another its own ids lie 0.4 nats off."""
    elsewhere = forced(ORACLE, {3: 0.4}, arm="oracle").model_copy(update={"concurrency": 8})
    found = compare([pair(OTHER)], [forced(OTHER, {2: 0.7}), elsewhere], FLOOR)
    assert (counts(found), found.wrong_nats, found.own.sequences) == ({"undecided": 1}, 0.8, 0)
    outside = forced(ORACLE, {3: None}, arm="oracle").model_copy(update={"concurrency": 8})
    assert compare([pair(OTHER)], [forced(OTHER, {2: 0.7}), outside], FLOOR).wrong_nats is None


def test_noise_is_of_all_sequences_and_an_exact_one_has_the_oracles_gaps() -> None:
    pairs = [pair(OTHER), pair(index=1), pair(index=2), pair(None, index=3)]
    opinions = [
        forced(OTHER, {2: 0.3}),
        forced(ORACLE, {1: 0.1}, arm="oracle"),
        forced(ORACLE, {1: 0.2}, arm="oracle", index=1),
        forced(ORACLE, arm="oracle", index=2, error="gone"),
    ]
    found = compare(pairs, opinions, FLOOR)
    assert found.noise is not None
    assert (found.noise.candidate_sequences, found.noise.own_sequences) == (2, 2)
    assert found.noise.tail.value == pytest.approx(0.25 / 0.15)
    first_run_is_missing = pair(ORACLE, None, ORACLE, index=1)
    assert noise_of([pair(OTHER), first_run_is_missing], opinions) == noise_of([pair(OTHER)], opinions)
    assert found.run_noise is None
    assert compare(pairs, opinions, FLOOR, run_noise=noise_of(pairs, opinions)).run_noise == found.noise
