"""One choice of a response: what its engine deliveries mean in text, tokens and finish. Pure; knows no HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.batch import Delivery, TokenLogprobs
from engine.request import FinishReason, Request
from engine.server.text import Detokenizer, StopStrings


@dataclass(frozen=True, slots=True)
class Piece:
    """What one delivery adds to a choice. `text` may be empty where characters or a stop string are incomplete."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for end-of-sequence and length."""
    error: str | None = None


@dataclass(slots=True)
class Choice:
    """Created by a route, advanced by its session alone."""

    index: int
    request: Request
    detokenizer: Detokenizer
    stops: StopStrings | None = None
    include_stop: bool = False
    prompt_index: int = 0
    """Which of the body's prompts it continues."""
    prompt_only: bool = False
    """`max_tokens` 0: one token is generated because the prompt must be run, and thrown away."""
    echo: str | None = None
    """The prompt's text where it belongs to the answer."""

    tokens: int = 0
    """Output tokens so far; what usage counts."""
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finished: bool = False

    def advance(self, delivery: Delivery) -> Piece | None:
        """None where there is nothing to send: a prefill chunk, or anything after the end."""
        if self.finished:
            return None
        self.prompt_logprobs.extend(delivery.prompt_logprobs)
        reason = delivery.finish_reason
        if reason is None and not delivery.token_ids:
            return None
        if reason in (FinishReason.ERROR, FinishReason.ABORT):
            self.finished = True
            return Piece("", (), finish_reason=reason.value, error=delivery.error)
        if self.prompt_only:
            self.finished = True
            return Piece("", (), finish_reason=FinishReason.LENGTH.value)
        return self._text(delivery)

    def _text(self, delivery: Delivery) -> Piece:
        out: list[str] = []
        ids, reason = delivery.token_ids, delivery.finish_reason
        stopped = reason is FinishReason.STOP
        for position, token_id in enumerate(ids):
            self.tokens += 1
            # A token that ended the sequence (end-of-sequence, stop id) is counted and listed, but is no text.
            hidden = stopped and position == len(ids) - 1 and not self.include_stop
            hit = self._take("" if hidden else self.detokenizer.feed(token_id), out)
            if hit is not None:
                return self._end(out, ids[: position + 1], delivery, FinishReason.STOP, hit)
        if reason is None:
            return Piece("".join(out), ids, delivery.logprobs)
        hit = self._take(self.detokenizer.flush(), out)
        if hit is None and self.stops is not None:
            out.append(self.stops.flush())
        stop_id = ids[-1] if stopped and ids and ids[-1] in self.request.params.stop_token_ids else None
        return self._end(out, ids, delivery, FinishReason.STOP if hit else reason, hit or stop_id)

    def _take(self, text: str, out: list[str]) -> str | None:
        """Append what may be sent; return the stop string if one was completed."""
        if self.stops is None:
            out.append(text)
            return None
        if self.tokens <= self.request.params.min_tokens:
            out.append(text)
            return None
        emitted, hit = self.stops.feed(text)
        out.append(emitted)
        return hit

    def _end(
        self,
        out: list[str],
        ids: tuple[int, ...],
        delivery: Delivery,
        reason: FinishReason,
        stop_reason: str | int | None,
    ) -> Piece:
        self.finished = True
        return Piece("".join(out), ids, delivery.logprobs[: len(ids)], reason.value, stop_reason)
