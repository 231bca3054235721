"""A client that leaves frees its slots: streaming or not, before the first token or after it."""

from __future__ import annotations

import socket
import threading
import time

import orjson
import pytest

from tests.engine.server import fakes

BODIES = [
    ("/v1/completions", {"prompt": [1]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
]


def send(live, path="/v1/completions", **body) -> socket.socket:
    host, port = live.url.removeprefix("http://").split(":")
    content = orjson.dumps(body)
    sock = socket.create_connection((host, int(port)))
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    sock.sendall(head.encode() + content)
    return sock


def until(condition):
    deadline = time.monotonic() + 180  # only a fault reaches it
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "what"), BODIES)
def test_leaving_before_the_first_token(start, stream, path, what):
    engine = fakes.FakeEngine(hold=threading.Event())
    live = start(engine)
    sock = send(live, path, stream=stream, n=2, **what)
    until(lambda: len(engine.submitted) == 2)
    sock.close()
    until(lambda: len(engine.aborted) == 2)
    assert set(engine.aborted) == {request.id for request in engine.submitted}
    assert not live.app.state.service.sessions
    engine.hold.set()


def test_leaving_in_the_middle_of_a_stream(start):
    gate = threading.Event()
    engine = fakes.FakeEngine(script=[40] * 100)
    engine.on_submit = lambda _: gate.set()
    engine.hold = Steps(3)
    live = start(engine)
    sock = send(live, prompt=[1], stream=True, max_tokens=100)
    received = b""
    while received.count(b"data: ") < 3:
        received += sock.recv(65536)
    sock.close()
    until(lambda: engine.aborted)
    assert engine.aborted == [engine.submitted[0].id]
    text = live.get("/metrics").text
    assert 'engine:request_success_total{engine="0",finished_reason="abort",model_name="fake"} 1.0' in text
    engine.hold.open()


class Steps(threading.Event):
    """Lets so many steps through, then holds."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def wait(self, timeout: float | None = None) -> bool:
        if self._left:
            self._left -= 1
            return True
        return super().wait(timeout)

    def open(self) -> None:
        self.set()


def test_a_finished_answer_aborts_nothing(start):
    engine = fakes.FakeEngine()
    live = start(engine)
    for stream in (False, True):
        assert live.post("/v1/completions", prompt=[1], max_tokens=3, stream=stream).status_code == 200
    assert engine.aborted == []
    assert not live.app.state.service.sessions


def test_leaving_in_the_middle_of_the_body(start):
    engine = fakes.FakeEngine()
    live = start(engine)
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    assert live.get("/health").status_code == 200
    assert engine.submitted == []


@pytest.mark.parametrize("stream", [False, True])
def test_closing_the_server_ends_what_runs_with_an_error(start, stream):
    engine = fakes.FakeEngine(hold=threading.Event())
    live = start(engine)
    sock = send(live, prompt=[1], stream=stream)
    until(lambda: live.app.state.service.sessions)
    service = live.app.state.service
    loop = service.mailbox._loop
    loop.call_soon_threadsafe(service.close)
    received = b""
    while b"shutting down" not in received:
        part = sock.recv(65536)
        assert part, received
        received += part
    assert live.get("/health").status_code == 503
    until(lambda: engine.aborted)
    engine.hold.set()
    sock.close()
