"""Questions to the oracle: several in flight, in order, once each; one that fails is alone; an end in time; Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from typing import Any

import httpx
import pytest

from gate import forcing
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from gate.errors import ArmError
from gate.forcing import Asker, Question
from gate.observe.rows import Arm
from gate.observe.tokenrows import Place

SCRIPT = preset("instant")


def question(index: int, arm: Arm = "candidate", output: tuple[int, ...] | None = None) -> Question:
    place = Place(kind="leg", concurrency=1, repetition=0, index=index)
    return Question(place, arm, (index, 1, 2), output or (index, 7, 8))


MANY = [question(index) for index in range(40)]


def test_several_at_once_say_what_one_by_one_says() -> None:
    with FakeServer(SCRIPT) as fake:
        with Asker(fake.url, "fake", 10, in_flight=1) as asker:
            alone = asker.answers(MANY)
        with Asker(fake.url, "fake", 10, in_flight=8) as asker:
            together = asker.answers(MANY)
    assert together == alone
    assert [row.place.index for row in together] == list(range(40))
    assert [row.token_ids for row in together] == [one.output for one in MANY]
    assert all(len(row.gaps_nats) == 3 and row.error is None for row in together)


class Counting:
    """Instead of one request: how many are under way."""

    def __init__(self, wait_s: float = 0.01) -> None:
        self.now = self.most = self.asked = 0
        self.wait_s = wait_s

    async def ask(self, _asker: Asker, _client: httpx.AsyncClient, one: Question) -> Any:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.wait_s if one.place.index else 2 * self.wait_s)
        self.now -= 1
        return forcing.row(one, (), "x")


@pytest.mark.parametrize("in_flight", [1, 3])
def test_no_more_are_in_flight_than_allowed(monkeypatch: pytest.MonkeyPatch, in_flight: int) -> None:
    counting = Counting()
    monkeypatch.setattr(Asker, "_ask", lambda *arguments: counting.ask(*arguments))
    with Asker("http://127.0.0.1:9", "fake", 1, in_flight) as asker:
        rows = asker.answers(MANY[:9])
    assert counting.most == in_flight
    assert [row.place.index for row in rows] == list(range(9))


def test_equal_ids_after_an_equal_prompt_are_sent_once() -> None:
    one = question(1)
    again = Question(one.place.model_copy(update={"repetition": 2}), "oracle", one.prompt, one.output)
    other = Question(one.place, "oracle", one.prompt, (5, 5, 5))
    with FakeServer(SCRIPT) as fake, Asker(fake.url, "fake", 10) as asker:
        rows = asker.answers([one, again, other, one])
        assert len(fake.requests) == 2
    assert [(row.arm, row.place.repetition) for row in rows] == [
        ("candidate", 0),
        ("oracle", 2),
        ("oracle", 0),
        ("candidate", 0),
    ]
    assert rows[0].gaps_nats == rows[1].gaps_nats == rows[3].gaps_nats


def test_one_that_fails_takes_nobody_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = forcing.forced_positions

    def refuse(status: int, content: bytes, prompt: Any, output: Any) -> Any:
        if prompt[0] == 3:
            raise ArmError("no opinion of the third")
        return real(status, content, prompt, output)

    monkeypatch.setattr(forcing, "forced_positions", refuse)
    with FakeServer(SCRIPT) as fake, Asker(fake.url, "fake", 10) as asker:
        rows = asker.answers(MANY[:8])
    assert [row.place.index for row in rows if row.error] == [3]
    assert rows[3].error == "no opinion of the third"
    assert rows[3].gaps_nats == ()


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("deadline", "answered"), [(0.0, 0), (1.0, 3), (2.5, 9), (100.0, 9)])
def test_the_first_ones_are_sent_in_time_and_no_other(
    monkeypatch: pytest.MonkeyPatch, deadline: float, answered: int
) -> None:
    """Three in flight, and each takes a second."""
    clock = Clock()

    async def ask(_asker: Asker, _client: object, one: Question) -> Any:
        began = clock.now
        await asyncio.sleep(0)
        clock.now = max(clock.now, began + 1.0)
        return forcing.row(one, (), "x")

    monkeypatch.setattr(forcing, "time", clock)
    monkeypatch.setattr(Asker, "_ask", ask)
    with Asker("http://127.0.0.1:9", "fake", 1, 3) as asker:
        rows = asker.answers(MANY[:9], deadline)
    assert [row.place.index for row in rows] == list(range(answered))


def test_nothing_to_ask_is_no_row() -> None:
    with Asker("http://127.0.0.1:9", "fake", 1) as asker:
        assert asker.answers([]) == []


def test_ctrl_c_ends_it_although_the_oracle_never_answers_and_closes_its_connections() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.settimeout(60)
            connections: list[socket.socket] = []

            def interrupt_when_three_are_in_flight() -> None:
                connections.extend(silent.accept()[0] for _ in range(3))
                os.kill(os.getpid(), signal.SIGINT)

            waiting = threading.Thread(target=interrupt_when_three_are_in_flight)
            waiting.start()
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            with Asker(url, "fake", 600, in_flight=3) as asker, pytest.raises(KeyboardInterrupt):
                asker.answers(MANY)
            waiting.join()
            for connection in connections:
                with connection:
                    connection.settimeout(60)
                    while connection.recv(65536):
                        pass
    finally:
        signal.signal(signal.SIGINT, before)
