"""What happens below the routes: heads that do not end, and bodies that look like them."""

from __future__ import annotations

import contextlib
import json
import socket

import httpx
import pytest

from engine.server.wire import MAX_HEAD_BYTES


def connect(live):
    url = httpx.URL(live.url)
    return socket.create_connection((url.host, url.port), timeout=20)


def answer(connection):
    received = b""
    # A server that closes with bytes of ours unread resets the connection: the answer is what came before that.
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


@pytest.mark.parametrize("head", [b"X: ", b"X: y\r\n"], ids=["one header", "many headers"])
def test_a_head_that_does_not_end_is_refused(start, head):
    with connect(start()) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + head)
        connection.sendall(head * (MAX_HEAD_BYTES // len(head) + 1))
        assert answer(connection).startswith(b"HTTP/1.1 400")


def test_a_long_body_is_no_head_and_the_connection_is_used_again(start):
    body = json.dumps({"prompt": "x" * (2 * MAX_HEAD_BYTES)}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body)
    with connect(start()) as connection:
        connection.sendall(head + b"\r\n" + body)
        assert b"characters" in connection.recv(65536)
        connection.sendall(head + b"Connection: close\r\n\r\n" + body)
        assert b"characters" in answer(connection)
