"""Simulated legs of one server that works in steps, by how their streams begin. docs/metrics.md quotes the figures.

python -m tests.gate.client.simulate_start        the table; a minute

The server is vLLM's scheduler in outline: first come, first served; prompts fill a step up to its budget of tokens, all
running sequences decode in the same step, and a request that comes during a step waits for its end. An idle server
begins a step with what has come 0.3 to 2 ms after its first request. Its front end takes 0.5 to 1.5 ms and an
exponential 1 ms for each request, one after the other: that is the race. Each step's cost scatters by 0.4 %, a leg's by
0.2 %. These four are assumed. The costs are those of the legs of one run on an H200
(results/h200/20261130T034203Z-qwen3.6-27b-nvfp4-synthetic-abc0c246).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from gate.recipe import Workload

PROMPT, OUTPUT = 1024, 128


@dataclass(frozen=True)
class Costs:
    """Of a step, in ms: `fixed` + `per_prompt` for each prompt of 1,024 tokens, or what decoding of so many takes."""

    fixed: float
    per_prompt: float
    decode: tuple[tuple[int, float], ...]
    budget: int


ORACLE = Costs(8, 134, ((1, 8.93), (2, 9.02), (4, 9.25), (8, 9.8), (16, 11.0), (32, 13.85)), 8192)
CANDIDATE = Costs(25, 78, ((1, 5.97), (2, 6.1), (4, 6.32), (8, 7.03), (16, 8.97), (32, 13.4)), 16384)


@dataclass
class Answer:
    """One timed request, ms."""

    sent: float
    stamps: list[float]

    @property
    def ttft(self) -> float:
        return self.stamps[0] - self.sent

    @property
    def tpot(self) -> float:
        return (self.stamps[-1] - self.stamps[0]) / (len(self.stamps) - 1)


def leg(
    costs: Costs,
    streams: int,
    asked: Sequence[int],
    rng: np.random.Generator,
    *,
    ahead: int = 0,
    think_ms: float = 0.0,
    waves: bool = False,
) -> list[Answer]:
    """The timed requests, in sending order.

    asked: output tokens of each request, of which the first `ahead` are untimed. think_ms: most of a uniform pause
    before each request. waves: nobody sends before all are through.
    """
    levels, times = zip(*costs.decode, strict=True)
    speed = 1 + rng.normal(0, 0.002)
    answers = [Answer(0.0, []) for _ in asked]
    coming: list[tuple[float, int]] = []
    waiting: list[int] = []
    rest: dict[int, int] = {}  # prompt tokens still to be read
    running: dict[int, int] = {}  # output tokens still to come
    order = iter(range(len(asked)))
    now, front = 0.0, 0.0

    def send(at: float) -> None:
        nonlocal front
        place = next(order, None)
        if place is not None:
            answers[place].sent = at = at + rng.uniform(0, think_ms) if think_ms else at
            front = max(at, front) + rng.uniform(0.5, 1.5) + rng.exponential(1.0)
            heapq.heappush(coming, (front, place))

    for stream in range(streams):
        send(0.03 * stream)
    while coming or waiting or rest or running:
        if not (waiting or rest or running):
            now = max(now, coming[0][0]) + rng.uniform(0.3, 2.0)
        while coming and coming[0][0] <= now:
            waiting.append(heapq.heappop(coming)[1])
        room, ready, read = costs.budget - len(running), [], 0
        rest |= dict.fromkeys(waiting, PROMPT)
        waiting.clear()
        for place, left in list(rest.items()):
            take = min(left, room)
            room, read, rest[place] = room - take, read + take, left - take
            if not rest[place]:
                ready.append(place)
                del rest[place]
        cost = np.interp(len(running), levels, times)
        if read:  # the weights are read once for both: decoding adds what more sequences cost
            cost = costs.fixed + costs.per_prompt * read / PROMPT + max(0.0, cost - times[0])
        now += float(cost) * speed * (1 + rng.normal(0, 0.004))
        running |= {place: asked[place] for place in ready}
        done = []
        for place in running:
            answers[place].stamps.append(now)
            running[place] -= 1
            if not running[place]:
                done.append(place)
        for place in done:
            del running[place]
        idle = not (running or rest or coming or waiting)
        for _ in range(streams if waves and idle else 0 if waves else len(done)):
            send(now + 0.1)
    return answers[ahead:]


def together(costs: Costs, streams: int, count: int, rng: np.random.Generator) -> list[Answer]:
    return leg(costs, streams, [OUTPUT] * count, rng)


def barrier(costs: Costs, streams: int, count: int, rng: np.random.Generator) -> list[Answer]:
    return leg(costs, streams, [OUTPUT] * count, rng, waves=True)


def pauses(costs: Costs, streams: int, count: int, rng: np.random.Generator) -> list[Answer]:
    """Up to 60 ms before each request: a mean of 2 to 3 % of what it takes."""
    return leg(costs, streams, [OUTPUT] * count, rng, think_ms=60.0)


def lengths(costs: Costs, streams: int, count: int, rng: np.random.Generator) -> list[Answer]:
    """64 to 192 tokens, evenly spread and shuffled, the same in every leg; after an untimed round of the same kind."""
    shuffle = np.random.default_rng(streams)
    asked = [
        int(one) for n in (streams, count) for one in shuffle.permutation(np.linspace(64, 192, n) if n > 1 else [128])
    ]
    return leg(costs, streams, asked, rng, ahead=streams)


def staggered(costs: Costs, streams: int, count: int, rng: np.random.Generator, output: int = OUTPUT) -> list[Answer]:
    warm = Workload(output_tokens=output, start="staggered").warmup_output_tokens(streams)
    return leg(costs, streams, [*warm, *[output] * count], rng, ahead=streams)


Start = Callable[[Costs, int, int, np.random.Generator], list[Answer]]


def figures(answers: Sequence[Answer]) -> tuple[float, float, float]:
    """Median TTFT and TPOT in ms, output throughput in tok/s."""
    took = max(one.stamps[-1] for one in answers) - min(one.sent for one in answers)
    return (
        float(np.median([one.ttft for one in answers])),
        float(np.median([one.tpot for one in answers])),
        1e3 * sum(len(one.stamps) for one in answers) / took,
    )


def spreads(start: Start, costs: Costs, streams: int, count: int, runs: int, seed: int = 0) -> np.ndarray:
    """[runs, 3] of (max − min) / median over three legs."""
    rng = np.random.default_rng(seed)
    legs = np.array([[figures(start(costs, streams, count, rng)) for _ in range(3)] for _ in range(runs)])
    return np.ptp(legs, axis=1) / np.median(legs, axis=1)


def in_flight(answers: Sequence[Answer]) -> int:
    changes = sorted([(one.sent, 1) for one in answers] + [(one.stamps[-1], -1) for one in answers])
    return max(accumulate(change for _, change in changes))


def main(runs: int = 100) -> None:
    for name, costs in (("oracle", ORACLE), ("candidate", CANDIDATE)):
        for streams in (1, 2, 4, 8, 16, 32):
            for start in (together, barrier, pauses, lengths, staggered):
                count = streams * max(2, -(-8 // streams))
                found = spreads(start, costs, streams, count, runs)
                answers = start(costs, streams, count, np.random.default_rng(0))
                kept = " ".join(f"{share:4.0%}" for share in (found <= 0.05).mean(axis=0))
                wide = " ".join(f"{share:6.1%}" for share in np.percentile(found, 90, axis=0))
                ttft, tpot, rate = figures(answers)
                print(
                    f"{name:9} c{streams:<2} {count:2} {start.__name__:9} TTFT, TPOT, tok/s within 5 %: {kept}; "
                    f"p90 of the spread: {wide}; one leg: {ttft:.0f} ms {tpot:.2f} ms {rate:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
