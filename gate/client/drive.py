"""4 One leg of load: closed loop at a stated concurrency, or open loop on a schedule. Records, parses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import uvloop

from gate.client import openai
from gate.client.arrivals import Arrival, Pacer, offsets_ns
from gate.client.lag import LagSampler
from gate.client.transport import Pool, post
from gate.errors import UsageError
from gate.workload import Prompt

SWITCH_INTERVAL_S = 0.0005
"""How long another thread (the sampler) may keep the client waiting for the interpreter lock; Python's default is 5 ms.
With a thread busy 20 ms in each 120, the p90 of the stamp skew fell from 3.7-4.8 ms to 0.6 ms."""


@dataclass(frozen=True, slots=True)
class LoadSpec:
    url: str
    """Base URL of the server, e.g. http://127.0.0.1:8000."""
    model: str
    prompts: tuple[Prompt, ...]
    output_tokens: int
    concurrency: int
    """Closed loop: requests in flight, refilled at once. Open loop: connections opened beforehand; no limit."""
    arrival: Arrival = "closed"
    rate: float | None = None
    """Open loop: requests per second."""
    timeout_s: float = 600.0
    """Per request, from send to the end of its stream."""
    seed: int = 0
    """Of the Poisson schedule."""
    cpu: int | None = None
    """Pin the client's thread to this CPU for the leg."""


@dataclass(frozen=True, slots=True)
class RawResponse:
    """What came back for one prompt. Times are perf_counter_ns."""

    index: int
    scheduled_ns: int | None
    sent_ns: int
    status: int | None
    chunks: tuple[tuple[int, bytes], ...]
    """(time of the read, body bytes in it), chunked transfer coding removed."""
    end_ns: int | None
    error: str | None
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class LegRecording:
    start_ns: int
    """First send."""
    end_ns: int
    """Last stream end."""
    responses: tuple[RawResponse, ...]
    """In prompt order."""
    cpu_s: float
    """CPU time of the client's thread from before the first send to after the last stream end."""
    loop_lag_p99_ms: float | None
    """None when the leg was shorter than one sampling period."""
    events: int
    """Reads that carried body bytes."""


def run_leg(spec: LoadSpec) -> LegRecording:
    """Send every prompt once and wait for all answers. One failed request fails nobody else.

    Runs an event loop of its own: call it from a thread without one. Ctrl-C closes the connections, which makes the
    server drop the requests, and raises KeyboardInterrupt. Raises UsageError for a specification that cannot be run.
    """
    if not spec.prompts or spec.concurrency < 1:
        raise UsageError(
            f"{len(spec.prompts)} prompts at concurrency {spec.concurrency}", expected="at least 1 of each"
        )
    if spec.arrival != "closed" and not (spec.rate and spec.rate > 0):
        raise UsageError(f"arrival {spec.arrival!r} with rate {spec.rate}", expected="a rate above 0")
    requests = [
        post(spec.url, openai.PATH, openai.body(spec.model, prompt.token_ids, spec.output_tokens))
        for prompt in spec.prompts
    ]
    with pinned(spec.cpu), quiet_gc(), quick_switches(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_leg(spec, requests))


async def _leg(spec: LoadSpec, requests: list[bytes]) -> LegRecording:
    pool, lag = Pool(spec.url), LagSampler()
    try:
        # A server that refuses is recorded by each request for itself.
        with contextlib.suppress(OSError):
            await pool.open(min(spec.concurrency, len(requests)))
        lag.start()
        cpu_ns = time.thread_time_ns()
        load = _closed_loop if spec.arrival == "closed" else _open_loop
        responses = await load(spec, requests, pool)
        cpu_ns = time.thread_time_ns() - cpu_ns
    finally:
        lag.stop()
        pool.close()
    return LegRecording(
        start_ns=min(r.sent_ns for r in responses),
        end_ns=max(r.end_ns or r.sent_ns for r in responses),
        responses=tuple(responses),
        cpu_s=cpu_ns / 1e9,
        loop_lag_p99_ms=lag.p99_ms(),
        events=sum(len(r.chunks) for r in responses),
    )


async def _closed_loop(spec: LoadSpec, requests: list[bytes], pool: Pool) -> list[RawResponse]:
    waiting = iter(range(len(requests)))
    responses: list[RawResponse] = []

    async def worker() -> None:
        for index in waiting:
            responses.append(await _send(spec, pool, index, requests[index], None))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(spec.concurrency, len(requests))):
            group.create_task(worker())
    return sorted(responses, key=lambda response: response.index)


async def _open_loop(spec: LoadSpec, requests: list[bytes], pool: Pool) -> list[RawResponse]:
    assert spec.rate is not None
    offsets = offsets_ns(spec.arrival, len(requests), spec.rate, spec.seed)
    pacer = Pacer()
    start_ns = time.perf_counter_ns()
    tasks = []
    async with asyncio.TaskGroup() as group:
        for index, offset in enumerate(offsets):
            due_ns = start_ns + offset
            await pacer.until(due_ns)
            tasks.append(group.create_task(_send(spec, pool, index, requests[index], due_ns)))
    return [task.result() for task in tasks]


async def _send(spec: LoadSpec, pool: Pool, index: int, request: bytes, scheduled_ns: int | None) -> RawResponse:
    try:
        connection = await pool.acquire()
    except OSError as error:
        now = time.perf_counter_ns()
        return RawResponse(index, scheduled_ns, now, None, (), now, f"cannot connect to {spec.url}: {error}")
    got = await connection.exchange(request, spec.timeout_s)
    pool.release(connection)
    return RawResponse(
        index, scheduled_ns, got.sent_ns, got.status, tuple(got.chunks), got.end_ns, got.error, got.content_type
    )


@contextlib.contextmanager
def quiet_gc() -> Iterator[None]:
    """No garbage collection inside: a full one takes tens of milliseconds, which would be billed to an arm."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def pinned(cpu: int | None) -> Iterator[None]:
    """The calling thread on one CPU; None leaves it alone."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    if cpu not in before:
        raise UsageError(f"client CPU {cpu}", expected=f"one of {sorted(before)}")
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
