"""4 When a read's bytes arrived: the kernel's receive stamp, told on perf_counter's clock. Pure.

Linux stamps a packet as it comes in, on loopback inside the sender's own call: a loop that wakes up late makes it no
later. Of several packets in one read it tells the last one's, so that an event may be stamped late, by the time to the
packets that it was read with, and never early. The stamp is CLOCK_REALTIME, perf_counter CLOCK_MONOTONIC. NTP slews
both alike; where the first is stepped between a packet's arrival and its read, `Stamper` keeps out what cannot be.
Source: Documentation/networking/timestamping.rst of Linux, §1.1; tcp_recvmsg_locked() in net/ipv4/tcp.c.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from typing import Literal

Source = Literal["kernel", "loop"]

SO_TIMESTAMPNS = 64
"""SO_TIMESTAMPNS_NEW of <asm-generic/socket.h>, since Linux 5.1: 64-bit times everywhere. Also its message's type."""

_TIMESPEC = struct.Struct("=qq")
"""struct __kernel_timespec: seconds, nanoseconds."""

PAIR_NS = 10_000
"""The two clocks are read within this of each other, or again: a thread that lost its core in between would tell
another age. Half a percent of the shortest gap seen, 1.8 ms."""

TRIES = 5

MAX_LOOP_SHARE = 0.001
"""Of a leg's reads, that may have the loop's time where the leg has the kernel's. Below 1 in 128: that every request's
first token has it, and every TTFT with it, cannot pass for the kernel's."""


def kernel_ns(ancillary: Iterable[tuple[int, int, bytes]], level: int) -> int | None:
    """CLOCK_REALTIME of the last packet, from what recvmsg gave beside the bytes; None without a stamp."""
    for found, kind, data in ancillary:
        if found == level and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, rest = _TIMESPEC.unpack(data)
            return int(seconds * 1_000_000_000 + rest)
    return None


def both_clocks(
    perf: Callable[[], int] = time.perf_counter_ns, real: Callable[[], int] = time.time_ns
) -> tuple[int, int | None]:
    """(perf_counter_ns, time_ns at most PAIR_NS before); None for the second where every try was interrupted."""
    for _ in range(TRIES):
        before, wall, after = perf(), real(), perf()
        if after - before <= PAIR_NS:
            return after, wall
    return after, None


def arrived_ns(stamp_ns: int | None, perf_ns: int, real_ns: int | None) -> int | None:
    """The kernel's stamp on perf_counter's clock: now less its age."""
    return None if stamp_ns is None or real_ns is None else perf_ns - (real_ns - stamp_ns)


class Stamper:
    """The stamps of one exchange's reads, in order."""

    def __init__(self, sent_ns: int) -> None:
        self._last_ns = sent_ns
        self.by_loop = False
        """Whether the last read has the loop's stamp."""

    def stamp(self, now_ns: int, arrived: int | None) -> int:
        """When the bytes arrived; `now_ns`, the loop's time, where the kernel did not tell, or told what cannot be: the
        future, or a time before the request or before the last read."""
        if arrived is None or not self._last_ns <= arrived <= now_ns:
            self._last_ns, self.by_loop = now_ns, True
        else:
            self._last_ns, self.by_loop = arrived, False
        return self._last_ns


def source(reads: int, by_loop: int) -> Source | None:
    """What a leg's stamps are; None for one that read nothing."""
    if not reads:
        return None
    return "kernel" if by_loop <= MAX_LOOP_SHARE * reads else "loop"
