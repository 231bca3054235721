"""7 Two runs -> Comparison: judged again from their records by this version, then set side by side."""

from __future__ import annotations

from pathlib import Path

from gate.compare.decide import EXIT_CODES, moved, overall
from gate.compare.differences import differences, refusal, same_machine
from gate.compare.figures import figures, named, noise
from gate.compare.record import Comparison, Side
from gate.errors import UsageError
from gate.judge import judge
from gate.observe.rundata import RunData
from gate.observe.seals import check_report
from gate.observe.store import read_run
from gate.report.model import Report
from gate.tokenrun.folder import is_token_run


def compare(first: Path, second: Path) -> Comparison:
    """
    Raises:
        UsageError: one and the same run, two that did not measure the same thing, or one that judged tokens alone.
        StorageError: a run that cannot be read, or whose report was changed or has lost its seal.
    """
    for folder in (first, second):
        if is_token_run(folder):
            raise UsageError(f"{folder.name} judged tokens alone", expected="runs of gate run: figures are compared")
    then, now = (_read(folder) for folder in (first, second))
    if then.run_id == now.run_id and then.host == now.host:
        raise UsageError(f"{first.name} twice", expected="two runs", hint="gate list shows them")
    why = refusal(then.plan, now.plan)
    if why is not None:
        raise UsageError(
            f"{then.run_id} and {now.run_id} cannot be compared: {why}",
            expected="two runs of one recipe and checkpoint",
        )
    return side_by_side((then, judge(then)), (now, judge(now)))


def _read(folder: Path) -> RunData:
    """Its report is not needed here; but one that is not as it was written says that somebody was at the run."""
    run = read_run(folder)
    check_report(folder)
    return run


def side_by_side(then: tuple[RunData, Report], now: tuple[RunData, Report]) -> Comparison:
    """Pure."""
    (run_a, report_a), (run_b, report_b) = then, now
    differ = differences(then, now)
    one_machine = same_machine(run_a, run_b)
    cells_a = {(cell.axis, cell.concurrency): cell for cell in report_a.cells if cell.primary}
    cells_b = {(cell.axis, cell.concurrency): cell for cell in report_b.cells if cell.primary}
    both = [key for key in cells_b if key in cells_a]
    share = run_b.plan.recipe.protocol.band
    pairs = [(figures(cells_a[key]), figures(cells_b[key]), noise(cells_b[key])) for key in both]
    made = moved(pairs, share, one_machine)
    why = [
        *(
            f"the {which} run is indicative"
            for which, report in (("first", report_a), ("second", report_b))
            if not report.binding
        ),
        *(f"{one.what} is {one.then} in the first, {one.now} in the second" for one in differ if one.weakens),
    ]
    verdict = overall(made)
    return Comparison(
        recipe=report_b.recipe,
        then=_side(report_a),
        now=_side(report_b),
        same_machine=one_machine,
        binding=not why,
        indicative_because=tuple(why),
        differences=differ,
        cells=made,
        not_in_both=tuple(f"{axis} at c{concurrency}" for axis, concurrency in sorted({*cells_a} ^ {*cells_b})),
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
    )


def _side(report: Report) -> Side:
    return Side(
        run_id=report.run_id,
        host=report.host,
        started_at=report.started_at,
        candidate=named(report.candidate),
        oracle=named(report.oracle),
        verdict=report.verdict.value,
        binding=report.binding,
    )
