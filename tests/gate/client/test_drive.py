from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from gate.arm.fake import FakeServer
from gate.arm.fake_script import Script, preset
from gate.client.drive import SWITCH_INTERVAL_S, LegRecording, LoadSpec, run_leg
from gate.client.transport import Connection, Pool
from gate.errors import UsageError
from gate.observe.rows import RequestRow
from gate.workload import Prompt, make_prompts

Load = Callable[..., tuple[LegRecording, tuple[RequestRow, ...]]]
"""The `load` fixture."""


def test_closed_loop_sends_each_prompt_once_in_order(load: Load) -> None:
    with FakeServer() as server:
        recording, rows = load(server, count=7)
        sent = {tuple(request["prompt"]) for request in server.requests}
    assert len(server.requests) == len(sent) == 7
    assert [row.index for row in rows] == list(range(7))
    assert {row.error for row in rows} == {None}
    assert {row.scheduled_ns for row in rows} == {None}
    assert recording.start_ns == min(row.sent_ns for row in rows)
    assert recording.end_ns == max(row.end_ns or 0 for row in rows)
    assert recording.events >= 7
    assert recording.cpu_s > 0


class Held:
    """Instead of a server's slots: answers a completion request once as many have come as `need` wants for its body.

    What depends on speed elsewhere depends here on what was sent: a client that waits for what it should not, times
    out.
    """

    def __init__(self, server: FakeServer, need: Callable[[dict[str, Any]], int]) -> None:
        self._server, self._need, self._came = server, need, asyncio.Condition()
        server.slots = self  # type: ignore[assignment]

    async def acquire(self) -> None:
        need = self._need(self._server.requests[-1])
        async with self._came:
            self._came.notify_all()
            await self._came.wait_for(lambda: len(self._server.requests) >= need)

    def release(self) -> None: ...


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_delivered_concurrency_is_the_one_asked_for(load: Load, concurrency: int) -> None:  # [16]
    with FakeServer(preset("good", token_ms=5.0)) as server:
        Held(server, lambda _: concurrency)
        _, rows = load(server, count=3 * concurrency, concurrency=concurrency)
        assert server.peak_running == concurrency
    edges = sorted([(row.sent_ns, 1) for row in rows] + [(row.end_ns or 0, -1) for row in rows])
    assert max(accumulate(step for _, step in edges)) == concurrency


def led_by(tokens: tuple[int, ...]) -> tuple[tuple[Prompt, int], ...]:
    prompts = make_prompts(count=len(tokens), length=20, vocab_size=1000, seed=2, max_common_prefix=4)
    return tuple(zip(prompts, tokens, strict=True))


def test_timed_requests_begin_one_by_one_as_the_lead_in_ends(load: Load) -> None:
    """Each request of the lead-in is answered when one timed request more has come, the timed ones when four have: no
    stream waits for another, and none of the lead-in is recorded."""
    tokens = (4, 8, 12, 16)
    with FakeServer(preset("good")) as server:
        Held(server, lambda body: 4 + (*tokens, 10).index(body["max_tokens"]))
        recording, rows = load(server, count=8, concurrency=4, lead_in=led_by(tokens), output_tokens=10)
        asked = [request["max_tokens"] for request in server.requests]
        assert server.peak_running == 4
    assert sorted(asked[:4]) == [4, 8, 12, 16]
    assert asked[4:] == [10] * 8
    assert [row.index for row in rows] == list(range(8))
    assert {(row.error, row.completion_tokens) for row in rows} == {(None, 10)}
    sends = sorted(row.sent_ns for row in rows)
    ends = [response.end_ns or 0 for response in recording.lead_in]
    assert sorted([*ends, *sends[:4]]) == [time for pair in zip(ends, sends, strict=False) for time in pair]
    assert sends[3] < min(row.end_ns or 0 for row in rows)
    assert recording.start_ns == sends[0]
    # The reads of the first of the lead-in were before that, those of the others after it.
    counted = (*recording.responses, *recording.lead_in[1:])
    assert recording.events == sum(len(response.chunks) for response in counted)


@pytest.mark.parametrize(
    ("name", "timeout_s", "error"),
    [("http-500", 20.0, "HTTP 500"), ("no-answer", 0.3, "no complete response within 0.3 s")],
)
def test_after_a_lead_in_without_an_answer_nothing_more_is_sent(
    load: Load, name: str, timeout_s: float, error: str
) -> None:
    with FakeServer(preset(name)) as server:
        recording, rows = load(server, count=6, lead_in=led_by((4, 8)), timeout_s=timeout_s)
        assert len(server.requests) == 2
    assert {row.error for row in rows} == {f"not sent, no warm-up request was answered: {error}"}
    assert [row.index for row in rows] == list(range(6))
    assert recording.end_ns >= recording.start_ns


def test_one_answer_of_the_lead_in_is_enough() -> None:
    """The first connection is cut; its stream goes on with the others."""
    with FakeServer(preset("one-error")) as server:
        prompts = make_prompts(count=4, length=20, vocab_size=1000, seed=1, max_common_prefix=4)
        recording = run_leg(LoadSpec(server.url, "fake", prompts, 8, 2, lead_in=led_by((8, 8))))
        assert len(server.requests) == 6
    assert len(recording.responses) == 4
    assert {response.error for response in recording.responses} == {None}


def test_an_open_loop_has_no_lead_in(load: Load) -> None:
    with FakeServer() as server, pytest.raises(UsageError, match="'constant' with a lead-in"):
        load(server, arrival="constant", rate=100.0, lead_in=led_by((4,)))


def test_fewer_prompts_than_streams(load: Load) -> None:
    with FakeServer() as server:
        _, rows = load(server, count=2, concurrency=8)
        assert [row.error for row in rows] == [None, None]


def test_one_failed_request_fails_nobody_else(load: Load) -> None:  # [5]
    with FakeServer(preset("one-error")) as server:
        _, rows = load(server)
    assert [row.error for row in rows].count(None) == 5
    assert [row.error for row in rows if row.error] == ["server error after 3 token events: scripted failure"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("drop", "connection closed inside the response after 3 token events"),
        ("error-event", "server error after 3 token events: scripted failure"),
        ("http-500", "HTTP 500: scripted failure"),
        ("garbage", "the body holds no server-sent event"),
        ("usage-early", "usage came before the last token"),
        ("usage-late", "event 10 came after [DONE]"),
    ],
)
def test_faults_are_recorded_by_name(load: Load, name: str, error: str) -> None:
    with FakeServer(preset(name)) as server:
        _, rows = load(server, count=3)
    assert {row.error for row in rows} == {error}


@pytest.mark.parametrize(("name", "tokens"), [("hang", 3), ("no-answer", 0)], ids=["hang", "no-answer"])
def test_hanging_request_ends_at_its_timeout(load: Load, name: str, tokens: int) -> None:
    with FakeServer(preset(name)) as server:
        _, rows = load(server, count=2, timeout_s=1.5)  # long after the tokens before it hangs
    suffix = f" after {tokens} token event{'s' if tokens > 1 else ''}" if tokens else ""
    assert {row.error for row in rows} == {f"no complete response within 1.5 s{suffix}"}
    assert server.disconnects == 2


def test_refused_connection_is_an_error_of_each_request() -> None:
    prompts = make_prompts(count=3, length=4, vocab_size=100, seed=0, max_common_prefix=2)
    with socket.socket() as deaf:  # bound, so that nobody else is there, and not listening
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        recording = run_leg(LoadSpec(f"http://127.0.0.1:{port}", "m", prompts, 4, 2))
    assert len(recording.responses) == 3
    for response in recording.responses:
        assert response.status is None
        assert response.error is not None
        assert response.error.startswith(f"cannot connect to http://127.0.0.1:{port}: ")


def test_server_that_dies_in_the_leg(load: Load) -> None:
    with FakeServer(Script(exit_after_requests=2, token_ms=5.0)) as server:
        _, rows = load(server, count=5)
    assert all(row.error for row in rows[2:])
    assert len(rows) == 5


@pytest.mark.parametrize(
    "script",
    [
        preset("cut"),
        preset("crlf"),
        preset("one-write"),
        preset("until-close"),
        preset("role-first"),
        Script(newline="cr", space_after_colon=False, comment="ping", cut_bytes=7, token_ms=0.0),
    ],
    ids=["cut", "crlf", "one-write", "until-close", "role-first", "cr"],
)
def test_framing_changes_no_token(load: Load, script: Script) -> None:  # [4]
    with FakeServer() as plain, FakeServer(script) as other:
        expected = [row.token_ids for row in load(plain)[1]]
        _, rows = load(other)
    assert {row.error for row in rows} == {None}
    assert [row.token_ids for row in rows] == expected
    assert {row.tokens_per_event for row in rows} == {(1,) * 8}


@pytest.mark.parametrize("arrival", ["poisson", "constant"])
def test_open_loop_keeps_its_schedule_whatever_the_server_does(load: Load, arrival: str) -> None:  # [14]
    with FakeServer(preset("good", prefill_ms=150.0)) as server:
        _, rows = load(server, arrival=arrival, rate=100.0, concurrency=1)
        assert server.peak_running > 1
    assert {row.error for row in rows} == {None}
    scheduled = [row.scheduled_ns or 0 for row in rows]
    assert scheduled == sorted(scheduled)
    assert all(row.sent_ns >= (row.scheduled_ns or 0) for row in rows)
    # All are due before the first answer can have come.
    assert scheduled[-1] < (rows[0].first_token_ns or 0)


def test_waiting_in_line_is_in_the_time_from_schedule() -> None:  # [14]
    """One slot of 40 ms and an arrival each 10 ms: the k-th answer cannot come before (k + 1) × 40 ms."""
    prompts = make_prompts(count=6, length=8, vocab_size=1000, seed=1, max_common_prefix=4)
    with FakeServer(Script(slots=1, prefill_ms=40.0, token_ms=0.0)) as server:
        spec = LoadSpec(server.url, "fake", prompts, 1, 1, arrival="constant", rate=100.0)
        responses = run_leg(spec).responses
        assert server.peak_running == 1
    start = responses[0].scheduled_ns or 0
    for k, response in enumerate(sorted(responses, key=lambda r: r.end_ns or 0)):
        assert response.error is None
        assert (response.end_ns or 0) - start >= (k + 1) * 40_000_000
    assert [(r.scheduled_ns or 0) - start for r in responses] == [k * 10_000_000 for k in range(6)]


def test_stale_connections_are_replaced(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gate.client.transport.IDLE_LIMIT_S", 0.0)
    with FakeServer() as server:
        _, rows = load(server)
    assert {row.error for row in rows} == {None}


def test_interpreter_is_quiet_in_the_window_and_as_before_after(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, int, float]] = []
    before = sys.getswitchinterval()
    acquire = Pool.acquire

    def full_collections() -> int:
        return gc.get_stats()[2]["collections"]

    async def noting(pool: Pool) -> Connection:
        seen.append((gc.isenabled(), full_collections(), sys.getswitchinterval()))
        return await acquire(pool)

    monkeypatch.setattr(Pool, "acquire", noting)
    with FakeServer() as server:
        collections = full_collections()
        load(server, count=3)
    assert seen == [(False, seen[0][1], pytest.approx(SWITCH_INTERVAL_S))] * 3
    assert seen[0][1] > collections
    assert sys.getswitchinterval() == before
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0  # what tests/conftest.py froze


def test_client_is_pinned_for_the_leg_only(load: Load) -> None:
    before = os.sched_getaffinity(0)
    with FakeServer() as server:
        load(server, cpu=min(before))
        assert os.sched_getaffinity(0) == before
        with pytest.raises(UsageError, match="client CPU 4096"):
            load(server, cpu=4096)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"concurrency": 0}, "at concurrency 0"),
        ({"count": 0}, "0 prompts"),
        ({"arrival": "poisson"}, "rate None"),
        ({"arrival": "constant", "rate": 0.0}, "rate 0.0"),
    ],
)
def test_load_that_cannot_be_run(load: Load, fields: dict[str, object], message: str) -> None:
    with FakeServer() as server, pytest.raises(UsageError, match=message):
        load(server, **fields)


def test_url_must_be_http() -> None:
    prompts = make_prompts(count=1, length=4, vocab_size=100, seed=0, max_common_prefix=2)
    with pytest.raises(UsageError, match="server URL is 'localhost:8000'"):
        run_leg(LoadSpec("localhost:8000", "m", prompts, 4, 1))


def test_ctrl_c_ends_the_leg_and_the_requests() -> None:
    program = (
        "import sys\n"
        "from gate.client.drive import LoadSpec, run_leg\n"
        "from gate.workload import make_prompts\n"
        "prompts = make_prompts(count=4, length=4, vocab_size=100, seed=0, max_common_prefix=2)\n"
        "try:\n"
        "    run_leg(LoadSpec(sys.argv[1], 'fake', prompts, 4, 2))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    with FakeServer(preset("hang", fault_after_tokens=1)) as server:
        child = subprocess.Popen([sys.executable, "-c", program, server.url], stdout=subprocess.PIPE, text=True)
        try:
            while server.running < 2:
                assert child.poll() is None
                time.sleep(0.01)
            child.send_signal(signal.SIGINT)
            out, _ = child.communicate(timeout=60)
        finally:
            child.kill()
            child.wait()
        assert out == "interrupted\n"
        assert child.returncode == 0
        while server.running:  # both streams are seen to be left
            time.sleep(0.01)
    assert server.disconnects == 2
