"""uvicorn's HTTP protocol with a bound on a request's head: neither it nor the parser has one."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 2**20
"""Request line and headers. Generous, because bytes are counted by whole reads, of up to 256 KiB each."""


class Protocol(HttpToolsProtocol):
    """A head that does not end would otherwise be kept, byte for byte, as long as its client goes on sending."""

    _head_bytes: int = 0
    _in_head: bool = True

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self.send_400_response(f"The head of the request has more than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        self._head_bytes, self._in_head = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
