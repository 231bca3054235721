from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate.client.http1 import MAX_HEAD_BYTES, BadResponseError, ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(pieces: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces if piece)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"


def read(raw: bytes, places: list[int]) -> tuple[ResponseReader, bytes]:
    edges = [0, *sorted(place % (len(raw) + 1) for place in places), len(raw)]
    reader = ResponseReader()
    return reader, b"".join(reader.feed(raw[a:b]) for a, b in pairwise(edges))


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(st.binary(max_size=40), max_size=6),
    places=st.lists(st.integers(0, 1000), max_size=10),
    extension=st.sampled_from([b"", b";a=b"]),
    trailer=st.sampled_from([b"", b"X-A: b\r\n"]),
)
def test_chunked_body_whatever_the_reads(
    pieces: list[bytes], places: list[int], extension: bytes, trailer: bytes
) -> None:
    reader, body = read(chunked(pieces, extension, trailer), places)
    assert body == b"".join(pieces)
    assert reader.complete
    assert reader.keep_alive
    assert reader.status == 200
    assert reader.content_type == "text/event-stream"


@given(pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=6), cut=st.integers(-3, 3))
def test_a_read_that_is_one_chunk_or_nearly(pieces: list[bytes], cut: int) -> None:
    """What nearly every read of a stream is has a way of its own; a byte more or less goes the other one."""
    raw, edges = chunked(pieces), [len(chunked([])) - len(b"0\r\n\r\n")]
    for piece in pieces:
        edges.append(edges[-1] + len(b"%x\r\n%s\r\n" % (len(piece), piece)))
    reader, body = read(raw, [*edges[:1], *(edge + cut for edge in edges[1:])])
    assert body == b"".join(pieces)
    assert reader.complete


def begun() -> ResponseReader:
    reader = ResponseReader()
    assert reader.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n") == b""
    return reader


@pytest.mark.parametrize("size", [1, 0x1F, 0x123])
def test_a_whole_chunk_is_not_gone_over_piece_by_piece(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = begun()
    monkeypatch.setattr(reader, "_feed", None)
    for _ in range(2):
        assert reader.feed(b"%x\r\n%s\r\n" % (size, b"x" * size)) == b"x" * size


def test_a_size_that_was_cut_in_two_is_one_number() -> None:
    reader = begun()
    assert reader.feed(b"1") == b""
    assert reader.feed(b"1\r\na\r\n") == b"a\r\n"
    assert reader.feed(b"x" * 14 + b"\r\n") == b"x" * 14


def test_a_chunk_as_long_as_it_should_be_ends_in_a_line_end() -> None:
    with pytest.raises(BadResponseError, match="chunk is longer"):
        begun().feed(b"2\r\nabcd\r\n")
    reader = begun()
    assert reader.feed(b"2\r\nabcd") == b"ab"
    with pytest.raises(BadResponseError, match="chunk is longer"):
        reader.feed(b"\r\n")


def test_a_body_by_length_that_looks_like_a_chunk_is_whole() -> None:
    reader = ResponseReader()
    assert reader.feed(HEAD + b"Content-Length: 6\r\n\r\n") == b""
    assert reader.feed(b"1\r\na\r\n") == b"1\r\na\r\n"
    assert reader.complete


@settings(max_examples=100, deadline=None)
@given(body=st.binary(max_size=60), places=st.lists(st.integers(0, 1000), max_size=10))
def test_body_by_length_whatever_the_reads(body: bytes, places: list[int]) -> None:
    reader, got = read(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, places)
    assert got == body
    assert reader.complete


def test_body_until_close_ends_with_the_connection() -> None:
    reader, body = read(HEAD + b"\r\nabc", [])
    assert (body, reader.complete, reader.keep_alive) == (b"abc", False, False)
    reader.close()
    assert reader.complete


def test_interim_response_is_skipped() -> None:
    reader, body = read(b"HTTP/1.1 100 Continue\r\n\r\n" + chunked([b"x"]), [30])
    assert (reader.status, body) == (200, b"x")


@pytest.mark.parametrize(
    ("header", "keep"), [(b"", True), (b"Connection: close\r\n", False), (b"connection: Keep-Alive\r\n", True)]
)
def test_keep_alive_is_the_default_of_http_1_1(header: bytes, keep: bool) -> None:
    reader, _ = read(HEAD + header + b"Content-Length: 0\r\n\r\n", [])
    assert reader.keep_alive is keep


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "status line is 'SSH"),
        (b"HTTP/1.1 abc\r\n\r\n", "status line is"),
        (HEAD + b"Content-Length: -4\r\n\r\n", "content-length is '-4'"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "chunk size is b'xyz'"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", "chunk size is b'-1'"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n", "chunk is longer"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n+2\r\nab\r\n", "chunk size is b'\\+2'"),
        (chunked([b"x"]) + b"HTTP/1.1 200", "12 bytes after the end"),
        (b"x" * (MAX_HEAD_BYTES + 1), "no line end"),
    ],
)
def test_what_is_no_response_is_named(raw: bytes, message: str) -> None:
    with pytest.raises(BadResponseError, match=message):
        ResponseReader().feed(raw)


@pytest.mark.parametrize(
    ("raw", "message"), [(b"HTTP/1.1 2", "closed before the response"), (chunked([b"abc"])[:-5], "closed inside")]
)
def test_early_close_is_named(raw: bytes, message: str) -> None:
    reader = ResponseReader()
    reader.feed(raw)
    with pytest.raises(BadResponseError, match=message):
        reader.close()
