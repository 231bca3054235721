"""4 Sockets -> (time, bytes): the one transport that both arms are timed with.

A raw protocol on uvloop. Each read has the kernel's stamp of its arrival or, where there is none, the loop's time,
taken before anything else touches it. The body bytes are kept, and every other question (events, JSON, tokens) is left
until after the leg. Why not a library: docs/client.md.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import SplitResult, urlsplit

from gate.client import stamped
from gate.client.http1 import BadResponseError, ResponseReader
from gate.client.stamps import Stamper
from gate.errors import UsageError

IDLE_LIMIT_S = 2.0
"""An idle connection older than this is replaced: uvicorn closes its own after 5 s, and a request that races with
that close is lost without an answer."""

CONNECT_TIMEOUT_S = 10.0

MAX_RESPONSE_BYTES = 256 * 2**20
"""Above this a server is streaming garbage."""


@dataclass(slots=True)
class Exchange:
    """What one request got back. Times are perf_counter_ns."""

    sent_ns: int
    status: int | None = None
    content_type: str | None = None
    chunks: list[tuple[int, bytes]] = field(default_factory=list)
    """(time the read's bytes arrived, body bytes in it)."""
    by_loop: int = 0
    """How many of the chunks have the loop's time, since the kernel's was not told or not believed."""
    end_ns: int | None = None
    error: str | None = None


class Connection(asyncio.Protocol):
    """One keep-alive connection that carries one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | stamped.StampedTransport | None = None
        self._exchange: Exchange | None = None
        self._stamper = Stamper(0)
        self._reader = ResponseReader()
        self._done: asyncio.Future[Exchange] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._bytes = 0
        self.idle_since_ns = time.perf_counter_ns()

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._exchange is None

    async def exchange(self, request: bytes, timeout_s: float) -> Exchange:
        """Send a whole request (head and body) and wait for the whole response. Failures are in `Exchange.error`."""
        if not self.usable or self._transport is None:
            raise RuntimeError("connection is closed or busy")
        self._reader, self._bytes = ResponseReader(), 0
        self._done = self._loop.create_future()
        self._timer = self._loop.call_later(timeout_s, self._fail, f"no complete response within {timeout_s:g} s")
        self._exchange = Exchange(sent_ns=time.perf_counter_ns())
        self._stamper = Stamper(self._exchange.sent_ns)
        self._transport.write(request)
        try:
            return await self._done
        finally:
            self._timer.cancel()
            if self._exchange is not None:  # cancelled
                self._exchange = None
                self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def stamped_by_kernel(self, sock: socket.socket) -> None:
        """Read `sock` from now on, which is connected. Without this the loop's own transport is read."""
        self._transport = stamped.StampedTransport(sock, self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is one by behaviour, not by name

    def data_received(self, data: bytes) -> None:
        self.received(data, time.perf_counter_ns(), None)

    def received(self, data: bytes, now_ns: int, arrived_ns: int | None) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()  # bytes nobody asked for: the next response could not be told from them
            return
        now = self._stamper.stamp(now_ns, arrived_ns)
        reader = self._reader
        try:
            body = reader.feed(data)
        except BadResponseError as error:
            self._fail(str(error), now)
            return
        if body:
            exchange.chunks.append((now, body))
            exchange.by_loop += self._stamper.by_loop
            self._bytes += len(body)
            if self._bytes > MAX_RESPONSE_BYTES:
                self._fail(f"response is larger than {MAX_RESPONSE_BYTES} bytes", now)
                return
        if reader.complete:
            if not reader.keep_alive:
                self.abort()
            self._finish(now)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._exchange is None:
            return
        now = time.perf_counter_ns()
        try:
            self._reader.close()
        except BadResponseError as error:
            self._fail(f"{error} ({exc})" if exc else str(error), now)
        else:
            self._finish(now)

    def _fail(self, error: str, now: int | None = None) -> None:
        if self._exchange is not None:
            self._exchange.error = error
            self._finish(now or time.perf_counter_ns())
        self.abort()

    def _finish(self, now: int) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        assert self._done is not None
        exchange.end_ns = self.idle_since_ns = now
        exchange.status, exchange.content_type = self._reader.status, self._reader.content_type
        if not self._done.done():
            self._done.set_result(exchange)


class Pool:
    """Connections to one server, opened before they are needed."""

    def __init__(self, url: str) -> None:
        self._url = split_url(url)
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []

    async def open(self, count: int) -> None:
        """Have `count` idle connections. Raises OSError."""
        self._idle = [connection for connection in self._idle if self._fresh(connection)]
        while len(self._idle) < count:
            self._idle.append(await self._connect())

    async def acquire(self) -> Connection:
        """The most recently used idle connection, or a new one. Raises OSError."""
        while self._idle:
            connection = self._idle.pop()
            if self._fresh(connection):
                return connection
            connection.abort()
            self._all.discard(connection)
        return await self._connect()

    def release(self, connection: Connection) -> None:
        if connection.usable:
            self._idle.append(connection)
        else:
            self._all.discard(connection)

    def close(self) -> None:
        for connection in self._all:
            connection.abort()
        self._all.clear()
        self._idle.clear()

    def _fresh(self, connection: Connection) -> bool:
        age_ns = time.perf_counter_ns() - connection.idle_since_ns
        return connection.usable and age_ns < IDLE_LIMIT_S * 1e9

    async def _connect(self) -> Connection:
        host, tls = self._url.hostname or "", self._url.scheme == "https"
        port = self._url.port or (443 if tls else 80)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):  # its TimeoutError is an OSError too
            sock = None if tls else await stamped.connect(host, port)
            if sock is None:
                _, connection = await loop.create_connection(Connection, host, port, ssl=tls or None)
            else:
                connection = Connection()
                connection.stamped_by_kernel(sock)
        self._all.add(connection)
        return connection


def split_url(url: str) -> SplitResult:
    """The parts of a server's base URL, without a trailing /v1. Raises UsageError."""
    parts = urlsplit(url.rstrip("/").removesuffix("/v1"))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"server URL is {url!r}", expected="http://host:port")
    return parts


def post(url: str, path: str, body: bytes) -> bytes:
    """A whole POST request, head and body, ready to be written."""
    parts = split_url(url)
    head = (
        f"POST {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
        "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body
