"""Ports for servers that tests start: reserved across every test process of this machine, never handed out twice.

A port picked at random and found free was rejected: between that look and the server's start another worker picks the
same one, and a port from the kernel (bind to 0) is in the range it gives to outgoing connections a moment later.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 20000, 31998
"""Below net.ipv4.ip_local_port_range."""
FOLDER = Path(tempfile.gettempdir()) / f"gate-test-ports-{os.getuid()}"

_held: list[int] = []
"""File descriptors of the reservations; the kernel lets go of them when this process ends."""
_candidates = itertools.cycle(random.sample(range(FIRST, LAST, 2), (LAST - FIRST) // 2))


def free_port() -> int:
    """A port that is free, as is its successor, and that no other test process gets while this one lives."""
    FOLDER.mkdir(exist_ok=True)
    for port in itertools.islice(_candidates, (LAST - FIRST) // 2):
        reservation = os.open(FOLDER / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(reservation, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for each in (port, port + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", each))
        except OSError:
            os.close(reservation)
            continue
        _held.append(reservation)
        return port
    raise AssertionError(f"no two neighbouring ports are free between {FIRST} and {LAST}")
