"""How long a server takes to serve, from the spawn of its process.

    port_open_s   = (port_open_ns − spawn_ns) / 10^9         somebody accepts connections
    ready_s       = (ready_ns − spawn_ns) / 10^9             /health answers 200
    first_token_s = (first_token_ns − spawn_ns) / 10^9       the first token of a request sent as soon as it is ready

The gate looks every 20 ms, so the first two are late by up to that. A start that was to be cold, or warm, and is not
proven to have been has no figure: pages of the checkpoint in memory are worth seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from gate.observe.rows import StartRow

NS_PER_S = 1_000_000_000


def proven(start: StartRow) -> bool:
    """Whether the page cache was as it was asked to be, if anything was asked."""
    return start.wanted_cache in (None, start.page_cache)


def port_open_s(start: StartRow) -> float | None:
    return _since_spawn(start, start.port_open_ns)


def ready_s(start: StartRow) -> float | None:
    return _since_spawn(start, start.ready_ns)


def first_token_s(start: StartRow) -> float | None:
    return _since_spawn(start, start.first_token_ns)


START_AXES: dict[str, Callable[[StartRow], float | None]] = {
    "port_open_s": port_open_s,
    "ready_s": ready_s,
    "first_token_s": first_token_s,
}
"""In order of time. The last one is what a user waits for, and decides."""
DECIDES = "first_token_s"


def _since_spawn(start: StartRow, stamp_ns: int | None) -> float | None:
    if stamp_ns is None or start.error is not None or not proven(start):
        return None
    return (stamp_ns - start.spawn_ns) / NS_PER_S
