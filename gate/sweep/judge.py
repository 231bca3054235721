"""6 Raw requests of a sweep -> rates, their mean and spread. Pure. There is no verdict: `gate run` gives those."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from gate.checks.spread import spread
from gate.messages import HOST_BUSY
from gate.metrics.decode_rate import decode_rate
from gate.metrics.prefill_rate import prefill_rate
from gate.observe.rows import Arm, RequestRow
from gate.sweep.points import Point
from gate.sweep.record import SweepCell, SweepPlan, SweepReport, SweepSeries


def report(plan: SweepPlan, requests: Sequence[RequestRow], ended: str | None = None) -> SweepReport:
    """ended: why it ended early."""
    rows = {row.leg_id: row for row in requests}
    cells = tuple(_cell(plan, point, rows) for point in plan.points)
    return SweepReport(
        name=plan.name,
        host=plan.host,
        recipe=plan.recipe.name,
        started_at=plan.started_at,
        machine=plan.machine,
        arms=plan.arms,
        repetitions=plan.repetitions,
        complete=all(series.mean is not None for cell in cells for series in cell.series),
        ended=ended,
        cells=cells,
        findings=plan.findings,
    )


def fault(point: Point, row: RequestRow) -> str | None:
    """Why a request is not the one that was asked for; None for a good one."""
    if row.error is not None:
        return row.error
    if not row.saw_done:
        return "the stream ended without [DONE]"
    for what, found, wanted in (
        ("prompt", row.prompt_tokens, point.prompt_tokens),
        ("output", row.completion_tokens, point.output_tokens),
    ):
        if found != wanted:
            return f"{what} tokens: {'not counted' if found is None else found}, asked for {wanted}"
    if row.cached_prompt_tokens:
        return f"{row.cached_prompt_tokens} prompt tokens came from a cache"
    return None


def rate(point: Point, row: RequestRow) -> float | None:
    """tok/s; None for a faulty request, or one whose stamps tell nothing."""
    if fault(point, row) is not None:
        return None
    return prefill_rate(row) if point.kind == "pp" else decode_rate(row)


def _cell(plan: SweepPlan, point: Point, rows: Mapping[str, RequestRow]) -> SweepCell:
    series = tuple(_series(plan, point, arm, rows) for arm in plan.arms)
    means = {one.arm: one.mean for one in series}
    ours, theirs = means.get("candidate"), means.get("oracle")
    ratio = None if ours is None or theirs is None else ours / theirs
    return SweepCell(point=point, name=point.name, series=series, ratio=ratio, doubts=tuple(_doubts(plan, series)))


def _doubts(plan: SweepPlan, series: Sequence[SweepSeries]) -> Iterator[str]:
    """The limits are those of `gate run`: repetitions of one arm, and other work on the host."""
    limit = plan.recipe.protocol.max_spread
    for one in series:
        found = spread(one.values)
        if found is not None and found > limit:
            yield (
                f"the {one.arm}'s repetitions spread {100 * found:.1f} % (max − min over the median); "
                f"expected at most {100 * limit:g} %"
            )
    yield from (finding.message for finding in plan.findings if finding.code == HOST_BUSY)


def _series(plan: SweepPlan, point: Point, arm: Arm, rows: Mapping[str, RequestRow]) -> SweepSeries:
    legs = sorted(
        (one.leg for one in plan.legs if one.leg.arm == arm and one.point == point), key=lambda leg: leg.order
    )
    found = [rows.get(leg.leg_id) for leg in legs]
    values = tuple(None if row is None else rate(point, row) for row in found)
    measured = [value for value in values if value is not None]
    whole = len(measured) == len(values) and bool(values)
    return SweepSeries(
        arm=arm,
        values=values,
        mean=statistics.fmean(measured) if whole else None,
        sd=statistics.stdev(measured) if whole and len(measured) > 1 else None,
        faults=tuple(
            dict.fromkeys(_why(point, row) for row, value in zip(found, values, strict=True) if value is None)
        ),
    )


def _why(point: Point, row: RequestRow | None) -> str:
    if row is None:
        return "not measured"
    return fault(point, row) or "its tokens came in one read: no step can be timed"
