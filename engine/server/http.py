"""The two ways an answer leaves: a stream of events, or one body; either way a client that leaves frees its slots."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.batch import TokenLogprobs
from engine.server.choice import Choice, Piece
from engine.server.errors import ApiError, error_object
from engine.server.session import Session

_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Form(Protocol):
    """How one endpoint writes its pieces: completions.py and chat.py."""

    def event(self, choice: Choice, piece: Piece) -> bytes: ...

    def end(self) -> bytes: ...

    def body(self, gathered: list[Gathered]) -> dict[str, object]: ...


@dataclass(slots=True)
class Gathered:
    """A whole choice, for an answer that is not streamed."""

    choice: Choice
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


def json_response(content: object, status: int = 200) -> Response:
    return Response(
        orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), status_code=status, media_type="application/json"
    )


async def read_body(request: HttpRequest, max_bytes: int) -> bytes:
    """Raises ApiError 413 as soon as more than `max_bytes` are announced or have arrived."""
    announced = request.headers.get("content-length", "")
    total, parts = int(announced) if announced.isdecimal() else 0, []
    if total <= max_bytes:
        total = 0
        async for part in request.stream():
            total += len(part)
            if total > max_bytes:
                break
            parts.append(part)
        else:
            return b"".join(parts)
    raise ApiError(f"the body has more than {max_bytes} bytes; send less at once", status=413, code="body_too_large")


def event(content: object) -> bytes:
    return b"data: " + orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"


def failure(piece: Piece) -> ApiError | None:
    """A piece that ends its choice without an answer."""
    if piece.finish_reason == "error":
        return ApiError(piece.error or "the engine failed", status=500, code="engine_error")
    if piece.finish_reason == "abort":
        return ApiError(piece.error or "the request was aborted by the server", status=503, code="aborted")
    return None


class EventStream(Response):
    """Server-sent events, one body message per engine delivery, written the moment it is there."""

    def __init__(self, session: Session, form: Form) -> None:
        super().__init__()
        self._session, self._form = session, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async with watched(self._session, receive):
            await send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
            async for choice, piece in self._session:
                body = self._form.event(choice, piece)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            last = self._form.end()
            if self._session.gone:
                last = event(error_object(ApiError("the server is shutting down", status=503, code="aborted")))
            await send({"type": "http.response.body", "body": last + b"data: [DONE]\n\n", "more_body": False})


async def collect(session: Session, form: Form, receive: Receive) -> Response:
    """Everything at once. Raises ApiError 500 or 503 where a choice failed."""
    gathered = [Gathered(choice) for choice in session.choices]
    async with watched(session, receive):
        async for choice, piece in session:
            if (error := failure(piece)) is not None:
                raise error
            whole = gathered[choice.index]
            whole.text.append(piece.text)
            whole.token_ids.extend(piece.token_ids)
            whole.logprobs.extend(piece.logprobs)
            whole.finish_reason, whole.stop_reason = piece.finish_reason, piece.stop_reason
        if session.gone:
            raise ApiError("the server is shutting down", status=503, code="aborted")
    return json_response(form.body(gathered))


@contextlib.asynccontextmanager
async def watched(session: Session, receive: Receive) -> AsyncIterator[None]:
    """While inside, a disconnect ends the session; on the way out nothing of it is left in the engine."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        session.leave()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        session.close()
