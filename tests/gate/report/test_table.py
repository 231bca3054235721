"""The words of the tables: what is counted, which finding is shown, and what a footnote explains."""

from __future__ import annotations

from types import ModuleType

import pytest

from gate.judge import judge
from gate.observe.rows import Verdict
from gate.observe.rundata import RunData
from gate.report import html, markdown, table, terminal
from gate.report.model import BandSummary, Reason, Report, TokenCell
from gate.selftest.good_run import Build
from gate.units import DASH, GIB


def test_primary_cells_tokens_and_observations_are_counted_apart(golden: ModuleType) -> None:
    assert table.counts_text(golden.report()) == (
        "6 primary cells: 1 PASS, 1 FAIL, 2 INCONCLUSIVE, 2 VOID; 3 token cells: 2 PASS, 1 VOID; "
        "3 observations: 2 PASS, 1 VOID"
    )


def test_a_sentence_says_what_was_found_and_needed_and_whether_it_binds(golden: ModuleType) -> None:
    said = table.sentence(golden.report())
    assert "at least as good as the oracle in 1, worse in 1" in said
    assert "needs a ratio of 0.990" in said
    assert said.endswith("does not bind: 2 reasons below.")
    assert table.sentence(golden.report().model_copy(update={"binding": True})).endswith("This result binds.")


def test_a_void_token_cell_has_no_figures_and_no_part_in_the_sum(golden: ModuleType) -> None:
    report = golden.report()
    assert table.token_row(report.tokens[2]) == ("–",) * 7 + ("0.25",)
    assert table.token_text(report.tokens).startswith("22 of 24 sequences exact")
    assert table.token_text(report.tokens[2:]) == "not validly compared"


def ties(near_tie: int, margin: float) -> TokenCell:
    return TokenCell(
        concurrency=1,
        sequences=12,
        exact=12 - near_tie,
        near_tie=near_tie,
        diverged=0,
        unjudged=0,
        max_margin_nats=margin,
        bound_nats=0.25,
        verdict=Verdict.PASS,
    )


@pytest.mark.parametrize(("near_tie", "said"), [(2, False), (10, True)])
def test_random_weights_are_named_only_where_most_sequences_are_ties(near_tie: int, said: bool) -> None:
    assert ("random weights" in table.token_text([ties(near_tie, 0.1)])) is said


def test_a_negative_margin_and_a_ratio_outside_its_interval_have_footnotes(golden: ModuleType) -> None:
    report = golden.report()
    cells = (report.cells[0].model_copy(update={"ratio": 1.3}), *report.cells[1:])
    odd = report.model_copy(update={"cells": cells, "tokens": (ties(1, -0.02),)})
    for text in (terminal.render(odd, width=400), markdown.render(odd), html.render(odd)):
        assert "1.240–1.260" in text
        assert table.OUTSIDE in text
        assert "A negative margin" in text
    for text in (terminal.render(report), markdown.render(report), html.render(report)):
        assert table.OUTSIDE not in text
        assert "A negative margin" not in text


def test_of_several_legs_the_worst_is_shown_with_their_number(golden: ModuleType) -> None:
    report = golden.report()
    said = [
        Reason(code="foreign-load", message=f"{cores} cores", hint="h", leg_id=leg, beyond=cores / 0.25)
        for leg, cores in (("006", 0.3), ("007", 0.9), ("008", 0.5))
    ]
    cells = tuple(
        c.model_copy(update={"reasons": tuple(said)}) if c.verdict is Verdict.VOID else c for c in report.cells
    )
    made = report.model_copy(update={"cells": cells, "tokens": ()})
    why = next(w for w in table.reasons(made) if w.code == "foreign-load")
    assert why.message == "0.9 cores (the worst of 3 legs)"


def drifts(golden: ModuleType) -> Report:
    """As a run on two H200 had them: TPOT voids two axes, TTFT one, in legs of either arm."""
    said = {
        (8, "tpot_median_ms"): [("TPOT", 20.2, "019")],
        (16, "output_throughput"): [("TTFT", 5.2, "020"), ("TTFT", 28.4, "031"), ("TPOT", 23.5, "031")],
        (16, "tpot_median_ms"): [("TPOT", 17.2, "020"), ("TPOT", 23.5, "031")],
    }
    report: Report = golden.report()
    cells = tuple(
        report.cells[0].model_copy(
            update={
                "concurrency": level,
                "axis": axis,
                "unit": "ms",
                "primary": True,
                "verdict": Verdict.VOID,
                "reasons": tuple(
                    Reason(code="warmup-unsettled", message=f"{what} {by}", hint="h", leg_id=leg, beyond=by)
                    for what, by, leg in told
                ),
            }
        )
        for (level, axis), told in said.items()
    )
    return report.model_copy(update={"cells": cells, "tokens": ()})


def test_each_cell_is_told_a_reason_of_its_own(golden: ModuleType) -> None:
    assert [(why.where(), why.message) for why in table.reasons(drifts(golden))] == [
        ("c16 output", "TTFT 28.4 (the worst of 2 legs)"),
        ("c16 TPOT median", "TPOT 23.5 (the worst of 2 legs)"),
        ("c8 TPOT median", "TPOT 20.2"),
    ]


def test_cells_of_one_reason_are_told_together(golden: ModuleType) -> None:
    made = drifts(golden)
    same = tuple(cell.model_copy(update={"reasons": made.cells[0].reasons}) for cell in made.cells)
    (why,) = table.reasons(made.model_copy(update={"cells": same}))
    assert (why.cells, why.message) == (("c8 TPOT median", "c16 output", "c16 TPOT median"), "TPOT 20.2")


def test_a_terminal_is_spared_the_least_of_many_reasons_and_says_so(golden: ModuleType) -> None:
    made = drifts(golden)
    told = [
        cell.model_copy(
            update={
                "concurrency": 10 * cell.concurrency + level,
                "reasons": tuple(_shifted(reason, level) for reason in cell.reasons),
            }
        )
        for level in (1, 2)
        for cell in made.cells
    ]
    shown = terminal.render(made.model_copy(update={"cells": tuple(told)}), width=400)
    assert shown.count("warmup-unsettled   c") == 3
    assert "warmup-unsettled   3 more cells by other figures: report.html and report.md have them" in shown
    assert "TTFT 28.4 2" in shown
    assert "TPOT 20.2 1" not in shown


def _shifted(reason: Reason, level: int) -> Reason:
    return reason.model_copy(update={"message": f"{reason.message} {level}"})


def test_memory_is_told_in_gib() -> None:
    report = judge(run_with_memory())
    cell = table.cell_of(report, "peak_host_rss_bytes", 1)
    assert cell is not None
    assert table.axis_title(cell.axis, cell.unit) == "host RSS GiB"
    assert table.medians_text(cell) == "1.500 / 3.000"
    assert table.amount(None, "bytes") == DASH
    for text in (markdown.render(report), terminal.render(report, all_cells=True), html.render(report)):
        assert "1.500" in text
        assert "1610612736" not in text


def run_with_memory() -> RunData:
    run = Build.run()
    for row in run.legs:
        size = 3 * GIB if row.arm == "oracle" else 3 * GIB // 2
        run = Build.alter_leg(run, row.leg_id, server_peak_rss_bytes=size)
    return run


def test_what_stands_beside_a_ratio_is_told(golden: ModuleType) -> None:
    report = golden.report()
    noted = report.cells[0].model_copy(update={"notes": ("the oracle's legs fall in two groups",), "looks": 2})
    title = table.axis_title(noted.axis, noted.unit)
    assert f"c{noted.concurrency} {title}: the oracle's legs fall in two groups." in table.footnotes([noted])
    band = BandSummary(band_id="abcdef" * 10, gates=8)
    judged = report.model_copy(update={"band": band, "looks": 2})
    assert table.noise_text(report) == "prior assumed"
    assert table.noise_text(judged) == "prior of band abcdefabcdef, 8 A/A gates of this host; 1 of 2 looks"
    extended = judged.model_copy(update={"cells": (noted,)})
    assert table.noise_text(extended).endswith(f"; 2 of 2 looks at c{noted.concurrency}")
