"""The routes, the key check, and the one place where errors become responses."""

from __future__ import annotations

import hmac
import logging
import os

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.config import EngineConfig
from engine.server import info as about
from engine.server import profiling
from engine.server.chat import chat_completions
from engine.server.completions import completions
from engine.server.errors import ApiError, error_response
from engine.server.metrics import Metrics
from engine.server.service import Engine, ModelInfo, Service, served_name
from engine.server.template import ChatTemplate
from engine.server.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/version", "/metrics"})
"""Never behind the key: what probes and dashboards read."""


def create_app(
    engine: Engine | None,
    tokenizer: Tokenizer | None,
    config: EngineConfig,
    info: ModelInfo | None,
    *,
    template: ChatTemplate | None = None,
) -> Starlette:
    """The ASGI app. With engine None it answers 503 until `app.state.service.ready(...)` is called."""
    service = Service(config, Metrics(served_name(config)), tokenizer=tokenizer, template=template)
    if engine is not None and info is not None:
        service.ready(engine, info, {})
    app = Starlette(
        routes=[
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/models", about.models),
            Route("/tokenize", about.tokenize, methods=["POST"]),
            Route("/detokenize", about.detokenize, methods=["POST"]),
            Route("/health", about.health),
            Route("/version", about.version),
            Route("/metrics", about.metrics),
            *profiling.routes(),
        ],
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientDisconnect: _client_left,
            Exception: _unexpected,
        },
    )
    app.state.service = service
    if config.server.api_key_env is not None:
        app.add_middleware(KeyCheck, key=os.environ[config.server.api_key_env])
    return app


class KeyCheck:
    """401 without the bearer key. Compares in constant time; the key is in no message, log or /version."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._expected = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given, self._expected):
                error = ApiError("no valid key; send `Authorization: Bearer …`", status=401, code="invalid_api_key")
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _api_error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return error_response(ApiError(message, status=error.status_code, headers=error.headers))


async def _client_left(_: HttpRequest, __: Exception) -> Response:
    """The body never came to its end; nobody reads this answer."""
    return error_response(ApiError("the client left before its body was complete", code="client_left"))


async def _unexpected(request: HttpRequest, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(ApiError(f"internal error: {type(error).__name__}; see the server's log", status=500))
