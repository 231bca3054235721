"""Answers that no record could hold end as a failed request or an unknown value: never as a traceback of the gate's."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate.arm.process import answers
from gate.client.stream import read_stream
from gate.errors import ArmError
from gate.observe import control
from gate.observe import server as ask
from oracle.capture import teacher_forced

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def sends(body: bytes) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@contextmanager
def serving(**routes: Answer) -> Iterator[str]:
    """URL of a server that answers these paths (`v1_models` is /v1/models), and 404 to all others."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            route = routes.get(self.path.strip("/").replace("/", "_"))
            if route is None:
                self.send_error(404)
            else:
                route(self)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def stream(**choice: Any) -> Any:
    event = {"choices": [{"index": 0, "text": "x", **choice}]}
    return read_stream([(1, b"data: " + json.dumps(event).encode() + b"\n\n")])


@pytest.mark.parametrize("ids", [[2**63 + 5], [2**31], [-1], [True], [1.0], ["7"], "7", {"0": 1}])
def test_ids_that_are_none_fail_the_request(ids: Any) -> None:
    got = stream(token_ids=ids)
    assert got.token_ids is None
    assert "which are no ids" in got.error


@pytest.mark.parametrize("count", [2**63 + 1, 2**53 + 1, -1, True, 1.5, "6"])
def test_counts_that_are_none_are_unknown(count: Any) -> None:
    event = {"choices": [], "usage": {"prompt_tokens": count, "completion_tokens": count}}
    got = read_stream([(1, b"data: " + json.dumps(event).encode() + b"\n\n")])
    assert (got.prompt_tokens, got.completion_tokens) == (None, None)


def test_an_error_text_is_one_line() -> None:
    got = read_stream([(1, b'data: {"error":{"message":"first\\nsecond"}}\n\n')])
    assert got.error == "server error after 0 token events: first second"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300"])
def test_counters_that_count_nothing_are_unknown(value: str) -> None:
    text = f"# TYPE vllm:prefix_cache_hits counter\nvllm:prefix_cache_hits_total {value}\n"
    with serving(metrics=sends(text.encode())) as url:
        assert ask.counters(url).prefix_cache_hit_tokens is None


@pytest.mark.parametrize(
    "version", [b'{"version": "\\ud800"}', b"[" * 100_000 + b"]" * 100_000, b"\xff\xfe", b"[]", b'{"version": NaN}']
)
def test_a_version_that_cannot_be_recorded_is_unknown(version: bytes) -> None:
    models = b'{"data": [{"id": "fake", "max_model_len": 118059162071741130342411}]}'
    with serving(version=sends(version), v1_models=sends(models)) as url:
        identity = ask.identify(url, "candidate")
    assert (identity.version, identity.max_model_len) == (None, None)
    assert identity.model_dump_json()


@pytest.mark.parametrize(
    "models", [b'{"data": null}', b'{"data": {"a": 1}}', b'{"data": [1]}', b'{"data": [{"id": "\\udfff"}]}']
)
def test_a_list_of_models_that_is_none_is_an_arm_error(models: bytes) -> None:
    with serving(v1_models=sends(models)) as url:
        with pytest.raises(ArmError):
            ask.served_model(url, "fake")
        with pytest.raises(ArmError):
            ask.identify(url, "candidate")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 130), st.sampled_from(["", "{", "}", '"', ",", "=", "\\", "\n", "#", " ", "0"])),
        max_size=12,
    )
)
def test_any_metrics_text_is_read_or_is_none(edits: list[tuple[int, str]]) -> None:
    text = '# TYPE vllm:hits counter\n# HELP vllm:hits "x"\n'
    text += 'vllm:cache_config_info{a="16",b="c\\"d"} 1.0 123\nvllm:hits_total 1e3\n'
    for at, what in edits:
        text = text[:at] + what + text[at + 1 :]
    assert isinstance(ask._samples(text, "hits"), list)


def drips(handler: http.server.BaseHTTPRequestHandler) -> None:
    """A body that never ends and never pauses long enough for a read to time out."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"x")
            handler.wfile.flush()
            threading.Event().wait(0.01)
    except OSError:
        return


def test_a_control_answer_without_an_end_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "TIMEOUT_S", 0.2)
    monkeypatch.setattr("gate.arm.process.HEALTH_TIMEOUT_S", 0.2)
    with serving(health=drips, metrics=drips) as url:
        assert not answers(url)
        assert ask.counters(url) == ask.Counters()


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", '"x"', "null", "{}"])
def test_a_log_prob_that_is_no_number_is_an_arm_error(value: str) -> None:
    body = '{"choices": [{"prompt_logprobs": [null, {"2": {"logprob": ' + value + ', "rank": 1}}]}]}'
    with (
        serving(v1_completions=sends(body.encode())) as url,
        control.client(url, 5.0) as client,
        pytest.raises(ArmError),
    ):
        teacher_forced(client, "fake", [1], [2])
