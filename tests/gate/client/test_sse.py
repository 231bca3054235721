from __future__ import annotations

from itertools import pairwise

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import given, settings
from hypothesis import strategies as st

from gate.client.sse import Event, Parser

GOOD = 'data: {"choices":[{"delta":{"content":" é 日🙂"}}]}'


def parse(reads: list[bytes]) -> list[Event]:
    parser = Parser()
    return [event for read in reads for event in parser.feed(read)]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


field = st.sampled_from(["data", "data:", "data: ", "data:  ", "event: ", ": ", "id: ", "retry: ", "other: ", ""])
value = st.text(alphabet=st.sampled_from('ab: {}"é日🙂\u2028\u2029\u0085\u000b\ufeff'), max_size=8)
line = st.tuples(field, value).map("".join)
stream = st.lists(st.tuples(line, st.sampled_from(["\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n"])), max_size=12).map(
    lambda pairs: "".join(map("".join, pairs)).encode()
)


@settings(max_examples=200, deadline=None)
@given(stream=stream, places=st.lists(st.integers(0, 500), max_size=8))
def test_any_split_gives_the_same_events(stream: bytes, places: list[int]) -> None:
    assert parse(cut(stream, places)) == parse([stream])


@settings(max_examples=100, deadline=None)
@given(stream=stream)
def test_one_byte_at_a_time_gives_the_same_events(stream: bytes) -> None:
    assert parse([stream[i : i + 1] for i in range(len(stream))]) == parse([stream])


@settings(max_examples=200, deadline=None)
@given(stream=stream)
def test_agrees_with_httpx_sse(stream: bytes) -> None:
    # Two things of the standard that the library leaves out are taken off: a BOM at the start, and that an event
    # without data is none.
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
    theirs = [Event(e.data, e.event) for e in EventSource(response).iter_sse() if e.data]
    ours = [event for event in parse([stream]) if event.data]
    # The library also dispatches at the end of the stream what no blank line has ended.
    assert ours == theirs[: len(ours)]
    assert len(theirs) - len(ours) <= 1


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("comment", ["", ": ping\n"])
@pytest.mark.parametrize("space", [" ", ""])
def test_every_single_cut_of_a_good_event(newline: str, comment: str, space: str) -> None:
    text = comment.replace("\n", newline) + GOOD.replace("data: ", "data:" + space) + newline * 2
    raw = text.encode()
    for place in range(len(raw) + 1):
        (event,) = parse([raw[:place], raw[place:]])
        assert event.data == GOOD.removeprefix("data: ")


def test_only_cr_and_lf_end_a_line() -> None:
    (event,) = parse(["data: a\u2028b\u2029c\u0085d\u000be\n\n".encode()])
    assert event.data == "a\u2028b\u2029c\u0085d\u000be"


def test_lines_of_one_event_are_joined_by_lf() -> None:
    assert parse([b"data: a\ndata:\ndata: b\n\n"]) == [Event("a\n\nb")]


def test_one_leading_space_belongs_to_the_framing_and_no_more() -> None:
    assert parse([b"data:  x \n\n"]) == [Event(" x ")]


def test_bom_is_dropped_at_the_start_only() -> None:
    bom = b"\xef\xbb\xbf"
    assert parse([bom[:1], bom[1:] + b"data: a\n\n", bom + b"data: b\n\ndata: c\n\n"]) == [Event("a"), Event("c")]


def test_event_name_lasts_for_one_event() -> None:
    assert parse([b"event: error\ndata: a\n\ndata: b\n\n"]) == [Event("a", "error"), Event("b")]


def test_unfinished_event_is_none_and_is_seen() -> None:
    parser = Parser()
    assert parser.feed(b"data: a\n") == []
    assert parser.pending
    assert parser.feed(b"\n") == [Event("a")]
    assert not parser.pending


def test_invalid_utf8_is_replaced_and_splits_nothing() -> None:
    assert parse([b"data: a\xff\xe6b\n\n"]) == [Event("a��b")]
