"""The openai SDK against a live server: what it sends is understood, what it gets parses."""

from __future__ import annotations

import contextlib

import httpx
import openai
import pytest

from tests.engine.server import fakes
from tests.engine.server.test_completions import ids_of


@contextlib.contextmanager
def sdk_for(live):
    with httpx.Client(trust_env=False) as http:
        yield openai.OpenAI(base_url=live.url + "/v1", api_key="x", max_retries=0, http_client=http)


@pytest.fixture
def client(start):
    engine = fakes.FakeEngine(script=[*ids_of("thought\n</think>\n\nHello"), 0])
    live = start(engine)
    with sdk_for(live) as sdk:
        yield sdk


def test_models_and_completions(client):
    assert [model.id for model in client.models.list()] == ["fake"]
    done = client.completions.create(model="fake", prompt="the fox", max_tokens=3, logprobs=1, temperature=0)
    assert done.usage.completion_tokens == 3
    assert done.choices[0].finish_reason == "length"
    assert len(done.choices[0].logprobs.tokens) == 3


def test_streamed_completion(client):
    stream = client.completions.create(
        model="fake",
        prompt=[1, 2],
        stream=True,
        max_tokens=50,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True, "ignore_eos": False},
    )
    *chunks, last = list(stream)
    assert last.usage.total_tokens == 2 + len(chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[0].choices[0].model_extra["prompt_token_ids"] == [1, 2]


def test_chat_whole_and_streamed(client):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    done = client.chat.completions.create(model="fake", messages=messages, max_completion_tokens=60, user="me")
    assert done.choices[0].message.content == "Hello"
    assert done.choices[0].message.model_extra["reasoning_content"] == "thought"
    with client.chat.completions.stream(model="fake", messages=messages, logprobs=True, top_logprobs=1) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello"
    assert final.choices[0].logprobs.content[0].top_logprobs[0].logprob == -0.5


def test_errors_have_the_sdk_s_classes(client):
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.completions.create(model="gpt-4", prompt="x")
    with pytest.raises(openai.BadRequestError, match="best_of") as caught:
        client.completions.create(model="fake", prompt="x", best_of=3)
    assert caught.value.param == "best_of"
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "x"}], response_format={"type": "json_object"}
        )


def test_a_stream_that_breaks_raises(start):
    live = start(fakes.FakeEngine(fail_after=1))
    with sdk_for(live) as sdk:
        stream = sdk.completions.create(model="fake", prompt=[1], stream=True)
        with pytest.raises(openai.APIError, match="fell over"):
            list(stream)
