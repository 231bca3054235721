"""The real engine on the tiny checkpoint, over HTTP: answers do not depend on how they are asked for."""

from __future__ import annotations

import concurrent.futures
import signal
import subprocess
import sys

import pytest

from engine import cli
from engine.census import CensusRow
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.server.app import create_app
from engine.server.loading import load_engine, load_text_side
from tests.engine.server.conftest import serving
from tests.engine.server.test_completions import events
from tests.engine.server.test_disconnect import send, until
from tests.engine.server.test_serve import Process, health

COMPLETION = "/v1/completions"
GREEDY = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def live(tiny_bf16_checkpoint):
    config = EngineConfig(
        # BF16 weights in float32: otherwise the shape of a batch rounds differently and a near tie may fall either way.
        ModelConfig(tiny_bf16_checkpoint, served_name="tiny", device="cpu", dtype="float32"),
        CacheConfig(kv_cache_dtype="bfloat16"),
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512),
    )
    text = load_text_side(tiny_bf16_checkpoint)
    loaded = load_engine(config, text.sampling_defaults)
    app = create_app(loaded.loop, text.tokenizer, config, loaded.info, template=text.template)
    try:
        with serving(app) as server:
            yield server
            stats = loaded.loop.stats()
            assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0)
    finally:
        loaded.loop.stop(drain=False)


def prompt(seed: int, length: int = 20) -> list[int]:
    return [11 + (seed * 7919 + k * 104729) % 1900 for k in range(length)]


def ids_of(live, **body):
    choice = live.post(COMPLETION, **{**GREEDY, "max_tokens": 12, **body}).json()["choices"][0]
    return choice["token_ids"]


def test_greedy_is_the_same_alone_together_and_streamed(live):
    prompts = [prompt(seed, 10 + 30 * seed) for seed in range(4)]
    alone = [ids_of(live, prompt=p) for p in prompts]
    assert all(len(ids) == 12 for ids in alone)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda p: ids_of(live, prompt=p), prompts)) == alone
    together = live.post(COMPLETION, prompt=prompts, max_tokens=12, **GREEDY).json()["choices"]
    assert [choice["token_ids"] for choice in together] == alone
    parts = events(live.post(COMPLETION, prompt=prompts[1], max_tokens=12, stream=True, **GREEDY))
    assert [part["choices"][0]["token_ids"] for part in parts] == [[i] for i in alone[1]]


def test_logprobs_agree_between_generation_and_scoring(live):
    body = {**GREEDY, "prompt": prompt(1), "max_tokens": 6, "logprobs": 2, "return_tokens_as_token_ids": True}
    first = live.post(COMPLETION, **body).json()["choices"][0]
    whole = prompt(1) + first["token_ids"]
    scored = live.post(COMPLETION, **{**body, "prompt": whole, "max_tokens": 0, "echo": True}).json()["choices"][0]
    assert scored["token_ids"] == []
    assert len(scored["logprobs"]["tokens"]) == len(whole)
    generated, replayed = first["logprobs"]["token_logprobs"], scored["logprobs"]["token_logprobs"][len(prompt(1)) :]
    assert replayed == pytest.approx(generated, abs=1e-3)
    best = [max(top, key=top.get) for top in first["logprobs"]["top_logprobs"]]
    assert best == [f"token_id:{i}" for i in first["token_ids"]]


def test_seeded_draws_repeat_and_choices_differ(live):
    body = {"prompt": prompt(2), "temperature": 1.0, "max_tokens": 16, "return_token_ids": True, "ignore_eos": True}
    one, two = (live.post(COMPLETION, seed=5, n=3, **body).json()["choices"] for _ in range(2))
    assert [c["token_ids"] for c in one] == [c["token_ids"] for c in two]
    assert len({tuple(c["token_ids"]) for c in one}) == 3
    other = live.post(COMPLETION, seed=6, **body).json()["choices"][0]["token_ids"]
    assert other == one[1]["token_ids"]


def test_a_stop_token_and_a_stop_string(live):
    ids = ids_of(live, prompt=prompt(3), max_tokens=8)
    choice = live.post(COMPLETION, prompt=prompt(3), stop_token_ids=[ids[3]], **GREEDY).json()["choices"][0]
    assert (choice["token_ids"], choice["stop_reason"]) == (ids[: ids.index(ids[3]) + 1], ids[3])
    text = live.post(COMPLETION, prompt=prompt(3), max_tokens=8, **GREEDY).json()["choices"][0]["text"]
    stop = text[len(text) // 2 :][:3]
    choice = live.post(COMPLETION, prompt=prompt(3), max_tokens=64, stop=stop, **GREEDY).json()["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["stop_reason"] == stop


def test_logit_bias_and_min_tokens_bind(live):
    body = {"prompt": prompt(4), "max_tokens": 5, "temperature": 0, "return_token_ids": True}
    forced = live.post(COMPLETION, logit_bias={"77": 100}, **body).json()["choices"][0]
    assert forced["token_ids"] == [77] * 5
    ended = live.post(COMPLETION, logit_bias={"2": 100}, **body).json()["choices"][0]
    assert (ended["token_ids"], ended["text"], ended["finish_reason"]) == ([2], "", "stop")
    kept = live.post(COMPLETION, logit_bias={"2": 100}, min_tokens=3, **body).json()["choices"][0]
    assert len(kept["token_ids"]) == 4
    assert 2 not in kept["token_ids"][:3]


def test_chat_and_text_prompts(live):
    messages = [{"role": "user", "content": "hello"}]
    ids = live.post("/tokenize", messages=messages).json()["tokens"]
    chat = live.post("/v1/chat/completions", messages=messages, max_tokens=6, **GREEDY).json()
    assert chat["prompt_token_ids"] == ids
    assert chat["choices"][0]["token_ids"] == ids_of(live, prompt=ids, max_tokens=6)
    assert chat["choices"][0]["message"]["reasoning"] is not None
    text = live.post("/detokenize", tokens=prompt(5)).json()["prompt"]
    back = live.post("/tokenize", prompt=text).json()["tokens"]
    assert live.post("/detokenize", tokens=back).json()["prompt"] == text


def test_a_request_that_can_never_fit_is_a_400_with_numbers(live):
    answer = live.post(COMPLETION, prompt=prompt(6, 512))
    assert answer.status_code == 400
    assert "512" in answer.json()["error"]["message"]


def test_leaving_frees_blocks_and_slots(live):
    sock = send(live, prompt=prompt(7), max_tokens=480, ignore_eos=True, stream=True)
    queued = send(live, prompt=prompt(8), max_tokens=480, ignore_eos=True)
    stats = live.app.state.service.engine.stats
    until(lambda: stats().running == 2)
    sock.recv(65536)
    sock.close()
    queued.close()
    until(lambda: (stats().running, stats().kv_usage) == (0, 0))


def test_version_and_metrics_of_the_real_engine(live):
    config = live.get("/version").json()["config"]
    assert (config["kv_cache_dtype"], config["max_model_len"], config["enable_prefix_caching"]) == (
        "float32",
        512,
        False,
    )
    before = live.app.state.service.engine.stats().generation_tokens
    ids_of(live, prompt=prompt(9), max_tokens=5)
    assert live.app.state.service.engine.stats().generation_tokens == before + 5
    text = live.get("/metrics").text
    assert 'cache_dtype="float32"' in text
    assert "engine:request_queue_time_seconds_count" in text


def test_generate_prints_the_server_s_tokens(live, tiny_bf16_checkpoint, capsys):
    command = ["generate", str(tiny_bf16_checkpoint), "--max-tokens", "6", "--device", "cpu", "--dtype", "float32"]
    command += ["--kv-cache-dtype", "bfloat16"]
    ids = ids_of(live, prompt=[11, 12, 13], max_tokens=6)
    assert cli.run([*command, "--prompt-ids", "11,12,13", "--ignore-eos", "--show-ids"]) == 0
    assert [int(line) for line in capsys.readouterr().out.split()] == ids
    assert cli.run([*command, "--prompt-ids", "11,99999"]) == 64
    assert "99999" in capsys.readouterr().err
    assert cli.run([*command, "--prompt-ids", "11", "--max-model-len", "4"]) == 64
    assert "max_model_len 4" in capsys.readouterr().err


def test_census_command(tiny_checkpoint, capsys):
    assert cli.run(["census", str(tiny_checkpoint), "--device", "cpu"]) == 0
    assert "lm_head" in capsys.readouterr().out


def test_census_command_of_a_widened_model(tiny_checkpoint, capsys, monkeypatch):
    """The whole table, which is what the message of a server sends people here for."""
    monkeypatch.setattr(CensusRow, "is_widened", property(lambda row: row.module == "layers.1.mlp.down_proj"))
    assert cli.run(["census", str(tiny_checkpoint), "--device", "cpu"]) == 1
    out = capsys.readouterr()
    assert out.err == ""
    (line,) = [line for line in out.out.splitlines() if "WIDER" in line]
    assert line.startswith("layers.*.mlp.down_proj ")
    assert "total" in out.out


@pytest.mark.slow
def test_serve_as_a_process_from_start_to_signal(tiny_checkpoint):
    module = Process.__new__(Process)
    command = [sys.executable, "-m", "engine", "serve", str(tiny_checkpoint), "--port", "0", "--device", "cpu"]
    module.child, module.log = subprocess.Popen(command, stderr=subprocess.PIPE, text=True), ""
    try:
        url = module.url()
        until(lambda: health(url) == 200)
        module.child.send_signal(signal.SIGINT)
        assert module.end() == 130
        assert "Traceback" not in module.log
    finally:
        module.child.kill()
        module.child.communicate()
