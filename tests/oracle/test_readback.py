"""What is read from /metrics, from a real vLLM's text."""

from __future__ import annotations

from oracle.readback import cache_config

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="256",cache_dtype="bfloat16",enable_prefix_caching="False",engine="0"} 1.0
"""


def test_the_labels_are_the_configuration() -> None:
    labels = cache_config(METRICS)
    assert (labels["cache_dtype"], labels["enable_prefix_caching"], labels["block_size"]) == (
        "bfloat16",
        "False",
        "256",
    )


def test_a_server_without_the_metric_reports_nothing() -> None:
    assert cache_config(METRICS.replace("cache_config_info", "other_info")) == {}
