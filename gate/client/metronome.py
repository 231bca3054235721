"""4 The calibration server: streams that tick together, each event stamped right before its own send.

Blocking sockets and ready-made bytes, so that all streams' events leave within microseconds of each other: the hardest
case for a client, which must take them one by one. Runs as a process of its own: `python -m gate.client.metronome`.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import time

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"chatcmpl-0f8fad5bd9cb469fa16570867728950e","object":"text_completion","created":1764446000,'
    b'"model":"nvidia/Qwen3.6-27B-NVFP4","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null,'
    b'"stop_reason":null,"token_ids":[12345],"prompt_token_ids":null}],"usage":null,"system_fingerprint":null,'
    b'"sent_ns":"%019d"}\n\n'
)
SOCKET_TIMEOUT_S = 30.0
"""A gate that was killed never comes; without a limit this process would wait for it for ever."""
_END = b"data: [DONE]\n\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def serve(streams: int, events: int, period_s: float, listener: socket.socket) -> None:
    """Answer one request on each of `streams` connections with `events` events, a tick for all every `period_s`."""
    connections = [_accept(listener) for _ in range(streams)]
    for connection in connections:
        connection.sendall(_HEAD)
    before, after = chunk(_EVENT % 0).split(b"%019d" % 0)
    due_ns = time.perf_counter_ns()
    for _ in range(events):
        due_ns += round(period_s * 1e9)
        time.sleep(max(due_ns - time.perf_counter_ns(), 0) / 1e9)
        for connection in connections:
            connection.sendall(b"%s%019d%s" % (before, time.perf_counter_ns(), after))
    for connection in connections:
        connection.sendall(chunk(_END) + b"0\r\n\r\n")
    for connection in connections:
        connection.recv(1)  # wait for the client to close, so that the kernel resets nothing it has not read
        connection.close()


def _accept(listener: socket.socket) -> socket.socket:
    """A connection whose whole request has been read."""
    connection, _ = listener.accept()
    connection.settimeout(SOCKET_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += _received(connection)
    head, _, body = raw.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += _received(connection)
    return connection


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the client closed before its request was whole")
    return data


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gate.client.metronome", description=(__doc__ or "").removeprefix("4 "), allow_abbrev=False
    )
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--events", type=int, required=True, help="per stream")
    parser.add_argument("--period-ms", type=float, required=True)
    args = parser.parse_args()
    # The client says what is wrong with a stream; a traceback of this side would only stand beside it.
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 0), backlog=args.streams) as listener:
        listener.settimeout(SOCKET_TIMEOUT_S)
        print(listener.getsockname()[1], flush=True)
        serve(args.streams, args.events, args.period_ms / 1000, listener)
    return 0


if __name__ == "__main__":
    sys.exit(main())
