"""/v1/chat/completions: template, reasoning split, logprobs in chat's schema."""

from __future__ import annotations

import pytest

from engine.server.template import ChatTemplate
from tests.engine.server import fakes
from tests.engine.server.test_completions import events, ids_of

HI = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


def test_the_template_makes_the_prompt(start):
    engine = fakes.FakeEngine()
    live = start(engine)
    live.post(CHAT, messages=HI)
    text = fakes.byte_level_tokenizer().decode(engine.submitted[0].prompt_ids, skip_special_tokens=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert engine.submitted[0].params.max_tokens == 128 - len(engine.submitted[0].prompt_ids)
    live.post(CHAT, messages=HI, max_tokens=3, max_completion_tokens=2)
    assert engine.submitted[1].params.max_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kwargs", "text", "reasoning", "content"),
    [
        ({}, "hm, so\n</think>\n\nHello", "hm, so", "Hello"),
        ({}, "never ends", "never ends", None),
        ({"enable_thinking": False}, "Hello", None, "Hello"),
        ({"enable_thinking": False}, "a </think> b", None, "a </think> b"),
    ],
)
def test_reasoning_is_split_from_content(start, stream, kwargs, text, reasoning, content):
    engine = fakes.FakeEngine(script=[*ids_of(text), 0])
    answer = start(engine).post(CHAT, messages=HI, chat_template_kwargs=kwargs, stream=stream)
    if stream:
        deltas = [event["choices"][0]["delta"] for event in events(answer)]
        assert len(deltas) == len(engine.script)
        assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
        got = {name: "".join(delta.get(name, "") for delta in deltas) or None for name in ("reasoning", "content")}
        assert [delta.get("reasoning") for delta in deltas] == [delta.get("reasoning_content") for delta in deltas]
    else:
        got = answer.json()["choices"][0]["message"]
        assert got["reasoning"] == got["reasoning_content"]
        assert got["role"] == "assistant"
    assert (got["reasoning"], got["content"]) == (reasoning, content)


def test_without_a_thinking_template_nothing_is_split(start):
    engine = fakes.FakeEngine(script=[*ids_of("<think>x</think>y"), 0])
    live = start(engine, template=ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}"))
    assert live.post(CHAT, messages=HI).json()["choices"][0]["message"]["content"] == "<think>x</think>y"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_in_chat_schema(start, stream):
    live = start(fakes.FakeEngine(script=ids_of("好")))
    answer = live.post(CHAT, messages=HI, logprobs=True, top_logprobs=2, stream=stream)
    choices = [event["choices"][0] for event in (events(answer) if stream else [answer.json()])]
    content = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    assert bytes(b for entry in content for b in entry["bytes"]).decode() == "好"
    assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -9999.0]
    plain = live.post(CHAT, messages=HI, logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert plain[0]["top_logprobs"] == []


def test_token_ids_in_vllm_s_places(start):
    live, engine_ids = start(fakes.FakeEngine(script=[40, 41])), [40, 41]
    whole = live.post(CHAT, messages=HI, return_token_ids=True).json()
    assert whole["choices"][0]["token_ids"] == engine_ids
    parts = events(live.post(CHAT, messages=HI, return_token_ids=True, stream=True))
    assert parts[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert "prompt_token_ids" not in parts[1]
    assert [part["choices"][0]["token_ids"] for part in parts] == [[40], [41]]


def test_usage_comes_last_with_empty_choices(start):
    parts = events(start().post(CHAT, messages=HI, max_tokens=2, stream=True, stream_options={"include_usage": True}))
    assert [len(part["choices"]) for part in parts] == [1, 1, 0]
    assert parts[-1]["usage"]["completion_tokens"] == 2


def test_text_parts_are_joined_for_templates_that_take_texts(start):
    engine = fakes.FakeEngine()
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    start(engine).post(CHAT, messages=[{"role": "user", "content": parts}])
    text = fakes.byte_level_tokenizer().decode(engine.submitted[0].prompt_ids, skip_special_tokens=False)
    assert "user\none\ntwo<|im_end|>" in text


def test_without_a_template_chat_is_refused_and_tells_the_way(start):
    live = start()
    live.app.state.service.template = None
    error = live.post(CHAT, messages=HI).json()["error"]
    assert error["code"] == "no_chat_template"
    assert "/v1/completions" in error["message"]
