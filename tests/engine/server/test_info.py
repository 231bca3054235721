"""Health, version, metrics, models, tokenize and detokenize."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.server.app import create_app
from tests.engine.server import fakes
from tests.engine.server.conftest import serving


def samples(live):
    families = text_string_to_metric_families(live.get("/metrics").text)
    return {(s.name, s.labels.get("finished_reason")): s for family in families for s in family.samples}


def test_503_while_the_model_loads_then_200():
    app = create_app(None, None, fakes.config(), None)
    with serving(app) as live:
        for path in ("/health", "/v1/models"):
            answer = live.get(path)
            assert answer.status_code == 503
            assert "loading" in answer.json()["error"]["message"]
        assert live.post("/v1/completions", prompt=[1]).status_code == 503
        version = live.get("/version").json()
        assert version["manifest"] is None
        assert version["config"]["max_model_len"] == 4096
        assert "engine:num_requests_running" not in live.get("/metrics").text
        app.state.service.ready(fakes.FakeEngine(), fakes.model_info(), {"device": "cpu"})
        assert live.get("/health").status_code == 200
        assert live.get("/version").json()["config"]["max_model_len"] == 128
        assert live.get("/version").json()["manifest"] == {"device": "cpu"}


def test_503_after_the_loop_died(start):
    engine = fakes.FakeEngine()
    live = start(engine)
    assert live.get("/health").status_code == 200
    engine.alive = False
    assert "it broke" in live.get("/health").json()["error"]["message"]
    assert live.get("/health").status_code == 503
    assert "restart" in live.post("/v1/completions", prompt=[1]).json()["error"]["message"]


def test_version_shows_the_effective_configuration(start):
    answer = start(config=fakes.config(api_key_env=None)).get("/version").json()
    assert answer["engine"] == "gate-and-engine"
    expected = {
        "enable_prefix_caching": False,
        "enable_chunked_prefill": True,
        "scheduling_policy": "fcfs",
        "speculative_config": None,
        "tensor_parallel_size": 1,
        "kv_cache_dtype": "bfloat16",
        "max_model_len": 128,
        "served_model_name": "fake",
        "model": "/models/fake",
        "num_blocks": None,
        "num_gpu_blocks": 64,
        "max_num_seqs": 32,
    }
    assert expected.items() <= answer["config"].items()


def test_metrics_under_vllm_s_names(start):
    live = start()
    live.post("/v1/completions", prompt=[1, 2, 3], max_tokens=5, ignore_eos=True)
    found = samples(live)
    info = found[("engine:cache_config_info", None)]
    assert info.value == 1
    assert info.labels["enable_prefix_caching"] == "False"
    assert info.labels["cache_dtype"] == "bfloat16"
    assert info.labels["block_size"] == "16"
    assert info.labels["num_gpu_blocks"] == "64"
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "prompt_tokens_total",
        "num_preemptions_total",
        "steps_out_of_memory_total",
    ):
        assert found[(f"engine:{name}", None)].labels == {"model_name": "fake", "engine": "0"}
    assert found[("engine:kv_cache_usage_perc", None)].value == 0.25
    assert found[("engine:request_success_total", "length")].value == 1
    assert found[("engine:request_success_total", "error")].value == 0
    assert found[("engine:prefix_cache_hits_total", None)].value == 0
    assert found[("process_resident_memory_bytes", None)].value > 0
    counts = {
        "time_to_first_token_seconds": 1,
        "inter_token_latency_seconds": 4,
        "request_time_per_output_token_seconds": 1,
        "e2e_request_latency_seconds": 1,
        "request_prompt_tokens": 1,
        "request_generation_tokens": 1,
    }
    assert {name: found[(f"engine:{name}_count", None)].value for name in counts} == counts
    assert found[("engine:request_generation_tokens_sum", None)].value == 5


def test_models(start):
    (card,) = start().get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["root"], card["max_model_len"]) == ("fake", "model", "/models/fake", 128)


@pytest.mark.parametrize("text", ["the fox 你好", "", "<|im_end|>"])
def test_tokenize_and_back(start, text):
    live = start()
    got = live.post("/tokenize", prompt=text, return_token_strs=True).json()
    assert got["count"] == len(got["tokens"])
    assert got["max_model_len"] == 128
    assert len(got["token_strs"]) == got["count"]
    assert live.post("/detokenize", tokens=got["tokens"]).json() == {"prompt": text}


def test_tokenize_messages_as_chat_would(start):
    engine = fakes.FakeEngine()
    live = start(engine)
    messages = [{"role": "user", "content": "hi"}]
    live.post("/v1/chat/completions", messages=messages)
    assert live.post("/tokenize", messages=messages).json()["tokens"] == list(engine.submitted[0].prompt_ids)
