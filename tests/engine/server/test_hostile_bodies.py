"""Bodies made to hurt: each is a short 400, costs what its bytes cost, and reaches no sampler with a number it cannot
take."""

from __future__ import annotations

import dataclasses
import math

import httpx
import pytest
from pydantic import ValidationError

from engine.request import RANGES, SamplingParams
from engine.server.errors import shown
from engine.server.intake import CHARS_PER_TOKEN
from engine.server.protocol import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, ChatBody, CompletionBody, DetokenizeBody, parse
from engine.server.sampling import sampling_params
from tests.engine.server import fakes

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture
def live(start):
    return start()


@pytest.mark.parametrize("name", RANGES)
def test_sampling_params_outside_their_range_cannot_be_built(name):
    low, high = RANGES[name]
    for value in (low, high):
        SamplingParams(1, **{name: value})
    for value in (low - 1, high * 2 + 1, math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match=name):
            SamplingParams(1, **{name: value})


KILLED_THE_ENGINE = [
    ({"temperature": 1e39, "min_tokens": 2}, "temperature"),
    ({"repetition_penalty": 1e-45}, "repetition_penalty"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty"),
    ({"min_tokens": 2, "stop_token_ids": list(range(400))}, "stop_token_ids"),
]


@pytest.mark.parametrize(("change", "param"), KILLED_THE_ENGINE, ids=lambda v: str(v)[:40])
def test_what_once_made_nan_of_all_logits_is_a_400(live, change, param):
    answer = live.post(COMPLETION, prompt=[1, 2], **change)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("top_k", [2**63, 2**64 - 1, 2**31, 401])
def test_a_top_k_above_the_vocabulary_keeps_it_whole(top_k):
    body = parse(CompletionBody, b'{"prompt": [1], "top_k": %d}' % top_k)
    assert sampling_params(body, 1, fakes.model_info(), fakes.config().server).top_k == fakes.model_info().vocab_size


@pytest.mark.parametrize("key", ["9" * 5000, "01", "-1", "1.0", "\u0661", " 1", ""])  # an Arabic one among them
def test_a_logit_bias_key_has_one_spelling(live, key):
    answer = live.post(COMPLETION, prompt=[1], logit_bias={key: 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")
    assert len(answer.content) < 400


WIDE = [
    (CompletionBody, {"prompt": [True] * 1000}),
    (CompletionBody, {"prompt": ["a"] + [1] * 1000}),
    (CompletionBody, {"prompt": [[]] * 1000 + [1]}),
    (CompletionBody, {"prompt": [["a"]] * 1000}),
    (CompletionBody, {"prompt": [1], "stop": [1] * 1000}),
    (CompletionBody, {"prompt": [1], "stop_token_ids": ["x"] * 1000}),
    (CompletionBody, {"prompt": [1], "stop_token_ids": [1] * (MAX_STOP_TOKEN_IDS + 1)}),
    (CompletionBody, {"prompt": [1], "logit_bias": {str(i): "x" for i in range(MAX_LOGIT_BIAS + 1)}}),
    (ChatBody, {"messages": [1] * 1000}),
    (DetokenizeBody, {"tokens": ["x"] * 1000}),
]


@pytest.mark.parametrize(("kind", "fields"), WIDE, ids=lambda v: str(v)[:40])
def test_a_list_of_wrong_entries_is_one_error(kind, fields):
    """One error each made 30 MB of them take 20 GB and two minutes of every stream."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(fields)
    assert caught.value.error_count() == 1


DEEP = "[" * 1000 + "]" * 1000
LONG = "x" * 100_000
ECHOES = [
    (COMPLETION, '{"prompt": [1], "max_tokens": VALUE}', DEEP),
    (COMPLETION, '{"prompt": VALUE}', DEEP),
    (COMPLETION, '{"prompt": [1], "max_tokens": "VALUE"}', LONG),
    (COMPLETION, '{"prompt": [1], "VALUE": 1}', LONG),
    (COMPLETION, '{"prompt": [1], "stream_options": {"VALUE": 1}}', LONG),
    (CHAT, '{"messages": [{"role": VALUE, "content": "x"}]}', DEEP),
    (CHAT, '{"messages": [{"role": VALUE, "content": "x"}]}', "{}"),
    (CHAT, '{"messages": [{"role": "VALUE", "content": "x"}]}', LONG),
    (CHAT, '{"messages": [{"role": "user", "content": [{"type": "VALUE"}]}]}', LONG),
]


@pytest.mark.parametrize(("path", "body", "value"), ECHOES, ids=lambda v: v[:40])
def test_a_deep_or_long_value_is_refused_in_short(live, path, body, value):
    answer = httpx.post(live.url + path, content=body.replace("VALUE", value), trust_env=False)
    assert answer.status_code == 400, answer.text
    assert len(answer.content) < 600


def test_an_unknown_model_is_named_in_short(live):
    answer = live.post(COMPLETION, prompt=[1], model=LONG)
    assert answer.status_code == 404
    assert len(answer.content) < 400


def test_shown_is_short_for_anything():
    nested: list[object] = []
    for _ in range(5000):
        nested = [nested]
    for value in (nested, LONG, [1] * 100_000, {str(i): i for i in range(1000)}, 10**4000):
        assert len(shown(value)) <= 60
    assert shown([1, "a"]) == "[1, 'a']"


def test_more_sequences_than_the_queue_can_ever_take_is_a_400(start):
    config = fakes.config()
    live = start(config=dataclasses.replace(config, scheduler=dataclasses.replace(config.scheduler, max_waiting=3)))
    answer = live.post(COMPLETION, prompt=[[1], [2]], n=2, temperature=1)
    assert answer.status_code == 400  # a 503 would have the client try for ever
    assert "4 sequences" in answer.json()["error"]["message"]


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(start, monkeypatch):
    tokenizer = fakes.byte_level_tokenizer()
    live = start(tokenizer=tokenizer)
    monkeypatch.setattr(tokenizer, "encode", None)
    text = "a " * (CHARS_PER_TOKEN * fakes.model_info().max_model_len)
    for path, body in [
        (COMPLETION, {"prompt": text}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
        ("/tokenize", {"prompt": text}),
    ]:
        answer = live.post(path, **body)
        assert answer.status_code == 400
        assert "characters" in answer.json()["error"]["message"]


def test_more_messages_than_tokens_of_context_never_reach_the_template(start, monkeypatch):
    template = fakes.chat_template()
    live = start(template=template)
    monkeypatch.setattr(template, "render", None)
    messages = [{"role": "user", "content": ""}] * fakes.model_info().max_model_len
    for path in (CHAT, "/tokenize"):
        answer = live.post(path, messages=messages)
        assert answer.status_code == 400
        assert "128 messages" in answer.json()["error"]["message"]


def test_a_token_that_only_the_tokenizer_knows_is_a_400(start):
    """The embedding has no row for it; the step that looked it up ended the engine."""
    live = start(info=fakes.model_info(vocab_size=50))
    for path, body in [(COMPLETION, {"prompt": "zebra"}), (CHAT, {"messages": [{"role": "user", "content": "zebra"}]})]:
        answer = live.post(path, **body)
        assert answer.status_code == 400
        assert "vocabulary of 50" in answer.json()["error"]["message"]
