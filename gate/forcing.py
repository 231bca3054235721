"""4 Sends given ids back to the oracle and records its opinion of each: one sequence at a time, so that no batch
changes the answer; untimed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from gate.errors import ArmError
from gate.observe import control
from gate.observe.rows import Arm
from gate.observe.tokenrows import ForcedRow, Place
from oracle.capture import teacher_forced

if TYPE_CHECKING:
    from oracle.capture import Position


@dataclass(frozen=True, slots=True)
class Question:
    """One answer to be judged."""

    place: Place
    arm: Arm
    """Whose answer it is."""
    prompt: tuple[int, ...]
    output: tuple[int, ...]


class Asker:
    """`with Asker(url, model, timeout_s) as asker: rows = [asker.ask(question) …]`"""

    def __init__(self, url: str, model: str, timeout_s: float) -> None:
        self._client = control.client(url, timeout_s)
        self._model = model

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, question: Question) -> ForcedRow:
        """Its opinion of every position, or why there is none; never part of one."""
        try:
            positions = teacher_forced(self._client, self._model, question.prompt, question.output)
        except (ArmError, httpx.HTTPError) as error:
            return row(question, (), " ".join(str(error).split()) or type(error).__name__)
        return row(question, positions)

    def until(self, questions: Iterable[Question], deadline: float | None) -> Iterator[ForcedRow]:
        """In order, until time.monotonic() passes the deadline; None is no deadline."""
        for question in questions:
            if deadline is not None and time.monotonic() >= deadline:
                return
            yield self.ask(question)


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
