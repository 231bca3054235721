"""ApiError: what a client did wrong, or what the server cannot do now, in OpenAI's error shape."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.responses import Response


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
