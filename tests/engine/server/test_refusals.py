"""Every refusal names the field, with numbers where there are any, in OpenAI's error shape."""

from __future__ import annotations

import dataclasses

import httpx
import pytest

from engine.loop import EngineStopped
from engine.scheduler import QueueFull, RequestRefused
from engine.server.protocol import UNSUPPORTED
from tests.engine.server import fakes

COMPLETION = "/v1/completions"
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def live(start):
    return start()


def refused(answer, status, *words):
    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert set(error) == {"message", "type", "param", "code"}
    for word in words:
        assert word in error["message"]
    return error


BAD_VALUES = [
    ({"temperature": -1}, "temperature", "-1"),
    ({"temperature": "hot"}, "temperature", "hot"),
    ({"top_p": 0}, "top_p", "0"),
    ({"top_p": 1.5}, "top_p", "1.5"),
    ({"top_k": -2}, "top_k", "-2"),
    ({"min_p": 2}, "min_p", "2"),
    ({"seed": 2**63}, "seed", "9223372036854775808"),
    ({"presence_penalty": 3}, "presence_penalty", "3"),
    ({"frequency_penalty": -3}, "frequency_penalty", "-3"),
    ({"repetition_penalty": 0}, "repetition_penalty", "0"),
    ({"n": 0}, "n", "0"),
    ({"n": 17}, "n", "16"),
    ({"n": 2, "temperature": 0}, "n", "temperature 0"),
    ({"max_tokens": -1}, "max_tokens", "-1"),
    ({"max_tokens": 0}, "max_tokens", "echo"),
    ({"max_tokens": 129}, "max_tokens", "128"),
    ({"max_tokens": True}, "max_tokens", "True"),
    ({"min_tokens": 9, "max_tokens": 4}, "min_tokens", "4"),
    ({"logprobs": 21}, "logprobs", "20"),
    ({"logprobs": -1}, "logprobs", "20"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "20"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream"),
    ({"stop": ["x", ""]}, "stop", "empty"),
    ({"stop": 3}, "stop", "text"),
    ({"stop": ["x"] * 65}, "stop", "64"),
    ({"stop": "x" * 1025}, "stop", "1025"),
    ({"stop_token_ids": [400]}, "stop_token_ids", "400"),
    ({"logit_bias": {"401": 1}}, "logit_bias", "401"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "'x'"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "101"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": [[]]}, "prompt", "empty"),
    ({"prompt": [1, "x"]}, "prompt", "list of token ids"),
    ({"prompt": [1, 400]}, "prompt", "token id 400"),
    ({"prompt": [-1]}, "prompt", "token id -1"),
    ({"prompt": [1] * 128}, "prompt", "128 tokens"),
    ({"prompt": [[1]] * 257}, "prompt", "256"),
    ({"stream_options": {"include_usag": True}}, "stream_options", "include_usag"),
    ({"temprature": 1}, "temprature", "did you mean `temperature`"),
    ({"xyzzy": 1}, "xyzzy", "unknown"),
]


@pytest.mark.parametrize(("change", "param", "word"), BAD_VALUES, ids=lambda v: str(v)[:40])
def test_a_bad_value_is_a_400_that_names_it(live, change, param, word):
    error = refused(live.post(COMPLETION, **{"prompt": [1, 2], **change}), 400, word)
    assert error["param"] == param
    assert f"`{param}" in error["message"] or param == "prompt"


@pytest.mark.parametrize("name", sorted(UNSUPPORTED.keys() - {"echo"}))
def test_what_is_not_supported_is_named_not_ignored(live, name):
    assert refused(live.post(COMPLETION, prompt=[1], **{name: "something"}), 400, name)["param"] == name


@pytest.mark.parametrize("name", [name for name, neutral in UNSUPPORTED.items() if neutral and name != "echo"])
def test_a_value_that_asks_for_nothing_is_accepted(live, name):
    assert live.post(COMPLETION, prompt=[1], max_tokens=1, **{name: UNSUPPORTED[name][0]}).status_code == 200


def test_null_means_not_given(live):
    nothing = {"logprobs": None, "suffix": None, "stop": None, "seed": None, "temperature": None, "tools": None}
    assert live.post(COMPLETION, prompt=[1], max_tokens=1, **nothing).status_code == 200


def test_unknown_model_is_a_404(live):
    for path, body in [(COMPLETION, {"prompt": [1]}), (CHAT, {"messages": HI}), ("/tokenize", {"prompt": "x"})]:
        assert refused(live.post(path, model="other", **body), 404, "other", "fake")["code"] == "model_not_found"


def test_missing_prompt_and_messages(live):
    refused(live.post(COMPLETION), 400, "`prompt` is missing")
    refused(live.post(CHAT), 400, "`messages` is missing")


def test_a_body_that_is_no_json_object(live):
    for content, word in [(b"{", "not JSON"), (b"[1]", "list"), (b"", "not JSON"), (b"\xff", "not JSON")]:
        refused(httpx.post(live.url + COMPLETION, content=content, trust_env=False), 400, word)


def test_unknown_path_and_method(live):
    refused(live.get("/v2/nothing"), 404, "/v2/nothing")
    refused(live.get(COMPLETION), 405, "GET")


CHAT_BAD = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "wizard"),
    ({"messages": [{"role": "user"}]}, "content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "tool calls"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "tool calls"),
    ({"top_logprobs": 2}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "20"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"echo": True}, "echo"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"messages": [{"role": "user", "content": "fox " * 200}]}, "shorten"),
]


@pytest.mark.parametrize(("change", "word"), CHAT_BAD, ids=lambda v: str(v)[:40])
def test_chat_refusals(live, change, word):
    refused(live.post(CHAT, **{"messages": HI, **change}), 400, word)


def test_tokenize_needs_one_of_two(live):
    refused(live.post("/tokenize"), 400, "prompt")
    refused(live.post("/tokenize", prompt="x", messages=HI), 400, "either")
    refused(live.post("/detokenize", tokens=[400]), 400, "400")


def test_without_a_tokenizer_text_is_refused_and_ids_work(start):
    live = start(no_tokenizer=True)
    for path, body in [
        (COMPLETION, {"prompt": "text"}),
        (COMPLETION, {"prompt": [1], "echo": True}),
        (COMPLETION, {"prompt": [1], "stop": "x"}),
        (CHAT, {"messages": HI}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
    ]:
        refused(live.post(path, **body), 400, "tokenizer.json", "/models/fake")
    answer = live.post(COMPLETION, prompt=[1], max_tokens=2, return_token_ids=True, logprobs=1).json()["choices"][0]
    assert (answer["token_ids"], answer["text"]) == ([40, 41], "")
    assert answer["logprobs"]["tokens"] == ["token_id:40", "token_id:41"]


def test_body_size_is_limited(start):
    live = start(config=fakes.config(max_body_bytes=100))
    refused(live.post(COMPLETION, prompt="x" * 200), 413, "100 bytes")
    chunked = httpx.post(live.url + COMPLETION, content=iter([b"x" * 60, b"x" * 60]), trust_env=False)
    refused(chunked, 413, "100 bytes")


def test_queue_is_limited(start):
    engine = fakes.FakeEngine(waiting=7)
    live = start(engine)
    assert live.post(COMPLETION, prompt=[1], max_tokens=1).status_code == 200
    answer = live.post(COMPLETION, prompt=[[1], [2]], max_tokens=1)
    refused(answer, 503, "2 more", "1 now")
    assert answer.headers["retry-after"] == "1"
    assert len(engine.submitted) == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QueueFull("8 requests are waiting"), 503),
        (EngineStopped("the engine takes no requests"), 503),
        (RequestRefused("more than the pool has"), 400),
    ],
)
def test_what_the_engine_refuses(start, error, status):
    refused(start(fakes.FakeEngine(refuse=error)).post(COMPLETION, prompt=[1], stream=True), status, str(error))


def test_an_engine_error_is_a_500(start):
    refused(start(fakes.FakeEngine(fail_after=2)).post(COMPLETION, prompt=[1]), 500, "the device fell over")


def test_key(start, monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    live = start(config=fakes.config(api_key_env="MY_KEY"))
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "s3cret"},
        {"authorization": "Basic s3cret"},
    ):
        answer = httpx.post(live.url + COMPLETION, json={"prompt": [1]}, headers=headers, trust_env=False)
        assert "s3cret" not in answer.text
        refused(answer, 401, "key")
    body = {"prompt": [1], "max_tokens": 1}
    for scheme in ("Bearer", "bearer"):  # RFC 9110: a scheme's name has no case
        good = {"authorization": f"{scheme} s3cret"}
        assert httpx.post(live.url + COMPLETION, json=body, headers=good, trust_env=False).status_code == 200
    for path in ("/health", "/version", "/metrics"):
        answer = live.get(path)
        assert answer.status_code == 200
        assert "s3cret" not in answer.text


def test_an_unexpected_error_is_a_500_without_a_traceback(start, caplog):
    engine = fakes.FakeEngine(refuse=ZeroDivisionError("oops"))
    answer = start(engine).post(COMPLETION, prompt=[1])
    refused(answer, 500, "ZeroDivisionError")
    assert "Traceback" not in answer.text
    assert "oops" in caplog.text


def test_limits_come_from_the_configuration(start):
    config = fakes.config(max_n=2, max_prompts=1, max_logprobs=-1)
    live = start(config=dataclasses.replace(config))
    refused(live.post(COMPLETION, prompt=[1], n=3), 400, "allows 2")
    refused(live.post(COMPLETION, prompt=[[1], [2]]), 400, "allows 1")
    assert live.post(COMPLETION, prompt=[1], logprobs=-1, max_tokens=1).status_code == 200
