"""Token cells resampled from recorded gaps (data/gaps_h200.json) -> how often each verdict comes out.

`python -m tests.gate.tokens.simulate_noise` prints the rows of which docs/verdict.md quotes some.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gate.tokens.marks import Bounds, Mark, bounds, mark
from gate.tokens.noise import Figures, Loud, loud, of_figures

RECORD = json.loads((Path(__file__).parent / "data" / "gaps_h200.json").read_text(encoding="utf-8"))
FLOOR = 0.25
LEVELS = (6, 12, 24, 48, 96, 192)
"""Sequences of the candidate at c1 to c32, as they were."""

Gaps = tuple[float, ...]
"""The gaps above 0 of one sequence, nats."""


def sequences(arm: str) -> list[Gaps]:
    """All concurrencies together."""
    words = [word for level in RECORD[arm].values() for word in level.split()]
    return [
        tuple(RECORD["step_nats"] * step for step, digit in enumerate(word, 1) for _ in range(int(digit, 36)))
        for word in words
    ]


OWN, CANDIDATE = sequences("oracle"), sequences("candidate")

Engine = Callable[[random.Random], Gaps]


def louder(times: float) -> Engine:
    """The oracle's own noise, `times` as large: gaps so many times larger, at so many times as many positions."""

    def draw(rng: random.Random) -> Gaps:
        whole = [gap * times for _ in range(int(times)) for gap in rng.choice(OWN)]
        rest = [gap * times for gap in rng.choice(OWN) if rng.random() < times - int(times)]
        return (*whole, *rest)

    return draw


def recorded(rng: random.Random) -> Gaps:
    return rng.choice(CANDIDATE)


def with_fault(gap_nats: float, share: float) -> Engine:
    """As noisy as the oracle, and one wrong position in so many of its sequences."""

    def draw(rng: random.Random) -> Gaps:
        return (*rng.choice(OWN), *((gap_nats,) if rng.random() < share else ()))

    return draw


def figures(gaps: Gaps) -> Figures:
    return sum(gaps) / RECORD["positions"], max(gaps, default=0.0)


def verdict(candidate: list[Gaps], own: list[Gaps], everyone: list[Gaps]) -> str:
    """Of one cell, as gate/tokens/compare.py and gate/verdict.py come to it."""
    limits: Bounds = bounds(FLOOR, max((max(gaps, default=0.0) for gaps in own), default=None), 0, None)
    marks = {mark(gap, limits) for gaps in candidate for gap in gaps}
    if Mark.WRONG in marks:
        return "FAIL"
    if Mark.UNDECIDED not in marks:
        return "PASS"
    theirs = [figures(gaps) for gaps in own]
    level = of_figures([figures(gaps) for gaps in candidate], theirs)
    if level is None:
        return "INCONCLUSIVE"
    judged = loud(level, of_figures([figures(gaps) for gaps in everyone], theirs))
    return {Loud.YES: "FAIL", Loud.NO: "PASS", Loud.UNKNOWN: "INCONCLUSIVE"}[judged]


def run(engine: Engine, own: int, rng: random.Random, levels: tuple[int, ...] = LEVELS) -> list[str]:
    """Verdicts of one simulated run's cells, its bounds from `own` sequences of the oracle's."""
    theirs = [rng.choice(OWN) for _ in range(own)]
    cells = [[engine(rng) for _ in range(count)] for count in levels]
    everyone = [gaps for cell in cells for gaps in cell]
    return [verdict(cell, theirs, everyone) for cell in cells]


def rates(engine: Engine, own: int, runs: int, seed: int = 0) -> tuple[Counter[str], Counter[str]]:
    """Of cells, and of whole runs: FAIL before INCONCLUSIVE before PASS."""
    rng = random.Random(seed)
    cells: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for _ in range(runs):
        found = run(engine, own, rng)
        cells.update(found)
        whole[next(one for one in ("FAIL", "INCONCLUSIVE", "PASS") if one in found)] += 1
    return cells, whole


ENGINES: dict[str, Engine] = {
    "the oracle's own noise": louder(1.0),
    "1.2 times": louder(1.2),
    "1.4 times, the limit": louder(1.4),
    "1.7 times": louder(1.7),
    "2 times": louder(2.0),
    "2.5 times": louder(2.5),
    "3 times": louder(3.0),
    "our engine, as recorded": recorded,
    "a position 0.5 nats off in each sequence": with_fault(0.5, 1.0),
    "one position 3 nats off in one sequence of 20": with_fault(3.0, 0.05),
}


def main(runs: int = 500) -> None:
    for own in (378, 128, 59, 15):
        for name, engine in ENGINES.items():
            _, whole = rates(engine, own, runs)
            shares = [f"{100 * whole[one] / runs:.1f} %" for one in ("PASS", "FAIL", "INCONCLUSIVE")]
            print(f"| {name} | {own} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
