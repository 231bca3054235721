"""4 Control calls to a server: untimed, never through a proxy, one TLS context for all (loading it takes 30 ms)."""

from __future__ import annotations

import functools
import ssl

import httpx


def client(url: str, timeout_s: float) -> httpx.Client:
    """A client for paths below `url`."""
    return httpx.Client(base_url=url, timeout=timeout_s, trust_env=False, verify=_context())


@functools.cache
def _context() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)
