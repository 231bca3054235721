"""ApiError: what a client did wrong, or what the server cannot do now, in OpenAI's error shape."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping

import orjson
from starlette.responses import Response

SHOWN_CHARS = 60
"""How much of a client's own value a message repeats."""


class ApiError(Exception):
    """One refusal. `message` says what was found, what was expected and what to do; `param` names the field."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code, self.headers = message, status, param, code, headers

    @property
    def type(self) -> str:
        """OpenAI's coarse class of the error, from the status."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")


def shown(value: object) -> str:
    """`value` as a message quotes it: never longer than SHOWN_CHARS, however long, deep or wide it is."""
    text = _short.repr(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = SHOWN_CHARS

_TYPES = {401: "authentication_error", 404: "not_found_error", 503: "service_unavailable"}


def error_object(error: ApiError) -> dict[str, object]:
    """{"error": {message, type, param, code}}, as both a response body and an event of a broken stream."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def error_response(error: ApiError) -> Response:
    return Response(
        orjson.dumps(error_object(error)),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


def not_ready(reason: str) -> ApiError:
    """503 with a hint when to come back."""
    return ApiError(reason, status=503, code="not_ready", headers={"retry-after": "1"})
