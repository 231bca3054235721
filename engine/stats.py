"""What scheduler and loop count, as the snapshots that /health and /metrics read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.request import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """A consistent snapshot. Counters only grow; the times of a single request are on Request."""

    running: int
    waiting: int
    kv_usage: float
    """Share of KV blocks in use, 0..1."""
    prompt_tokens: int
    """Prompt tokens of requests that reached their first token; recomputation is not counted again."""
    generation_tokens: int
    preemptions: int
    out_of_memory: int
    """Steps that ran out of memory and were taken back."""
    steps: int
    """Steps scheduled, the one in flight included."""
    finished: Mapping[FinishReason, int]
    """Every reason is a key, so a metric exists before its first event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStats(SchedulerStats):
    """The scheduler's counters and the state of the thread that drives it."""

    alive: bool
    """False before start(), while stopping, and after a runner error: the engine takes no requests."""
    error: str | None
    """What the runner died of."""
    step_age_s: float | None
    """Seconds the running step has taken so far; None between steps. A stalled device shows here."""
