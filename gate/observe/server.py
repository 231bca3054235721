"""4 What a running server says of itself: /version, /v1/models, /metrics, its log. Never what we think we started."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families

from gate.errors import ArmError
from gate.observe import control
from gate.observe.rows import Arm, Identity

TIMEOUT_S = 10.0
PREFIXES = ("vllm:", "engine:")
"""vLLM's metric names, and ours, which are the same behind another prefix."""
VOLATILE = frozenset(
    {
        "num_gpu_blocks",
        "num_cpu_blocks",
        "kv_cache_memory_bytes",
        "kv_cache_size_tokens",
        "kv_cache_max_concurrency",
        "weights_gib",
    }
)
"""Read and recorded, but left out of the digest: sized from the memory that was free at start, they differ from start
to start of one and the same server."""
MAX_COUNT = 2**53
"""A server that reports more tokens, or a longer context, reports nothing."""
UNREACHABLE = "unreachable"
"""Stands where an identity's digest would, when the server did not answer."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the server's start; None where it does not count."""

    prefix_cache_hit_tokens: int | None = None
    preemptions: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    device_peak_bytes: int | None = None
    """Most device memory it ever held, by its own word; not a total, so it is carried over by `since`."""

    @property
    def tokens(self) -> int | None:
        """Read and made; None where it counts neither."""
        counted = [n for n in (self.prompt_tokens, self.generation_tokens) if n is not None]
        return sum(counted) if counted else None

    def since(self, before: Counters) -> Counters:
        return Counters(
            _difference(self.prefix_cache_hit_tokens, before.prefix_cache_hit_tokens),
            _difference(self.preemptions, before.preemptions),
            _difference(self.prompt_tokens, before.prompt_tokens),
            _difference(self.generation_tokens, before.generation_tokens),
            self.device_peak_bytes,
        )


def identify(url: str, arm: Arm, logged: Mapping[str, str] | None = None) -> Identity:
    """What it says over HTTP, and in its log where the gate started it (observe/serverlog.py).

    Raises ArmError when the server does not answer /v1/models, the one route every server has.
    """
    with control.client(url, TIMEOUT_S) as client:
        models = _json(client, "/v1/models")
        served = models.get("data") if models else None
        if not isinstance(served, list) or not served or not isinstance(served[0], dict):
            raise ArmError(f"{url}/v1/models of the {arm} names no model", expected="an OpenAI-compatible server")
        version = _json(client, "/version") or {}
        labels = _labels(_text(client, "/metrics"), "cache_config_info")
    reported = version.get("config")
    config = reported if isinstance(reported, dict) else {}
    facts: dict[str, Any] = {**labels, **config}
    extra = {f"config.{key}": _as_text(value) for key, value in sorted(facts.items())}
    extra |= {key: _as_text(version[key]) for key in ("engine", "manifest") if key in version}
    extra |= {f"log.{key}": value for key, value in sorted((logged or {}).items())}
    fields: dict[str, Any] = {
        "arm": arm,
        "version": _optional(version.get("version")),
        "model": _optional(served[0].get("id")),
        "max_model_len": _integer(served[0].get("max_model_len", facts.get("max_model_len"))),
        "prefix_caching": _flag(facts.get("enable_prefix_caching")),
        "kv_cache_dtype": _optional(facts.get("kv_cache_dtype", facts.get("cache_dtype"))),
        "extra": extra,
    }
    stable = fields | {"extra": {k: v for k, v in extra.items() if _bare(k) not in VOLATILE}}
    digest = hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()[:16]
    return Identity(**fields, digest=digest)


def _bare(name: str) -> str:
    return name.removeprefix("config.").removeprefix("log.")


def served_model(url: str, planned: str) -> str:
    """The name to send: the planned one; where none is planned, the only one it serves.

    Raises ArmError when it serves another, or several to choose from.
    """
    with control.client(url, TIMEOUT_S) as client:
        models = _json(client, "/v1/models") or {}
    served = models.get("data")
    entries = served if isinstance(served, list) else []
    names = [str(entry.get("id")) for entry in entries if isinstance(entry, dict)]
    if planned in names:
        return planned
    if not planned and len(names) == 1:
        return names[0]
    raise ArmError(f"{url} serves {', '.join(names) or 'no model'}", expected=planned or "exactly one model")


def counters(url: str) -> Counters:
    """Totals from /metrics; all None where there is no such route or the server is gone."""
    with control.client(url, TIMEOUT_S) as client:
        text = _text(client, "/metrics")
    names = (
        "prefix_cache_hits",
        "num_preemptions",
        "prompt_tokens",
        "generation_tokens",
        "device_memory_peak_bytes",
    )
    return Counters(*(_total(text, name) for name in names))


def start_time(url: str) -> float | None:
    """Unix time at which the server's process started, where /metrics tells."""
    with control.client(url, TIMEOUT_S) as client:
        samples = _samples(_text(client, "/metrics"), "process_start_time_seconds", ("",))
    return samples[0][1] if samples else None


def _text(client: httpx.Client, path: str) -> str | None:
    try:
        status, text = control.get(client, path)
    except httpx.HTTPError:
        return None
    return text if status == 200 else None


def _json(client: httpx.Client, path: str) -> dict[str, Any] | None:
    """orjson, because what it refuses (lone surrogates, NaN, a nesting without end) no record could hold."""
    text = _text(client, path)
    try:
        value = orjson.loads(text) if text is not None else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _samples(text: str | None, name: str, prefixes: tuple[str, ...] = PREFIXES) -> list[tuple[dict[str, str], float]]:
    """(labels, value) of a metric, with or without Prometheus' "_total"."""
    wanted = {prefix + name + end for prefix in prefixes for end in ("", "_total")}
    try:
        families = list(text_string_to_metric_families(text or ""))
    except (ValueError, IndexError):  # not Prometheus text, by two of its parser's ways to say so: no metrics
        return []
    return [(s.labels, float(s.value)) for family in families for s in family.samples if s.name in wanted]


def _labels(text: str | None, name: str) -> dict[str, str]:
    samples = _samples(text, name)
    return dict(samples[0][0]) if samples else {}


def _total(text: str | None, name: str) -> int | None:
    values = [value for _, value in _samples(text, name)]
    if not values or not all(0 <= value <= MAX_COUNT for value in values):  # NaN is not between them either
        return None
    return int(sum(values))


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _optional(value: Any) -> str | None:
    return None if value is None else str(value)


def _integer(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number <= MAX_COUNT else None


def _flag(value: Any) -> bool | None:
    return {"true": True, "false": False}.get(str(value).lower())
