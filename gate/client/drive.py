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

from gate.client import eventloop, openai, stamps
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
    lead_in: tuple[tuple[Prompt, int], ...] = ()
    """Closed loop: (prompt, output tokens) of untimed requests that the same streams send first. No stream waits for
    another's: the timed requests begin one by one, as these end."""


@dataclass(frozen=True, slots=True)
class RawResponse:
    """What came back for one prompt. Times are perf_counter_ns."""

    index: int
    scheduled_ns: int | None
    sent_ns: int
    status: int | None
    chunks: tuple[tuple[int, bytes], ...]
    """(time the read's bytes arrived, body bytes in it), chunked transfer coding removed."""
    end_ns: int | None
    error: str | None
    content_type: str | None = None
    by_loop: int = 0
    """How many of the chunks have the event loop's time and not the kernel's."""


@dataclass(frozen=True, slots=True)
class LegRecording:
    start_ns: int
    """First timed send."""
    end_ns: int
    """Last stream end."""
    responses: tuple[RawResponse, ...]
    """Of the timed requests, in prompt order."""
    cpu_s: float | None
    """CPU time of the client's thread from before the first timed send to after the last stream end. None: no timed
    request was sent, since none of the lead-in was answered."""
    loop_lag_p99_ms: float | None
    """None when the leg was shorter than one sampling period."""
    events: int
    """Reads that carried body bytes in that time."""
    lead_in: tuple[RawResponse, ...] = ()
    """Of the lead-in, as they ended; their index counts from its end: -1 is the last."""

    @property
    def stamps(self) -> stamps.Source | None:
        """Whose times the timed requests have."""
        return stamps.source(sum(len(r.chunks) for r in self.responses), sum(r.by_loop for r in self.responses))


@dataclass(slots=True)
class _Loaded:
    """What a load gives back."""

    responses: list[RawResponse]
    lead_in: list[RawResponse]
    cpu_ns: int | None
    """CPU clock of the client's thread at the first timed send; None before it."""


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
    if spec.arrival != "closed" and spec.lead_in:
        raise UsageError(f"arrival {spec.arrival!r} with a lead-in", expected="arrival 'closed'")
    whole = (*spec.lead_in, *((prompt, spec.output_tokens) for prompt in spec.prompts))
    requests = [
        post(spec.url, openai.PATH, openai.body(spec.model, prompt.token_ids, tokens)) for prompt, tokens in whole
    ]
    with pinned(spec.cpu), quiet_gc(), quick_switches():
        return eventloop.run(lambda: _leg(spec, requests), uvloop.new_event_loop)


async def _leg(spec: LoadSpec, requests: list[bytes]) -> LegRecording:
    pool, lag = Pool(spec.url), LagSampler()
    try:
        # A server that refuses is recorded by each request for itself.
        with contextlib.suppress(OSError):
            await pool.open(min(spec.concurrency, len(requests)))
        lag.start()
        load = _closed_loop if spec.arrival == "closed" else _open_loop
        loaded = await load(spec, requests, pool)
        end_cpu_ns = time.thread_time_ns()
    finally:
        lag.stop()
        pool.close()
    start_ns = min(r.sent_ns for r in loaded.responses)
    return LegRecording(
        start_ns=start_ns,
        end_ns=max(r.end_ns or r.sent_ns for r in loaded.responses),
        responses=tuple(loaded.responses),
        cpu_s=None if loaded.cpu_ns is None else (end_cpu_ns - loaded.cpu_ns) / 1e9,
        loop_lag_p99_ms=lag.p99_ms(),
        events=sum(now >= start_ns for r in (*loaded.lead_in, *loaded.responses) for now, _ in r.chunks),
        lead_in=tuple(loaded.lead_in),
    )


def nothing_sent(spec: LoadSpec, warmup_error: str) -> LegRecording:
    """Of a server that answered no warm-up request: sending the rest would only wait for every timeout again."""
    now = time.perf_counter_ns()
    return LegRecording(now, now, tuple(_not_sent(p.index, warmup_error) for p in spec.prompts), None, None, 0)


async def _closed_loop(spec: LoadSpec, requests: list[bytes], pool: Pool) -> _Loaded:
    ahead = len(spec.lead_in)
    waiting = iter(range(len(requests)))
    loaded = _Loaded([], [], None if ahead else time.thread_time_ns())
    settled = asyncio.Event()  # a request of the lead-in was answered, or none was

    async def worker() -> None:
        for place in waiting:
            if place < ahead:
                loaded.lead_in.append(await _send(spec, pool, place - ahead, requests[place], None))
                if _answered(loaded.lead_in[-1]) or len(loaded.lead_in) == ahead:
                    settled.set()
                continue
            if ahead:
                await settled.wait()
            if ahead and not any(map(_answered, loaded.lead_in)):
                first = loaded.lead_in[0]
                loaded.responses.append(_not_sent(place - ahead, first.error or f"HTTP {first.status}"))
                continue
            if loaded.cpu_ns is None:
                loaded.cpu_ns = time.thread_time_ns()
            loaded.responses.append(await _send(spec, pool, place - ahead, requests[place], None))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(spec.concurrency, len(requests))):
            group.create_task(worker())
    loaded.responses.sort(key=lambda response: response.index)
    return loaded


def _answered(response: RawResponse) -> bool:
    return response.error is None and response.status == 200


def _not_sent(index: int, warmup_error: str) -> RawResponse:
    error = f"not sent, no warm-up request was answered: {warmup_error}"
    return RawResponse(index, None, time.perf_counter_ns(), None, (), None, error)


async def _open_loop(spec: LoadSpec, requests: list[bytes], pool: Pool) -> _Loaded:
    assert spec.rate is not None
    offsets = offsets_ns(spec.arrival, len(requests), spec.rate, spec.seed)
    pacer = Pacer()
    cpu_ns, start_ns = time.thread_time_ns(), time.perf_counter_ns()
    tasks = []
    async with asyncio.TaskGroup() as group:
        for index, offset in enumerate(offsets):
            due_ns = start_ns + offset
            await pacer.until(due_ns)
            tasks.append(group.create_task(_send(spec, pool, index, requests[index], due_ns)))
    return _Loaded([task.result() for task in tasks], [], cpu_ns)


async def _send(spec: LoadSpec, pool: Pool, index: int, request: bytes, scheduled_ns: int | None) -> RawResponse:
    try:
        connection = await pool.acquire()
    except OSError as error:
        now = time.perf_counter_ns()
        return RawResponse(index, scheduled_ns, now, None, (), now, f"cannot connect to {spec.url}: {error}")
    got = await connection.exchange(request, spec.timeout_s)
    pool.release(connection)
    return RawResponse(
        index=index,
        scheduled_ns=scheduled_ns,
        sent_ns=got.sent_ns,
        status=got.status,
        chunks=tuple(got.chunks),
        end_ns=got.end_ns,
        error=got.error,
        content_type=got.content_type,
        by_loop=got.by_loop,
    )


@contextlib.contextmanager
def quiet_gc() -> Iterator[None]:
    """No garbage collection inside: a full one takes tens of milliseconds, which would be billed to an arm."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
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
