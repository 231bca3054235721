"""4 A script and a request -> the bytes and pauses of the fake server's answer. Pure."""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gate.arm.fake_script import Script

NEWLINES = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
FIRST = -0.1
"""Log-prob of the first choice, wherever one is asked for."""
OUTSIDE = -20.0
"""Of an id outside the top."""


@dataclass(frozen=True, slots=True)
class Step:
    """Wait, then write; `after` says what becomes of the connection."""

    wait_ms: float
    data: bytes
    after: str = "go-on"
    """go-on, end, drop or hang."""


@dataclass(frozen=True, slots=True)
class Query:
    """The part of a request the fake understands."""

    prompt: tuple[int, ...]
    max_tokens: int
    stream: bool
    include_usage: bool
    want_ids: bool
    logprobs: int | None
    chat: bool
    prompt_logprobs: int | None = None
    context: tuple[int, ...] | None = None
    """What is answered instead of the prompt."""
    offsets: tuple[tuple[int, int], ...] = ()
    """Beside the script's own, for this request alone."""

    @staticmethod
    def parse(body: dict[str, Any], chat: bool) -> Query:
        prompt = body.get("prompt", "")
        if chat:
            prompt = json.dumps(body.get("messages", []))
        if isinstance(prompt, str):
            prompt = [zlib.crc32(word.encode()) & 0x7FFFFFFF for word in prompt.split()]
        options = body.get("stream_options") or {}
        return Query(
            prompt=tuple(int(i) for i in prompt),
            max_tokens=int(body.get("max_completion_tokens") or body.get("max_tokens") or 16),
            stream=bool(body.get("stream")),
            include_usage=bool(options.get("include_usage")),
            want_ids=bool(body.get("return_token_ids")),
            logprobs=body.get("logprobs"),
            chat=chat,
            prompt_logprobs=body.get("prompt_logprobs"),
        )


def generate(script: Script, prompt: tuple[int, ...], count: int, offsets: Sequence[tuple[int, int]] = ()) -> list[int]:
    """`count` ids; each is a hash of everything before it, so prompt + a prefix continues the same way."""
    state = zlib.crc32(array("i", prompt).tobytes(), script.salt)
    added = dict((*script.offsets, *offsets))
    if script.diverge_at is not None:
        added.setdefault(script.diverge_at, 1)
    ids = []
    for position in range(count):
        token = (state + added.get(position, 0)) % script.vocab_size
        ids.append(token)
        state = zlib.crc32(array("i", (token,)).tobytes(), state)
    return ids


def text(token: int) -> str:
    """Text of a token: some carry characters of two, three and four bytes, and one that must not end a line."""
    return f" t{token}" + ("", "é", "日", "🙂", "\u2028")[token % 5]


def length_of(script: Script, query: Query) -> int:
    return query.max_tokens if script.output_limit is None else min(query.max_tokens, script.output_limit)


def stream_steps(script: Script, query: Query, faulty: bool, factor: float) -> Iterator[Step]:
    """The event stream, body bytes only; pauses already multiplied by `factor`."""
    fault = script.fault if faulty else "none"
    ids = _ids(script, query)
    wait_ms = factor * (script.prefill_ms + script.prefill_us_per_token * len(query.prompt) / 1000)
    if fault == "garbage":
        yield Step(wait_ms, b"\x00\xff garbage \xfe" * 64, "end")
        return
    head = []
    if script.role_first:
        head.append(_frame(script, _chunk(script, query, [], role=True)))
    if script.usage == "early":
        head.append(_frame(script, _chunk(script, query, None, usage=_usage(script, query, len(ids)))))
    if head:
        yield Step(0.0, b"".join(head))
    sent = 0
    for data, carried in _token_frames(script, query, ids):
        if fault != "none" and fault != "no-done" and sent >= script.fault_after_tokens:
            break
        sent += carried
        yield Step(wait_ms, data)
        wait_ms = factor * script.token_ms * carried
    if fault == "error-event":
        error = {"error": {"message": "scripted failure", "type": "InternalServerError", "code": 500}}
        yield Step(wait_ms, _frame(script, error) + _frame(script, "[DONE]"), "end")
    elif fault in ("drop", "hang"):
        yield Step(wait_ms, b"", fault)
    else:
        yield Step(0.0, _ending(script, query, len(ids), fault == "no-done"), "end")


def whole(script: Script, query: Query) -> dict[str, Any]:
    """Answer to a request without `stream`, with logprobs where asked."""
    ids = _ids(script, query)
    choice: dict[str, Any] = {"index": 0, "text": "".join(map(text, ids)), "finish_reason": _finish(script, query)}
    if query.chat:
        choice["message"] = {"role": "assistant", "content": choice.pop("text")}
    if query.want_ids and script.token_ids:
        choice["token_ids"] = ids
        choice["prompt_token_ids"] = list(query.prompt)
    if query.logprobs is not None and not query.chat:
        choice["logprobs"] = _logprobs(script, query.prompt, ids, query.logprobs)
    if query.prompt_logprobs is not None and script.prompt_logprobs != "missing":
        choice["prompt_logprobs"] = _prompt_logprobs(script, query.prompt, query.prompt_logprobs)
    return {
        "id": "cmpl-fake",
        "object": "chat.completion" if query.chat else "text_completion",
        "created": 0,
        "model": script.model,
        "choices": [choice],
        "usage": _usage(script, query, len(ids)),
    }


def _ids(script: Script, query: Query) -> list[int]:
    prompt = query.prompt if query.context is None else query.context
    return generate(script, prompt, length_of(script, query), query.offsets)


def _token_frames(script: Script, query: Query, ids: list[int]) -> Iterator[tuple[bytes, int]]:
    at = event = 0
    while at < len(ids):
        carried = ids[at : at + script.tokens_per_event[event % len(script.tokens_per_event)]]
        last = at + len(carried) == len(ids)
        usage = None
        if script.usage == "continuous" or (script.usage == "last-choice" and last):
            usage = _usage(script, query, at + len(carried))
        chunk = _chunk(script, query, carried, usage=usage, first=at == 0, last=last)
        yield _frame(script, chunk), len(carried)
        at += len(carried)
        event += 1


def _ending(script: Script, query: Query, count: int, no_done: bool) -> bytes:
    usage = _frame(script, _chunk(script, query, None, usage=_usage(script, query, count)))
    done = b"" if no_done else _frame(script, "[DONE]")
    if not query.include_usage or script.usage in ("missing", "early", "last-choice"):
        return done
    if script.usage == "late":
        return done + usage
    return (usage * 2 if script.usage == "twice" else usage) + done


def _chunk(
    script: Script,
    query: Query,
    ids: list[int] | None,
    *,
    usage: dict[str, Any] | None = None,
    role: bool = False,
    first: bool = False,
    last: bool = False,
) -> dict[str, Any]:
    """One event's object; `ids` None is a usage chunk, whose `choices` is empty."""
    choices = []
    if ids is not None:
        choice: dict[str, Any] = {"index": 0, "finish_reason": _finish(script, query) if last else None}
        said = "".join(map(text, ids))
        if query.chat:
            channel = script.channel if first else "content"
            choice["delta"] = {"role": "assistant", "content": ""} if role else {channel: said}
        else:
            choice["text"] = said
        if query.want_ids and script.token_ids:
            choice["token_ids"] = ids
            choice["prompt_token_ids"] = list(query.prompt) if first else None
        choices.append(choice)
    kind = "chat.completion.chunk" if query.chat else "text_completion"
    chunk = {"id": "cmpl-fake", "object": kind, "created": 0, "model": script.model, "choices": choices}
    return {**chunk, "usage": usage} if usage else chunk


def _usage(script: Script, query: Query, completion: int) -> dict[str, Any]:
    prompt = len(query.prompt) + script.prompt_tokens_offset
    completion += script.completion_tokens_offset
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _finish(script: Script, query: Query) -> str:
    return "length" if length_of(script, query) == query.max_tokens else "stop"


def _logprobs(script: Script, prompt: tuple[int, ...], ids: list[int], count: int) -> dict[str, Any]:
    """vLLM's completions shape; names are `token_id:N`, which is what it says with return_tokens_as_token_ids."""
    rows = _rows(script, (*prompt, *ids), count)[-len(ids) :]
    tops = [{f"token_id:{i}": entry["logprob"] for i, entry in row.items()} for row in rows]
    return {
        "tokens": [f"token_id:{i}" for i in ids],
        "token_logprobs": [row[str(i)]["logprob"] for i, row in zip(ids, rows, strict=True)],
        "top_logprobs": tops,
        "text_offset": [0] * len(ids),
    }


def _top(script: Script, chosen: int, count: int) -> dict[int, float]:
    """The first choice, the id after it, and so on upwards: `count` ids with their log-probs."""
    later = script.margin_nats if script.decided_nats is None else script.decided_nats
    behind = [0.0, script.margin_nats, *[later] * max(count - 2, 0)][: min(max(count, 1), script.vocab_size)]
    return {(chosen + i) % script.vocab_size: FIRST - nats for i, nats in enumerate(behind)}


def _rows(script: Script, context: tuple[int, ...], count: int) -> list[dict[str, dict[str, Any]]]:
    """For each id but the first: the top and, outside it, the id itself with its rank; without their fault."""
    rows = []
    state = zlib.crc32(array("i", context[:1]).tobytes(), script.salt)
    for given in context[1:]:
        chosen = state % script.vocab_size
        state = zlib.crc32(array("i", (given,)).tobytes(), state)
        top = _top(script, chosen, count)
        values = {**top, given: top.get(given, OUTSIDE)}
        rows.append(
            {
                str(i): {"logprob": v, "rank": (i - chosen) % script.vocab_size + 1, "decoded_token": text(i)}
                for i, v in values.items()
            }
        )
    return rows


def _prompt_logprobs(script: Script, prompt: tuple[int, ...], count: int) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's shape, null for the first id; spoilt as the script says."""
    rows: list[dict[str, dict[str, Any]] | None] = [None]
    for given, row in zip(prompt[1:], _rows(script, prompt, count), strict=True):
        if script.prompt_logprobs in ("nan", "null"):
            row[str(given)]["logprob"] = float("nan") if script.prompt_logprobs == "nan" else None
        if script.prompt_logprobs == "other-ids":
            row = {str(int(name) + script.vocab_size): entry for name, entry in row.items()}
        rows.append(row)
    return rows[:-1] if script.prompt_logprobs == "short" else rows


def _frame(script: Script, payload: dict[str, Any] | str) -> bytes:
    """One event, framed as the script says."""
    newline = NEWLINES[script.newline]
    data = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    comment = b": " + script.comment.encode() + newline if script.comment else b""
    return comment + (b"data: " if script.space_after_colon else b"data:") + data.encode() + newline * 2
