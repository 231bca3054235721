"""Margins and teacher-forced log-probs of the oracle, through its HTTP API: what it thought of tokens that are given.

One request per sequence, `prompt_logprobs` over prompt + output: every position is judged on the given prefix, so a
divergence early in a sequence does not colour the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from gate.errors import ArmError

TOP = 20
"""Alternatives asked for at each position; vLLM's default limit (--max-logprobs)."""


@dataclass(frozen=True, slots=True)
class Position:
    """The oracle's view of one output position, given everything before it. Log-probs in nats."""

    position: int
    """Index into the output, from 0."""
    token_id: int
    logprob: float
    """Of the given token."""
    rank: int
    """Of the given token among the whole vocabulary; 1 is the oracle's own greedy choice."""
    top_ids: tuple[int, ...]
    """All tokens that share the highest log-prob: more than one is an exact tie. Lowest id first."""
    top_logprob: float

    @property
    def margin_nats(self) -> float:
        """How much the oracle prefers its own choice to the given token; 0 where they are the same or tie."""
        return self.top_logprob - self.logprob


def teacher_forced(
    client: httpx.Client, model: str, prompt: Sequence[int], output: Sequence[int], top: int = TOP
) -> tuple[Position, ...]:
    """The oracle's log-probs of `output` after `prompt`, one Position per output token.

    client: an httpx client whose base_url is the oracle. The sequence plus one token must fit max_model_len.
    Errors: ArmError when the oracle refuses or answers something else; httpx.HTTPError when it cannot be reached.
    """
    body = {
        "model": model,
        "prompt": [*prompt, *output],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": top,
        "return_token_ids": True,
    }
    answer = client.post("/v1/completions", json=body)
    if answer.status_code != 200:
        raise ArmError(f"the oracle answered {answer.status_code} to prompt_logprobs: {answer.text[:200]}")
    rows = answer.json()["choices"][0].get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(prompt) + len(output):
        raise ArmError(
            f"the oracle returned {len(rows) if isinstance(rows, list) else 'no'} prompt_logprobs",
            expected=f"{len(prompt) + len(output)}, one per given token",
        )
    return tuple(
        _position(index, token_id, row)
        for index, (token_id, row) in enumerate(zip(output, rows[len(prompt) :], strict=True))
    )


def _position(index: int, token_id: int, row: dict[str, dict[str, Any]] | None) -> Position:
    given = (row or {}).get(str(token_id))
    if row is None or given is None:
        raise ArmError(f"the oracle gave no log-prob for token {token_id} at output position {index}")
    highest = max(entry["logprob"] for entry in row.values())
    ids = sorted(int(candidate) for candidate, entry in row.items() if entry["logprob"] == highest)
    return Position(index, token_id, given["logprob"], given["rank"], tuple(ids), highest)
