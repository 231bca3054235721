"""8 The oracle by its own measure, as text: what the token tables of every printer show beside the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gate.observe.rows import Verdict
from gate.report.model import Interval, Noise, OwnSpread, TokenCell
from gate.tokens.own import EDGES_NATS
from gate.units import DASH, counted, number, ratio

OWN_HEAD = (
    "conc",
    "agrees with itself",
    "own answers",
    "positions",
    "own gap",
    *(f"≤ {edge:g}" for edge in EDGES_NATS),
)
OWN_NOTE = (
    "Agrees with itself: prompts on which all its untimed runs are equal. Own gap: the largest gap in nats of ids that "
    "it generated itself. ≤ x: positions at which its lead over the next token is at most x nats, cumulative."
)

NOISE_HEAD = ("conc", "sequences", "own answers", "by the mean gap", "by the largest gap")
NOISE_NOTE = (
    "Noise: the candidate's beside the oracle's own of the whole run, with its 95 % interval; 1 is equally noisy. It "
    "decides where sequences are undecided by themselves: PASS up to 1.41, FAIL above 2."
)

BOUNDS_NOTE = (
    "Each prompt has a bound of its own: the smaller one, or, where the oracle's own runs of it differ, the larger. A "
    "sequence is undecided where a gap of it is above that of its prompt, be it below the larger one."
)


def applied(floor_nats: float, near_nats: float | None, sequences: int, own: OwnSpread | None) -> tuple[float, float]:
    """Smallest and largest bound of the prompts of a cell.

    near_nats: the largest; None in a report of an earlier version. It is that of every prompt that the oracle answered
    differently, and of those alone.
    """
    largest = floor_nats if near_nats is None else near_nats
    differing = 0 if own is None else own.repeated - own.agreeing
    return (largest if 0 < sequences == differing else floor_nats), largest


def bounds_text(bounds: tuple[float, float]) -> str:
    """`0.25`, or `0.25–0.5` where prompts have different ones."""
    return "–".join(f"{bound:g}" for bound in dict.fromkeys(bounds))


def own_row(own: OwnSpread) -> tuple[str, ...]:
    """Everything after the first column of OWN_HEAD."""
    shown = "outside its top 20" if own.outside_top else number(own.largest_nats, 3)
    edges = map(str, own.undecided) if own.undecided else (DASH,) * len(EDGES_NATS)
    return (
        _share(own.agreeing, own.repeated),
        str(own.sequences),
        str(own.positions),
        shown,
        *edges,
    )


def own_rows(tokens: Iterable[TokenCell]) -> tuple[tuple[str, ...], ...]:
    """One row per concurrency at which the oracle was asked."""
    return tuple((f"c{t.concurrency}", *own_row(t.own)) for t in tokens if t.own is not None)


def noise_rows(tokens: Sequence[TokenCell]) -> tuple[tuple[str, ...], ...]:
    """One row per concurrency, and one for all together; none where no sequence is undecided by itself."""
    if not any(t.undecided and t.verdict is not Verdict.VOID for t in tokens):
        return ()
    found = [(f"c{t.concurrency}", t.noise) for t in tokens if t.verdict is not Verdict.VOID]
    found.append(("all", next((t.run_noise for t in tokens if t.run_noise is not None), None)))
    return tuple((name, *_noise_row(noise)) for name, noise in found if noise is not None)


def _noise_row(noise: Noise) -> tuple[str, ...]:
    counts = (str(noise.candidate_sequences), str(noise.own_sequences))
    return (*counts, interval_text(noise.bulk), interval_text(noise.tail))


def interval_text(found: Interval) -> str:
    return f"{ratio(found.value)} ({ratio(found.low)} to {ratio(found.high)})"


def own_text(tokens: Sequence[TokenCell]) -> str | None:
    """One line over all concurrencies; None where nobody asked."""
    asked = [t.own for t in tokens if t.own is not None]
    if not asked:
        return None
    return summary(asked)


def summary(asked: Sequence[OwnSpread]) -> str:
    repeated, agreeing = sum(o.repeated for o in asked), sum(o.agreeing for o in asked)
    gaps = [o.largest_nats for o in asked if o.largest_nats is not None]
    positions = sum(o.positions for o in asked)
    parts = [f"agrees with itself on {agreeing} of {counted(repeated, 'repeated prompt')}"]
    if gaps:
        parts.append(f"its own ids lie up to {number(max(gaps), 3)} nats off over {counted(positions, 'position')}")
    close = [o.undecided for o in asked if o.undecided]
    if close and positions:
        at = EDGES_NATS.index(0.25)
        parts.append(f"at {sum(c[at] for c in close)} of them it leads by at most 0.25")
    if any(o.outside_top for o in asked):
        parts.append(f"{sum(o.outside_top for o in asked)} outside its own top 20")
    return ", ".join(parts)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" if whole else DASH
