"""Starts to verdict: medians of starts, what is not proven cold counts for nothing, and the table says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gate.observe.rows import ARMS, CacheState, StartRow, Verdict
from gate.selftest.good_run import make_plan, recipe
from gate.startup import report
from gate.startup.judge import judge
from gate.startup.record import StartupPlan, StartupReport

S = 1_000_000_000


def start(arm: str = "candidate", repetition: int = 0, **over: Any) -> StartRow:
    fields: dict[str, Any] = {
        "arm": arm,
        "start_id": f"{arm}-{repetition}",
        "started_at": "x",
        "repetition": repetition,
        "spawn_ns": 10 * S,
        "port_open_ns": 12 * S,
        "ready_ns": 14 * S,
        "first_token_ns": 15 * S,
        "page_cache": "cold",
        "checkpoint_files_bytes": 2**30,
        "checkpoint_resident_bytes": 0,
        "wanted_cache": "cold",
    }
    return StartRow.model_validate(fields | over)


def starts(change: Callable[[StartRow], dict[str, Any]] = lambda _start: {}) -> list[StartRow]:
    good = [start(arm, repetition) for repetition in range(3) for arm in ARMS]
    return [StartRow.model_validate(row.model_dump() | change(row)) for row in good]


def judged(rows: Sequence[StartRow], wanted: CacheState | None = "cold") -> StartupReport:
    about = StartupPlan(name="n", host="box", started_at="x", machine={}, wanted_cache=wanted, plan=make_plan(recipe()))
    return judge(about, rows, ())


def test_equal_starts_pass_and_the_first_token_decides() -> None:
    made = judged(starts())
    assert (made.verdict, made.exit_code) == (Verdict.PASS, 0)
    assert [(cell.axis, cell.primary, cell.ratio) for cell in made.cells] == [
        ("port_open_s", False, 1.0),
        ("ready_s", False, 1.0),
        ("first_token_s", True, 1.0),
    ]


def test_twice_the_time_fails() -> None:
    made = judged(starts(lambda row: {"first_token_ns": 20 * S} if row.arm == "candidate" else {}))
    decides = made.cells[-1]
    assert (decides.ratio, decides.verdict, made.exit_code) == (0.5, Verdict.FAIL, 1)
    assert (decides.candidate_values, decides.oracle_values) == ((10.0,) * 3, (5.0,) * 3)
    assert (decides.candidate_median, decides.oracle_median) == (10.0, 5.0)
    assert (decides.unit, decides.concurrency) == ("s", 1)
    assert decides.ratio_low is not None
    assert decides.ratio_high is not None
    assert decides.ratio_low < 0.5 < decides.ratio_high
    assert [reason.code for reason in decides.reasons] == ["below-floor"]
    assert "gate startup" not in decides.reasons[0].hint  # another start would say the same
    assert [cell.verdict for cell in made.cells[:2]] == [Verdict.PASS] * 2


def test_a_start_that_is_not_proven_cold_voids_and_says_how_much_was_there() -> None:
    warm = {"page_cache": "partly", "checkpoint_resident_bytes": 2**29}
    made = judged(starts(lambda row: warm if row.start_id == "oracle-1" else {}))
    assert {(cell.verdict, cell.ratio) for cell in made.cells} == {(Verdict.VOID, None)}
    assert {(cell.candidate_median, cell.ratio_low, cell.ratio_high) for cell in made.cells} == {(None, None, None)}
    assert made.exit_code == 3
    (finding,) = made.findings
    assert (finding.code, finding.arm) == ("page-cache-unproven", "oracle")
    assert "start 1 of the oracle was to be cold and is partly: 0.50 GiB of 1.00 GiB" in finding.message
    assert finding.message in report.text(made)
    assert finding.message in report.markdown(made)


def test_as_found_the_arms_must_have_found_the_same() -> None:
    """The very first start reads the files in for the other arm, and would lose by it."""
    as_found = {"wanted_cache": None, "page_cache": "warm", "checkpoint_resident_bytes": 2**30}
    assert judged(starts(lambda _row: as_found), None).verdict is Verdict.PASS
    first = {"page_cache": "cold", "checkpoint_resident_bytes": 0}
    made = judged(starts(lambda row: as_found | (first if row.start_id == "oracle-0" else {})), None)
    assert {(cell.verdict, cell.ratio) for cell in made.cells} == {(Verdict.VOID, None)}
    assert [finding.code for finding in made.findings] == ["page-cache-unequal"]
    assert "starts 0: the checkpoint was warm for the candidate and cold for the oracle" in report.text(made)


def test_a_start_that_failed_voids() -> None:
    made = judged(starts(lambda row: {"error": "HTTP 500: no"} if row.start_id == "candidate-0" else {}))
    assert [(finding.code, finding.arm) for finding in made.findings] == [("start-failed", "candidate")]
    assert made.verdict is Verdict.VOID


def test_a_missing_start_is_undecided() -> None:
    made = judged(starts()[:-1])
    assert (made.verdict, made.unfinished, judged(starts()).unfinished) == (Verdict.INCONCLUSIVE, True, False)
    (reason,) = made.cells[-1].reasons
    assert (reason.code, reason.hint) == ("legs-missing", "gate startup begins anew: it is not resumed")


def test_the_table_shows_each_start_in_order_with_its_page_cache() -> None:
    shown = report.text(judged(starts(lambda _row: {"load_peak_rss_bytes": 3 * 2**29})))
    assert shown.startswith("start-up of made-up on box, checkpoint cold: PASS, indicative\n")
    lines = [line.split() for line in shown.splitlines() if line.startswith(("0 ", "1 ", "2 "))]
    assert [line[1] for line in lines] == list(ARMS) * 3
    assert lines[0][2:8] == ["cold", "2.000", "4.000", "5.000", "1.50", "GiB"]


def test_why_it_ended_early_is_kept() -> None:
    about = StartupPlan(name="n", host="box", started_at="x", machine={}, wanted_cache="cold", plan=make_plan(recipe()))
    assert judge(about, starts(), (), "interrupted").ended == "interrupted"
    assert judge(about, starts(), ()).ended is None
