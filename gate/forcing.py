"""4 Asks for opinions of ids: the oracle's of given ones, a server's of those it generates. One sequence at a time, so
that no batch changes the answer; untimed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import httpx

from gate.errors import ArmError
from gate.observe import control
from gate.observe.rows import Arm
from gate.observe.tokenrows import ForcedRow, Place
from oracle.capture import decoded, teacher_forced

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

    def watch(self, question: Question, count: int) -> ForcedRow:
        """`count` tokens that the server generates after the prompt, each by the log-probs of its own step."""
        try:
            positions = decoded(self._client, self._model, question.prompt, count)
        except (ArmError, httpx.HTTPError) as error:
            return row(question, (), " ".join(str(error).split()) or type(error).__name__)
        answered = replace(question, output=tuple(one.token_id for one in positions))
        return row(answered, positions)

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
