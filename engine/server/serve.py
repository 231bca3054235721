"""`engine serve`: listen first, load behind, answer 503 meanwhile, and leave within a second when told to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import psutil
import uvicorn
import uvloop

from engine.config import EngineConfig, ServerConfig
from engine.errors import INTERRUPTED, PreconditionError, UsageError
from engine.server.app import create_app
from engine.server.loading import Loaded, check_folder, check_limits, in_background, load_engine, load_text_side
from engine.server.service import Service, served_name
from engine.server.wire import Protocol

logger = logging.getLogger(__name__)

STOP_WAIT_S = 0.4
"""How long the step in flight may take to end; a longer one dies with the process."""


def serve(config: EngineConfig) -> NoReturn:
    """Serves until a signal; then ends the process with 130 after SIGINT, 0 after SIGTERM. Raises EngineError."""
    check_folder(config.model.path)
    check_limits(config)
    _check_name(served_name(config))
    key = config.server.api_key_env
    if key is not None:
        _check_key(key, os.environ.get(key, ""))
    sock = bind(config.server)
    if key is None and not ipaddress.ip_address(sock.getsockname()[0]).is_loopback:
        logger.warning("anyone who reaches %s may use this server; --api-key-env asks for a key", config.server.host)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_Serving(config, sock).run())
    # Not by returning: the interpreter would take a second or two to dismantle torch, and would wait for weights still
    # being read or a step still running; there is nothing left to save.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _check_name(name: str) -> None:
    """Every answer carries it in JSON, /metrics in a label."""
    if not name.isprintable():
        raise UsageError(f"model name {name!a} has characters that cannot be printed; set --served-model-name")


def _check_key(variable: str, key: str) -> None:
    """The key is in no message. One that no client can send would lock everybody out without a word."""
    if not key:
        raise PreconditionError(f"environment variable {variable} holds no key; set it, or leave out --api-key-env")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise PreconditionError(
            f"environment variable {variable} holds a key that no header can carry; expected printable ASCII without "
            "spaces"
        )


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: it would wait for streams that we end ourselves."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Serving:
    def __init__(self, config: EngineConfig, sock: socket.socket) -> None:
        self._config, self._sock = config, sock
        app = create_app(None, None, config, None)
        self._service: Service = app.state.service
        self._server = _Server(
            uvicorn.Config(
                app,
                http=Protocol,
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=1,
            )
        )
        self._loaded: Loaded | None = None
        self._error: BaseException | None = None
        self._signal: int | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, number)
        host, port = self._sock.getsockname()[:2]
        logger.info("listening on http://%s:%d; loading %s", host, port, self._config.model.path)
        in_background(self._load, self._failed_elsewhere(loop))
        await self._server.serve(sockets=[self._sock])
        await self._stop_engine()
        if self._error is not None:
            raise self._error
        return INTERRUPTED if self._signal == signal.SIGINT else 0

    def _load(self) -> None:
        began = time.monotonic()
        text = load_text_side(self._config.model.path)
        self._service.tokenizer, self._service.template = text.tokenizer, text.template
        loaded = self._loaded = load_engine(self._config, text.sampling_defaults)
        self._service.ready(loaded.loop, loaded.info, loaded.manifest)
        logger.info(
            "ready in %.1f s: %s, %d tokens of context, %d KV blocks of %d tokens (%s), %d state slots",
            time.monotonic() - began,
            self._service.name,
            loaded.info.max_model_len,
            loaded.info.num_blocks,
            self._config.cache.block_tokens,
            loaded.info.kv_cache_dtype,
            self._config.scheduler.max_num_seqs,
        )

    def _failed_elsewhere(self, loop: asyncio.AbstractEventLoop) -> Callable[[BaseException], None]:
        def failed(error: BaseException) -> None:
            loop.call_soon_threadsafe(self._failed, error)

        return failed

    def _failed(self, error: BaseException) -> None:
        self._error = error
        self._server.should_exit = True

    def _stop(self, number: int) -> None:
        if self._signal is not None:
            self._server.force_exit = True
            return
        self._signal = number
        logger.info("%s: stopping", signal.Signals(number).name)
        self._service.close()
        self._server.should_exit = True

    async def _stop_engine(self) -> None:
        """Waits for the step in flight, but not long: a slow one dies with the process."""
        if self._loaded is None:
            return
        loop, done, here = self._loaded.loop, asyncio.Event(), asyncio.get_running_loop()

        def stop() -> None:
            loop.stop(drain=False)
            with contextlib.suppress(RuntimeError):  # the event loop is closed: we stopped waiting before
                here.call_soon_threadsafe(done.set)

        threading.Thread(target=stop, name="stop", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), STOP_WAIT_S)


def bind(server: ServerConfig) -> socket.socket:
    """A listening socket, before anything is loaded: a port in use is known in milliseconds, with its holder's name."""
    where = f"port {server.port} on {server.host}"
    try:
        family, _, _, _, address = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (socket.gaierror, UnicodeError) as error:  # a label that IDNA cannot encode is the latter
        reason = error.strerror if isinstance(error, socket.gaierror) else "not a host name"
        raise PreconditionError(f"host {server.host} has no address ({reason}); choose another --host") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PreconditionError(
                f"{where} is in use{_holder(server.port)}; stop it or choose another --port"
            ) from error
        raise PreconditionError(
            f"{where} cannot be opened: {error.strerror}; choose another --port or --host"
        ) from error


def _holder(port: int) -> str:
    """ " by python (pid 12)", as far as this user may know."""
    try:
        for connection in psutil.net_connections("tcp"):
            address = tuple(connection.laddr)
            if connection.status == psutil.CONN_LISTEN and address[1:2] == (port,) and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return ""
    return ""
