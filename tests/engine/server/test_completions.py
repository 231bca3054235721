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


def test_n_choices_have_their_own_index_id_and_seed(start):
    engine = fakes.FakeEngine()
    got = start(engine).post("/v1/completions", prompt=[[1], [2, 3]], n=2, seed=7, max_tokens=2).json()
    assert [choice["index"] for choice in got["choices"]] == [0, 1, 2, 3]
    assert got["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
    assert [(r.prompt_ids, r.params.seed) for r in engine.submitted] == [((1,), 7), ((1,), 8), ((2, 3), 7), ((2, 3), 8)]
    assert len({r.id for r in engine.submitted}) == 4


def test_sampling_parameters_reach_the_engine(start):
    engine = fakes.FakeEngine()
    asked = {
        "max_tokens": 9,
        "min_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": -4,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "ignore_eos": True,
        "stop_token_ids": [7],
        "logprobs": 2,
    }
    start(engine).post("/v1/completions", prompt=[1], logit_bias={"5": -100, "6": 1.5}, **asked)
    params = engine.submitted[0].params
    assert {name: getattr(params, name) for name in asked} == {**asked, "stop_token_ids": (7,)}
    assert params.logit_bias == ((5, -100.0), (6, 1.5))
    assert engine.submitted[0].eos_ids == {0}


def test_defaults_come_from_generation_config_where_it_has_them(start):
    engine = fakes.FakeEngine()
    live = start(engine, info=fakes.model_info(sampling_defaults={"temperature": 0.6, "top_k": 20.0}))
    live.post("/v1/completions", prompt=[1])
    live.post("/v1/completions", prompt=[1], temperature=1e-6, top_k=-1)
    first, second = (request.params for request in engine.submitted)
    assert (first.temperature, first.top_k, first.max_tokens) == (0.6, 20, 16)
    assert (second.temperature, second.top_k) == (0.0, 0)


def test_output_beyond_the_context_is_cut_to_what_fits(start):
    engine = fakes.FakeEngine()
    got = start(engine).post("/v1/completions", prompt=[1] * 120, max_tokens=128, ignore_eos=True).json()
    assert engine.submitted[0].params.max_tokens == 8
    assert got["choices"][0]["finish_reason"] == "length"


def ids_of(text: str) -> list[int]:
    return fakes.byte_level_tokenizer().encode(text, add_special_tokens=False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_across_tokens_ends_and_aborts(start, stream, include):
    ids = ids_of("one END OF two")
    engine = fakes.FakeEngine(script=ids)
    body = {"prompt": [1], "max_tokens": 50, "stop": ["D OF"], "include_stop_str_in_output": include}
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = start(engine).post("/v1/completions", **body, **options)
    if stream:
        *parts, last = events(answer)
        choices = [part["choices"][0] for part in parts]
        text, final, used = "".join(choice["text"] for choice in choices), choices[-1], last["usage"]
    else:
        final = answer.json()["choices"][0]
        text, used = final["text"], answer.json()["usage"]
    assert text == ("one END OF" if include else "one EN")
    assert (final["finish_reason"], final["stop_reason"]) == ("stop", "D OF")
    assert used["completion_tokens"] < len(ids)
    assert engine.reasons == [fakes.FinishReason.STOP]


def test_a_stop_string_within_min_tokens_is_not_searched(start):
    engine = fakes.FakeEngine(script=ids_of("xyzxyz"))
    got = start(engine).post("/v1/completions", prompt=[1], max_tokens=6, min_tokens=4, stop="z").json()["choices"][0]
    assert (got["text"], got["stop_reason"]) == ("xyzxy", "z")


def test_the_token_that_ended_the_sequence_is_listed_but_is_no_text(start):
    engine = fakes.FakeEngine(script=[*ids_of("hi"), 0])
    live = start(engine)
    got = live.post("/v1/completions", prompt=[1], return_token_ids=True).json()["choices"][0]
    assert (got["text"], got["finish_reason"], got["stop_reason"]) == ("hi", "stop", None)
    assert got["token_ids"][-1] == 0
    engine.script = ids_of("hi.")
    got = live.post("/v1/completions", prompt=[1], stop_token_ids=ids_of(".")).json()["choices"][0]
    assert (got["text"], got["stop_reason"]) == ("hi", ids_of(".")[0])


def test_characters_are_whole_in_every_event(start):
    text = "你好 🙂🙃 Grüße"
    engine = fakes.FakeEngine(script=[*ids_of(text), 0])
    parts = events(start(engine).post("/v1/completions", prompt=[1], max_tokens=99, stream=True))
    texts = [part["choices"][0]["text"] for part in parts]
    assert "".join(texts) == text
    assert all("\ufffd" not in piece for piece in texts)
    assert len(parts) == len(engine.script)


def test_several_tokens_in_one_delivery_are_one_event(start):
    engine = fakes.FakeEngine(tokens_per_delivery=3)
    parts = events(start(engine).post("/v1/completions", prompt=[1], max_tokens=7, stream=True, return_token_ids=True))
    assert [part["choices"][0]["token_ids"] for part in parts] == [[40, 41, 42], [43, 44, 45], [46]]


def test_logprobs_schema_with_impossible_tokens(start):
    got = start().post("/v1/completions", prompt=[1], max_tokens=2, logprobs=3).json()["choices"][0]["logprobs"]
    assert got["token_logprobs"] == [-0.5, -0.5]
    assert got["text_offset"] == [0, len(got["tokens"][0])]
    assert list(got["top_logprobs"][0].values()) == [-0.5, -1.5, -9999.0]


def test_logprobs_zero_shows_the_token_itself(start):
    body = {"prompt": [1], "max_tokens": 1, "logprobs": 0, "return_tokens_as_token_ids": True}
    got = start().post("/v1/completions", **body).json()["choices"][0]["logprobs"]
    assert got["top_logprobs"] == [{"token_id:40": -0.5}]


def test_prompt_logprobs(start):
    body = {"prompt": [5, 6], "max_tokens": 1, "prompt_logprobs": 2}
    rows = start().post("/v1/completions", **body).json()["choices"][0]["prompt_logprobs"]
    assert rows[0] is None
    assert {i: (row["logprob"], row["rank"]) for i, row in rows[1].items()} == {"6": (-0.5, 1), "7": (-9999.0, 2)}


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_and_no_tokens_scores_the_prompt(start, stream):
    live = start()
    body = {"prompt": "the fox", "max_tokens": 0, "echo": True, "logprobs": 1, "return_token_ids": True}
    answer = live.post("/v1/completions", stream=stream, **body)
    got = events(answer)[0]["choices"][0] if stream else answer.json()["choices"][0]
    assert (got["text"], got["token_ids"], got["finish_reason"]) == ("the fox", [], "length")
    assert "".join(got["logprobs"]["tokens"]) == "the fox"
    assert got["logprobs"]["token_logprobs"][0] is None
    assert all(value == -0.5 for value in got["logprobs"]["token_logprobs"][1:])
    if not stream:
        assert answer.json()["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_echo_comes_before_the_answer(start, stream):
    live = start(fakes.FakeEngine(script=[*ids_of(" dog"), 0]))
    for prompt in ("the fox", ids_of("the fox")):
        answer = live.post("/v1/completions", prompt=prompt, max_tokens=9, echo=True, stream=stream)
        parts = events(answer) if stream else [answer.json()]
        assert "".join(part["choices"][0]["text"] for part in parts) == "the fox dog"


def test_an_error_in_a_stream_is_an_event_then_done(start):
    answer = start(fakes.FakeEngine(fail_after=2)).post("/v1/completions", prompt=[1], stream=True)
    *tokens, error = events(answer)
    assert len(tokens) == 2
    assert error["error"]["message"] == "the device fell over"
    assert error["error"]["type"] == "server_error"


def test_continuous_usage(start):
    options = {"include_usage": True, "continuous_usage_stats": True}
    parts = events(start().post("/v1/completions", prompt=[1, 2], max_tokens=3, stream=True, stream_options=options))
    assert [part["usage"]["total_tokens"] for part in parts] == [3, 4, 5, 5]
