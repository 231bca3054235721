"""Records of the token judgement: untimed answers, and what the oracle thinks of ids that it is given."""

from __future__ import annotations

from typing import Literal

from gate.observe.rows import Arm, Row

Kind = Literal["leg", "long", "churn"]
"""leg: the prompts of a timed leg of `gate run`; long, churn: `gate tokens`."""


class Place(Row):
    """Which prompt: the same in both arms and in every take."""

    kind: Kind
    concurrency: int
    repetition: int
    """Of the leg; of `gate tokens` the number of the seed, from 0."""
    index: int
    """Position in the prompt list."""


class SequenceRow(Row):
    """One untimed answer."""

    kind: Kind
    concurrency: int
    repetition: int
    index: int
    arm: Arm
    take: int
    """Which run of the same prompt, from 0; in `gate run` 0 is the timed one, which is a RequestRow."""
    prompt_sha256: str
    output_tokens: int
    """Ids that were asked for, or after which the stream was cancelled: as many are compared."""
    cancelled: bool = False
    """The client left in the middle, as planned."""
    token_ids: tuple[int, ...] | None = None
    """The first `output_tokens` of them; fewer is a truncated answer. None: the server returns no ids."""
    error: str | None = None

    @property
    def place(self) -> Place:
        return Place(kind=self.kind, concurrency=self.concurrency, repetition=self.repetition, index=self.index)


class ForcedRow(Row):
    """The oracle's opinion of one arm's ids, position by position, each on the prefix that was given.

    The lists have one entry a position, or none at all where there is an error.
    """

    kind: Kind
    concurrency: int
    repetition: int
    index: int
    arm: Arm
    """Whose ids they are."""
    token_ids: tuple[int, ...]
    """As they were given: a row is matched to an answer by its ids, never by place alone."""
    gaps_nats: tuple[float | None, ...] = ()
    """Highest log-prob minus that of the given id; 0: its own choice, or an exact tie. None: outside the top."""
    outside_top: tuple[bool, ...] = ()
    """The given id is not among the oracle's 20 most probable: decided against it, no figure needed."""
    leads_nats: tuple[float | None, ...] = ()
    """Highest log-prob minus the next: how decided the oracle is here; 0 is an exact tie."""
    best_ids: tuple[int, ...] = ()
    """Its own choice; of an exact tie the lowest id."""
    error: str | None = None
    """Why there is no opinion."""

    @property
    def place(self) -> Place:
        return Place(kind=self.kind, concurrency=self.concurrency, repetition=self.repetition, index=self.index)
