"""What both endpoints' answers share: identity, usage, and which extras were asked for."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import orjson

from engine.server.choice import Choice, Piece
from engine.server.http import event
from engine.server.protocol import SamplingBody

NULL = b"null"


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class Frame:
    """The constant parts of every event of one response, encoded once."""

    def __init__(self, kind: str, answer_id: str, model: str, body: SamplingBody, choices: Sequence[Choice]) -> None:
        self.choices = choices
        self.id, self.model, self.created = answer_id, model, int(time.time())
        options = body.stream_options
        self.include_usage = options is not None and options.include_usage
        self._continuous = options is not None and options.continuous_usage_stats
        self._kind = kind
        head = {"id": self.id, "object": kind, "created": self.created, "model": model}
        self._open = b"data: " + orjson.dumps(head)[:-1]
        self.head = self._open + b',"choices":[{"index":'
        self._tail = b',"usage":null}\n\n' if self.include_usage else b"}\n\n"
        self._started: set[int] = set()
        self._written = 0

    def starts(self, choice: Choice) -> bool:
        """True once per choice: its first event carries what later ones do not."""
        if choice.index in self._started:
            return False
        self._started.add(choice.index)
        return True

    @property
    def usage(self) -> dict[str, int]:
        """A prompt counts once, however many choices it has."""
        prompts = {choice.prompt_index: len(choice.request.prompt_ids) for choice in self.choices}
        return usage(sum(prompts.values()), sum(choice.tokens for choice in self.choices))

    def tail(self, piece: Piece) -> bytes:
        """Closes the event of `piece` after its choices."""
        if not self._continuous:
            return self._tail
        self._written += len(piece.token_ids)  # choices may be ahead: their next pieces wait in the queue
        return b',"usage":' + orjson.dumps(usage(self.usage["prompt_tokens"], self._written)) + b"}\n\n"

    def end(self) -> bytes:
        """The last event before [DONE]: empty choices and the usage, only where it was asked for."""
        if not self.include_usage:
            return b""
        head = {"id": self.id, "object": self._kind, "created": self.created, "model": self.model}
        return event({**head, "choices": [], "usage": self.usage})


def ids_json(token_ids: Sequence[int]) -> bytes:
    return b"[%d]" % token_ids[0] if len(token_ids) == 1 else orjson.dumps(list(token_ids))


def value_json(value: str | int | None) -> bytes:
    return NULL if value is None else orjson.dumps(value)
