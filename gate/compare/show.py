"""8 Comparison -> text for a terminal, and the words that reports share about a regression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gate.compare.record import Change, Comparison, Moved, Outcome, Regression, Side
from gate.report.table import amount, axis_title
from gate.units import DASH, counted, percent, ratio

WORDS: dict[Outcome, str] = {
    "none": "no loss",
    "loss": "LOSS",
    "host-moved": "the host moved",
    "undecided": "undecided",
    "void": "nothing to compare",
}
HEAD = ("conc", "axis", "candidate then → now", "change", "oracle then → now", "change", "ratio then → now", "verdict")


def render(found: Comparison) -> str:
    """Plain text, whole lines."""
    lines = [
        f"{found.recipe}: {WORDS[found.verdict]}, {'binding' if found.binding else 'indicative'}",
        _side("then", found.then),
        _side("now", found.now),
        "change: now over then, direction-normalised, with its 95 % interval; 1 or more: at least as good",
        "",
        columns([HEAD, *map(row, found.cells)]),
        "",
    ]
    if not found.same_machine:
        lines.append("machine     not the same: the verdict is that of the ratios, absolute figures are for the eye")
    if found.not_in_both:
        lines.append(f"one only    {', '.join(found.not_in_both)}")
    lines += [f"indicative  {why}" for why in found.indicative_because]
    lines += [f"differs     {one.what}: {one.then} → {one.now}" for one in found.differences if not one.weakens]
    return "\n".join(lines).rstrip() + "\n"


def row(cell: Moved) -> tuple[str, ...]:
    return (
        str(cell.concurrency),
        axis_title(cell.axis, cell.unit),
        f"{amount(cell.candidate_then, cell.unit)} → {amount(cell.candidate_now, cell.unit)}",
        change(cell.candidate),
        f"{amount(cell.oracle_then, cell.unit)} → {amount(cell.oracle_now, cell.unit)}",
        change(cell.oracle),
        f"{ratio(cell.ratio_then)} → {ratio(cell.ratio_now)}",
        WORDS[cell.verdict],
    )


def change(found: Change | None) -> str:
    return DASH if found is None else f"{ratio(found.ratio)} ({ratio(found.low)}–{ratio(found.high)})"


def columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(each[column]) for each in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(t.ljust(w) for t, w in zip(each, widths, strict=True)).rstrip() for each in rows)


def lines(found: Regression) -> Iterator[str]:
    """What a report says of a regression: one sentence, then a line for each cell that lost or moved."""
    against = f"the last accepted grid, {found.run_id} ({found.candidate})"
    count = len(found.cells)
    if found.verdict == "none":
        yield f"none: {counted(count, 'primary cell')} at least as fast as {against}, in absolute figures"
        return
    told = ", ".join(f"{sum(c.verdict == name for c in found.cells)} {WORDS[name]}" for name in _seen(found.cells))
    yield f"{WORDS[found.verdict]} against {against}: {told}"
    for cell in found.cells:
        if cell.verdict in ("loss", "host-moved"):
            yield (
                f"c{cell.concurrency} {axis_title(cell.axis, cell.unit)}: candidate {_moved(cell, 'candidate')}, "
                f"oracle {_moved(cell, 'oracle')}"
            )
    if found.differs:
        yield f"between the two differ {', '.join(found.differs)}"


def _seen(cells: Sequence[Moved]) -> list[Outcome]:
    return [name for name in WORDS if any(cell.verdict == name for cell in cells)]


def _moved(cell: Moved, arm: str) -> str:
    """`82.1 → 70.6 (-14.0 %)`: by how much better, whichever way better is."""
    then, now, moved = (getattr(cell, name) for name in (f"{arm}_then", f"{arm}_now", arm))
    by = DASH if moved is None else percent(moved.ratio - 1)
    return f"{amount(then, cell.unit)} → {amount(now, cell.unit)} ({by})"


def _side(label: str, side: Side) -> str:
    kind = "binding" if side.binding else "indicative"
    return f"{label:<5}{side.run_id} on {side.host}: {side.candidate} against {side.oracle}, {side.verdict}, {kind}"
