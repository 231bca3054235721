"""4 One recorded stream -> its tokens, times, usage and what is wrong with it. Pure; runs after the leg.

The first token is the first event that carries generated tokens. Role-only deltas, empty deltas and usage chunks carry
none. A count that the server did not send is None: never the number asked for, never a re-tokenised text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson

from gate.client import sse
from gate.units import counted

VISIBLE_KEYS = ("content", "tool_calls")
HIDDEN_KEYS = ("reasoning", "reasoning_content")
"""Spellings of the reasoning channel; which one a build uses depends on its parser flag."""

BAD_FINISH = ("error", "abort")
MAX_ID = 2**31 - 1
MAX_COUNT = 2**53
"""Larger ids and counts are no ids and counts; they would not fit into the records either."""


@dataclass(slots=True)
class Stream:
    """What the events said. `error` is the first reason not to believe it."""

    token_times_ns: list[int] = field(default_factory=list)
    """One per token-carrying event: the time of the read that completed it."""
    first_visible_ns: int | None = None
    """First event that carries something other than reasoning."""
    ids_per_event: list[list[int] | None] = field(default_factory=list)
    usage_per_event: list[int | None] = field(default_factory=list)
    """Completion tokens so far, where each token-carrying event has a usage of its own."""
    prompt_token_ids: list[int] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    finish_reason: str | None = None
    saw_done: bool = False
    events: int = 0
    error: str | None = None
    usage_is_last: bool = True
    """False: tokens came after the last usage, so that it is no final count."""

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        if not self.ids_per_event or any(ids is None for ids in self.ids_per_event):
            return None
        return tuple(i for ids in self.ids_per_event for i in ids or ())

    @property
    def tokens_per_event(self) -> tuple[int, ...]:
        """From ids, else from continuous usage, else all 1 when the counts leave no other way; () when unknown."""
        if self.token_ids is not None:
            return tuple(len(ids or ()) for ids in self.ids_per_event)
        if self.usage_per_event and None not in self.usage_per_event:
            counts = [0, *(n or 0 for n in self.usage_per_event)]
            steps = tuple(b - a for a, b in pairwise(counts))
            return steps if min(steps) > 0 else ()
        if self.completion_tokens == len(self.token_times_ns):
            return (1,) * len(self.token_times_ns)
        return ()


def read_stream(chunks: Iterable[tuple[int, bytes]]) -> Stream:
    """Parse (time, body bytes) reads of one response, in order."""
    parser = sse.Parser()
    stream = Stream()
    for now, read in chunks:
        for event in parser.feed(read):
            _on_event(stream, now, event)
    if parser.pending and stream.events:
        _fail(stream, "stream ended inside an event")
    _judge(stream)
    return stream


def _on_event(stream: Stream, now: int, event: sse.Event) -> None:
    stream.events += 1
    if event.data.strip() == "[DONE]":
        stream.saw_done = True
        return
    try:
        chunk = orjson.loads(event.data)
    except orjson.JSONDecodeError:
        _fail(stream, f"event {stream.events} is not JSON: {event.data[:60]!r}")
        return
    if not isinstance(chunk, dict):
        _fail(stream, f"event {stream.events} is not a JSON object: {event.data[:60]!r}")
        return
    if stream.saw_done:
        _fail(stream, f"event {stream.events} came after [DONE]")
    failure = error_message(chunk)
    if failure is None and event.event == "error":
        failure = " ".join(event.data.split())[:200]
    if failure is not None:
        _fail(stream, f"server error after {counted(len(stream.token_times_ns), 'token event')}: {failure}")
        return
    usage = chunk.get("usage")
    if isinstance(usage, dict):
        _on_usage(stream, usage)
    choices = chunk.get("choices")
    if isinstance(choices, list) and choices:
        _on_choices(stream, now, choices, usage if isinstance(usage, dict) else None)


def _on_choices(stream: Stream, now: int, choices: list[Any], usage: dict[str, Any] | None) -> None:
    choice = choices[0]
    if len(choices) != 1 or not isinstance(choice, dict) or choice.get("index", 0) != 0:
        _fail(stream, f"event {stream.events} has choices other than the one asked for")
        return
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        delta = {"content": choice.get("text")}
    ids = choice.get("token_ids")
    if ids is not None and not _are_ids(ids):
        _fail(stream, f"event {stream.events} has token_ids {str(ids)[:60]}, which are no ids")
        ids = None
    if stream.prompt_token_ids is None and isinstance(choice.get("prompt_token_ids"), list):
        stream.prompt_token_ids = choice["prompt_token_ids"]
    visible = any(delta.get(key) for key in VISIBLE_KEYS)
    if ids or visible or any(delta.get(key) for key in HIDDEN_KEYS):
        if stream.finish_reason is not None:
            _fail(stream, f"event {stream.events} carries tokens after finish_reason {stream.finish_reason!r}")
        stream.token_times_ns.append(now)
        stream.ids_per_event.append(ids or None)
        stream.usage_per_event.append(_count(usage.get("completion_tokens")) if usage else None)
        stream.usage_is_last = usage is not None
        if visible and stream.first_visible_ns is None:
            stream.first_visible_ns = now
    if choice.get("finish_reason") is not None:
        stream.finish_reason = str(choice["finish_reason"])


def _on_usage(stream: Stream, usage: dict[str, Any]) -> None:
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if stream.prompt_tokens not in (None, prompt):
        _fail(stream, f"usage.prompt_tokens changed from {stream.prompt_tokens} to {prompt}")
    if stream.completion_tokens is not None and (completion is None or completion < stream.completion_tokens):
        _fail(stream, f"usage.completion_tokens fell from {stream.completion_tokens} to {completion}")
    stream.prompt_tokens, stream.completion_tokens = prompt, completion
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        stream.cached_prompt_tokens = _count(details.get("cached_tokens"))
    stream.usage_is_last = True


def _judge(stream: Stream) -> None:
    """What only the whole stream can show and the row will not. A missing [DONE], finish_reason or usage, and counts
    that disagree, are in the row for the checks to judge: each has a reason code of its own."""
    if not stream.events:
        _fail(stream, "the body holds no server-sent event")
    if not stream.token_times_ns:
        _fail(
            stream,
            f"no generated token in {stream.events} events; usage.completion_tokens is {stream.completion_tokens}",
        )
    if stream.finish_reason in BAD_FINISH:
        _fail(stream, f"finish_reason is {stream.finish_reason!r}")
    if not stream.usage_is_last and stream.completion_tokens is not None:
        _fail(stream, "usage came before the last token")


def error_message(body: dict[str, Any]) -> str | None:
    """The message of an OpenAI-style error object, None when the object is no error."""
    error = body.get("error")
    if error is None and body.get("object") == "error":
        error = body
    if error is None:
        return None
    message = error.get("message") if isinstance(error, dict) else None
    return " ".join(str(message or error).split())[:200]


def _fail(stream: Stream, error: str) -> None:
    """Keep the first: later ones follow from it."""
    if stream.error is None:
        stream.error = error


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None


def _are_ids(value: object) -> bool:
    # type() and not isinstance(): JSON's true is an int in Python.
    return isinstance(value, list) and all(type(i) is int and 0 <= i <= MAX_ID for i in value)
