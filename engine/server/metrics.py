"""/metrics: vLLM's metric names under the prefix `engine:`, so that existing dashboards need one replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.request import FinishReason
from engine.server.devicememory import peak_reader

if TYPE_CHECKING:
    from engine.server.service import Stats

_LATENCY_S = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_TOKENS = tuple(float(2**n) for n in range(18))


class Metrics:
    """One registry per server. Request latencies are observed here; counts of the engine are read when scraped."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(f"engine:{name}", text, list(self._labels), buckets=buckets, registry=self.registry)
            return family.labels(**self._labels)

        self.ttft_s = histogram("time_to_first_token_seconds", "Arrival to first token.", _LATENCY_S)
        self.itl_s = histogram("inter_token_latency_seconds", "Between deliveries, per token.", _TOKEN_S)
        self.tpot_s = histogram("request_time_per_output_token_seconds", "Mean per token after the first.", _TOKEN_S)
        self.e2el_s = histogram("e2e_request_latency_seconds", "Arrival to last token.", _LATENCY_S)
        self.queue_s = histogram("request_queue_time_seconds", "Arrival to first scheduled.", _LATENCY_S)
        self.prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a finished request.", _TOKENS)
        self.generation_tokens = histogram("request_generation_tokens", "Output tokens of a finished request.", _TOKENS)
        self._success = Counter(
            "engine:request_success",
            "Finished requests by reason.",
            [*self._labels, "finished_reason"],
            registry=self.registry,
        )
        for reason in FinishReason:
            self._success.labels(**self._labels, finished_reason=reason.value)
        ProcessCollector(registry=self.registry)

    def finished(self, reason: str) -> None:
        self._success.labels(**self._labels, finished_reason=reason).inc()

    def watch(self, stats: Callable[[], Stats], cache_config: Mapping[str, str]) -> None:
        """From now on export the engine's own counters too. Before the model is loaded they are absent, not 0."""
        self.registry.register(_EngineCollector(stats, self._labels, cache_config, peak_reader()))

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    def __init__(
        self,
        stats: Callable[[], Stats],
        labels: Mapping[str, str],
        cache_config: Mapping[str, str],
        device_peak_bytes: Callable[[], int | None],
    ) -> None:
        self._stats, self._labels, self._cache_config = stats, labels, cache_config
        self._device_peak_bytes = device_peak_bytes

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, text, value in (
            ("num_requests_running", "Requests in the running batch.", stats.running),
            ("num_requests_waiting", "Requests in the queue.", stats.waiting),
            ("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", stats.kv_usage),
            ("device_memory_peak_bytes", "Most device memory held since the start.", self._device_peak_bytes()),
        ):
            if value is None:  # a server on a CPU holds none: that is no 0
                continue
            gauge = GaugeMetricFamily(f"engine:{name}", text, labels=list(self._labels))
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens computed.", stats.prompt_tokens),
            ("generation_tokens", "Tokens generated.", stats.generation_tokens),
            ("num_preemptions", "Requests sent back to the queue for memory.", stats.preemptions),
            ("steps_out_of_memory", "Steps that ran out of memory and were run anew.", stats.out_of_memory),
            ("prefix_cache_queries", "Tokens looked up; this engine has no prefix cache.", 0),
            ("prefix_cache_hits", "Tokens found; this engine has no prefix cache.", 0),
        ):
            counter = CounterMetricFamily(f"engine:{name}", text, labels=list(self._labels))
            counter.add_metric(list(self._labels.values()), value)
            yield counter
        names = ["engine", *self._cache_config]
        info = GaugeMetricFamily("engine:cache_config_info", "The cache's effective configuration.", labels=names)
        info.add_metric([self._labels["engine"], *self._cache_config.values()], 1.0)
        yield info
