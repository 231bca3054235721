"""A whole `gate tokens` of fake servers: each fault of the token judgement is found, and what is left on disk."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate import listing
from gate.arm.fake_script import preset
from gate.errors import StorageError, UsageError
from gate.observe.rows import Verdict
from gate.report.tokens import BOUNDS_NOTE
from gate.runs import entries
from gate.tokenrun import folder, show
from gate.tokenrun.judge import judge
from tests.gate.aside_reports import lost_seals_are_told
from tests.gate.tokenrun.conftest import Bench


def test_equal_servers_pass_and_everything_is_on_disk(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run() == 0
    report = bench.report
    assert [(c.kind, c.concurrency, c.planned) for c in report.cells] == [
        ("long", 1, 2),
        ("churn", 1, 8),
        ("long", 2, 4),
        ("churn", 2, 16),
    ]
    assert all(c.exact == c.planned and c.verdict is Verdict.PASS for c in report.cells)
    own = bench.cell("churn", 2).own
    assert own is not None
    assert (own.repeated, own.agreeing, own.sequences, own.largest_nats) == (16, 16, 16, 0.0)
    data = folder.read(bench.folder)
    assert len(data.answers) == 30 * 3
    assert len(data.forced) == 30
    assert data.finished_at == report.finished_at
    printed = capsys.readouterr()
    assert "PASS, indicative" in printed.out
    said = printed.err.splitlines()
    assert [line for line in said if line.startswith("load ")][:5] == [
        "load 1/24: candidate long-c1-s0, run 1 of 1, 1 answer",
        "load 2/24: candidate churn-c1-s0, run 1 of 1, 4 answers",
        "load 3/24: candidate long-c2-s0, run 1 of 1, 2 answers",
        "load 4/24: candidate churn-c2-s0, run 1 of 1, 8 answers",
        "load 5/24: candidate long-c1-s1, run 1 of 1, 1 answer",
    ]
    assert sum(" left" in line for line in said if line.startswith("  took ")) == 23
    assert "load 24/24: oracle churn-c2-s1, run 2 of 2, 8 answers" in said
    assert "sending 30 answers back to the oracle: what it thinks of each id" in said
    assert (bench.folder / "report.md").read_text(encoding="utf-8").startswith("# tokens of fakes")


def test_the_bounds_of_different_prompts_are_told_as_a_range(bench: Bench) -> None:
    """Undecided is above the bound of the prompt, which a column of the largest one alone would deny."""
    bench.run(conc="1")
    first = bench.report.cells[0]
    own = first.own
    assert own is not None
    assert "0.25–0.5" not in show.terminal(bench.report)
    spread = own.model_copy(update={"repeated": 2, "agreeing": 1})
    wide = first.model_copy(update={"near_nats": 0.5, "max_margin_nats": 0.375, "undecided": 1, "own": spread})
    report = bench.report.model_copy(update={"cells": (wide, *bench.report.cells[1:])})
    for text in (show.terminal(report), show.markdown(report)):
        assert "0.25–0.5" in text
        assert BOUNDS_NOTE in text
    every = wide.model_copy(update={"own": spread.model_copy(update={"agreeing": 0})})
    assert show.row(every, 0.25)[9] == "0.5"


def test_both_arms_and_every_take_get_the_same_load_and_some_are_left_in_the_middle(bench: Bench) -> None:
    bench.run()
    ours = [(b["prompt"], b["max_tokens"]) for b in bench.bodies["candidate"] if b.get("stream")]
    theirs = [(b["prompt"], b["max_tokens"]) for b in bench.bodies["oracle"] if b.get("stream")]
    assert sorted(theirs) == sorted(ours * 2)
    cancelled = [row for row in folder.read(bench.folder).answers if row.cancelled]
    assert {row.kind for row in cancelled} == {"churn"}
    assert len(cancelled) == 3 * 2 * (1 + 2)
    assert all(len(row.token_ids or ()) == row.output_tokens for row in cancelled)


def test_state_shared_at_eight_streams_alone_fails_there_and_is_named(bench: Bench) -> None:
    assert bench.run(preset("foreign-at-8", token_ms=5.0), conc="1,8") == 1
    assert bench.cell("long", 1).verdict is Verdict.PASS
    assert bench.cell("churn", 1).verdict is Verdict.PASS
    cell = bench.cell("long", 8)
    assert cell.verdict is Verdict.FAIL
    assert cell.diverged >= 1
    assert "another request's ids" in cell.reasons[0].message
    assert any(one.foreign_index is not None for one in bench.report.divergences)


def test_a_wrong_id_behind_an_early_near_tie_is_found(bench: Bench) -> None:
    assert bench.run(preset("two-errors"), preset("one-near-tie")) == 1
    long = [one for one in bench.report.divergences if one.kind == "long"]
    assert {(one.position, one.wrong_position, one.wrong_positions) for one in long} == {(2, 5, 1)}
    assert [one.margin_nats for one in long] == [pytest.approx(0.05)] * 6


def test_a_near_tie_alone_passes(bench: Bench) -> None:
    assert bench.run(preset("diverge"), preset("one-near-tie")) == 0
    assert bench.cell("long", 1).near_tie == 2


def test_a_tie_broken_towards_the_higher_id_is_right_and_is_found(bench: Bench) -> None:
    tie = {"margin_nats": 0.0, "decided_nats": 3.0}
    assert bench.run(preset("diverge", **tie), preset("good", **tie)) == 0
    ours, theirs = bench.report.tie_breaks
    assert (ours.arm, theirs.arm) == ("candidate", "oracle")
    assert (ours.positions, ours.ties, ours.high, ours.not_greedy) == (64, 64, 2, 0)
    assert (theirs.positions, theirs.ties, theirs.high) == (64, 64, 0)
    assert "2 of them to a higher id" in show.terminal(bench.report)
    assert "all to the lowest id" in show.terminal(bench.report)


def test_ids_that_are_not_its_own_most_probable_are_counted(bench: Bench) -> None:
    assert bench.run(preset("diverge", margin_nats=0.1), preset("good")) == 0
    assert [(one.ties, one.not_greedy) for one in bench.report.tie_breaks] == [(0, 2), (0, 0)]


def test_an_id_outside_the_top_is_decided_without_a_figure(bench: Bench) -> None:
    assert bench.run(preset("outside-top")) == 1
    split = next(one for one in bench.report.divergences if one.kind == "long")
    assert (split.outside_top, split.wrong_position, split.margin_nats) == (True, 4, None)


def test_an_oracle_that_disagrees_with_itself_is_shown_and_each_of_its_answers_is_right(bench: Bench) -> None:
    assert bench.run(oracle=preset("flaky", token_ms=0.2), repeats=3) == 0
    own = [cell.own for cell in bench.report.cells if cell.own is not None]
    assert sum(one.agreeing for one in own) < sum(one.repeated for one in own)
    assert max(one.largest_nats or 0 for one in own) == pytest.approx(0.05)


@pytest.mark.parametrize("answer", ["missing", "short", "nan", "null", "other-ids"])
def test_an_oracle_without_a_usable_opinion_leaves_it_unjudged(bench: Bench, answer: str) -> None:
    assert bench.run(preset("diverge"), preset("good", prompt_logprobs=answer), conc="1") == 2
    assert bench.codes() == {"tokens-unjudged"}
    assert all("no opinion: the " in cell.reasons[0].message for cell in bench.report.cells)
    assert bench.cell("long", 1).own is None or bench.cell("long", 1).own.sequences == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("script", "code", "exit_code"),
    [
        ({"output_limit": 3}, "output-length", 3),
        ({"fault": "error-event", "fault_after_tokens": 1}, "failed-request", 3),
        ({"fault": "drop", "fault_after_tokens": 1}, "failed-request", 3),
        ({"fault": "http-500"}, "failed-request", 3),
        ({"token_ids": False}, "tokens-unread", 2),
    ],
)
def test_answers_that_are_not_whole_are_never_a_pass(bench: Bench, script: Any, code: str, exit_code: int) -> None:
    assert bench.run(preset("good", **script), conc="1") == exit_code
    assert code in bench.codes()


def test_lost_seals_are_told(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(conc="1")
    lost_seals_are_told(bench.folder, "report.json", bench.out, capsys)
    (bench.folder / "complete.json").unlink()
    with pytest.raises(StorageError, match=r"complete\.json is missing, and the report is of a finished run"):
        show.stored(bench.folder)
    assert show.conclude(bench.folder).finished_at is None
    assert show.stored(bench.folder).finished_at is None


def test_report_derives_the_same_again(bench: Bench) -> None:
    bench.run(preset("two-errors"), preset("one-near-tie"))
    before = (bench.folder / "report.json").read_bytes()
    show.conclude(bench.folder)
    assert (bench.folder / "report.json").read_bytes() == before


def test_a_changed_record_is_found(bench: Bench) -> None:
    bench.run(conc="1")
    path = next((bench.folder / "tokens").glob("answers-oracle-*"))
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(StorageError, match="was changed"):
        folder.read(bench.folder)


def test_an_edited_report_is_found(bench: Bench) -> None:
    bench.run(conc="1")
    path = bench.folder / "report.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"binding": false', '"binding": true'), encoding="utf-8")
    with pytest.raises(StorageError, match="was changed after it was written"):
        show.stored(bench.folder)
    (entry,) = entries(bench.out)
    assert (entry.verdict, entry.changed) == (None, True)


def test_an_edited_plan_is_found(bench: Bench) -> None:
    bench.run(conc="1")
    path = bench.folder / "plan.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"repeats": 2', '"repeats": 1'), encoding="utf-8")
    with pytest.raises(StorageError):
        folder.read(bench.folder)


def test_it_is_listed_with_the_others(bench: Bench) -> None:
    bench.run(conc="1")
    (entry,) = entries(bench.out)
    assert (entry.verdict, entry.binding, entry.complete) == ("PASS", False, True)
    assert folder.is_token_run(entry.folder)
    assert (entry.recipe, entry.legs, entry.planned) == ("fakes", 12, 12)
    assert listing.runs_text([entry], bench.out).splitlines()[1].endswith("12/12 loads")


@pytest.mark.parametrize("repeats", [0, 21])
def test_repeats_out_of_range_are_one_line(bench: Bench, repeats: int) -> None:
    with pytest.raises(UsageError, match="--repeats"):
        bench.run(repeats=repeats)


def test_a_single_run_by_the_oracle_is_said(bench: Bench) -> None:
    bench.run(conc="1", repeats=1)
    assert any("1 run by the oracle" in reason for reason in bench.report.not_binding_because)


@pytest.mark.parametrize("seeds", [0, 21])
def test_seeds_out_of_range_are_one_line(bench: Bench, seeds: int) -> None:
    with pytest.raises(UsageError, match=f"--seeds {seeds}"):
        bench.run(seeds=seeds)


def test_a_single_seed_asks_half_as_much_and_is_said(bench: Bench) -> None:
    bench.run(conc="1")
    asked = len(bench.bodies["candidate"])
    assert not any("seed" in reason for reason in bench.report.not_binding_because)
    bench.run(conc="1", seeds=1)
    assert 2 * (len(bench.bodies["candidate"]) - 1) <= asked
    assert "1 seed, fewer than 2" in bench.report.not_binding_because


def test_what_is_not_known_of_the_servers_keeps_it_from_binding(bench: Bench) -> None:
    bench.run(conc="1")
    told = " | ".join(bench.report.not_binding_because)
    assert "the candidate is an attached URL" in told
    data = folder.read(bench.folder)
    ours = next(one for one in data.identities if one.arm == "candidate")
    changed = dataclasses.replace(data, identities=(*data.identities, ours.model_copy(update={"digest": "another"})))
    said = "the candidate was not the same server throughout: what it says of itself changed"
    assert said in judge(changed).not_binding_because
    assert said not in judge(data).not_binding_because
    recipe = data.plan.base.recipe
    tuned = recipe.model_copy(update={"oracle": recipe.oracle.model_copy(update={"args": ("--enforce-eager",)})})
    plan = data.plan.model_copy(update={"base": data.plan.base.model_copy(update={"recipe": tuned})})
    assert (
        "the oracle runs with settings of the recipe's own: --enforce-eager"
        in judge(dataclasses.replace(data, plan=plan)).not_binding_because
    )
