"""A live uvicorn in a thread, as clients meet it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.config import EngineConfig
from engine.server.app import create_app
from engine.server.service import Engine, ModelInfo
from engine.server.template import ChatTemplate
from engine.server.tokenizer import Tokenizer
from engine.server.wire import Protocol
from tests.engine.server import fakes


@dataclass
class Live:
    url: str
    app: ASGIApp

    def post(self, path: str, **body: object) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=120, trust_env=False)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=120, trust_env=False)


@contextlib.contextmanager
def serving(app: ASGIApp) -> Iterator[Live]:
    sock = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, http=Protocol, loop="uvloop", log_level="error", lifespan="off", ws="none")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield Live(f"http://127.0.0.1:{sock.getsockname()[1]}", app)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


class Switch:
    """An ASGI app that stands for another one: one server for all tests, since starting one costs 0.3 s."""

    app: Starlette

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@pytest.fixture(scope="session")
def switched() -> Iterator[tuple[Switch, str]]:
    switch = Switch()
    with serving(switch) as live:
        yield switch, live.url


Start = Callable[..., Live]


@pytest.fixture
def start(switched: tuple[Switch, str]) -> Start:
    """start(engine, ...) serves until the test ends or calls it again."""
    switch, url = switched

    def begin(
        engine: Engine | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        no_tokenizer: bool = False,
        config: EngineConfig | None = None,
        info: ModelInfo | None = None,
        template: ChatTemplate | None = None,
    ) -> Live:
        switch.app = create_app(
            engine or fakes.FakeEngine(),
            None if no_tokenizer else tokenizer or fakes.byte_level_tokenizer(),
            config or fakes.config(),
            info or fakes.model_info(),
            template=template or fakes.chat_template(),
        )
        return Live(url, switch.app)

    return begin
