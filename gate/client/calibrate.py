"""4 The client's own cost: CPU per event and how late it stamps, against a server that tells when it sent.

Measured with the very code that drives a leg. perf_counter_ns is CLOCK_MONOTONIC on Linux, so the server's stamps and
the client's can be subtracted. A skew is an upper bound: it holds the kernel's loopback and the wake-up, too.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import orjson

from gate.client import sse
from gate.client.drive import LegRecording, LoadSpec, run_leg
from gate.errors import PreconditionError, StorageError
from gate.interrupt import deferred
from gate.observe.machine import machine
from gate.report.model import ClientCost
from gate.units import counted
from gate.workload import make_prompts

GOAL_CPU_US_PER_EVENT = 60.0
GOAL_SKEW_P50_MS = 0.6
"""At 8 streams on 2 cores: under a tenth of the 8 ms step that a fast server takes."""


def calibrate(streams: int = 8, events: int = 300, period_ms: float = 10.0, cpu: int | None = None) -> ClientCost:
    """Drive `streams` streams of `events` events, a tick for all every `period_ms`. Takes events × period_ms.

    Raises PreconditionError when the server does not start or a stream is not whole.
    """
    command = [sys.executable, "-m", "gate.client.metronome", f"--streams={streams}", f"--events={events}"]
    command += [f"--period-ms={period_ms}"]
    server: subprocess.Popen[str] | None = None
    try:
        with deferred():  # cut while it starts, it would be nobody's
            # In a session of its own: Ctrl-C is for the gate, which ends it.
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        if not port:
            raise PreconditionError(f"the calibration server ended with code {server.wait()}", expected="a port")
        prompts = make_prompts(count=streams, length=16, vocab_size=1000, seed=0, max_common_prefix=8)
        recording = run_leg(
            LoadSpec(
                url=f"http://127.0.0.1:{port}",
                model="metronome",
                prompts=prompts,
                output_tokens=events,
                concurrency=streams,
                timeout_s=10.0 + 2 * events * period_ms / 1000,
                cpu=cpu,
            )
        )
    finally:
        with deferred():
            if server is not None:
                server.kill()
                server.communicate()
    return cost(recording, streams, events)


def cost(recording: LegRecording, streams: int, events: int) -> ClientCost:
    """ClientCost of a recording whose events carry `sent_ns`. Raises PreconditionError when events are missing."""
    skews_ns: list[int] = []
    for response in recording.responses:
        got = skews(response.chunks)
        if response.error is not None or len(got) != events:
            raise PreconditionError(
                f"calibration stream {response.index} brought {counted(len(got), 'event')} "
                f"({response.error or 'no error'})",
                expected=counted(events, "event"),
                hint="run `gate calibrate-client` again",
            )
        skews_ns += got
    assert recording.cpu_s is not None  # all were sent
    return ClientCost(
        cpu_us_per_event=recording.cpu_s * 1e6 / len(skews_ns),
        skew_p50_ms=quantile(skews_ns, 0.5) / 1e6,
        skew_p90_ms=quantile(skews_ns, 0.9) / 1e6,
        streams=streams,
        events=len(skews_ns),
    )


def skews(chunks: Iterable[tuple[int, bytes]]) -> list[int]:
    """Stamp of the read that completed an event minus the server's stamp in it, ns, for every event that has one."""
    parser = sse.Parser()
    found = []
    for now, read in chunks:
        for event in parser.feed(read):
            if event.data != "[DONE]":
                found.append(now - int(orjson.loads(event.data)["sent_ns"]))
    return found


def quantile(values: Sequence[int], share: float) -> int:
    """Nearest rank: a value that was measured."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def keep(measured: ClientCost, out: Path, period_ms: float, cpu: int | None) -> Path:
    """Write the figures with what they were measured on to out/<host>/client-<UTC time>.json; returns its path.

    Raises StorageError when the folder cannot be written.
    """
    now, about = datetime.now(UTC), machine()
    path = out / about["host"] / f"client-{now:%Y%m%dT%H%M%SZ}.json"
    content = {
        "measured_at": now.isoformat(timespec="seconds"),
        "client": measured.model_dump(),
        "period_ms": period_ms,
        "pinned_to_cpu": cpu,
        "load_average_1min": os.getloadavg()[0],
        "machine": about,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError.unwritable(path, error) from error
    return path


def describe(measured: ClientCost) -> str:
    """Three lines for a terminal."""
    assert measured.cpu_us_per_event is not None
    assert measured.skew_p50_ms is not None
    assert measured.streams is not None
    assert measured.events is not None
    return (
        f"client at {counted(measured.streams, 'stream')}, {counted(measured.events, 'event')}\n"
        f"CPU per event  {measured.cpu_us_per_event:7.1f} µs  (goal ≤ {GOAL_CPU_US_PER_EVENT:g})\n"
        f"stamp skew     {measured.skew_p50_ms:7.3f} ms  median (goal ≤ {GOAL_SKEW_P50_MS:g}), "
        f"{measured.skew_p90_ms:.3f} ms p90"
    )
