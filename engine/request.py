"""Request: one generation, its states, and who may change what.

server/session.py creates it; from then on the scheduler alone writes: it moves `status`, `computed_tokens`, `block_ids`
and `state_slot`, appends to `output_ids` what the runner sampled, and stamps the times. Others read.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Status(enum.Enum):
    """WAITING → RUNNING → FINISHED; pre-emption sends RUNNING back to WAITING with nothing computed."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    STOP = "stop"
    """An end-of-sequence id, a stop id, or (decided in server/text.py) a stop string."""
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 1000.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.001, 1000.0),
    "presence_penalty": (-1000.0, 1000.0),
    "frequency_penalty": (-1000.0, 1000.0),
}
"""Bounds, both included, never narrower than the API's. Inside them every logit stays finite in fp32, so a draw always
finds a token; a temperature of 1e39 or a penalty of 1e-45 makes NaN, and NaN selects an id that does not exist."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What was asked for. ValueError outside RANGES. temperature 0 is greedy: the lowest id of a tie wins."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    seed: int | None = None
    """With a seed a request's draws depend on (seed, position) only, never on the batch."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Number of top entries beside each sampled token; 0: the token's own; -1: the vocabulary; None: none."""
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:  # written so that NaN fails
                raise ValueError(f"{name} is {value}; expected {low} to {high}")


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. `n > 1` in the API becomes n of these."""

    id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    eos_ids: frozenset[int] = frozenset()
    arrival: float = 0.0
    """time.monotonic() at submission."""

    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    output_ids: list[int] = field(default_factory=list)
    computed_tokens: int = 0
    """Tokens whose KV and state are in the caches."""
    block_ids: list[int] = field(default_factory=list)
    state_slot: int | None = None
    preemptions: int = 0
    prompt_logprobs_sent: int = 0
    """Prompt positions whose log-probs were delivered; recomputing after a pre-emption does not deliver them again."""
    first_scheduled: float | None = None
    """time.monotonic() when it first left the queue; minus `arrival`: queue time. Pre-emption does not reset it."""
    first_token: float | None = None
    """time.monotonic() when its first token came back from the runner; minus `arrival`: engine-side TTFT."""
    finished: float | None = None
    """time.monotonic() at its end, whatever the reason; minus `arrival`: engine-side E2E latency."""

    @property
    def total_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    def ids(self, start: int, end: int) -> tuple[int, ...]:
        """Tokens start..end of prompt followed by output."""
        prompt = len(self.prompt_ids)
        return self.prompt_ids[start:end] + tuple(self.output_ids[max(0, start - prompt) : max(0, end - prompt)])
