from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from gate.arm.fake import FakeServer
from gate.arm.fake_answer import Query, generate, stream_steps
from gate.arm.fake_script import PRESETS, Script, load, preset
from gate.errors import UsageError
from tests.gate import struck

ASK = {"model": "fake", "prompt": [1, 2, 3], "max_tokens": 4, "return_token_ids": True}


def post(server: FakeServer, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=ASK | fields)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_script(name: str) -> None:
    assert isinstance(preset(name), Script)


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no preset 'divrge'; expected .*; did you mean 'diverge'\?"):
        preset("divrge")


def test_script_from_toml(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('token_ms = 2\ntokens_per_event = [4, 3]\nfault = "drop"\n')
    assert load(tmp_path / "a.toml") == Script(token_ms=2.0, tokens_per_event=(4, 3), fault="drop")


@pytest.mark.parametrize(("text", "message"), [("tokn_ms = 1", "tokn_ms"), ("a = ", "a.toml: "), (None, "cannot read")])
def test_bad_script_is_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "a.toml").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path / "a.toml")
    assert "\n" not in str(caught.value)


def test_tokens_depend_on_the_whole_context_and_continue_it() -> None:
    script = Script()
    ids = generate(script, (5, 6), 10)
    assert generate(script, (5, 6, *ids[:4]), 6) == ids[4:]
    assert generate(script, (5, 7), 10) != ids
    assert generate(Script(salt=1), (5, 6), 10) != ids


def test_divergence_starts_where_it_says() -> None:
    same, other = generate(Script(), (5, 6), 10), generate(Script(diverge_at=3), (5, 6), 10)
    assert other[:3] == same[:3]
    assert other[3] == (same[3] + 1) % 1000


def test_margin_query_on_the_common_prefix_agrees_with_the_streams() -> None:
    oracle, candidate = generate(Script(), (1, 2, 3), 8), generate(Script(diverge_at=3), (1, 2, 3), 8)
    with FakeServer(Script(margin_nats=0.75)) as server:
        answer = post(server, prompt=[1, 2, 3, *oracle[:3]], max_tokens=1, logprobs=20).json()
    (choice,) = answer["choices"]
    (top,) = choice["logprobs"]["top_logprobs"]
    assert choice["token_ids"] == [oracle[3]]
    assert len(top) == 20
    margin = top[f"token_id:{oracle[3]}"] - top[f"token_id:{candidate[3]}"]
    assert margin == pytest.approx(0.75)


def test_pauses_follow_the_script() -> None:
    script = Script(prefill_ms=10.0, prefill_us_per_token=1000.0, token_ms=3.0, tokens_per_event=(2, 1))
    query = Query.parse({"prompt": [1] * 5, "max_tokens": 6, "stream": True}, chat=False)
    waits = [step.wait_ms for step in stream_steps(script, query, faulty=False, factor=2.0)]
    assert waits == [30.0, 12.0, 6.0, 12.0, 0.0]


def test_delays_grow_with_concurrency() -> None:
    server = FakeServer(Script(slow_down=1.5, slow_down_per_stream=0.25))
    server.running = 3
    assert server.factor() == 2.0


@pytest.mark.parametrize(("newline", "raw"), [("lf", b"\n"), ("crlf", b"\r\n"), ("cr", b"\r")])
def test_framing_is_exact(newline: str, raw: bytes) -> None:
    script = Script(newline=newline, space_after_colon=False, comment="ping", usage="missing")  # type: ignore[arg-type]
    query = Query.parse({"prompt": [1], "max_tokens": 1, "stream": True}, chat=False)
    event, end = (step.data for step in stream_steps(script, query, faulty=False, factor=1.0))
    assert event.startswith(b": ping" + raw + b'data:{"id"')
    assert event.endswith(b"}" + raw * 2)
    assert end == b": ping" + raw + b"data:[DONE]" + raw * 2


@pytest.mark.parametrize("channel", ["reasoning", "reasoning_content", "content"])
def test_chat_opens_with_a_role_and_puts_the_first_token_in_its_channel(channel: str) -> None:
    script = Script(role_first=True, channel=channel)  # type: ignore[arg-type]
    query = Query.parse({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}, chat=True)
    role, first, second, _ = (step.data for step in stream_steps(script, query, faulty=False, factor=1.0))
    assert b'"delta":{"role":"assistant","content":""}' in role
    assert b'"delta":{"%s":" t' % channel.encode() in first
    assert b'"delta":{"content":" t' in second


def test_whole_answer_and_chat() -> None:
    with FakeServer() as server:
        answer = post(server).json()
        chat = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": "hi"}]).json()
    assert answer["choices"][0]["token_ids"] == generate(Script(), (1, 2, 3), 4)
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert chat["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "other"}, 404, "`other` does not exist"),
        ({"prompt": [1] * 4000, "max_tokens": 100}, 400, "maximum context length is 4096"),
        ({"prompt": ["a"]}, 400, "bad request"),
    ],
)
def test_bad_requests_are_answered_as_vllm_does(fields: dict[str, Any], status: int, message: str) -> None:
    with FakeServer() as server:
        response = post(server, **fields)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/nowhere", 404)])
def test_plain_endpoints(path: str, status: int) -> None:
    with FakeServer() as server:
        assert httpx.get(server.url + path).status_code == status
        assert httpx.request("DELETE", server.url + path).status_code == 405


def test_not_healthy_for_a_while() -> None:
    with FakeServer(preset("never-healthy")) as server:
        assert httpx.get(server.url + "/health").status_code == 503
        server.born -= 2e9
        assert httpx.get(server.url + "/health").status_code == 200


def test_identity_as_vllm_and_as_the_engine_tell_it() -> None:
    with FakeServer() as vllm, FakeServer(preset("engine", prefix_caching=True)) as engine:
        assert httpx.get(vllm.url + "/version").json() == {"version": "0.25.0"}
        assert httpx.get(engine.url + "/version").json()["config"]["enable_prefix_caching"] is True
        (model,) = httpx.get(vllm.url + "/v1/models").json()["data"]
        assert (model["id"], model["max_model_len"]) == ("fake", 4096)
        assert 'enable_prefix_caching="False"' in httpx.get(vllm.url + "/metrics").text
        assert "engine:cache_config_info{" in httpx.get(engine.url + "/metrics").text


def test_version_changes_after_so_many_requests() -> None:
    with FakeServer(Script(identity_changes_after=1)) as server:
        before = httpx.get(server.url + "/version").json()
        post(server)
        assert httpx.get(server.url + "/version").json() != before


def metric(server: FakeServer, name: str) -> float:
    found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", httpx.get(server.url + "/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_counters_count_and_a_restart_resets_them() -> None:
    with FakeServer(Script(restart_after_requests=2)) as server:
        born = metric(server, "process_start_time_seconds")
        post(server, stream=True)
        assert metric(server, "vllm:generation_tokens_total") == 4
        post(server, stream=True)
        assert metric(server, "vllm:prompt_tokens_total") == 6
        post(server, stream=True)
        assert metric(server, "vllm:prompt_tokens_total") == 3
        assert metric(server, "process_start_time_seconds") > born


def test_prefix_caching_shows_in_the_hit_counter() -> None:
    with FakeServer(preset("prefix-cache")) as server:
        post(server, stream=True)
        assert metric(server, "vllm:prefix_cache_hits_total") == 0
        post(server, stream=True)
        assert metric(server, "vllm:prefix_cache_hits_total") == 3


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gate.arm.fake", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_command_serves_and_dies_when_told() -> None:
    child = start("--preset", "dies", "--model", "m")
    try:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        for _ in range(4):
            assert httpx.post(f"{url}/v1/completions", json=ASK | {"model": "m"}).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{url}/v1/completions", json=ASK | {"model": "m"})
        assert child.wait(timeout=20) == 1
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [(["--preset", "god"], 64, "did you mean 'good'?"), (["--script", "/nowhere"], 64, "cannot read /nowhere")],
)
def test_command_refuses_in_one_line(args: list[str], code: int, message: str) -> None:
    child = start(*args)
    _, errors = child.communicate(timeout=20)
    assert (child.returncode, errors.count("\n")) == (code, 1)
    assert message in errors


def test_occupied_port_is_named() -> None:
    with FakeServer() as server:
        child = start("--port", str(server.port))
        _, errors = child.communicate(timeout=20)
    assert child.returncode == 69
    assert errors.startswith(f"cannot listen on port {server.port}: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("moment", ["start", "join"])
def test_an_interrupt_cuts_neither_the_start_nor_the_end_of_its_thread(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut there, Python's lock raises a RuntimeError in place of the interrupt."""
    server = FakeServer()
    whole = struck.at(monkeypatch, server._thread, moment)
    with pytest.raises(KeyboardInterrupt), server:
        pass
    server.stop()
    threading.Thread.join(server._thread, 10)
    assert whole == [moment]
