"""Read from a running vLLM what it says of itself over HTTP: version, model, limits, cache configuration."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

CACHE_CONFIG_METRIC = "vllm:cache_config_info"
"""An info metric of vLLM whose labels are its effective cache configuration."""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """A value the server does not report is None, or absent from cache_config."""

    url: str
    version: str | None
    model: str | None
    max_model_len: int | None
    cache_config: dict[str, str]
    """Labels of vllm:cache_config_info: enable_prefix_caching, cache_dtype, block_size, num_gpu_blocks …, as text."""


def read_back(url: str, timeout_s: float = 10.0) -> ReadBack:
    """GET /version, /v1/models and /metrics. httpx.HTTPError when one does not answer 200."""
    with httpx.Client(base_url=url, timeout=timeout_s) as client:
        version = client.get("/version").raise_for_status().json().get("version")
        models = client.get("/v1/models").raise_for_status().json().get("data") or [{}]
        metrics = client.get("/metrics").raise_for_status().text
    return ReadBack(
        url=url,
        version=version,
        model=models[0].get("id"),
        max_model_len=models[0].get("max_model_len"),
        cache_config=cache_config(metrics),
    )


def cache_config(metrics: str) -> dict[str, str]:
    """Labels of the cache configuration in a /metrics text; empty when the server does not expose it."""
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == CACHE_CONFIG_METRIC:
                return dict(sample.labels)
    return {}
