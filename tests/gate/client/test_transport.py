from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gate.client import stamped
from gate.client.transport import Pool, post, split_url
from gate.errors import UsageError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(params=["kernel", "loop"], autouse=True)
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test over both transports: the one with the kernel's stamps and the loop's own."""
    if request.param == "loop":
        monkeypatch.setattr(stamped, "_stamping", lambda _: False)


@asynccontextmanager
async def serving(answers: list[bytes]) -> AsyncIterator[tuple[Pool, list[int]]]:
    """A pool to a server that gives one answer per request; the list holds each request's connection number."""
    opened, used = 0, []
    handlers: list[asyncio.Task[None] | None] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        number = opened
        handlers.append(asyncio.current_task())
        try:
            while answers:
                await reader.readuntil(b"\r\n\r\n")
                used.append(number)
                answer = answers.pop(0)
                writer.write(answer)
                if not answer.endswith(b"ok"):
                    break
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass  # the client left
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    pool = Pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield pool, used
    finally:
        pool.close()
        server.close()
        await asyncio.gather(*(handler for handler in handlers if handler is not None))
        await server.wait_closed()


async def ask(pool: Pool) -> tuple[int | None, bytes, str | None]:
    connection = await pool.acquire()
    got = await connection.exchange(post("http://h", "/x", b""), 10.0)
    pool.release(connection)
    assert got.end_ns is not None
    assert got.sent_ns <= got.end_ns
    return got.status, b"".join(read for _, read in got.chunks), got.error


async def test_connection_is_kept_and_used_again() -> None:
    async with serving([OK, OK, OK]) as (pool, used):
        await pool.open(1)
        for _ in range(3):
            assert await ask(pool) == (200, b"ok", None)
    assert used == [1, 1, 1]


async def test_server_that_closes_gets_a_new_connection() -> None:
    closing = OK.replace(b"Content-Length", b"Connection: close\r\nContent-Length")
    async with serving([closing, OK]) as (pool, used):
        assert await ask(pool) == (200, b"ok", None)
        assert await ask(pool) == (200, b"ok", None)
    assert used == [1, 2]


async def test_answer_and_more_is_an_error_and_ends_the_connection() -> None:
    async with serving([OK + b"ok", OK]) as (pool, used):
        assert await ask(pool) == (200, b"", "2 bytes after the end of the response")
        assert await ask(pool) == (200, b"ok", None)
    assert used == [1, 2]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "connection closed before the response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "connection closed inside the response"),
        (b"garbage\r\n\r\n", "status line is 'garbage'"),
    ],
)
async def test_broken_answers_are_errors_of_the_exchange(answer: bytes, error: str) -> None:
    async with serving([answer]) as (pool, _):
        assert (await ask(pool))[2] == error


async def test_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gate.client.transport.MAX_RESPONSE_BYTES", 100)
    async with serving([b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 500]) as (pool, _):
        assert (await ask(pool))[2] == "response is larger than 100 bytes"


async def test_cancelled_exchange_closes_its_connection() -> None:
    async with serving([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", OK]) as (pool, _):
        connection = await pool.acquire()
        task = asyncio.create_task(connection.exchange(post("http://h", "/x", b""), 10.0))
        await asyncio.sleep(0)  # the request is written
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not connection.usable


def test_request_is_exact() -> None:
    assert post("http://user@host:81/base/v1/", "/v1/completions", b"{}") == (
        b"POST /base/v1/completions HTTP/1.1\r\nHost: host:81\r\nContent-Type: application/json\r\n"
        b"Accept: text/event-stream\r\nContent-Length: 2\r\n\r\n{}"
    )


@pytest.mark.parametrize("url", ["host:8000", "ftp://host", "http://", ""])
def test_url_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="server URL is"):
        split_url(url)
