"""4 One connection of the fake server: requests in, answers out, cut, delayed and broken as the script says."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING

from gate.arm.fake_answer import Query, Step, stream_steps, whole

if TYPE_CHECKING:
    from gate.arm.fake import FakeServer


class Connection(asyncio.Protocol):
    """Reads requests one at a time; each answer is a task."""

    def __init__(self, server: FakeServer, tasks: set[asyncio.Task[None]]) -> None:
        self._server, self._tasks = server, tasks
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.transports.add(transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._transport is not None:
            self._server.transports.discard(self._transport)
        if self._task is not None:
            self._server.disconnects += 1
            self._task.cancel()

    def _next(self) -> None:
        if self._task is not None:
            return
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(fields.get("content-length", "0"))
        if len(rest) < length:
            return
        body, self._buffer = rest[:length], rest[length:]
        method, path, _ = first.split(" ", 2)
        self._task = asyncio.get_running_loop().create_task(self._answer(method, path.partition("?")[0], body))
        self._tasks.add(self._task)
        self._task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._task = None
        if task.cancelled():
            return
        if task.exception() is not None:
            self._server.failure = task.exception()
            self._server.stop()
            return
        self._next()

    async def _answer(self, method: str, path: str, body: bytes) -> None:
        if method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            await self._complete(body, chat=path.endswith("/chat/completions"))
        elif method == "GET":
            self._reply(*self._server.get(path))
        else:
            self._reply(405, "application/json", b'{"detail":"Method Not Allowed"}')

    async def _complete(self, body: bytes, chat: bool) -> None:
        server = self._server
        try:
            request = json.loads(body)
            query = Query.parse(request, chat)
        except (ValueError, TypeError, AttributeError) as error:
            self._error(400, f"bad request: {error}")
            return
        if request.get("model") not in (None, server.script.model):
            self._error(404, f"The model `{request['model']}` does not exist.")
            return
        if len(query.prompt) + query.max_tokens > server.script.max_model_len:
            self._error(400, f"maximum context length is {server.script.max_model_len} tokens")
            return
        fault = server.script.fault if server.admit(request) else "none"
        if fault == "http-500":
            self._error(500, "scripted failure")
        elif fault == "no-answer":
            await asyncio.Event().wait()
        elif fault == "not-a-stream" or not query.stream:
            server.prompted += len(query.prompt)
            self._reply(200, "application/json", json.dumps(whole(server.script, query)).encode())
        else:
            if server.script.flaky_at is not None and server.answers_otherwise(query.prompt):
                query = dataclasses.replace(query, offsets=((server.script.flaky_at, 1),))
            await self._stream(query, faulty=fault != "none")

    async def _stream(self, query: Query, faulty: bool) -> None:
        self._server.waiting += 1
        try:
            await self._server.slots.acquire()
        finally:
            self._server.waiting -= 1
        try:
            await self._run(query, faulty)
        finally:
            self._server.slots.release()

    async def _run(self, query: Query, faulty: bool) -> None:
        server, script = self._server, self._server.script
        server.running += 1
        server.peak_running = max(server.peak_running, server.running)
        shared = script.foreign_from_running
        if (
            shared is not None
            and server.running >= shared
            and isinstance(before := server.requests[-2]["prompt"], list)
        ):
            query = dataclasses.replace(query, context=tuple(before))
        server.hits += len(query.prompt) if script.prefix_caching and server.prompted else 0
        server.prompted += len(query.prompt)
        try:
            coding = "Transfer-Encoding: chunked" if script.chunked else "Connection: close"
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n{coding}\r\n\r\n".encode()
            steps = stream_steps(script, query, faulty, server.factor())
            if script.one_write:
                steps = iter([_merged(list(steps))])
            await self._write(head, whole_write=True)
            for step in steps:
                if step.wait_ms:
                    await asyncio.sleep(step.wait_ms / 1000)
                if not await self._step(step):
                    return
            server.generated += query.max_tokens
        finally:
            server.running -= 1

    async def _step(self, step: Step) -> bool:
        """Write one step; whether the stream goes on."""
        chunked = self._server.script.chunked
        assert self._transport is not None
        if step.data:
            await self._write(b"%x\r\n%s\r\n" % (len(step.data), step.data) if chunked else step.data)
        if step.after == "drop":
            self._transport.abort()
        elif step.after == "hang":
            await asyncio.Event().wait()
        elif step.after == "end" and chunked:
            await self._write(b"0\r\n\r\n")
        elif step.after == "end":
            self._transport.close()
        return step.after != "drop"

    async def _write(self, data: bytes, whole_write: bool = False) -> None:
        assert self._transport is not None
        size = self._server.script.cut_bytes
        if size is None or whole_write:
            self._transport.write(data)
            return
        for at in range(0, len(data), size):
            self._transport.write(data[at : at + size])
            await asyncio.sleep(0)  # an event-loop turn, in which the reader mostly sees the piece alone

    def _error(self, status: int, message: str) -> None:
        error = {"error": {"message": message, "type": "scripted", "code": status}}
        self._reply(status, "application/json", json.dumps(error).encode())

    def _reply(self, status: int, content_type: str, body: bytes) -> None:
        assert self._transport is not None
        head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


def _merged(steps: list[Step]) -> Step:
    return Step(sum(s.wait_ms for s in steps), b"".join(s.data for s in steps), steps[-1].after)
