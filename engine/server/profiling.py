"""/start_profile and /stop_profile, vLLM's routes: there only where ENGINE_PROFILE_DIR names a folder."""

from __future__ import annotations

import asyncio

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from engine.profile import ProfileError, WindowProfiler, profiler
from engine.server.errors import ApiError
from engine.server.http import json_response
from engine.server.service import Service


def routes() -> list[Route]:
    """None without the switch. Raises PreconditionError where it names no folder."""
    found = profiler()
    if found is None:
        return []
    handlers = _Handlers(found)
    return [
        Route("/start_profile", handlers.start, methods=["POST"]),
        Route("/stop_profile", handlers.stop, methods=["POST"]),
    ]


class _Handlers:
    """Both wait on a thread: writing a trace takes seconds, and the event loop may not stand still for it."""

    def __init__(self, profiler: WindowProfiler) -> None:
        self._profiler = profiler

    async def start(self, request: HttpRequest) -> Response:
        service: Service = request.app.state.service
        service.require()
        try:
            await asyncio.to_thread(self._profiler.start)
        except ProfileError as error:
            raise ApiError(str(error), status=409) from error
        return json_response({"profiling": True})

    async def stop(self, request: HttpRequest) -> Response:
        service: Service = request.app.state.service
        service.require()
        try:
            path = await asyncio.to_thread(self._profiler.stop)
        except ProfileError as error:
            raise ApiError(str(error), status=409) from error
        return json_response({"profiling": False, "trace": str(path)})
