"""4 A TCP socket whose reads carry the kernel's receive stamps, as much of a transport as a Connection needs.

Event loops read with recv, which drops the stamps: here the loop only tells that there is something to read.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from gate.client import stamps

READ_BYTES = 64 * 1024

ANCILLARY_BYTES = socket.CMSG_SPACE(16) if hasattr(socket, "CMSG_SPACE") else 0


class Receiver(Protocol):
    def received(self, data: bytes, now_ns: int, arrived_ns: int | None) -> None:
        """A read; its time by the loop and, where the kernel told, its arrival. Both perf_counter_ns."""
        ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class StampedTransport:
    """Reads and writes one connected socket, which it owns. abort() closes at once and tells nobody."""

    def __init__(self, sock: socket.socket, receiver: Receiver) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock, self._fd, self._receiver = sock, sock.fileno(), receiver
        self._unsent = memoryview(b"")
        self._loop.add_reader(self._fd, self._on_readable)

    def is_closing(self) -> bool:
        return self._fd < 0

    def write(self, data: bytes) -> None:
        """At once, as far as the socket takes it. A failure is told as the connection's loss, after this returns."""
        self._unsent = memoryview(data)
        self._on_writable()
        if self._unsent and not self.is_closing():
            self._loop.add_writer(self._fd, self._on_writable)

    def abort(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._fd = -1
            self._sock.close()

    def _on_readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        now_ns, real_ns = stamps.both_clocks()
        if not data:
            self._lose(None)
            return
        stamp_ns = stamps.kernel_ns(ancillary, socket.SOL_SOCKET)
        self._receiver.received(data, now_ns, stamps.arrived_ns(stamp_ns, now_ns, real_ns))

    def _on_writable(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._unsent = memoryview(b"")
            self._loop.call_soon(self._lose, error)
        if not self._unsent:
            self._loop.remove_writer(self._fd)

    def _lose(self, error: Exception | None) -> None:
        if not self.is_closing():
            self.abort()
            self._receiver.connection_lost(error)


async def connect(host: str, port: int) -> socket.socket | None:
    """A connected socket whose packets are stamped; None where the kernel does not do that. Raises OSError."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            if not _stamping(sock):
                sock.close()
                return None
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
        except OSError as error:
            failure = error
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"{host} has no address")


def _stamping(sock: socket.socket) -> bool:
    """Asked before connecting: the kernel begins to stamp a little after it is first asked to."""
    if not ANCILLARY_BYTES or not hasattr(sock, "recvmsg"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, stamps.SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True
