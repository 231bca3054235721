"""4 Control calls to a server: untimed, bounded, never through a proxy, one TLS context for all (it costs 30 ms)."""

from __future__ import annotations

import functools
import ssl
import time

import httpx

MAX_BYTES = 16 * 2**20
"""/metrics of a busy vLLM is some 100 KB."""


def client(url: str, timeout_s: float) -> httpx.Client:
    """A client for paths below `url`."""
    return httpx.Client(base_url=url, timeout=timeout_s, trust_env=False, verify=tls_context())


def async_client(url: str, timeout_s: float) -> httpx.AsyncClient:
    """The same for several requests at once."""
    return httpx.AsyncClient(base_url=url, timeout=timeout_s, trust_env=False, verify=tls_context())


def get(client: httpx.Client, path: str) -> tuple[int, str]:
    """(status, body as text).

    httpx limits the wait for each read, not the whole: a body that drips for ever would hold the gate for ever.
    Raises httpx.HTTPError, also for a body that takes longer than the client's timeout or is larger than MAX_BYTES.
    """
    deadline = time.monotonic() + (client.timeout.read or 0.0)
    body = bytearray()
    with client.stream("GET", path) as response:
        for piece in response.iter_bytes():
            body += piece
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout(f"{path} did not end in time")
            if len(body) > MAX_BYTES:
                raise httpx.DecodingError(f"{path} is larger than {MAX_BYTES} bytes")
    return response.status_code, body.decode("utf-8", "replace")


@functools.cache
def tls_context() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)
