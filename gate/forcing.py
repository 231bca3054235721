"""4 Asks for opinions of ids: the oracle's of given ones, a server's of those it generates. Untimed.

Given ids go out with a bounded number of requests in flight: the server prefills them together, and its next prefill
does not wait until the last answer is JSON. Which sequences share a step then depends on arrival, and so may the last
bit of the oracle's numbers; docs/verdict.md, step 7, says why that is accepted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import httpx

from gate.client import eventloop
from gate.errors import ArmError
from gate.observe import control
from gate.observe.rows import Arm
from gate.observe.tokenrows import ForcedRow, Place
from oracle.capture import PATH, decoded, forced_body, forced_positions

if TYPE_CHECKING:
    from oracle.capture import Position

IN_FLIGHT = 8
"""Requests at once: seven sequences of 1,152 fill vLLM's prefill batch of 8,192 tokens, and one more waits. vLLM for
a CPU with two cores took 0.14 s for each of 24 sequences of 176, one at a time 0.28 s, with the same gaps to the last
bit."""


@dataclass(frozen=True, slots=True)
class Question:
    """One answer to be judged."""

    place: Place
    arm: Arm
    """Whose answer it is."""
    prompt: tuple[int, ...]
    output: tuple[int, ...]


class Asker:
    """`with Asker(url, model, timeout_s) as asker: rows = asker.answers(questions)`"""

    def __init__(self, url: str, model: str, timeout_s: float, in_flight: int = IN_FLIGHT) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._client = control.client(url, timeout_s)
        self._model = model
        self._in_flight = in_flight

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def answers(self, questions: Sequence[Question], deadline: float | None = None) -> list[ForcedRow]:
        """Opinions in the order of the questions; each whole, or the reason why there is none.

        A question that is not sent before time.monotonic() passes the deadline has no row: the first ones have. None is
        no deadline. Equal ids after equal prompts are sent once. Runs an event loop of its own; Ctrl-C closes the
        connections, which makes the server drop the requests, and raises KeyboardInterrupt.
        """
        different: dict[tuple[tuple[int, ...], tuple[int, ...]], Question] = {}
        for one in questions:
            different.setdefault((one.prompt, one.output), one)
        told = eventloop.run(lambda: self._all(list(different.values()), deadline))
        known = dict(zip(different, told, strict=False))
        return [
            known[one.prompt, one.output].model_copy(update={**one.place.model_dump(), "arm": one.arm})
            for one in questions
            if (one.prompt, one.output) in known
        ]

    def watch(self, question: Question, count: int) -> ForcedRow:
        """`count` tokens that the server generates after the prompt, each by the log-probs of its own step."""
        try:
            positions = decoded(self._client, self._model, question.prompt, count)
        except (ArmError, httpx.HTTPError) as error:
            return row(question, (), _reason(error))
        answered = replace(question, output=tuple(one.token_id for one in positions))
        return row(answered, positions)

    async def _all(self, questions: Sequence[Question], deadline: float | None) -> list[ForcedRow]:
        """Of the first ones, as many as were sent in time."""
        rows: dict[int, ForcedRow] = {}
        waiting = iter(enumerate(questions))

        async def worker() -> None:
            for at, question in waiting:
                if deadline is not None and time.monotonic() >= deadline:
                    return
                rows[at] = await self._ask(client, question)

        async with control.async_client(self._url, self._timeout_s) as client, asyncio.TaskGroup() as group:
            for _ in range(min(self._in_flight, len(questions))):
                group.create_task(worker())
        return [rows[at] for at in sorted(rows)]

    async def _ask(self, client: httpx.AsyncClient, question: Question) -> ForcedRow:
        try:
            answer = await client.post(PATH, json=forced_body(self._model, question.prompt, question.output))
            positions = forced_positions(answer.status_code, answer.content, question.prompt, question.output)
        except (ArmError, httpx.HTTPError) as error:
            return row(question, (), _reason(error))
        return row(question, positions)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def row(question: Question, positions: tuple[Position, ...], error: str | None = None) -> ForcedRow:
    return ForcedRow(
        **question.place.model_dump(),
        arm=question.arm,
        token_ids=question.output,
        gaps_nats=tuple(one.gap_nats for one in positions),
        outside_top=tuple(one.outside_top for one in positions),
        leads_nats=tuple(one.lead_nats for one in positions),
        best_ids=tuple(one.top_ids[0] for one in positions),
        error=error,
    )
