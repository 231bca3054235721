"""Bytes in -> tokens, times and errors out. Numbers in brackets are the acceptance cases of streaming benchmarks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gate.client.stream import Stream, read_stream

MS = 1_000_000
DONE = b"data: [DONE]\n\n"


def frame(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def usage(completion: int, prompt: int = 5) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def text(said: str, ids: list[int] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": said, "finish_reason": finish} | ({} if ids is None else {"token_ids": ids})
    return frame({"choices": [choice], **more})


def chat(finish: str | None = None, **delta: Any) -> bytes:
    return frame({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def last(count: int) -> bytes:
    return frame({"choices": [], "usage": usage(count)}) + DONE


def read(*events: tuple[int, bytes]) -> Stream:
    return read_stream([(ms * MS, data) for ms, data in events])


def test_role_chunk_is_not_a_token() -> None:  # [1]
    stream = read(
        (10, chat(role="assistant", content="")),
        (200, chat(content="a")),
        (220, chat("length", content="b")),
        (221, last(2)),
    )
    assert stream.token_times_ns == [200 * MS, 220 * MS]
    assert (stream.completion_tokens, stream.error) == (2, None)


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_counts_and_is_not_visible(key: str) -> None:  # [2]
    stream = read((50, chat(**{key: "x"})), (150, chat("stop", content="y")), (151, last(2)))
    assert stream.token_times_ns == [50 * MS, 150 * MS]
    assert stream.first_visible_ns == 150 * MS
    assert stream.completion_tokens == 2
    assert stream.error is None


def test_nothing_is_not_zero() -> None:  # [3]
    stream = read((10, chat(role="assistant")), (20, chat("length")), (21, last(4)))
    assert stream.token_times_ns == []
    assert stream.token_ids is None
    assert stream.error == "no generated token in 4 events; usage.completion_tokens is 4"


def test_any_byte_split_gives_the_same_stream() -> None:  # [4]
    for newline in (b"\n", b"\r\n", b"\r"):
        for space in (b"data: ", b"data:"):
            for comment in (b"", b": ping\n"):
                raw = (text(" é 日") + comment + text("🙂", finish="length") + last(2)).replace(b"data: ", space)
                raw = raw.replace(b"\n", newline)
                whole = read((7, raw))
                assert whole.error is None
                assert len(whole.token_times_ns) == whole.completion_tokens == 2
                for place in range(len(raw)):
                    assert read((7, raw[:place]), (7, raw[place:])) == whole
                assert read_stream((7 * MS, raw[i : i + 1]) for i in range(len(raw))) == whole


def test_event_gets_the_time_of_the_read_that_completed_it() -> None:
    raw = text("a", finish="length") + last(1)
    assert read((1, raw[:20]), (2, raw[20:])).token_times_ns == [2 * MS]


THREE = (1, text("a")), (2, text("b")), (3, text("c"))


@pytest.mark.parametrize(
    ("tail", "error"),
    [
        (
            frame({"error": {"message": "CUDA error", "code": 500}}) + DONE,
            "server error after 3 token events: CUDA error",
        ),
        (frame({"object": "error", "message": "old shape"}) + DONE, "server error after 3 token events: old shape"),
        (b'event: error\ndata: {"reason": 1}\n\n' + DONE, 'server error after 3 token events: {"reason": 1}'),
        (b'data: {"cho', "stream ended inside an event"),
        (text("d", finish="abort") + last(4), "finish_reason is 'abort'"),
        (b"data: {cho\n\n" + DONE, "event 4 is not JSON: '{cho'"),
        (b"data: 3\n\n" + DONE, "event 4 is not a JSON object: '3'"),
        (text("d", finish="length") + text("e") + last(5), "event 5 carries tokens after finish_reason 'length'"),
        (text("d", finish="length") + DONE + frame({"choices": [], "usage": usage(4)}), "event 6 came after [DONE]"),
        (frame({"choices": [{"index": 1, "text": "x"}]}) + DONE, "event 4 has choices other than the one asked for"),
    ],
)
def test_failures_have_reasons_of_their_own(tail: bytes, error: str) -> None:  # [5]
    stream = read(*THREE, (4, tail))
    assert stream.error == error
    assert len(stream.token_times_ns) >= 3


def test_unicode_separators_are_text() -> None:  # [6]
    stream = read((1, text("a\u2028b\u2029c\u0085d\u000be", finish="length") + last(1)))
    assert (len(stream.token_times_ns), stream.error) == (1, None)


@pytest.mark.parametrize(
    "tail",
    [
        text("b", finish="length") + last(2),
        text("b", finish="length", usage=usage(2)) + DONE,
        text("b", finish="length", usage=usage(2)) + last(2),
        text("b", finish="length") + frame({"choices": [], "usage": usage(2)}) + last(2),
    ],
    ids=["own-chunk", "last-choice", "both", "twice"],
)
def test_usage_is_found_wherever_it_is(tail: bytes) -> None:  # [7]
    stream = read((1, text("a")), (2, tail))
    assert (stream.prompt_tokens, stream.completion_tokens, stream.tokens_per_event) == (5, 2, (1, 1))
    assert stream.error is None


def test_missing_usage_is_none() -> None:  # [7d]
    stream = read((1, text("a")), (2, text("b", finish="length") + DONE))
    assert (stream.prompt_tokens, stream.completion_tokens, stream.tokens_per_event) == (None, None, ())
    assert stream.error is None


@pytest.mark.parametrize("value", ["3", None, -1, True, 2.0])
def test_usage_that_is_no_count_is_none(value: object) -> None:
    bad = frame({"choices": [], "usage": {"prompt_tokens": value, "completion_tokens": value}})
    stream = read((1, text("a", finish="length") + bad + DONE))
    assert (stream.prompt_tokens, stream.completion_tokens) == (None, None)


def test_usage_that_contradicts_itself() -> None:
    first = text("a", usage=usage(2))
    assert read((1, first + text("b", finish="length") + last(1))).error == "usage.completion_tokens fell from 2 to 1"
    other = frame({"choices": [], "usage": usage(2, prompt=6)})
    stream = read((1, first + text("b", finish="length") + other + DONE))
    assert stream.error == "usage.prompt_tokens changed from 5 to 6"


def test_usage_before_the_last_token_is_no_final_count() -> None:
    early = frame({"choices": [], "usage": usage(2)})
    assert read((1, early + text("a") + text("b", finish="length") + DONE)).error == "usage came before the last token"


def test_short_answer_is_what_came() -> None:  # [8]
    events = [text(str(i), [i], "stop" if i == 4 else None) for i in range(5)]
    stream = read((1, b"".join(events) + last(5)))
    assert (stream.completion_tokens, stream.finish_reason, stream.error) == (5, "stop", None)


def test_text_is_not_tokens() -> None:  # [9]
    events = [text(" ", finish="length" if i == 99 else None) for i in range(100)]
    stream = read((1, b"".join(events) + last(100)))
    assert (stream.completion_tokens, sum(stream.tokens_per_event)) == (100, 100)


def test_bundled_tokens_by_ids() -> None:  # [10]
    stream = read(
        (100, text("abcd", [1, 2, 3, 4])),
        (130, text("efg", [5, 6, 7])),
        (160, text("hij", [8, 9, 9], "length") + last(10)),
    )
    assert stream.tokens_per_event == (4, 3, 3)
    assert stream.token_ids == (1, 2, 3, 4, 5, 6, 7, 8, 9, 9)
    assert stream.token_times_ns == [100 * MS, 130 * MS, 160 * MS]


def test_bundled_tokens_by_continuous_usage() -> None:  # [10]
    stream = read(
        (1, text("a", usage=usage(4))),
        (2, text("b", usage=usage(7))),
        (3, text("c", finish="length", usage=usage(10)) + DONE),
    )
    assert stream.tokens_per_event == (4, 3, 3)


def test_bundled_tokens_without_a_source_are_unknown() -> None:  # [10]
    stream = read((1, text("abcd")), (2, text("efg")), (3, text("hij", finish="length") + last(10)))
    assert stream.completion_tokens == 10
    assert stream.tokens_per_event == ()


def test_one_read_with_everything_has_one_time() -> None:
    stream = read((9, text("a", [1]) + text("b", [2], "length") + last(2)))
    assert stream.token_times_ns == [9 * MS, 9 * MS]


def test_ids_without_text_are_tokens() -> None:
    """A detokenizer holds back half a character; the token was generated all the same."""
    stream = read((1, text("", [7])), (2, text("é", [8], "length") + last(2)))
    assert stream.token_times_ns == [1 * MS, 2 * MS]


def test_empty_text_without_ids_is_none() -> None:
    stream = read((1, text("", [])), (2, text("a", [8], "length") + last(1)))
    assert stream.token_times_ns == [2 * MS]
    assert stream.token_ids == (8,)


@pytest.mark.parametrize(
    ("tail", "done", "finish", "counted"),
    [
        (b"", False, None, None),
        (last(3), True, None, 3),
        (text("d", finish="length"), False, "length", None),
        (text("d", finish="length") + last(9), True, "length", 9),
    ],
    ids=["cut", "no-finish-reason", "no-done", "other-count"],
)
def test_what_the_checks_judge_is_told_and_is_no_error_here(
    tail: bytes, done: bool, finish: str | None, counted: int | None
) -> None:  # [5]
    stream = read(*THREE, (4, tail))
    assert (stream.saw_done, stream.finish_reason, stream.completion_tokens) == (done, finish, counted)
    assert stream.error is None


def test_cached_tokens_are_read() -> None:  # [12]
    counts = usage(1) | {"prompt_tokens_details": {"cached_tokens": 900}}
    stream = read((1, text("a", [1], "length", usage=counts) + DONE))
    assert stream.cached_prompt_tokens == 900
    assert read((1, text("a", [1], "length", usage=usage(1)) + DONE)).cached_prompt_tokens is None
