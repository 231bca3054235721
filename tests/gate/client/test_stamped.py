"""A read has the time at which it came in, however late the loop turns to it; or the loop's, where none is told."""

from __future__ import annotations

import asyncio
import re
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from gate.arm.fake import FakeServer
from gate.client import calibrate, stamped, stamps
from gate.client.drive import LegRecording, LoadSpec, run_leg
from gate.client.lag import LagSampler
from gate.client.transport import Connection, Pool, post
from gate.workload import make_prompts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's receive stamps are Linux's")

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BLOCKED_S = 0.005


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Connection, socket.socket, Pool]]:
    """A client's connection, and the server's end of it for a test that sends as it likes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pool = Pool(f"http://127.0.0.1:{listener.getsockname()[1]}")
        connection = await pool.acquire()
        peer, _ = listener.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection, peer, pool
        pool.close()


async def test_a_stamp_is_of_the_arrival_and_not_of_the_blocked_loops_turn() -> None:
    sends = []
    async with connected() as (connection, peer, _):
        task = asyncio.create_task(connection.exchange(post("http://h", "/x", b""), 10.0))
        await asyncio.sleep(0)
        for body in (HEAD, b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n"):
            before = time.perf_counter_ns()
            peer.sendall(body)
            sends.append((before, time.perf_counter_ns()))
            time.sleep(BLOCKED_S)  # noqa: ASYNC251 - blocking the loop is the case
            await asyncio.sleep(0)  # the loop finds the socket readable, then reads it
            await asyncio.sleep(0)
        got = await task
    assert [body for _, body in got.chunks] == [b"a", b"b"]
    assert got.by_loop == 0
    assert got.end_ns is not None
    told = [*(stamp for stamp, _ in got.chunks), got.end_ns]
    for stamp, (before, after) in zip(told, sends[1:], strict=True):
        assert before <= stamp <= after + stamps.PAIR_NS


async def test_two_packets_in_one_read_have_the_later_ones_time() -> None:
    async with connected() as (connection, peer, _):
        task = asyncio.create_task(connection.exchange(post("http://h", "/x", b""), 10.0))
        await asyncio.sleep(0)
        peer.sendall(HEAD + b"1\r\na\r\n")
        time.sleep(BLOCKED_S)  # noqa: ASYNC251 - both are to be there before the loop turns to them
        before = time.perf_counter_ns()
        peer.sendall(b"1\r\nb\r\n0\r\n\r\n")
        got = await task
    ((stamp, body),) = got.chunks
    assert body == b"ab"
    assert stamp >= before


def block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leg's loop stands still for 5 ms again and again."""
    start = LagSampler.start
    tasks = []

    async def blocking() -> None:
        while True:
            time.sleep(BLOCKED_S)  # noqa: ASYNC251
            await asyncio.sleep(0.001)

    def started(sampler: LagSampler) -> None:
        tasks.append(asyncio.get_running_loop().create_task(blocking()))
        start(sampler)

    monkeypatch.setattr(LagSampler, "start", started)


def gap_errors_ms(recording: LegRecording) -> list[float]:
    """Of each gap between two tokens: the client's less the server's."""
    errors = []
    for response in recording.responses:
        times = [
            (stamp, int(found)) for stamp, body in response.chunks for found in re.findall(rb'"sent_ns":"(\d+)"', body)
        ]
        assert len(times) == 40
        errors += [((a[0] - b[0]) - (a[1] - b[1])) / 1e6 for b, a in pairwise(times)]
    return errors


def test_itl_is_the_servers_while_the_loop_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    block(monkeypatch)
    monkeypatch.setattr(calibrate, "cost", lambda recording, *_: recording)

    def measured() -> LegRecording:
        return calibrate.calibrate(streams=2, events=40, period_ms=10.0)  # type: ignore[return-value]

    late = measured()
    assert late.stamps == "kernel"
    assert late.loop_lag_p99_ms is not None
    assert late.loop_lag_p99_ms > 2
    by_kernel = [abs(error) for error in gap_errors_ms(late)]
    monkeypatch.setattr(stamped, "_stamping", lambda _: False)
    without = measured()
    assert without.stamps == "loop"
    by_loop = [abs(error) for error in gap_errors_ms(without)]
    assert statistics.median(by_kernel) < 0.1
    assert statistics.median(by_loop) > 0.5


def leg(server: FakeServer) -> LegRecording:
    prompts = make_prompts(count=4, length=20, vocab_size=1000, seed=1, max_common_prefix=4)
    return run_leg(LoadSpec(server.url, "fake", prompts, 8, 2))


def test_a_leg_says_whose_stamps_it_has() -> None:
    with FakeServer() as server:
        assert leg(server).stamps == "kernel"


@pytest.mark.parametrize("how", ["refused", "untold", "not here"])
def test_without_stamps_all_is_as_before(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "refused":
        monkeypatch.setattr(stamps, "SO_TIMESTAMPNS", 9999)
    elif how == "untold":
        monkeypatch.setattr(stamps, "kernel_ns", lambda *_: None)
    else:
        monkeypatch.setattr(stamped, "ANCILLARY_BYTES", 0)
    with FakeServer() as server:
        recording = leg(server)
    assert recording.stamps == "loop"
    assert [(r.status, r.error, r.by_loop) for r in recording.responses] == [
        (200, None, len(r.chunks)) for r in recording.responses
    ]


def test_a_leg_of_nothing_has_no_stamps() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    prompts = make_prompts(count=1, length=20, vocab_size=1000, seed=1, max_common_prefix=4)
    recording = run_leg(LoadSpec(f"http://127.0.0.1:{port}", "fake", prompts, 8, 1))
    assert recording.stamps is None
    assert "Connect" in (recording.responses[0].error or "")


async def test_a_request_larger_than_the_sockets_buffer_arrives_whole() -> None:
    body = bytes(range(256)) * 65536
    async with connected() as (connection, peer, _):
        peer.setblocking(False)
        task = asyncio.create_task(connection.exchange(post("http://h", "/x", body), 10.0))
        got, loop = b"", asyncio.get_running_loop()
        while not got.endswith(body):
            got += await loop.sock_recv(peer, 1 << 20)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        answer = await task
        assert connection.usable
    assert got == post("http://h", "/x", body)
    assert (answer.status, answer.error) == (200, None)


async def test_a_reset_is_the_exchanges_error_and_ends_the_connection() -> None:
    async with connected() as (connection, peer, pool):
        task = asyncio.create_task(connection.exchange(post("http://h", "/x", b""), 10.0))
        await asyncio.sleep(0)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() resets
        peer.close()
        got = await task
        assert not connection.usable
        pool.release(connection)
    assert got.error is not None
    assert "connection closed before the response" in got.error
    assert "reset" in got.error


async def test_a_write_that_fails_is_the_exchanges_error() -> None:
    async with connected() as (connection, peer, _):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        # No turn of the loop has told the connection yet.
        got = await connection.exchange(post("http://h", "/x", b""), 10.0)
        assert not connection.usable
    assert "connection closed before the response" in (got.error or "")


async def test_an_idle_connection_that_the_server_closes_is_not_used_again() -> None:
    async with connected() as (connection, peer, _):
        assert connection.usable
        peer.close()
        while connection.usable:  # noqa: ASYNC110 - a turn of the loop is what is waited for
            await asyncio.sleep(0)


async def test_the_next_address_is_tried_and_the_last_failure_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()
    loop = asyncio.get_running_loop()
    addresses = [nobody]

    async def found(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

    monkeypatch.setattr(loop, "getaddrinfo", found)
    with pytest.raises(ConnectionRefusedError):
        await stamped.connect("h", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        addresses.append(listener.getsockname())
        sock = await stamped.connect("h", 1)
        assert sock is not None
        with sock:
            assert sock.getpeername() == addresses[1]
    addresses.clear()
    with pytest.raises(OSError, match="h has no address"):
        await stamped.connect("h", 1)


async def test_a_connect_that_is_cancelled_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, socks = asyncio.get_running_loop(), []

    async def never(sock: socket.socket, _: object) -> None:
        socks.append(sock)
        await asyncio.Event().wait()

    monkeypatch.setattr(loop, "sock_connect", never)
    task = asyncio.create_task(stamped.connect("127.0.0.1", 1))
    while not socks:  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert socks[0].fileno() == -1
