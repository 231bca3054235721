"""What every printer shows in its tables, as text: one place decides words, digits and order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gate.observe.capacity import Capacity, text
from gate.observe.rows import StartRow, Verdict
from gate.report.model import Cell, Reason, Report, TokenCell
from gate.report.tokens import BOUNDS_NOTE, applied, bounds_text, interval_text
from gate.units import DASH, GIB, counted, duration, least, number, percent, ratio

SHORT = {
    "output_throughput": "output",
    "total_throughput": "total",
    "request_throughput": "requests",
    "peak_gpu_bytes": "GPU memory",
    "peak_host_rss_bytes": "host RSS",
    "peak_host_pss_bytes": "host PSS",
    "host_drop_bytes": "host drop",
}
"""Axis names that need no statistic."""
OUTSIDE, BOUND = "†", "‡"
"""After a ratio that lies outside its own interval; a footnote explains it."""


def plain(text: str) -> str:
    """One printable line: servers' error texts may hold escape codes and line breaks."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def axis_title(axis: str, unit: str) -> str:
    """`ttft_median_ms` -> `TTFT median ms`; `output_throughput` -> `output tok/s`."""
    if axis in SHORT:
        return f"{SHORT[axis]} {unit_text(unit)}"
    family, statistic, _ = axis.split("_")
    return f"{family.upper()} {statistic} {unit}"


def unit_text(unit: str) -> str:
    """Records hold bytes, tables show GiB."""
    return "GiB" if unit == "bytes" else unit


def amount(value: float | None, unit: str) -> str:
    """A value in the unit that unit_text names."""
    return number(value / GIB if value is not None and unit == "bytes" else value)


def cell_of(report: Report, axis: str, concurrency: int) -> Cell | None:
    return next((c for c in report.cells if (c.axis, c.concurrency) == (axis, concurrency)), None)


def axes(report: Report, *, primary_only: bool) -> tuple[tuple[str, str], ...]:
    """(axis, unit) in report order, each once."""
    chosen = [c for c in report.cells if c.primary or not primary_only]
    return tuple(dict.fromkeys((c.axis, c.unit) for c in chosen))


def ratio_text(cell: Cell) -> str:
    """The ratio with its interval, or the bound that decided; for VOID the reason codes and no number at all."""
    if cell.at_least is not None:
        return f"≥ {least(cell.at_least)}{BOUND}"
    if cell.verdict is Verdict.VOID:
        return ", ".join(dict.fromkeys(reason.code for reason in cell.reasons))
    if cell.ratio is None:
        return ", ".join(reason.code for reason in cell.reasons)
    if cell.ratio_low is None or cell.ratio_high is None:
        return ratio(cell.ratio)
    return f"{ratio(cell.ratio)} ({ratio(cell.ratio_low)}–{ratio(cell.ratio_high)}){OUTSIDE if outside(cell) else ''}"


def outside(cell: Cell) -> bool:
    """Whether the ratio of medians lies outside the interval printed with it."""
    if cell.ratio is None or cell.ratio_low is None or cell.ratio_high is None:
        return False
    return not cell.ratio_low <= cell.ratio <= cell.ratio_high


def footnotes(cells: Sequence[Cell], tokens: Sequence[TokenCell] = ()) -> tuple[str, ...]:
    """What the shown rows need to be understood; nothing where they explain themselves."""
    notes = []
    if any(outside(cell) for cell in cells):
        notes.append(
            f"{OUTSIDE} The ratio is that of the medians, the interval that of the mean paired ratio: here one "
            "repetition pulls them so far apart that the one lies outside the other."
        )
    if bounded := [cell for cell in cells if cell.bounded]:
        codes = ", ".join(sorted({reason.code for cell in bounded for reason in cell.reasons}))
        notes.append(
            f"{BOUND} Figures moved ({codes}), so no ratio can be believed; yet the arms lie apart. Nine in ten of the "
            "candidate's requests, for a rate all of its legs, were ahead of nine in ten of the oracle's by the bound, "
            "and that is more than they moved."
        )
    notes += [
        f"c{cell.concurrency} {axis_title(cell.axis, cell.unit)}: {note}." for cell in cells for note in cell.notes
    ]
    valid = [t for t in tokens if t.verdict is not Verdict.VOID]
    if any(low < high for low, high in map(bounds_of, valid)):
        notes.append(BOUNDS_NOTE)
    if any((t.max_margin_nats or 0) < 0 for t in valid):
        notes.append(
            "A negative margin: asked again on the prompt and the common output, the oracle prefers the "
            "candidate's token to the one it generated itself."
        )
    return tuple(notes)


def medians_text(cell: Cell) -> str:
    """`candidate / oracle`, both in the cell's unit."""
    return f"{amount(cell.candidate_median, cell.unit)} / {amount(cell.oracle_median, cell.unit)}"


def headline(report: Report) -> str:
    """`PASS, binding` or `FAIL, indicative`."""
    return f"{report.verdict}, {'binding' if report.binding else 'indicative'}"


def sentence(report: Report) -> str:
    """What was found, what was needed and whether it binds, in words."""
    primary = [c for c in report.cells if c.primary]
    if not primary:
        found = "Nothing was measured on an axis that decides."
    else:
        needed = primary[0].floor - primary[0].band
        shares = {verdict: sum(c.verdict is verdict for c in primary) for verdict in Verdict}
        words = {
            Verdict.PASS: "at least as good as the oracle in",
            Verdict.FAIL: "worse in",
            Verdict.INCONCLUSIVE: "undecided in",
            Verdict.VOID: "not validly measured in",
        }
        told = ", ".join(f"{words[verdict]} {count}" for verdict, count in shares.items() if count)
        cells = counted(len(primary), "primary cell")
        found = (
            f"Of {cells} the candidate is {told}; each needs a ratio of {ratio(needed)} "
            f"({number(primary[0].floor)} less the band of {percent(primary[0].band)})."
        )
    tokens = f" Tokens: {token_verdict_text(report.tokens)}." if report.tokens else ""
    if report.binding:
        return f"{found}{tokens} This result binds."
    lacks = counted(len(report.not_binding_because), "reason")
    return f"{found}{tokens} This result is indicative and does not bind: {lacks} below."


def counts_text(report: Report) -> str:
    """Primary cells, token cells and observations apart: only the first two decide."""
    groups = (
        ("primary cell", [c.verdict for c in report.cells if c.primary]),
        ("token cell", [t.verdict for t in report.tokens]),
        ("observation", [c.verdict for c in report.cells if not c.primary]),
    )
    texts = []
    for name, verdicts in groups:
        parts = [f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict if verdict in verdicts]
        texts.append(counted(len(verdicts), name) + (f": {', '.join(parts)}" if parts else ""))
    return "; ".join(texts)


def token_row(t: TokenCell) -> tuple[str, ...]:
    """Sequences, exact, near tie, undecided, diverged, unjudged, largest margin, bound; a void cell has no figures."""
    if t.verdict is Verdict.VOID:
        return (DASH,) * 7 + (f"{t.bound_nats:g}",)
    counts = (t.sequences, t.exact, t.near_tie, t.undecided, t.diverged, t.unjudged)
    return (*map(str, counts), number(t.max_margin_nats, 3), bounds_text(bounds_of(t)))


def token_text(tokens: Sequence[TokenCell]) -> str:
    """One line over the concurrencies that are not void."""
    valid = [t for t in tokens if t.verdict is not Verdict.VOID]
    if not valid:
        return "not validly compared" if tokens else "not compared"
    sums = {name: sum(getattr(t, name) for t in valid) for name in ("sequences", "exact", "near_tie", "diverged")}
    parts = [f"{sums['exact']} of {counted(sums['sequences'], 'sequence')} exact"]
    margins = [t.max_margin_nats for t in valid if t.max_margin_nats is not None]
    if sums["near_tie"]:
        parts.append(f"{counted(sums['near_tie'], 'near tie')} by the oracle's own log-probs")
    if undecided := sum(t.undecided for t in valid):
        parts.append(f"{undecided} undecided by themselves{_noise_text(valid)}")
    parts += [f"{sums['diverged']} diverged", f"{sum(t.unjudged for t in valid)} unjudged"]
    bounds = [bound for t in valid for bound in bounds_of(t)]
    said = bounds_text((min(bounds), max(bounds)))
    worst = f"; largest margin {number(max(margins), 3)} nats, bound {said}" if margins else ""
    # Only the margins can say so: a checkpoint does not tell what its weights are.
    random = "; so many ties are what random weights give, as synthetic checkpoints have" if _mostly_ties(sums) else ""
    return ", ".join(parts) + worst + random


def bounds_of(t: TokenCell) -> tuple[float, float]:
    """Smallest and largest bound of its prompts."""
    return applied(t.bound_nats, t.near_nats, t.sequences, t.own)


def _noise_text(tokens: Sequence[TokenCell]) -> str:
    """Of all levels together."""
    found = next((t.run_noise for t in tokens if t.run_noise is not None), None)
    if found is None:
        return ""
    bulk, tail = interval_text(found.bulk), interval_text(found.tail)
    return f"; by the mean gap {bulk}, by the largest {tail} times as noisy as the oracle's own"


def _mostly_ties(sums: dict[str, int]) -> bool:
    """More than half of the sequences part at a near tie, and none where the oracle was decided."""
    return 2 * sums["near_tie"] > sums["sequences"] and not sums["diverged"]


def token_verdict(tokens: Sequence[TokenCell]) -> Verdict:
    """The worst of all concurrencies, in the grid's order of precedence."""
    found = {t.verdict for t in tokens}
    for verdict in (Verdict.FAIL, Verdict.VOID, Verdict.INCONCLUSIVE):
        if verdict in found:
            return verdict
    return Verdict.PASS if found else Verdict.INCONCLUSIVE


def token_verdict_text(tokens: Sequence[TokenCell]) -> str:
    """`PASS`, or `VOID at c4`: the worst verdict and where it is."""
    worst = token_verdict(tokens)
    where = ", ".join(f"c{t.concurrency}" for t in tokens if t.verdict is worst)
    return worst.value if worst is Verdict.PASS or not where else f"{worst} at {where}"


def noise_text(report: Report) -> str:
    """Whose noise the intervals rest on; a part of the prior may be assumed all the same, which does not bind."""
    prior = "prior assumed"
    if report.band is not None:
        prior = f"prior of band {report.band.band_id[:12]}, {counted(report.band.gates, 'A/A gate')} of this host"
    return prior if report.looks == 1 else f"{prior}; {looks_text(report)}"


def looks_text(report: Report) -> str:
    """`2 of 2 looks at c1, c4`, where extra blocks were declared."""
    taken = sorted({cell.concurrency for cell in report.cells if cell.looks > 1})
    if not taken:
        return f"1 of {report.looks} looks"
    return f"{report.looks} of {report.looks} looks at {', '.join(f'c{c}' for c in taken)}"


def capacity_text(report: Report) -> str | None:
    """KV capacity of both arms; None where neither says."""
    arms = (("candidate", report.candidate), ("oracle", report.oracle))
    if all(arm.kv_capacity_tokens is None for _, arm in arms):
        return None
    return ", ".join(
        f"{name} {text(Capacity(arm.kv_capacity_tokens, arm.kv_capacity_is_bound), arm.kv_cache_dtype)}"
        for name, arm in arms
    )


def start_text(report: Report) -> str | None:
    """Each arm's last start, with the page cache it found; None where none was recorded."""
    told = [
        f"{name} {duration(seconds(last.spawn_ns, last.ready_ns))} to ready, its port open after "
        f"{duration(seconds(last.spawn_ns, last.port_open_ns))}, checkpoint {_cache(last)}"
        for name, arm in (("candidate", report.candidate), ("oracle", report.oracle))
        for last in arm.starts[-1:]
    ]
    return "; ".join(told) or None


def _cache(start: StartRow) -> str:
    """`cold`, `warm`, or `partly in the page cache (97.2 %)`."""
    if start.page_cache != "partly" or not start.checkpoint_files_bytes:
        return start.page_cache or "not looked at"
    return (
        f"partly in the page cache ({percent((start.checkpoint_resident_bytes or 0) / start.checkpoint_files_bytes)})"
    )


def seconds(since_ns: int, until_ns: int | None) -> float | None:
    return None if until_ns is None else (until_ns - since_ns) / 1e9


def client_text(report: Report) -> str:
    if report.client is None:
        return "not measured"
    c = report.client
    streams = "" if c.streams is None else f" at {counted(c.streams, 'stream')}"
    return f"{number(c.cpu_us_per_event, 3)} µs CPU per event, skew p50 {number(c.skew_p50_ms, 2)} ms{streams}"


@dataclass(frozen=True, slots=True)
class Why:
    """One reason code, and the cells of which its message is true."""

    code: str
    message: str
    """Of the leg farthest beyond its limit, with the number of legs; where no number decided, the first one."""
    hint: str
    cells: tuple[str, ...]
    """`c8 TPOT median`, in report order."""

    def where(self, most: int = 3) -> str:
        shown = ", ".join(self.cells[:most])
        return shown if len(self.cells) <= most else f"{shown} and {len(self.cells) - most} more"

    def text(self) -> str:
        return f"{self.where()}: {self.message}; {self.hint}"


def reasons(report: Report) -> tuple[Why, ...]:
    """Why primary cells and tokens are not PASS, by code in report order. Of a code each cell is told its own worst
    reason, and cells are together where that is the same one: another leg or another latency voids none of them."""
    found: dict[str, dict[str, list[Reason]]] = {}
    for cell in report.cells:
        if cell.primary and cell.verdict is not Verdict.PASS:
            title = f"c{cell.concurrency} {axis_title(cell.axis, cell.unit).rsplit(' ', 1)[0]}"
            for reason in cell.reasons:
                found.setdefault(reason.code, {}).setdefault(title, []).append(reason)
    for tokens in report.tokens:
        for reason in tokens.reasons:
            found.setdefault(reason.code, {}).setdefault(f"c{tokens.concurrency} tokens", []).append(reason)
    return tuple(why for code, cells in found.items() for why in _by_worst(code, cells))


def briefly(whys: Sequence[Why], most: int = 3) -> Iterator[tuple[str, str]]:
    """(code, text), at most so many of a code: the pages have them all."""
    for code in dict.fromkeys(why.code for why in whys):
        same = [why for why in whys if why.code == code]
        yield from ((code, why.text()) for why in same[:most])
        if rest := sum(len(why.cells) for why in same[most:]):
            yield code, f"{counted(rest, 'more cell')} by other figures: report.html and report.md have them"


def _by_worst(code: str, cells: Mapping[str, Sequence[Reason]]) -> Iterator[Why]:
    """One for each reason that is the worst of some cell, the farthest beyond its limit first."""
    together: dict[tuple[str, str], list[str]] = {}
    worst_of = {title: max(said, key=lambda reason: reason.beyond or 0.0) for title, said in cells.items()}
    for title in sorted(cells, key=lambda title: -(worst_of[title].beyond or 0.0)):
        worst, said = worst_of[title], cells[title]
        legs = {reason.leg_id for reason in said if reason.leg_id is not None}
        more = f" (the {'worst' if worst.beyond else 'first'} of {len(legs)} legs)" if len(legs) > 1 else ""
        together.setdefault((worst.message + more, worst.hint), []).append(title)
    for (message, hint), titles in together.items():
        yield Why(code, message, hint, tuple(titles))
