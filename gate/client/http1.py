"""4 One HTTP/1.1 response, read by read: head, then body by chunks, by length or until close. Pure.

Works inline, since a closed loop must know at once that a stream has ended; a read that is one whole chunk, as nearly
every read of a stream is, costs 0.5 µs, any other 3.
Source: RFC 9112 §6, §7.1.
"""

from __future__ import annotations

import re
from enum import Enum, auto

MAX_HEAD_BYTES = 64 * 1024
"""A head or chunk line longer than this is not HTTP."""


class BadResponseError(ValueError):
    """The bytes are not an HTTP/1.1 response."""


class _State(Enum):
    HEAD = auto()
    SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    LENGTH = auto()
    UNTIL_CLOSE = auto()
    DONE = auto()


_SIZE, _DONE = _State.SIZE, _State.DONE
"""Looking a member up takes as long as half of what else is done with a whole chunk."""

_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")


class ResponseReader:
    def __init__(self) -> None:
        self.status: int | None = None
        self.content_type: str | None = None
        self.keep_alive = True
        self._state = _State.HEAD
        self._pending = b""
        self._left = 0

    @property
    def complete(self) -> bool:
        return self._state is _DONE

    def feed(self, read: bytes) -> bytes:
        """Body bytes of this read. Raises BadResponseError."""
        if self._state is _SIZE and not self._pending:
            line = _SIZE_LINE.match(read)
            if line is not None:
                size, begin = int(line[1], 16), line.end()
                if size and len(read) == begin + size + 2 and read.endswith(b"\r\n"):
                    return read[begin:-2]
        return self._feed(read)

    def _feed(self, read: bytes) -> bytes:
        buffer = self._pending + read if self._pending else read
        self._pending = b""
        body: list[bytes] = []
        at = 0
        while at < len(buffer):
            if self._state in (_State.CHUNK, _State.LENGTH):
                piece = buffer[at : at + self._left]
                body.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = _State.CHUNK_END if self._state is _State.CHUNK else _State.DONE
            elif self._state is _State.UNTIL_CLOSE:
                body.append(buffer[at:])
                at = len(buffer)
            elif self._state is _State.DONE:
                raise BadResponseError(f"{len(buffer) - at} bytes after the end of the response")
            else:
                end = buffer.find(b"\r\n", at)
                if self._state is _State.HEAD:
                    end = buffer.find(b"\r\n\r\n", at)
                if end < 0:
                    self._keep(buffer[at:])
                    break
                line = buffer[at:end]
                at = end + (4 if self._state is _State.HEAD else 2)
                self._on_line(line)
        return body[0] if len(body) == 1 else b"".join(body)

    def close(self) -> None:
        """The peer closed. Raises BadResponseError when more should have come."""
        if self._state is _State.UNTIL_CLOSE:
            self._state = _State.DONE
        if self._state is not _State.DONE:
            where = "before the response" if self.status is None else "inside the response"
            raise BadResponseError(f"connection closed {where}")

    def _keep(self, rest: bytes) -> None:
        if len(rest) > MAX_HEAD_BYTES:
            raise BadResponseError(f"no line end in {len(rest)} bytes")
        self._pending = rest

    def _on_line(self, line: bytes) -> None:
        if self._state is _State.HEAD:
            self._on_head(line)
        elif self._state is _State.SIZE:
            self._on_size(line)
        elif self._state is _State.CHUNK_END:
            if line:
                raise BadResponseError(f"chunk is longer than its size says: {line[:40]!r}")
            self._state = _State.SIZE
        elif not line:  # the empty line after the trailers
            self._state = _State.DONE

    def _on_size(self, line: bytes) -> None:
        digits = line.split(b";", 1)[0].strip()
        if not digits or digits.strip(b"0123456789abcdefABCDEF"):
            raise BadResponseError(f"chunk size is {line[:40]!r}")
        self._left = int(digits, 16)
        self._state = _State.CHUNK if self._left else _State.TRAILER

    def _on_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdecimal():
            raise BadResponseError(f"status line is {first[:60]!r}")
        if code.startswith("1"):
            return  # an interim response; the real head follows
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.status = int(code)
        self.content_type = fields.get("content-type")
        connection = fields.get("connection", "").lower()
        self.keep_alive = connection != "close" if version == "HTTP/1.1" else connection == "keep-alive"
        length = fields.get("content-length", "")
        if self.status in (204, 304):
            self._state = _State.DONE
        elif "chunked" in fields.get("transfer-encoding", "").lower():
            self._state = _State.SIZE
        elif length:
            if not length.isdecimal():
                raise BadResponseError(f"content-length is {length[:40]!r}")
            self._left = int(length)
            self._state = _State.LENGTH if self._left else _State.DONE
        else:
            self._state, self.keep_alive = _State.UNTIL_CLOSE, False
