"""/v1/completions over a real socket, against the scripted engine."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.engine.server import fakes


def events(response: Any) -> list[Any]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [orjson.loads(line[6:]) for line in lines[:-1]]


def test_one_event_per_delivery_with_ids_usage_and_done(start):
    live = start()
    answer = live.post(
        "/v1/completions",
        model="fake",
        prompt=[5, 6, 7],
        max_tokens=4,
        temperature=0,
        ignore_eos=True,
        stream=True,
        stream_options={"include_usage": True},
        return_token_ids=True,
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    got = events(answer)
    choices = [event["choices"][0] for event in got[:-1]]
    assert [choice["token_ids"] for choice in choices] == [[40], [41], [42], [43]]
    assert choices[0]["prompt_token_ids"] == [5, 6, 7]
    assert all("prompt_token_ids" not in choice for choice in choices[1:])
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert got[-1]["choices"] == []
    assert got[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert all(event["usage"] is None for event in got[:-1])


@pytest.mark.parametrize("options", [{}, {"include_usage": False}])
def test_no_usage_event_unless_asked_for(start, options):
    got = events(start().post("/v1/completions", prompt=[5], max_tokens=2, stream=True, stream_options=options))
    assert len(got) == 2
    assert all("usage" not in event for event in got)


def test_streamed_and_whole_answers_are_equal(start):
    live = start()
    body = {"prompt": "the fox", "max_tokens": 12, "return_token_ids": True}
    whole = live.post("/v1/completions", **body).json()["choices"][0]
    parts = [event["choices"][0] for event in events(live.post("/v1/completions", stream=True, **body))]
    assert "".join(part["text"] for part in parts) == whole["text"]
    assert [i for part in parts for i in part["token_ids"]] == whole["token_ids"]
    assert parts[-1]["finish_reason"] == whole["finish_reason"]


def test_prompts_in_all_four_shapes(start):
    live = start()
    tokenizer = fakes.byte_level_tokenizer()
    fox = tokenizer.encode("the fox", add_special_tokens=True)
    for prompt, expected in [
        ("the fox", [fox]),
        (["the fox", "dog"], [fox, tokenizer.encode("dog", add_special_tokens=True)]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ]:
        got = live.post("/v1/completions", prompt=prompt, max_tokens=1, return_token_ids=True).json()
        assert [choice["prompt_token_ids"] for choice in got["choices"]] == expected
        assert [choice["index"] for choice in got["choices"]] == list(range(len(expected)))
        assert got["usage"]["prompt_tokens"] == sum(map(len, expected))
